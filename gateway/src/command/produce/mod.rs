//! `fencepost produce`: writes records to a topic, in the words of kcat.
//!
//! Always idempotent, always acknowledged by every replica. Ends with success only if every
//! record was acknowledged. Memory is bounded: input is read as fast as it is acknowledged.

pub(super) mod batch;
mod input;
mod sender;
mod session;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use bytes::Bytes;
use clap::Args;
use serde::Serialize;
use store_adapter::runtime::Env;

use super::Signals;
use super::bytes::Delimiter;
use super::client::{Client, Connect, RETRY_PAUSE, passes};
use super::output::{Failure, Format, Row, check, help, or_dash, render};
use super::topics::Cluster;
use batch::{Header, Pending, partition_of};
use input::Input;
use sender::{Acked, Sender, Unacked};
use session::Session;

/// A batch that has so many bytes is sent: fewer than any broker takes by default.
const BATCH_LEN: usize = 512 << 10;
/// So many parts of the input are sent together.
const PARTS_TOGETHER: usize = 8;
/// So many bytes in all partitions are sent.
const PENDING_LEN: usize = 4 << 20;

/// Arguments of `fencepost produce`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Produce {
    #[command(flatten)]
    connect: Connect,
    /// How the outcome is printed
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// The topic
    topic: String,
    /// To this partition [default: by key, or any]
    #[arg(short, long, value_name = "N")]
    partition: Option<i32>,
    /// The key of every record that has none of its own
    #[arg(short, long)]
    key: Option<String>,
    /// What stands between the key and the value of a record
    #[arg(short = 'K', long, value_name = "DELIM")]
    key_delimiter: Option<Delimiter>,
    /// What stands behind each record [default: \n]
    #[arg(short = 'D', long, value_name = "DELIM")]
    delimiter: Option<Delimiter>,
    /// A header of every record, without = one that is null; can be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<Header>,
    /// Empty values and keys are null
    #[arg(short = 'Z', long)]
    null: bool,
    /// Only the first records of the input
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// Read records from this file instead of standard input
    #[arg(short = 'l', long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// All records in one transaction of this id: committed at the end of the input, aborted if
    /// anything goes wrong
    #[arg(long, value_name = "ID")]
    txn: Option<String>,
    /// The transaction's timeout, in milliseconds
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 60_000,
        requires = "txn",
        value_parser = clap::value_parser!(i32).range(1..)
    )]
    txn_timeout: i32,
}

#[allow(clippy::unnecessary_wraps, reason = "the form of a value parser")]
fn header(text: &str) -> Result<Header, String> {
    Ok(match text.split_once('=') {
        Some((name, value)) => (name.into(), Some(value.into())),
        None => (text.into(), None),
    })
}

/// What was written to a partition.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    topic: String,
    partition: i32,
    records: u64,
    first_offset: Option<i64>,
    last_offset: Option<i64>,
}

impl Row for Written {
    const HEADINGS: &'static [&'static str] = &[
        "TOPIC",
        "PARTITION",
        "RECORDS",
        "FIRST-OFFSET",
        "LAST-OFFSET",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.topic.clone(),
            self.partition.to_string(),
            self.records.to_string(),
            or_dash(self.first_offset),
            or_dash(self.last_offset),
        ]
    }
}

impl Produce {
    /// Runs the command.
    pub(crate) async fn run(self) -> Result<String, Failure> {
        if self.format == Format::Help {
            return help::<Written>();
        }
        let signals = Signals::new()
            .map_err(|error| Failure::Refused(format!("cannot wait for signals: {error}")))?;
        let source: Box<dyn Read + Send> = match &self.file {
            None => Box::new(io::stdin()),
            Some(path) => {
                let file = File::open(path);
                let named = |error| Failure::Usage(format!("{}: {error}", path.display()));
                Box::new(file.map_err(named)?)
            }
        };
        let client = &mut Client::new(&self.connect);
        let cluster = self.cluster(client).await?;
        let partitions = self.partitions(&cluster)?;
        let id = self.txn.as_deref().map(|id| (id, self.txn_timeout));
        let session = Session::begin(client, &self.topic, id).await?;
        let env = Env::real();
        let start = env.random.next_u64();
        let delimiter = self.delimiter.clone().map_or(b"\n".to_vec(), |d| d.0);
        let mut run = Run {
            sender: Sender::new(&self.topic, session, cluster),
            pending: BTreeMap::new(),
            sticky: usize::try_from(start % 0x7fff_ffff).unwrap_or(0),
            partitions,
            number: 0,
            args: &self,
        };
        let mut input = Input::begin(&env, source, delimiter);
        let outcome = run.all(client, &mut input, signals).await;
        run.finish(client, outcome).await
    }

