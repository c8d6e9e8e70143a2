//! The command: arguments, logs, banner, signals, exit codes.
//!
//! Exit codes of `serve`: 0 after an orderly stop; 1 when the broker could not start, or was taken
//! over; 2 for a wrong argument or configuration. Those of the others: `output`.

mod arguments;
mod banner;
mod bytes;
mod client;
mod configuration;
mod consume;
#[cfg(test)]
mod docs;
mod doctor;
mod ends;
mod group;
mod health;
mod http;
mod logfmt;
mod logging;
mod output;
mod produce;
mod store;
mod topic;
mod topics;
mod txn;

use std::future::Future;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use gateway::config::Config;
use gateway::{Addresses, Gateway};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

use arguments::{Arguments, Command};
use output::{Failure, Format, complain};

const FAILED: u8 = 1;
const USAGE: u8 = 2;

/// Runs the command to its end.
pub(crate) fn run() -> ExitCode {
    // Wrong arguments end the process here, with code 2.
    let arguments = match Arguments::parse().command() {
        Command::Serve(serve) => serve,
        Command::CheckConfig(check) => return output::finish(check.run()),
        Command::Config(config) => return output::finish(config.run()),
        Command::Consume(consume) => return ask(consume.run()),
        Command::Doctor(doctor) => return ask(doctor.run()),
        Command::Group(group) => return ask(group.run()),
        Command::Health(health) => return ask(health.run()),
        Command::Produce(produce) => return ask(produce.run()),
        Command::Store(store) => return ask(store.run()),
        Command::Topic(topic) => return ask(topic.run()),
        Command::Txn(txn) => return ask(txn.run()),
    };
    if arguments.check_config {
        return output::finish(configuration::check(&arguments.sources, Format::Table));
    }
    let sources = &arguments.sources;
    let configured = sources.settings(std::env::vars()).and_then(|settings| {
        let config = sources.config(&settings)?;
        logging::start(&config, &settings)?;
        Ok(config)
    });
    match configured {
        Ok(config) => serve(config, arguments.print_addresses),
        Err(error) => {
            complain(&error);
            ExitCode::from(USAGE)
        }
    }
}

/// Runs a command that asks a broker.
fn ask(answer: impl Future<Output = Result<String, Failure>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(answer),
        Err(error) => Err(Failure::Refused(format!("cannot start: {error}"))),
    };
    output::finish(outcome)
}

fn serve(config: Config, print_addresses: bool) -> ExitCode {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    open_as_many_files_as_allowed();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => {
            let code = runtime.block_on(run_gateway(config, print_addresses));
            // What still waits on threads of its own, such as for space on a full disk, would panic
            // once its timers are gone; the process ends in a moment.
            std::mem::forget(runtime);
            code
        }
        Err(error) => {
            tracing::error!(%error, "cannot start the workers");
            ExitCode::from(FAILED)
        }
    }
}

/// A connection is a file: the soft limit, often 1024, becomes the hard one, as in a JVM.
fn open_as_many_files_as_allowed() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

async fn run_gateway(config: Config, print_addresses: bool) -> ExitCode {
    // Before anything is claimed: a signal during the start must not be lost.
    let mut signals = match BrokerSignals::new() {
        Ok(signals) => signals,
        Err(error) => {
            tracing::error!(%error, "cannot wait for signals");
            return ExitCode::from(FAILED);
        }
    };
    let started = tokio::select! {
        started = Gateway::start(config) => started,
        name = signals.stop(None) => {
            tracing::info!(signal = name, "stopped while starting");
            return ExitCode::SUCCESS;
        }
    };
    let gateway = match started {
        Ok(gateway) => gateway,
        Err(error) => {
            tracing::error!(%error, "the broker did not start");
            return ExitCode::from(FAILED);
        }
    };
    banner::show(gateway.config(), gateway.addresses());
    if print_addresses && let Err(error) = print(gateway.addresses()) {
        tracing::error!(%error, "cannot print the addresses");
        return ExitCode::from(FAILED);
    }
    let code = tokio::select! {
        name = signals.stop(Some(&gateway)) => {
            tracing::info!(signal = name, "stopping; once more stops at once");
            ExitCode::SUCCESS
        }
        () = gateway.fenced() => {
            tracing::error!("another process of this broker has taken over; stopping");
            ExitCode::from(FAILED)
        }
    };
    tokio::select! {
        _complete = gateway.shutdown() => {
            tracing::info!("stopped");
            code
        }
        name = signals.stop(None) => {
            tracing::warn!(signal = name, "stopped at once");
            ExitCode::from(FAILED)
        }
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// Signals of what leaves something behind if it does not hear them.
struct EverySignal {
    ending: Signals,
    /// `None` where it is ignored, as under `nohup`.
    hang_up: Option<Signal>,
}

impl EverySignal {
    fn new() -> io::Result<Self> {
        let heard = !is_hang_up_ignored();
        let hang_up = heard.then(|| signal(SignalKind::hangup()));
        Ok(Self {
            ending: Signals::new()?,
            hang_up: hang_up.transpose()?,
        })
    }

    async fn next(&mut self) -> &'static str {
        let hung_up = async {
            match &mut self.hang_up {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            name = self.ending.next() => name,
            () = hung_up => "SIGHUP",
        }
    }
}

/// Whether who started this process wants it to outlive its terminal.
fn is_hang_up_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 != 0)
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Signals of a broker: by some, which would end the process without a drain, it is only asked.
struct BrokerSignals {
    ending: Signals,
    hang_up: Signal,
    user1: Signal,
}

impl BrokerSignals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            ending: Signals::new()?,
            hang_up: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
        })
    }

    /// The next one that ends it; others are answered in the log.
    async fn stop(&mut self, gateway: Option<&Gateway>) -> &'static str {
        loop {
            tokio::select! {
                name = self.ending.next() => return name,
                _ = self.hang_up.recv() => {
                    let why = "the configuration is read at the start alone";
                    tracing::warn!(signal = "SIGHUP", "nothing is reloaded: {why}");
                }
                _ = self.user1.recv() => summarize(gateway),
            }
        }
    }
}

/// One line about what the broker is doing.
fn summarize(gateway: Option<&Gateway>) {
    let Some(gateway) = gateway else {
        tracing::info!("state: the broker starts or stops");
        return;
    };
    let condition = gateway.broker().condition();
    tracing::info!(
        connections = gateway.metrics().connections.get(),
        topics = gateway.broker().topics().len(),
        partitions = condition.partitions,
        offline = condition.offline,
        shards = condition.shards,
        closed = condition.closed.len(),
        "state"
    );
}

fn print(addresses: &Addresses) -> io::Result<()> {
    let mut line = serde_json::to_string(addresses)?;
    line.push('\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(line.as_bytes())?;
    stdout.flush()
}
