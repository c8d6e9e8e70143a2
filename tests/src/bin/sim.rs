//! Repeats one simulated run with its event log, or tries many seeds.

use std::io::Write;
use std::time::Duration;

use clap::{Parser, Subcommand};
use store_adapter::runtime::Env;
use tests::sim::scenario::{self, Report};

#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    /// The seed to repeat.
    seed: Option<u64>,
    /// Leaves the event log out.
    #[arg(long)]
    quiet: bool,
    /// Plants a deliberate fault, by its name in the code.
    #[arg(long, global = true)]
    fault: Option<String>,
    /// Shows what the brokers log.
    #[arg(long, global = true)]
    trace: bool,
    /// Stops at the first seed that fails.
    #[arg(long, global = true)]
    first: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Tries new seeds one after the other for some seconds.
    Soak {
        /// How long.
        seconds: u64,
        /// The first seed.
        #[arg(long, default_value_t = 1000)]
        from: u64,
    },
    /// Tries every seed of a range.
    Seeds {
        /// The first.
        from: u64,
        /// Behind the last.
        to: u64,
        /// From one to the next.
        #[arg(long, default_value_t = 1)]
        step: usize,
    },
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    plant(arguments.fault.as_deref())?;
    if arguments.trace {
        let subscriber = tracing_subscriber::fmt().with_writer(std::io::stderr);
        subscriber.without_time().init();
    }
    let first = arguments.first;
    let mut out = std::io::stdout();
    match (arguments.seed, arguments.command) {
        (_, Some(Command::Soak { seconds, from })) => {
            // Simulated tasks must not run inside of a tokio runtime, which would budget them.
            let runtime = tokio::runtime::Builder::new_current_thread().build()?;
            let clock = runtime.block_on(async { Env::real() }).clock;
            let end = clock.monotonic() + Duration::from_secs(seconds);
            try_all(
                &mut out,
                first,
                (from..).take_while(|_| clock.monotonic() < end),
            )
        }
        (_, Some(Command::Seeds { from, to, step })) => {
            try_all(&mut out, first, (from..to).step_by(step.max(1)))
        }
        (Some(seed), None) => {
            let report = scenario::run(seed);
            if !arguments.quiet {
                for line in &report.log {
                    writeln!(out, "{line}")?;
                }
            }
            write!(out, "{report}")?;
            anyhow::ensure!(report.violations.is_empty(), "seed {seed} failed");
            Ok(())
        }
        (None, None) => anyhow::bail!("a seed, `soak SECONDS`, or `seeds FROM TO`"),
    }
}

fn try_all(
    out: &mut impl Write,
    first: bool,
    seeds: impl Iterator<Item = u64>,
) -> anyhow::Result<()> {
    let (mut tried, mut failed) = (0_u64, 0_u64);
    for seed in seeds {
        let report: Report = scenario::run(seed);
        tried += 1;
        if !report.violations.is_empty() {
            failed += 1;
            write!(out, "{report}")?;
            if first {
                break;
            }
        }
    }
    writeln!(out, "{tried} seeds, {failed} failed")?;
    anyhow::ensure!(failed == 0, "{failed} seeds failed");
    Ok(())
}

#[cfg(feature = "planted-faults")]
fn plant(name: Option<&str>) -> anyhow::Result<()> {
    use store_adapter::fault::{Fault, plant};

    let Some(name) = name else { return Ok(()) };
    let named = |fault: &&Fault| format!("{fault:?}") == name;
    let fault = Fault::ALL.iter().find(named).copied();
    anyhow::ensure!(fault.is_some(), "one of {:?}", Fault::ALL);
    plant(fault);
    Ok(())
}

#[cfg(not(feature = "planted-faults"))]
fn plant(name: Option<&str>) -> anyhow::Result<()> {
    anyhow::ensure!(name.is_none(), "faults need the feature planted-faults");
    Ok(())
}
