//! What a run is asked to do.

use std::fmt::Display;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};

use crate::raw::batch::HEADER_LEN;

/// Direction of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Append batches.
    Produce,
    /// Read batches back.
    Fetch,
    /// Run transactions of one batch each.
    Transact,
}

/// Where a fetching run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StartAt {
    /// At the start of each log, ending at the offset that was latest when the run began.
    Earliest,
    /// At the end of each log, waiting for new batches.
    Latest,
}

/// Options of the load generator; sizes are bytes, MB are 10^6 bytes.
#[derive(Debug, Clone, Parser)]
#[allow(clippy::struct_excessive_bools, reason = "flags")]
#[command(
    name = "loadgen",
    about = "Load generator for anything that speaks Kafka's protocol"
)]
pub struct Args {
    /// What to do.
    #[arg(value_enum)]
    pub mode: Mode,
    /// HOST:PORT of a broker; the one that leads the topic is used.
    #[arg(long, default_value = "127.0.0.1:9092")]
    pub bootstrap: String,
    /// Topic; a run that writes creates it unless it exists.
    #[arg(long, default_value = "loadgen")]
    pub topic: String,
    /// Partitions of the topic; `fetch` reads the first so many of those that there are.
    #[arg(long, default_value_t = 1)]
    pub partitions: i32,
    /// Topic config for the creation, KEY=VALUE; may be repeated.
    #[arg(long = "topic-config")]
    pub topic_configs: Vec<String>,
    /// Connections.
    #[arg(long, default_value_t = 1)]
    pub connections: usize,
    /// Produce requests in flight on each connection.
    #[arg(long, default_value_t = 5)]
    pub in_flight: usize,
    /// Length of one record batch.
    #[arg(long, default_value_t = 65_536)]
    pub batch_bytes: usize,
    /// Value length of one record.
    #[arg(long, default_value_t = 1_024)]
    pub record_bytes: usize,
    /// Batches in one Produce request, each for another partition.
    #[arg(long, default_value_t = 1)]
    pub batches_per_request: usize,
    /// 1 or -1 (all).
    #[arg(long, default_value_t = -1, allow_hyphen_values = true)]
    pub acks: i16,
    /// Send without producer id.
    #[arg(long)]
    pub no_idempotence: bool,
    /// Fixed rate of batch bytes over all connections, in MB/s; without it, full speed.
    #[arg(long)]
    pub rate_mb: Option<f64>,
    /// Seconds to measure.
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Seconds at the same load before measuring.
    #[arg(long, default_value_t = 0.0)]
    pub warmup_seconds: f64,
    /// Bytes of batches to move; the run ends at this or at --seconds, whichever is first.
    #[arg(long)]
    pub bytes: Option<u64>,
    /// Where to start fetching.
    #[arg(long, value_enum, default_value_t = StartAt::Earliest)]
    pub start_at: StartAt,
    /// Begin again at the start of the log when a fetching run reaches its end.
    #[arg(long)]
    pub repeat: bool,
    /// Fetch: most bytes in an answer.
    #[arg(long, default_value_t = 52_428_800)]
    pub max_bytes: i32,
    /// Fetch: most bytes of one partition in an answer.
    #[arg(long, default_value_t = 1_048_576)]
    pub partition_max_bytes: i32,
    /// Fetch: least bytes before an answer.
    #[arg(long, default_value_t = 1)]
    pub min_bytes: i32,
    /// Fetch: longest wait of the broker, in ms.
    #[arg(long, default_value_t = 500)]
    pub max_wait_ms: i32,
    /// Fetch: check the CRC of every batch.
    #[arg(long)]
    pub verify: bool,
    /// Transact: transactional ids, dealt out to the connections.
    #[arg(long, default_value_t = 1)]
    pub ids: usize,
    /// Transact: the ids are this, a hyphen, and a number that grows by --id-step from 0 on.
    #[arg(long, default_value = "loadgen")]
    pub id_prefix: String,
    /// Transact: see --id-prefix.
    #[arg(long, default_value_t = 1)]
    pub id_step: usize,
    /// Transact: dialect, 1 or 2.
    #[arg(long, default_value_t = 2)]
    pub transaction_version: u8,
    /// Transact: records of a transaction.
    #[arg(long, default_value_t = 1)]
    pub transaction_records: usize,
    /// Transact: transactions per second of all ids together; without it, full speed.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Transact: ms before a request is sent again that was told to come again.
    #[arg(long, default_value_t = 5)]
    pub retry_ms: u64,
    /// Print a line when everything is prepared, and begin at the next line of standard input.
    #[arg(long)]
    pub wait: bool,
    /// Give up when nothing at all arrives for this many seconds.
    #[arg(long, default_value_t = 30.0)]
    pub stall_seconds: f64,
}

