//! Rows 1 to 6 and 14: one session with one broker.

#![allow(
    clippy::cast_precision_loss,
    reason = "rates and sizes are reported to few digits"
)]

use std::process::Stdio;

use anyhow::{Context, Result};

use super::client::{Client, loadgen, loadgen_command, read_report};
use super::rdkafka;
use super::results::{CPU_PER_GB, Case, MB_PER_SECOND, MIB, MS, Results};
use super::subject::Running;
use super::{Args, progress};

/// Message length, partitions and messages of the librdkafka rows.
pub(super) const CLIENT_CASES: [(u64, i32, u64); 4] = [
    (100, 1, 5_000_000),
    (100, 16, 5_000_000),
    (1024, 1, 1_500_000),
    (1024, 16, 1_500_000),
];

/// Batch length, partitions and connections of row 3.
const LIMIT_CASES: [(usize, i32, usize); 8] = [
    (64 * 1024, 1, 16),
    (64 * 1024, 16, 16),
    (64 * 1024, 256, 16),
    (64 * 1024, 16, 1),
    (64 * 1024, 16, 64),
    (1024 * 1024, 1, 16),
    (1024 * 1024, 16, 16),
    (1024 * 1024, 256, 16),
];

/// How much smaller everything is with `--quick`.
const QUICK_SHARE: u64 = 20;

/// A broker under measurement.
pub(super) struct Session<'a> {
    rows: &'a [u8],
    quick: bool,
    broker: Running,
    client: Client,
    results: &'a mut Results,
}

impl<'a> Session<'a> {
    pub(super) fn new(args: &'a Args, broker: Running, results: &'a mut Results) -> Result<Self> {
        let client = Client::new(broker.address())?;
        Ok(Self {
            rows: &args.rows,
            quick: args.quick,
            broker,
            client,
            results,
        })
    }

    /// Measures every row that was asked for.
    pub(super) fn measure(&mut self) -> Result<()> {
        if self.wants(14) {
            let rss = self.broker.process().rss_bytes()?;
            self.add(
                14,
                "resident memory, idle after the start",
                MIB,
                rss as f64 / MIB_BYTES,
            );
        }
        if [1, 2, 3, 4, 5, 6, 14].iter().any(|row| self.wants(*row)) {
            self.warm_up()?;
        }
        if [1, 2, 5].iter().any(|row| self.wants(*row)) {
            for (size, partitions, count) in CLIENT_CASES {
                self.client_case(size, partitions, self.share(count))?;
            }
        }
        if self.wants(4) {
            self.latency()?;
        }
        if self.wants(3) || self.wants(14) {
            for (batch, partitions, connections) in LIMIT_CASES {
                self.limit_case(batch, partitions, connections)?;
            }
        }
        if self.wants(14) {
            let rss = self.broker.process().rss_peak_bytes()?;
            // Row 3 is part of this row, the others only where they were asked for.
            let under = (1..=5).filter(|row| *row == 3 || self.wants(*row));
            let under: Vec<String> = under.map(|row| row.to_string()).collect();
            let what = format!("resident memory, highest under rows {}", under.join(", "));
            self.add(14, &what, MIB, rss as f64 / MIB_BYTES);
        }
        if self.wants(6) {
            self.fetch_limit()?;
            self.tail_readers()?;
        }
        Ok(())
    }

    fn wants(&self, row: u8) -> bool {
        self.rows.contains(&row)
    }

    fn share(&self, count: u64) -> u64 {
        if self.quick {
            count / QUICK_SHARE
        } else {
            count
        }
    }

