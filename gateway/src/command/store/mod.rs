//! `fencepost store`: looks into the store of a broker that does not run. Changes nothing.

mod beside;
mod check;
mod dump;
mod export;
mod fates;
mod holes;
mod json;
mod scratch;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use coordinator::volume::format::{Registration, decode};
use coordinator::volume::layout::brokers_dir;
use store_adapter::ids::{LogId, ShardId};
use store_adapter::local::{Host, ProcHost};
use store_adapter::offline::{Layout, OfflineLog, StoredShard, layouts};
use store_adapter::runtime::Env;
use store_adapter::volume::{PosixVolume, Volume, VolumeError, block_on};
use tokio::sync::oneshot;

use super::EverySignal;
use super::output::Failure;
use check::Check;
use dump::Dump;
use export::Export;
use scratch::Scratch;

/// How long a registration that says nothing is watched: twice the period of heartbeats.
const WATCH: Duration = Duration::from_secs(2);
/// Largest registration of a broker that is read, bytes.
const REGISTRATION_MAX: u64 = 1 << 20;

/// Arguments of `fencepost store`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Store {
    /// The data directory (log.dirs)
    #[arg(
        id = "store-dir",
        long = "data-dir",
        value_name = "DIR",
        global = true,
        default_value = "data"
    )]
    data_dir: PathBuf,
    /// Read also while a broker runs: what is read is then of no moment in particular, and files
    /// may go while they are read. Not with layout=kv
    #[arg(long, global = true)]
    live: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Clone, Subcommand)]
enum Verb {
    /// Say what is damaged, in the store and in every other file that a broker reads: exit code 1
    /// if anything is. With --live, in the store only
    Check(Check),
    /// Print files, logs, segments, snapshots, and the batches and records of a topic, as JSON:
    /// exit code 1 if some can't be read, which are named
    Dump(Dump),
    /// Print the records of a topic, one JSON object a line: exit code 1 if some can't be read,
    /// which are named
    Export(Export),
}

/// Which part of a topic is meant.
#[derive(Debug, Clone, Args)]
struct Part {
    /// Only this partition
    #[arg(long, value_name = "N")]
    partition: Option<u32>,
    /// From this offset on [default: the start]
    #[arg(long, value_name = "OFFSET")]
    from: Option<i64>,
    /// Up to this offset, which is left out [default: the end]
    #[arg(long, value_name = "OFFSET")]
    upto: Option<i64>,
}

impl Part {
    /// The offsets of `log` that are meant.
    fn of(&self, log: &OfflineLog) -> std::ops::Range<i64> {
        let bounds = log.bounds;
        let from = self.from.unwrap_or(bounds.start).max(bounds.start);
        from..self.upto.unwrap_or(bounds.end).min(bounds.end)
    }
}

impl Store {
    /// Runs the command, until it is done or a signal comes. What was copied goes either way.
    pub(crate) async fn run(self) -> Result<String, Failure> {
        if let Verb::Check(check) = &self.verb
            && let Some(help) = check.help()
        {
            return help;
        }
        let mut signals = EverySignal::new()
            .map_err(|error| Failure::Refused(format!("cannot wait for signals: {error}")))?;
        let scratch = Arc::new(Scratch::default());
        let (answer, outcome) = oneshot::channel();
        let within = Arc::clone(&scratch);
        let env = Env::real();
        let runtime = Arc::clone(&env.runtime);
        let work = Box::pin(async move {
            // Whoever waits may have been told to end.
            answer.send(self.read(&env, &within)).unwrap_or_default();
        });
        drop(runtime.spawn_io("store", work));
        let outcome = tokio::select! {
            outcome = outcome => match outcome {
                Ok(outcome) => outcome,
                Err(_) => Err(Failure::Refused("ended by a panic".to_owned())),
            },
            name = signals.next() => Err(Failure::Refused(format!("ended by {name}"))),
        };
        scratch.remove();
        outcome
    }

    /// Blocks.
    fn read(self, env: &Env, scratch: &Scratch) -> Result<String, Failure> {
        let volume = PosixVolume::existing(&self.data_dir);
        let volume: Arc<dyn Volume> = Arc::new(volume.map_err(|error| failed(&error))?);
        block_on(async {
            let found = layouts(&volume).await.map_err(|error| failed(&error))?;
            if found.is_empty() {
                let dir = self.data_dir.display();
                return Err(Failure::Refused(format!("{dir}: there is no store here")));
            }
            refuse_running(&volume, (env, &ProcHost), self.live, &found).await?;
            let opened = Opened::read(volume, &found, self.live, scratch).await?;
            match self.verb {
                Verb::Check(check) => check.run(env, &opened).await,
                Verb::Dump(dump) => dump.run(&opened).await,
                Verb::Export(export) => export.run(&opened).await,
            }
        })
    }
}

