//! `fencepost store`: looks into the store of a broker that does not run. Changes nothing.

mod check;
mod dump;
mod export;
mod json;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};
use coordinator::volume::format::{Registration, decode};
use coordinator::volume::layout::brokers_dir;
use store_adapter::ids::LogId;
use store_adapter::journal::{OfflineLog, OfflineShard, shards};
use store_adapter::local::{Host, ProcHost};
use store_adapter::volume::{PosixVolume, Volume, VolumeError, block_on};

use super::output::Failure;
use check::Check;
use dump::Dump;
use export::Export;

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
    /// may go while they are read
    #[arg(long, global = true)]
    live: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Clone, Subcommand)]
enum Verb {
    /// Say what is damaged: exit code 1 if anything is
    Check(Check),
    /// Print files, logs, segments, snapshots, and the batches and records of a topic, as JSON
    Dump(Dump),
    /// Print the records of a topic, one JSON object a line
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
    /// Runs the command. Blocks.
    pub(crate) fn run(self) -> Result<String, Failure> {
        let volume = PosixVolume::existing(&self.data_dir);
        let volume: Arc<dyn Volume> = Arc::new(volume.map_err(|error| failed(&error))?);
        block_on(async {
            if !self.live {
                refuse_running(&volume, &ProcHost).await?;
            }
            let opened = Opened::read(volume, &self.data_dir).await?;
            match self.verb {
                Verb::Check(check) => check.run(&opened).await,
                Verb::Dump(dump) => dump.run(&opened).await,
                Verb::Export(export) => export.run(&opened).await,
            }
        })
    }
}

/// A store that was read.
struct Opened {
    volume: Arc<dyn Volume>,
    shards: Vec<OfflineShard>,
    /// Shards that can't be opened, by path, with the reason.
    refused: Vec<(String, String)>,
}

impl Opened {
    async fn read(volume: Arc<dyn Volume>, dir: &std::path::Path) -> Result<Self, Failure> {
        let ids = shards(&volume).await.map_err(|error| failed(&error))?;
        if ids.is_empty() {
            let dir = dir.display();
            return Err(Failure::Refused(format!("{dir}: there is no store here")));
        }
        let mut opened = Self {
            volume: Arc::clone(&volume),
            shards: Vec::new(),
            refused: Vec::new(),
        };
        for id in ids {
            match OfflineShard::read(Arc::clone(&volume), id).await {
                Ok(shard) => opened.shards.push(shard),
                Err(error) => {
                    let path = format!("__store/shard-{}", id.0);
                    opened.refused.push((path, error.to_string()));
                }
            }
        }
        Ok(opened)
    }

    /// The logs of a topic, in order of partitions.
    fn topic(&self, name: &str, part: &Part) -> Result<Vec<(&OfflineShard, &OfflineLog)>, Failure> {
        let mut logs = Vec::new();
        for shard in &self.shards {
            let of_topic = shard.logs().filter(|log| log.name == name);
            let wanted =
                of_topic.filter(|log| part.partition.is_none_or(|n| n == log.id.partition));
            logs.extend(wanted.map(|log| (shard, log)));
        }
        logs.sort_by_key(|(_, log)| (log.id.topic, log.id.partition));
        if logs.is_empty() {
            return Err(Failure::Refused(format!(
                "no log of topic {name:?} in this store"
            )));
        }
        Ok(logs)
    }
}

/// Refuses a volume on which a broker runs, as far as that can be seen from here.
async fn refuse_running(volume: &Arc<dyn Volume>, host: &dyn Host) -> Result<(), Failure> {
    let names = match volume.list(&brokers_dir()).await {
        Err(error) if error.is_not_found() => return Ok(()),
        names => names.map_err(|error| failed(&error))?,
    };
    for entry in names {
        let path = brokers_dir().join(&entry.name);
        let bytes = match volume.read(&path, REGISTRATION_MAX).await {
            Err(VolumeError::NotFound { .. }) => continue,
            bytes => bytes.map_err(|error| failed(&error))?,
        };
        let Ok(found) = decode::<Registration>(&bytes) else {
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
                "broker {id} has this store (process {pid} on {host}); stop it, or read a moving \
                 target with --live"
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
