//! Row 12: how long a start takes, from the process to its port and to the first acknowledgement.

#![allow(
    clippy::cast_precision_loss,
    reason = "sizes are reported to few digits"
)]

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::runtime::Builder;

use super::client::{Client, loadgen};
use super::results::{Case, HANDLES, KIB, Results, SECONDS};
use super::subject::{Running, Subject};
use super::{Args, progress};
use crate::raw::batch::{BatchSpec, Record};
use crate::raw::{RawClient, ops};
use crate::wallclock::{now, poll_until};

/// Partitions of the starts that have many. Apache Kafka is asked for the first one.
const MANY: [i32; 2] = [1_000, 10_000];

/// Starts the subject empty, with data after a kill, and with many partitions.
pub(super) fn measure(
    args: &Args,
    subject: Subject,
    dir: &Path,
    results: &mut Results,
) -> Result<()> {
    if !subject.is_main() {
        return Ok(());
    }
    if args.rows.contains(&12) {
        starts(args, subject, dir, results)?;
    }
    let kinds = if subject.is_kafka() { 1 } else { MANY.len() };
    for partitions in MANY.into_iter().take(kinds) {
        many_partitions(args, subject, (dir, partitions), results)?;
    }
    Ok(())
}

/// Starts without data, and after a kill with much.
fn starts(args: &Args, subject: Subject, dir: &Path, results: &mut Results) -> Result<()> {
    let mut broker = Running::start(subject, dir)?;
    // Again on the little that a first start leaves: Kafka's formatting is not its start.
    broker.process().terminate()?;
    restart(&mut broker, "empty", None, results)?;

    let bytes: u64 = if args.quick {
        100_000_000
    } else {
        3_500_000_000
    };
    progress(&format!("{bytes} bytes in 16 partitions"));
    let fill = format!(
        "produce --topic filled --partitions 16 --connections 4 --batch-bytes 262144 \
         --bytes {bytes}"
    );
    loadgen(&broker.address(), &fill)?;
    let size = format!("{:.1} GB in 16 partitions", bytes as f64 / 1e9);
    broker.process().kill()?;
    restart(
        &mut broker,
        &format!("after kill -9 with {size}, warm"),
        Some("filled"),
        results,
    )?;
    if args.cold {
        broker.process().kill()?;
        drop_caches()?;
        restart(
            &mut broker,
            &format!("after kill -9 with {size}, cold"),
            Some("filled"),
            results,
        )?;
    }
    Ok(())
}

/// Row 12's start with many partitions, and row 14's memory of one, and handles of all.
fn many_partitions(
    args: &Args,
    subject: Subject,
    (dir, partitions): (&Path, i32),
    results: &mut Results,
) -> Result<()> {
    let mut broker = Running::start(subject, dir)?;
    let idle = broker.process().rss_bytes()?;
    Client::new(broker.address())?.create_topic("many", partitions)?;
    broker.process().kill()?;
    let what = format!("after kill -9 with {partitions} partitions");
    if args.rows.contains(&12) {
        restart(&mut broker, &what, Some("many"), results)?;
    } else {
        // Written to as in row 12, or the memory would be another.
        restart(&mut broker, &what, Some("many"), &mut Results::default())?;
    }
    if args.rows.contains(&14) {
        let grown = broker.process().rss_bytes()?.saturating_sub(idle) as f64;
        let handles = std::fs::read_dir(format!("/proc/{}/fd", broker.process().pid()))?.count();
        let each = grown / f64::from(partitions) / 1024.0;
        for (what, unit, value) in [
            ("resident memory per partition", KIB, each),
            ("file handles", HANDLES, handles as f64),
        ] {
            let what = format!("{what}, of {partitions}");
            results.add(
                subject,
                Case {
                    row: 14,
                    what,
                    unit,
                },
                value,
            );
        }
    }
    Ok(())
}

/// Restarts and writes one batch; into a new topic unless one is given.
fn restart(
    broker: &mut Running,
    what: &str,
    topic: Option<&str>,
    results: &mut Results,
) -> Result<()> {
    progress(&format!("start {what}"));
    let begin = now();
    broker.restart()?;
    let open = now().duration_since(begin).as_secs_f64();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    if topic.is_none() {
        Client::new(broker.address())?.create_topic("first", 1)?;
    }
    let mut last = None;
    let acked = poll_until(Duration::from_mins(2), Duration::from_millis(2), || {
        last = runtime
            .block_on(first_ack(&broker.address(), topic.unwrap_or("first")))
            .err();
        last.is_none()
    });
    if !acked {
        bail!("no acknowledgement after the start {what}: {last:?}");
    }
    let ack = now().duration_since(begin).as_secs_f64();
    for (event, value) in [("port open", open), ("first ack", ack)] {
        let case = Case {
            row: 12,
            what: format!("start {what}: {event}"),
            unit: SECONDS,
        };
        results.add(broker.subject, case, value);
    }
    Ok(())
}

async fn first_ack(address: &str, topic: &str) -> Result<()> {
    let mut client = RawClient::connect(address).await?;
    let batch = BatchSpec {
        records: vec![Record::value("x")],
        ..BatchSpec::default()
    }
    .build();
    let answer = ops::produce(&mut client, topic, 0, batch).await?;
    ops::check(answer.error_code, "Produce")
}

/// Writes back and forgets every cached page of the machine. Needs root.
pub(super) fn drop_caches() -> Result<()> {
    let status = Command::new("sync").status().context("sync")?;
    if !status.success() {
        bail!("sync: {status}");
    }
    let mut file = File::options()
        .write(true)
        .open("/proc/sys/vm/drop_caches")
        .context("--cold and row 7 need to write /proc/sys/vm/drop_caches")?;
    file.write_all(b"3\n").context("/proc/sys/vm/drop_caches")
}