    /// The topic, which is made if it is not there and the cluster makes topics.
    async fn cluster(&self, client: &mut Client) -> Result<Cluster, Failure> {
        let topic = [self.topic.clone()];
        let late = client.monotonic() + client.patience();
        loop {
            let cluster = Cluster::look(client, Some(&topic), true).await?;
            let code = cluster
                .topics
                .get(&self.topic)
                .map_or(0, |named| named.code);
            let leaders = cluster.leaders();
            if code == 0 && !leaders.is_empty() && leaders.len() == cluster.partitions.len() {
                return Ok(cluster);
            }
            if client.monotonic() >= late || code != 0 && !passes(code) {
                check(code, || format!("topic {}", self.topic))?;
                if leaders.is_empty() {
                    let topic = &self.topic;
                    let why = format!("topic {topic}: no partition has a leader");
                    return Err(Failure::Refused(why));
                }
                return Ok(cluster);
            }
            client.pause(RETRY_PAUSE).await;
        }
    }

    /// Partitions that records may go to.
    fn partitions(&self, cluster: &Cluster) -> Result<Partitions, Failure> {
        if let Some(partition) = self.partition {
            cluster.leader(&(self.topic.clone(), partition))?;
        }
        let led = cluster
            .leaders()
            .into_keys()
            .map(|(_, partition)| partition);
        Ok(Partitions {
            all: u32::try_from(cluster.partitions.len()).unwrap_or(u32::MAX),
            led: led.collect(),
        })
    }
}

/// Partitions of the topic.
#[derive(Debug)]
struct Partitions {
    /// How many there are.
    all: u32,
    /// Those that have a leader.
    led: Vec<i32>,
}

/// Why the input was not written to its end.
enum Broken {
    Unacked(Unacked),
    Input(String),
    /// A signal came. What had been read was written.
    Interrupted,
}

struct Run<'a> {
    args: &'a Produce,
    sender: Sender,
    pending: BTreeMap<i32, Pending>,
    partitions: Partitions,
    /// Where records without a key go until they are sent.
    sticky: usize,
    /// Number of the last record.
    number: u64,
}