/// A store that was read.
struct Opened {
    volume: Arc<dyn Volume>,
    shards: Vec<StoredShard>,
    /// Shards that can't be opened, by path, with the reason.
    refused: Vec<(String, String)>,
    /// Whether it may be written meanwhile.
    live: bool,
}

impl Opened {
    async fn read(
        volume: Arc<dyn Volume>,
        found: &[(ShardId, Layout)],
        live: bool,
        scratch: &Scratch,
    ) -> Result<Self, Failure> {
        let kv = found.iter().any(|(_, layout)| *layout == Layout::Kv);
        let copies = if kv { scratch.make()? } else { PathBuf::new() };
        let (mut shards, mut refused) = (Vec::new(), Vec::new());
        for (id, layout) in found {
            match StoredShard::read(&volume, (*id, *layout), &copies).await {
                Ok(shard) => shards.push(shard),
                Err(error) => {
                    let path = format!("__store/shard-{}", id.0);
                    refused.push((path, error.to_string()));
                }
            }
        }
        Ok(Self {
            volume,
            shards,
            refused,
            live,
        })
    }

    /// Refuses to pass for the whole store where shards could not be read.
    fn whole(&self) -> Result<(), Failure> {
        if self.refused.is_empty() {
            return Ok(());
        }
        let refused = self.refused.iter();
        let refused: Vec<String> = refused
            .map(|(path, why)| format!("\n{path}: {why}"))
            .collect();
        Err(Failure::Refused(format!(
            "what lies in these could not be read:{}",
            refused.concat()
        )))
    }

    /// The logs of a topic, in order of partitions.
    fn topic(&self, name: &str, part: &Part) -> Result<Vec<(&StoredShard, &OfflineLog)>, Failure> {
        let mut logs = Vec::new();
        for shard in &self.shards {
            let of_topic = shard.logs().into_iter().filter(|log| log.name == name);
            let wanted =
                of_topic.filter(|log| part.partition.is_none_or(|n| n == log.id.partition));
            logs.extend(wanted.map(|log| (shard, log)));
        }
        logs.sort_by_key(|(_, log)| (log.id.topic, log.id.partition));
        if logs.is_empty() {
            // It may lie in one of those.
            self.whole()?;
            return Err(Failure::Refused(format!(
                "no log of topic {name:?} in this store"
            )));
        }
        Ok(logs)
    }
}

/// Refuses a volume on which a broker runs, as far as that can be seen from here; `live`, only
/// where a database would be copied while it is written.
async fn refuse_running(
    volume: &Arc<dyn Volume>,
    (env, host): (&Env, &dyn Host),
    live: bool,
    shards: &[(ShardId, Layout)],
) -> Result<(), Failure> {
    let kv = shards.iter().any(|(_, layout)| *layout == Layout::Kv);
    if live && !kv {
        return Ok(());
    }
    let instead = if kv {
        "stop it: layout=kv is read only then"
    } else {
        "stop it, or read a moving target with --live"
    };
    let names = match volume.list(&brokers_dir()).await {
        Err(error) if error.is_not_found() => return Ok(()),
        names => names.map_err(|error| failed(&error))?,
    };
    let mut torn = Vec::new();
    for entry in names {
        let path = brokers_dir().join(&entry.name);
        let bytes = match volume.read(&path, REGISTRATION_MAX).await {
            Err(VolumeError::NotFound { .. }) => continue,
            bytes => bytes.map_err(|error| failed(&error))?,
        };
        let Ok(found) = decode::<Registration>(&bytes) else {
            torn.push((path, bytes));
            continue;
        };
        let here = found.host == host.name() && found.boot_id == host.boot_id();
        let runs = if here {
            host.is_running(found.pid, found.start_time)
        } else {
            // Whether a process of another host lives, only its heartbeat tells.
            true
        };
        if runs && !found.stopped {
            let (id, pid) = (found.id.0, found.pid);
            let host = found.host;
            return Err(Failure::Refused(format!(
                "broker {id} has this store (process {pid} on {host}); {instead}"
            )));
        }
    }
    if torn.is_empty() {
        return Ok(());
    }
    // Who runs writes again and again to what says so.
    env.clock.sleep(WATCH).await;
    for (path, before) in torn {
        let now = volume.read(&path, REGISTRATION_MAX).await;
        if now.is_ok_and(|now| now != before) {
            return Err(Failure::Refused(format!(
                "a broker writes to {path}; {instead}"
            )));
        }
    }
    Ok(())
}

fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::Refused(error.to_string())
}

/// How messages name a log.
fn named(log: &OfflineLog) -> String {
    let LogId { topic, partition } = log.id;
    format!("{}-{partition} ({topic})", log.name)
}

/// Writes a line to the output. What nobody reads any more is no failure.
fn print(value: &serde_json::Value) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{value}") {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(failed(&error)),
    }
}
