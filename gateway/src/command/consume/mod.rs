//! `fencepost consume`: prints the records of a topic, in the words of kcat.
//!
//! What was read is printed whole and flushed before the command ends, also on a signal. Memory is
//! bounded by an answer of a broker.

mod batches;
mod fetch;
mod format;
mod places;

use std::io::{self, Write};

use clap::Args;

use super::Signals;
use super::bytes::Delimiter;
use super::client::{Client, Connect};
use super::ends::Isolation;
use super::output::Failure;
use super::topics::{Cluster, Place};
use fetch::{Ended, Reader};
use format::{Layout, Parts, Printer};
use places::{Bound, Span};

/// How a record of a transaction is printed with `--txn`.
const TXN_FORMAT: &str = "%t-%p@%o producer %P epoch %E sequence %q %x: %s\\n";

/// Arguments of `fencepost consume`.
#[derive(Debug, Clone, Args)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command")]
pub(crate) struct Consume {
    #[command(flatten)]
    connect: Connect,
    /// The topic
    topic: String,
    /// Only this partition; can be repeated [default: all]
    #[arg(short, long = "partition", value_name = "N")]
    partitions: Vec<i32>,
    /// Where to start: beginning, end, an offset, -N for the last N, s@MS for a time; and, given
    /// once more, where to stop: e@MS [default: beginning]
    #[arg(
        short,
        long = "offset",
        value_name = "OFFSET",
        allow_hyphen_values = true
    )]
    offsets: Vec<Bound>,
    /// Exit behind the last record that is there at the start
    #[arg(short, long)]
    exit: bool,
    /// Exit after so many records
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// How a record is printed: json, or text with %s value, %k key, %h headers, %t topic,
    /// %p partition, %o offset, %T timestamp, %S and %K lengths, %P producer id, %E epoch,
    /// %q sequence, %x transaction [default: %s\n]
    #[arg(short, long, value_name = "FORMAT", conflicts_with_all = ["key_delimiter", "delimiter"])]
    format: Option<Layout>,
    /// The same as --format json
    #[arg(short = 'J', long, conflicts_with = "format")]
    json: bool,
    /// Print keys, with this behind them
    #[arg(short = 'K', long, value_name = "DELIM")]
    key_delimiter: Option<Delimiter>,
    /// What is printed behind every record [default: \n]
    #[arg(short = 'D', long, value_name = "DELIM")]
    delimiter: Option<Delimiter>,
    /// Print NULL for null keys and values
    #[arg(short = 'Z', long)]
    null: bool,
    /// What is seen of transactions [default: read_committed; with --txn read_uncommitted]
    #[arg(long, value_enum, value_name = "LEVEL")]
    isolation: Option<Isolation>,
    /// Show markers and aborted records too, and what became of each transaction
    #[arg(long)]
    txn: bool,
}

impl Consume {
    /// Runs the command.
    pub(crate) async fn run(self) -> Result<String, Failure> {
        let mut signals = Signals::new()
            .map_err(|error| Failure::Refused(format!("cannot wait for signals: {error}")))?;
        let span = Span::new(&self.offsets, self.exit)?;
        let printer = self.printer()?;
        let mut client = Client::new(&self.connect);
        let mut out = io::BufWriter::with_capacity(OUT_LEN, io::stdout().lock());
        let ended = tokio::select! {
            biased;
            _ = signals.next() => Ok(Ended::Done),
            ended = self.read(&mut client, span, &printer, &mut out) => ended,
        };
        let flushed = out.flush();
        match ended? {
            Ended::Done => written(flushed).map(|()| String::new()),
            // Whoever read the output has seen enough.
            Ended::OutputClosed => Ok(String::new()),
        }
    }

    async fn read(
        &self,
        client: &mut Client,
        span: Span,
        printer: &Printer,
        out: &mut impl Write,
    ) -> Result<Ended, Failure> {
        let all = self.isolation.unwrap_or(if self.txn {
            Isolation::ReadUncommitted
        } else {
            Isolation::ReadCommitted
        });
        let places = self.places(client).await?;
        let ranges = places::ranges(client, &self.topic, &places, span, all).await?;
        let mut reader = Reader::new(&self.topic, &ranges, all, self.txn, self.count);
        reader.run(client, printer, out).await
    }

    /// The partitions that are read.
    async fn places(&self, client: &mut Client) -> Result<Vec<Place>, Failure> {
        let cluster = Cluster::ask(client, Some(std::slice::from_ref(&self.topic))).await?;
        let all = cluster.of(&self.topic).map(|(place, _)| place.clone());
        let mut places: Vec<Place> = all.collect();
        if !self.partitions.is_empty() {
            for partition in &self.partitions {
                let place = (self.topic.clone(), *partition);
                if !cluster.partitions.contains_key(&place) {
                    cluster.leader(&place)?;
                }
            }
            places.retain(|(_, partition)| self.partitions.contains(partition));
        }
        Ok(places)
    }

    fn printer(&self) -> Result<Printer, Failure> {
        let layout = match &self.format {
            _ if self.json => Layout::Json,
            Some(layout) => layout.clone(),
            None if self.txn && self.key_delimiter.is_none() && self.delimiter.is_none() => {
                TXN_FORMAT.parse().map_err(Failure::Usage)?
            }
            None => {
                let key = self.key_delimiter.as_ref().map(|d| d.0.as_slice());
                let end = self.delimiter.as_ref().map_or(&b"\n"[..], |d| &d.0);
                Layout::Parts(Parts::plain(key, end))
            }
        };
        Ok(Printer {
            layout,
            null: if self.null { b"NULL" } else { b"" },
            with_fate: self.txn,
        })
    }
}

/// Output is collected up to so many bytes.
const OUT_LEN: usize = 64 << 10;

/// What a failure to print means; that nobody reads any more is none.
fn written(outcome: io::Result<()>) -> Result<(), Failure> {
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Refused(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}