    fn seconds(&self) -> &'static str {
        if self.quick {
            "--seconds 0.5 --warmup-seconds 0.2"
        } else {
            "--seconds 4 --warmup-seconds 1"
        }
    }

    fn add(&mut self, row: u8, what: &str, unit: &'static str, value: f64) {
        if self.wants(row) {
            let case = Case {
                row,
                what: what.to_owned(),
                unit,
            };
            self.results.add(self.broker.subject, case, value);
        }
    }

    fn load(&self, command: &str) -> Result<crate::loadgen::Report> {
        progress(command);
        loadgen(&self.broker.address(), command)
    }

    /// A JVM is slow until its hot code is compiled: the same work, not measured.
    fn warm_up(&mut self) -> Result<()> {
        self.client.create_topic("warm", 16)?;
        let count = self.share(1_000_000);
        progress("warm-up");
        rdkafka::produce(&self.broker.address(), "warm", 1024, count)?;
        rdkafka::consume(&self.broker.address(), "warm", 16, count)?;
        self.client.delete_topic("warm")
    }

    /// Rows 1, 2 and 5: librdkafka writes a topic and reads it back.
    fn client_case(&mut self, size: u64, partitions: i32, count: u64) -> Result<()> {
        let topic = format!("client-{size}-{partitions}");
        let plural = if partitions == 1 { "" } else { "s" };
        let shape = format!("{size} B, {partitions} partition{plural}");
        let address = self.broker.address();
        self.client.create_topic(&topic, partitions)?;
        progress(&format!("librdkafka produces {shape}"));
        let before = self.broker.process().cpu_seconds()?;
        let wrote = rdkafka::produce(&address, &topic, size, count)?;
        let cpu = self.broker.process().cpu_seconds()? - before;
        self.client.expect_records(&topic, partitions, count)?;
        self.add(
            1,
            &format!("librdkafka produce, {shape}"),
            MB_PER_SECOND,
            wrote.mb_per_second,
        );
        let per_gb = cpu / (wrote.bytes as f64 / 1e9);
        self.add(
            2,
            &format!("broker CPU, produce {shape}"),
            CPU_PER_GB,
            per_gb,
        );
        if self.wants(5) && self.broker.subject.is_main() {
            progress(&format!("librdkafka consumes {shape}"));
            let before = self.broker.process().cpu_seconds()?;
            let read = rdkafka::consume(&address, &topic, partitions, count)?;
            let cpu = self.broker.process().cpu_seconds()? - before;
            let what = format!("librdkafka fetch, warm, {shape}");
            self.add(5, &what, MB_PER_SECOND, read.mb_per_second);
            let per_gb = cpu / (read.bytes as f64 / 1e9);
            self.add(5, &format!("broker CPU, fetch {shape}"), CPU_PER_GB, per_gb);
        }
        self.client.delete_topic(&topic)
    }

    /// Row 3: pre-encoded batches, five requests in flight on each connection.
    fn limit_case(&mut self, batch: usize, partitions: i32, connections: usize) -> Result<()> {
        let topic = format!("limit-{batch}-{partitions}-{connections}");
        self.client.create_topic(&topic, partitions)?;
        let before = self.broker.process().cpu_seconds()?;
        let report = self.load(&format!(
            "produce --topic {topic} --partitions {partitions} --connections {connections} \
             --batch-bytes {batch} {}",
            self.seconds()
        ))?;
        let cpu = self.broker.process().cpu_seconds()? - before;
        self.client
            .expect_records(&topic, partitions, report.all_records)?;
        let what = format!(
            "produce at the limit, {} KiB, {partitions} partitions, {connections} connections",
            batch / 1024
        );
        self.add(3, &what, MB_PER_SECOND, report.mb_per_second);
        let share = report.all_records as f64 / report.records as f64;
        let per_gb = cpu / (report.bytes as f64 * share / 1e9);
        self.add(3, &format!("broker CPU, {what}"), CPU_PER_GB, per_gb);
        self.client.delete_topic(&topic)
    }

    /// Row 4: latency at a fixed rate, counted from when each request was due.
    fn latency(&mut self) -> Result<()> {
        self.client.create_topic("paced", 16)?;
        let seconds = if self.quick { "1" } else { "10" };
        let report = self.load(&format!(
            "produce --topic paced --partitions 16 --connections 8 --batch-bytes 16384 \
             --rate-mb 20 --warmup-seconds 1 --seconds {seconds}"
        ))?;
        self.client
            .expect_records("paced", 16, report.all_records)?;
        let latency = report.latency_ms;
        for (name, value) in [
            ("p50", latency.p50),
            ("p99", latency.p99),
            ("p99.9", latency.p999),
        ] {
            let what = format!("produce at 20 MB/s, 1 KiB, 16 partitions, {name}");
            self.add(4, &what, MS, value);
        }
        self.client.delete_topic("paced")
    }

    /// Row 6: fetch as fast as the broker gives.
    fn fetch_limit(&mut self) -> Result<()> {
        let bytes = self.share(2_000_000_000);
        let shape = "--topic fetched --partitions 16";
        self.load(&format!("produce {shape} --connections 4 --bytes {bytes}"))?;
        let before = self.broker.process().cpu_seconds()?;
        let report = self.load(&format!(
            "fetch {shape} --connections 4 --repeat {}",
            self.seconds()
        ))?;
        let cpu = self.broker.process().cpu_seconds()? - before;
        let what = "fetch at the limit, warm, 16 partitions, 4 connections";
        self.add(6, what, MB_PER_SECOND, report.mb_per_second);
        let share = report.all_records as f64 / report.records as f64;
        let per_gb = cpu / (report.bytes as f64 * share / 1e9);
        self.add(6, &format!("broker CPU, {what}"), CPU_PER_GB, per_gb);
        self.client.delete_topic("fetched")
    }

    /// Row 6: what a writer loses to readers at the tail.
    fn tail_readers(&mut self) -> Result<()> {
        self.client.create_topic("tail", 16)?;
        let seconds = self.seconds();
        let write = format!("produce --topic tail --partitions 16 --connections 4 {seconds}");
        let alone = self.load(&write)?;
        let read = format!(
            "fetch --topic tail --partitions 16 --connections 2 --start-at latest {seconds}"
        );
        progress(&read);
        let reader = loadgen_command(&self.broker.address(), &read)?
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("tail reader")?;
        let followed = self.load(&write)?;
        let reader = read_report(&read, &reader.wait_with_output()?)?;
        let ratio = followed.mb_per_second / alone.mb_per_second;
        self.add(
            6,
            "tail readers beside a writer at the limit",
            MB_PER_SECOND,
            reader.mb_per_second,
        );
        self.add(
            6,
            "writer's rate with tail readers, of its own",
            "share ↑",
            ratio,
        );
        self.client.delete_topic("tail")
    }
}

/// Bytes of a MiB.
pub(super) const MIB_BYTES: f64 = 1_048_576.0;