/// Bounds on what one run may ask for.
const CONNECTIONS_MAX: usize = 4_096;
const IN_FLIGHT_MAX: usize = 1_024;
const BATCH_BYTES_MAX: usize = 128 * 1024 * 1024;
const PARTITIONS_MAX: i32 = 100_000;
const SECONDS_MAX: f64 = 86_400.0;
const IDS_MAX: usize = 1_000_000;
const RECORDS_MAX: usize = 100_000;

impl Args {
    /// Refuses what can't be run; the error names the option and what it allows.
    pub fn check(&self) -> Result<()> {
        within("--connections", self.connections, 1, CONNECTIONS_MAX)?;
        within("--in-flight", self.in_flight, 1, IN_FLIGHT_MAX)?;
        within("--partitions", self.partitions, 1, PARTITIONS_MAX)?;
        within("--record-bytes", self.record_bytes, 1, BATCH_BYTES_MAX)?;
        within("--ids", self.ids, 1, IDS_MAX)?;
        within("--id-step", self.id_step, 1, IDS_MAX)?;
        within("--transaction-version", self.transaction_version, 1, 2)?;
        within(
            "--transaction-records",
            self.transaction_records,
            1,
            RECORDS_MAX,
        )?;
        within("--retry-ms", self.retry_ms, 1, 60_000)?;
        let least = HEADER_LEN + self.record_bytes + 16;
        within("--batch-bytes", self.batch_bytes, least, BATCH_BYTES_MAX)?;
        let partitions = usize::try_from(self.partitions)?;
        within(
            "--batches-per-request",
            self.batches_per_request,
            1,
            partitions,
        )?;
        within("--max-wait-ms", self.max_wait_ms, 0, 60_000)?;
        within("--min-bytes", self.min_bytes, 0, i32::MAX)?;
        within("--max-bytes", self.max_bytes, 1, i32::MAX)?;
        within(
            "--partition-max-bytes",
            self.partition_max_bytes,
            1,
            i32::MAX,
        )?;
        if self.acks != 1 && self.acks != -1 {
            bail!("--acks {}: 1 or -1", self.acks);
        }
        for (name, value) in [
            ("--seconds", self.seconds.unwrap_or(1.0)),
            ("--rate-mb", self.rate_mb.unwrap_or(1.0)),
            ("--rate", self.rate.unwrap_or(1.0)),
            ("--stall-seconds", self.stall_seconds),
        ] {
            if !(value > 0.0 && value <= SECONDS_MAX) {
                bail!("{name} {value}: above 0, at most {SECONDS_MAX}");
            }
        }
        if !(0.0..=SECONDS_MAX).contains(&self.warmup_seconds) {
            bail!(
                "--warmup-seconds {}: 0 to {SECONDS_MAX}",
                self.warmup_seconds
            );
        }
        self.check_end()
    }

    fn check_end(&self) -> Result<()> {
        let endless = self.seconds.is_none() && self.bytes.is_none();
        let ends_at_latest =
            self.mode == Mode::Fetch && self.start_at == StartAt::Earliest && !self.repeat;
        if endless && !ends_at_latest {
            bail!("this run would never end: give --seconds or --bytes");
        }
        if self.mode != Mode::Produce && self.rate_mb.is_some() {
            bail!("--rate-mb is for produce");
        }
        if self.mode != Mode::Transact && self.rate.is_some() {
            bail!("--rate is for transact");
        }
        if self.wait && (self.rate.is_some() || self.rate_mb.is_some()) {
            bail!("--wait goes with full speed: what is due does not wait");
        }
        if self.mode == Mode::Transact && self.seconds.is_none() {
            bail!("transact needs --seconds");
        }
        if self.bytes.is_some() && self.warmup_seconds > 0.0 {
            bail!("--warmup-seconds goes with --seconds, not with --bytes");
        }
        Ok(())
    }

    /// The topic configs, cut at their first `=`.
    pub fn topic_config_pairs(&self) -> Result<Vec<(&str, &str)>> {
        let mut pairs = Vec::with_capacity(self.topic_configs.len());
        for config in &self.topic_configs {
            let Some(pair) = config.split_once('=') else {
                bail!("--topic-config {config}: KEY=VALUE");
            };
            pairs.push(pair);
        }
        Ok(pairs)
    }
}

fn within<T: Copy + PartialOrd + Display>(name: &str, value: T, low: T, high: T) -> Result<()> {
    if value < low || value > high {
        bail!("{name} {value}: {low} to {high}");
    }
    Ok(())
}
