//! Rows 9 to 11: what transactions cost real clients, what the broker can do, and how soon a
//! consumer sees what was committed.

#![allow(
    clippy::cast_precision_loss,
    reason = "rates and times are reported to few digits"
)]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::client::{Client, loadgen_after};
use super::driver::{Driver, Library, Outcome, Place, Shape};
use super::results::{Case, MS, PER_SECOND, Results, SYNCS, US};
use super::subject::{Running, Subject};
use super::{Args, progress};

/// Producers and records of a transaction, by every library.
const ROW_9: [(u32, u32); 3] = [(1, 1), (16, 1), (16, 10)];
/// Producers of one-record transactions, by every library.
const ROW_10: [u32; 2] = [64, 256];
/// Producers of the case that a consumer watches.
const WATCHED: u32 = 64;
/// Records of a large transaction.
const LARGE: u32 = 1_000;
/// Partitions that a transaction of [`SPREAD_RECORDS`] records touches.
const SPREAD: [u32; 3] = [1, 10, 100];
const SPREAD_RECORDS: u32 = 100;
/// Topic whose offsets are committed, and its partitions.
const INPUT: (&str, i32) = ("input", 16);
/// Transactional ids of the generator.
const GENERATED: u32 = 256;
/// Its connections: few that many ids share, and one for each id, as clients have them.
const CONNECTIONS: [u32; 2] = [16, 256];
const PARTITIONS: i32 = 16;

/// Measures the rows that were asked for on a broker of their own.
pub(super) fn measure(
    args: &Args,
    subject: Subject,
    dir: &Path,
    results: &mut Results,
) -> Result<()> {
    let broker = Running::start(subject, dir)?;
    let client = Client::new(broker.address())?;
    client.create_topic(INPUT.0, INPUT.1)?;
    let logs = tempfile::tempdir_in(dir)?;
    let mut java = Driver::start(Library::Java, &broker.address(), logs.path())?;
    let librdkafka = Driver::start(Library::Librdkafka, &broker.address(), logs.path())?;
    let mut session = Session {
        quick: args.quick,
        broker,
        client,
        results,
        cases: 0,
    };
    // Two JVMs are slow until their hot code is compiled: the same work, not measured.
    session.warm_up(&mut java)?;
    let mut both = [(Library::Java, java), (Library::Librdkafka, librdkafka)];
    if args.rows.contains(&9) {
        for (library, driver) in &mut both {
            session.row_9(*library, driver)?;
        }
        session.row_9_shapes(&mut both[0].1)?;
    }
    if args.rows.contains(&10) {
        for (library, driver) in &mut both {
            for producers in ROW_10 {
                let what = format!("{}, {producers} x 1", library.label());
                session.case(10, &what, driver, &Shape::new(producers, 1))?;
            }
        }
        session.generated()?;
    }
    if args.rows.contains(&11) {
        session.visible(&mut both[0].1)?;
    }
    Ok(())
}

struct Session<'a> {
    quick: bool,
    broker: Running,
    client: Client,
    results: &'a mut Results,
    /// Cases so far: each has names of its own.
    cases: u32,
}

/// What the broker spent so far.
struct Spent {
    cpu: f64,
    syncs: Option<u64>,
}

