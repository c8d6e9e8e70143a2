//! Rows 7, 13 and 15: one partition read out of many, appends beside many, and a broker that has
//! many and rests.

#![allow(
    clippy::cast_precision_loss,
    reason = "rates and times are reported to few digits"
)]

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::runtime::Builder;

use super::client::{Client, loadgen};
use super::results::{Case, MB_PER_SECOND, MS, OF_A_CORE, PER_SECOND, Results, US};
use super::start::drop_caches;
use super::subject::{Running, Subject};
use super::{Args, ids, progress};
use crate::wallclock::{now, pause};

/// Partitions beside which appends are measured.
const BESIDE: [i32; 3] = [1, 1_000, MOST];
/// Partitions and transactional ids of a broker that rests.
const AT_REST: [(i32, usize); 2] = [(1_000, 10_000), (MOST, 10_000)];
/// More than Apache Kafka is asked to have on one node.
const MOST: i32 = 10_000;
/// Partitions that are written to at once where one of them is read.
const INTERLEAVED: u64 = 16;

/// Measures everything that was asked for, each on brokers of its own.
pub(super) fn measure(
    args: &Args,
    subject: Subject,
    dir: &Path,
    results: &mut Results,
) -> Result<()> {
    if !subject.is_main() {
        return Ok(());
    }
    if args.rows.contains(&7) {
        catch_up(args, subject, dir, results)?;
    }
    let there = |partitions: &i32| !subject.is_kafka() || *partitions < MOST;
    if args.rows.contains(&13) {
        for partitions in BESIDE.into_iter().filter(there) {
            appends(args, subject, (dir, partitions), results)?;
        }
    }
    if args.rows.contains(&15) {
        for (partitions, ids) in AT_REST.into_iter().filter(|(number, _)| there(number)) {
            rest(args, subject, (dir, partitions, ids), results)?;
        }
    }
    Ok(())
}

/// Row 7: a reader that was away reads one partition, of which nothing is in memory.
fn catch_up(args: &Args, subject: Subject, dir: &Path, results: &mut Results) -> Result<()> {
    let bytes: u64 = if args.quick {
        160_000_000
    } else {
        6_400_000_000
    };
    let broker = Running::start(subject, dir)?;
    progress(&format!("{bytes} bytes in {INTERLEAVED} partitions"));
    let fill = format!(
        "produce --topic interleaved --partitions {INTERLEAVED} --connections 4 --bytes {bytes}"
    );
    loadgen(&broker.address(), &fill)?;
    drop_caches()?;
    let read = "fetch --topic interleaved --partitions 1";
    progress(read);
    let report = loadgen(&broker.address(), read)?;
    // They are written to in turn.
    if report.bytes < bytes / INTERLEAVED / 2 {
        bail!("{} bytes were read of one partition", report.bytes);
    }
    let case = Case {
        row: 7,
        what: format!("read of 1 partition out of {INTERLEAVED} interleaved, cold"),
        unit: MB_PER_SECOND,
    };
    results.add(subject, case, report.mb_per_second);
    Ok(())
}

/// Row 13: what an append costs beside many partitions.
fn appends(
    args: &Args,
    subject: Subject,
    (dir, partitions): (&Path, i32),
    results: &mut Results,
) -> Result<()> {
    let seconds = if args.quick {
        "--seconds 0.5 --warmup-seconds 0.2"
    } else {
        "--seconds 4 --warmup-seconds 2"
    };
    let mut broker = Running::start(subject, dir)?;
    let address = broker.address();
    Client::new(address.clone())?.create_topic("appended", partitions)?;
    let load = format!(
        "produce --topic appended --partitions {partitions} --connections 4 --batch-bytes 1024 \
         --record-bytes 900 {seconds}"
    );
    progress(&load);
    let cpu = broker.process().cpu_seconds()?;
    let report = loadgen(&address, &load)?;
    let cpu = broker.process().cpu_seconds()? - cpu;
    let what = format!("appends of 1 KiB to {partitions} partitions, 4 connections");
    for (what, unit, value) in [
        (what.clone(), PER_SECOND, report.requests_per_second()),
        (format!("{what}, p50"), MS, report.latency_ms.p50),
        (
            format!("broker CPU per record, {what}"),
            US,
            cpu * 1e6 / report.all_records as f64,
        ),
    ] {
        results.add(
            subject,
            Case {
                row: 13,
                what,
                unit,
            },
            value,
        );
    }
    Ok(())
}

/// Row 15: what a broker does that nobody asks anything.
fn rest(
    args: &Args,
    subject: Subject,
    (dir, partitions, ids): (&Path, i32, usize),
    results: &mut Results,
) -> Result<()> {
    let (settle, span) = if args.quick { (1, 2) } else { (10, 60) };
    let mut broker = Running::start(subject, dir)?;
    Client::new(broker.address())?.create_topic("many", partitions)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    ids::begin(&runtime, &broker.address(), ids)?;
    let what = format!("idle CPU with {partitions} partitions, {ids} ids, no client");
    progress(&what);
    // What was begun for them is over by then.
    pause(Duration::from_secs(settle));
    let (cpu, begin) = (broker.process().cpu_seconds()?, now());
    pause(Duration::from_secs(span));
    let cpu = broker.process().cpu_seconds()? - cpu;
    let share = 100.0 * cpu / now().duration_since(begin).as_secs_f64();
    let case = Case {
        row: 15,
        what,
        unit: OF_A_CORE,
    };
    results.add(subject, case, share);
    Ok(())
}