impl Run<'_> {
    /// Sends the whole input.
    async fn all(
        &mut self,
        client: &mut Client,
        input: &mut Input,
        mut signals: Signals,
    ) -> Result<(), Broken> {
        let mut is_interrupted = false;
        while !self.is_enough() {
            let part = if is_interrupted {
                input.rest().await
            } else {
                tokio::select! {
                    biased;
                    _ = signals.next() => {
                        is_interrupted = true;
                        input.stop();
                        continue;
                    }
                    part = input.next() => part,
                }
            };
            let Some(part) = part else { break };
            self.take(client, part).await?;
            // What has come meanwhile goes with it.
            for _ in 0..PARTS_TOGETHER {
                let Some(part) = input.ready() else { break };
                self.take(client, part).await?;
            }
            self.send(client).await?;
        }
        self.send(client).await?;
        if is_interrupted {
            return Err(Broken::Interrupted);
        }
        Ok(())
    }

    fn is_enough(&self) -> bool {
        self.args.count.is_some_and(|count| self.number >= count)
    }

    async fn take(&mut self, client: &mut Client, part: input::Part) -> Result<(), Broken> {
        let lines = match part {
            Ok(lines) => lines,
            Err(why) => {
                // What stands before it is good.
                self.send(client).await?;
                return Err(Broken::Input(why));
            }
        };
        for line in lines {
            if self.is_enough() {
                break;
            }
            self.put(client, &line).await?;
        }
        Ok(())
    }

    async fn put(&mut self, client: &mut Client, line: &Bytes) -> Result<(), Broken> {
        let args = self.args;
        let (key, value) = match &args.key_delimiter {
            Some(Delimiter(between)) => split(line, between),
            None => (None, &line[..]),
        };
        let key = key.or(args.key.as_deref().map(str::as_bytes));
        let is_null = |bytes: &[u8]| args.null && bytes.is_empty();
        let key = key.filter(|key| !is_null(key));
        let value = Some(value).filter(|value| !is_null(value));
        let partition = self.partition(key);
        let full = self
            .pending
            .get(&partition)
            .is_some_and(|batch| batch.len() > 0 && batch.len() + line.len() > BATCH_LEN);
        let total: usize = self.pending.values().map(Pending::len).sum();
        if full || total > PENDING_LEN {
            self.send(client).await?;
        }
        self.number += 1;
        let batch = self.pending.entry(partition).or_default();
        batch.push(self.number, client.now_ms(), (key, value), &args.headers);
        Ok(())
    }

    fn partition(&self, key: Option<&[u8]>) -> i32 {
        if let Some(partition) = self.args.partition {
            return partition;
        }
        if let Some(key) = key {
            let partition = partition_of(key, self.partitions.all);
            return i32::try_from(partition).unwrap_or(0);
        }
        let led = &self.partitions.led;
        let at = self.sticky % led.len().max(1);
        led.get(at).copied().unwrap_or(0)
    }

    async fn send(&mut self, client: &mut Client) -> Result<(), Broken> {
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return Ok(());
        }
        self.sticky = self.sticky.wrapping_add(1);
        let sent = self.sender.send(client, pending).await;
        sent.map_err(Broken::Unacked)
    }

    /// Ends the transaction, and says what was written.
    async fn finish(
        self,
        client: &mut Client,
        outcome: Result<(), Broken>,
    ) -> Result<String, Failure> {
        let broken = match outcome {
            Ok(()) => {
                let committed = self.sender.end(client, true).await;
                return match committed {
                    Ok(()) => self.written(),
                    Err(why) => Err(reworded(&why, format!("{why}; {COMMIT_UNSURE}"))),
                };
            }
            Err(Broken::Interrupted) if self.args.txn.is_none() => return self.written(),
            Err(broken) => broken,
        };
        let acked = self.sender.total();
        let (failure, said) = match broken {
            Broken::Unacked(unacked) => {
                let written = if unacked.is_certain {
                    "was not written"
                } else {
                    "may have been written"
                };
                let record = unacked.record;
                let said = format!(
                    "{}; record {record} {written}, {acked} records are acknowledged",
                    unacked.why
                );
                (unacked.why, said)
            }
            Broken::Input(why) => {
                let said = format!("{why}; the {acked} records before it are acknowledged");
                (Failure::Usage(String::new()), said)
            }
            Broken::Interrupted => (Failure::Refused(String::new()), "interrupted".to_owned()),
        };
        if self.args.txn.is_none() {
            let failure = reworded(&failure, said);
            return Err(failure.after(self.written()?));
        }
        let said = match self.sender.end(client, false).await {
            Ok(()) => format!("{said}; the transaction is aborted"),
            Err(why) => format!("{said}; the transaction is left to its timeout: {why}"),
        };
        Err(reworded(&failure, said))
    }

    fn written(&self) -> Result<String, Failure> {
        if self.args.quiet {
            return Ok(String::new());
        }
        let rows = self.sender.acked().iter().map(|(partition, acked)| {
            let Acked {
                records,
                first_offset,
                last_offset,
            } = *acked;
            Written {
                topic: self.args.topic.clone(),
                partition: *partition,
                records,
                first_offset,
                last_offset,
            }
        });
        let rows: Vec<Written> = rows.collect();
        render(&rows, self.args.format)
    }
}

const COMMIT_UNSURE: &str =
    "whether the transaction is committed, `fencepost txn describe` may say";

/// The same kind of failure in other words.
fn reworded(failure: &Failure, words: String) -> Failure {
    match failure {
        Failure::Usage(_) => Failure::Usage(words),
        Failure::Unreachable(_) => Failure::Unreachable(words),
        Failure::TimedOut(_) => Failure::TimedOut(words),
        Failure::Refused(_) | Failure::Partly { .. } => Failure::Refused(words),
    }
}

/// Key and value of a line; one without a delimiter has no key.
fn split<'a>(line: &'a [u8], between: &[u8]) -> (Option<&'a [u8]>, &'a [u8]) {
    let found = line.windows(between.len()).position(|part| part == between);
    match found {
        Some(at) => {
            let (key, rest) = line.split_at(at);
            (Some(key), rest.get(between.len()..).unwrap_or_default())
        }
        None => (None, line),
    }
}