impl Session<'_> {
    fn add(&mut self, row: u8, what: String, unit: &'static str, value: f64) {
        let case = Case { row, what, unit };
        self.results.add(self.broker.subject, case, value);
    }

    fn spent(&mut self) -> Result<Spent> {
        Ok(Spent {
            cpu: self.broker.process().cpu_seconds()?,
            syncs: self.broker.syncs()?,
        })
    }

    /// Adds what `count` transactions cost the broker since `before`.
    fn add_cost(&mut self, row: u8, what: &str, before: &Spent, count: u64) -> Result<()> {
        let after = self.spent()?;
        let each = |total: f64| total / count as f64;
        let cpu = each((after.cpu - before.cpu) * 1e6);
        self.add(row, format!("{what}, broker CPU per transaction"), US, cpu);
        if let (Some(before), Some(after)) = (before.syncs, after.syncs) {
            let syncs = each((after - before) as f64);
            self.add(row, format!("{what}, syncs per transaction"), SYNCS, syncs);
        }
        Ok(())
    }

    fn place(&mut self) -> Place {
        self.cases += 1;
        let (warmup, time) = if self.quick { (200, 500) } else { (500, 2_000) };
        Place {
            name: format!("bench-{}", self.cases),
            topic: format!("transactions-{}", self.cases),
            input: INPUT.0.to_owned(),
            warmup: Duration::from_millis(warmup),
            time: Duration::from_millis(time),
        }
    }

    fn warm_up(&mut self, driver: &mut Driver) -> Result<()> {
        progress("warm-up with transactions");
        let mut place = self.place();
        if !self.quick {
            place.time = Duration::from_secs(4);
        }
        let mut shape = Shape::new(16, 10);
        shape.offsets = true;
        self.client.create_topic(&place.topic, PARTITIONS)?;
        driver.prepare(&shape, &place)?;
        driver.run(&place)?;
        self.client.delete_topic(&place.topic)
    }

    /// Runs a case, checks what it left, and returns transactions per second too.
    fn run(
        &mut self,
        (row, what): (u8, &str),
        driver: &mut Driver,
        shape: &Shape,
    ) -> Result<(Outcome, f64)> {
        progress(what);
        let place = self.place();
        let partitions = i32::try_from(shape.partitions)?;
        self.client.create_topic(&place.topic, partitions)?;
        driver.prepare(shape, &place)?;
        let before = self.spent()?;
        let outcome = driver.run(&place).with_context(|| what.to_owned())?;
        self.add_cost(row, what, &before, outcome.all)?;
        let all = outcome.all + u64::from(shape.producers);
        let markers = if shape.transactional {
            shape.touched
        } else {
            0
        };
        let each = u64::from(shape.records + markers);
        self.client
            .expect_decided(&place.topic, partitions, all * each)?;
        if shape.offsets {
            let groups = 0..shape.producers;
            let groups: Vec<String> = groups.map(|i| format!("{}-{i}", place.name)).collect();
            self.client.expect_committed(&groups, INPUT, all)?;
        }
        self.client.delete_topic(&place.topic)?;
        let rate = outcome.counted as f64 / place.time.as_secs_f64();
        Ok((outcome, rate))
    }

    /// Runs a case and adds its figures; transactions per second.
    fn case(&mut self, row: u8, what: &str, driver: &mut Driver, shape: &Shape) -> Result<f64> {
        let (outcome, rate) = self.run((row, what), driver, shape)?;
        self.add(row, what.to_owned(), PER_SECOND, rate);
        self.add(row, format!("{what}, p50"), MS, outcome.p50_ms);
        self.add(row, format!("{what}, p99"), MS, outcome.p99_ms);
        Ok(rate)
    }

    fn row_9(&mut self, library: Library, driver: &mut Driver) -> Result<()> {
        for (producers, records) in ROW_9 {
            let what = format!("{}, {producers} x {records}", library.label());
            self.case(9, &what, driver, &Shape::new(producers, records))?;
        }
        let what = format!("{}, 16 x 10 with offsets", library.label());
        let mut shape = Shape::new(16, 10);
        shape.offsets = true;
        self.case(9, &what, driver, &shape).map(drop)
    }

    /// Large transactions, transactions of many partitions, and no transactions.
    fn row_9_shapes(&mut self, driver: &mut Driver) -> Result<()> {
        for touched in SPREAD {
            let what = format!("Java, 16 x {SPREAD_RECORDS} in {touched} partitions");
            let mut shape = Shape::new(16, SPREAD_RECORDS);
            shape.touched = touched;
            shape.partitions = 100;
            self.case(9, &what, driver, &shape)?;
        }
        let mut shape = Shape::new(16, LARGE);
        let with = self.case(9, &format!("Java, 16 x {LARGE}"), driver, &shape)?;
        shape.transactional = false;
        let what = format!("Java, 16 x {LARGE}, flushed instead of committed");
        let without = self.case(9, &what, driver, &shape)?;
        let what = format!("Java, 16 x {LARGE}, rate with transactions to rate without");
        self.add(9, what, "share ↑", with / without);
        Ok(())
    }

    /// Row 10: what the broker can do, with many transactional ids.
    fn generated(&mut self) -> Result<()> {
        for connections in CONNECTIONS {
            for version in [1, 2] {
                self.generated_case(connections, version)?;
            }
        }
        Ok(())
    }

    fn generated_case(&mut self, connections: u32, version: u8) -> Result<()> {
        let what = format!(
            "generator, {GENERATED} x 1 on {connections} connections, transaction.version {version}"
        );
        progress(&what);
        let Place { name, topic, .. } = self.place();
        self.client.create_topic(&topic, PARTITIONS)?;
        let seconds = if self.quick {
            "--seconds 1 --warmup-seconds 0.2"
        } else {
            "--seconds 2 --warmup-seconds 0.5"
        };
        let command = format!(
            "transact --topic {topic} --partitions {PARTITIONS} --ids {GENERATED} --id-prefix \
             {name} --connections {connections} --record-bytes 100 --transaction-version \
             {version} {seconds}"
        );
        let address = self.broker.address();
        let (before, report) = loadgen_after(&address, &command, || self.spent())?;
        self.add_cost(10, &what, &before, report.all_records)?;
        // Of one record and one marker each.
        self.client
            .expect_decided(&topic, PARTITIONS, 2 * report.all_records)?;
        self.client.delete_topic(&topic)?;
        self.add(10, what.clone(), PER_SECOND, report.requests_per_second());
        self.add(10, format!("{what}, p50"), MS, report.latency_ms.p50);
        self.add(10, format!("{what}, p99"), MS, report.latency_ms.p99);
        Ok(())
    }

    /// Row 11: from the call of commit to the record in the hands of a consumer.
    fn visible(&mut self, driver: &mut Driver) -> Result<()> {
        let mut shape = Shape::new(WATCHED, 1);
        shape.watch = true;
        for load in ["full", "half"] {
            let what = format!("Java, {WATCHED} x 1 at the {load} rate, with a consumer");
            let (outcome, rate) = self.run((11, &what), driver, &shape)?;
            self.add(11, what.clone(), PER_SECOND, rate);
            let (p50, p99) = (outcome.visible_p50_ms, outcome.visible_p99_ms);
            self.add(11, format!("{what}, commit to visible, p50"), MS, p50);
            self.add(11, format!("{what}, commit to visible, p99"), MS, p99);
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a few thousand"
            )]
            let half = (rate / 2.0) as u32;
            shape.rate = half.max(1);
        }
        Ok(())
    }
}
