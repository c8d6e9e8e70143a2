//! Row 13: what a transition costs beside many transactional ids, what an idle id weighs, and a
//! start with many open transactions.

#![allow(
    clippy::cast_precision_loss,
    reason = "rates and times are reported to few digits"
)]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures_util::future::try_join_all;
use kafka_protocol::messages::ProduceRequest;
use tokio::runtime::{Builder, Runtime};

use super::client::{Client, loadgen};
use super::results::{Case, KIB, MS, PER_SECOND, Results, SECONDS, US};
use super::subject::{Running, Subject};
use super::{Args, progress};
use crate::raw::RawClient;
use crate::raw::batch::{BatchSpec, Record};
use crate::raw::ops::check;
use crate::raw::txn::{self, Dialect, Session};
use crate::wallclock::{now, poll_until};

/// Transactional ids that are there when transitions are measured.
const IDS: [usize; 3] = [100, 10_000, 100_000];
/// Ids of those that have transactions.
const ACTIVE: usize = 16;
/// Transitions that are measured one at a time.
const ALONE: usize = 300;
/// Open transactions at a start.
const OPEN: usize = 10_000;
/// How much smaller the large numbers are with `--quick`.
const QUICK_SHARE: usize = 20;
/// Connections that make ids.
const CONNECTIONS: usize = 16;
/// Requests that one of them has unanswered.
const WINDOW: usize = 64;
const TOPIC: &str = "ids";
const PARTITIONS: i32 = 16;
/// Longer than any session of the benchmark.
const TIMEOUT_MS: i32 = 900_000;

/// Measures everything, on two brokers of their own.
pub(super) fn measure(
    args: &Args,
    subject: Subject,
    dir: &Path,
    results: &mut Results,
) -> Result<()> {
    if !subject.is_main() {
        return Ok(());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut add = |what: String, unit, value| {
        let row = 13;
        results.add(subject, Case { row, what, unit }, value);
    };
    let share = if args.quick { QUICK_SHARE } else { 1 };
    let mut broker = prepare(subject, dir, &runtime)?;
    beside_many(&runtime, &mut broker, (args.quick, share), &mut add)?;
    drop(broker);
    let mut broker = prepare(subject, dir, &runtime)?;
    start_with_open(&runtime, &mut broker, OPEN / share, &mut add)
}

/// A broker with the topic and a coordinator, whose code is warm.
fn prepare(subject: Subject, dir: &Path, runtime: &Runtime) -> Result<Running> {
    let broker = Running::start(subject, dir)?;
    Client::new(broker.address())?.create_topic(TOPIC, PARTITIONS)?;
    runtime.block_on(async {
        let mut client = RawClient::connect(broker.address()).await?;
        txn::await_coordinator(&mut client, "id-0").await
    })?;
    Ok(broker)
}

fn beside_many(
    runtime: &Runtime,
    broker: &mut Running,
    (quick, share): (bool, usize),
    add: &mut impl FnMut(String, &'static str, f64),
) -> Result<()> {
    let address = broker.address();
    let seconds = if quick { "0.5" } else { "2" };
    let mut there = 0;
    for (place, ids) in IDS.into_iter().enumerate() {
        let ids = if place == 0 { ids } else { ids / share };
        progress(&format!("{ids} transactional ids"));
        let before = broker.process().rss_bytes()?;
        let begin = now();
        runtime.block_on(begin_range(&address, there..ids))?;
        let rate = (ids - there) as f64 / now().duration_since(begin).as_secs_f64();
        if place + 1 == IDS.len() {
            let grown = broker.process().rss_bytes()?.saturating_sub(before) as f64;
            let each = grown / (ids - there) as f64 / 1024.0;
            add(format!("resident memory per idle id, of {ids}"), KIB, each);
            add(format!("new ids, up to {ids}"), PER_SECOND, rate);
        }
        there = ids;
        let load = |seconds: &str| {
            loadgen(
                &address,
                &format!(
                    "transact --topic {TOPIC} --partitions {PARTITIONS} --ids {ACTIVE} \
                     --id-prefix id --id-step {} --record-bytes 100 --connections {ACTIVE} \
                     --seconds {seconds}",
                    ids / ACTIVE
                ),
            )
        };
        if place == 0 {
            // A JVM is slow until its hot code is compiled: the same work, not measured.
            load(seconds)?;
        }
        let alone = runtime.block_on(alone(&address, ids))?;
        let what = format!("InitProducerId again, one at a time, with {ids} ids, p50");
        add(what, MS, alone);
        let cpu = broker.process().cpu_seconds()?;
        let report = load(seconds)?;
        let cpu = broker.process().cpu_seconds()? - cpu;
        let what = format!("transactions of {ACTIVE} ids, of {ids}");
        add(what.clone(), PER_SECOND, report.requests_per_second());
        add(format!("{what}, p50"), MS, report.latency_ms.p50);
        let what = format!("{what}, broker CPU per transaction");
        add(what, US, cpu * 1e6 / report.all_records as f64);
    }
    Ok(())
}

/// Begins so many ids, which then do nothing.
pub(super) fn begin(runtime: &Runtime, address: &str, count: usize) -> Result<()> {
    runtime.block_on(async {
        let mut client = RawClient::connect(address).await?;
        txn::await_coordinator(&mut client, "id-0").await?;
        begin_range(address, 0..count).await.map(drop)
    })
}

/// Sessions of `id-<number>` for each number.
async fn begin_range(address: &str, range: std::ops::Range<usize>) -> Result<Vec<Vec<Made>>> {
    let numbers: Vec<usize> = range.collect();
    let parts = numbers.chunks(numbers.len().div_ceil(CONNECTIONS).max(1));
    try_join_all(parts.map(async |part| {
        let mut client = RawClient::connect(address).await?;
        let names: Vec<String> = part.iter().map(|number| format!("id-{number}")).collect();
        let sessions = txn::begin_all(&mut client, &names, TIMEOUT_MS).await?;
        let made = names.into_iter().zip(sessions);
        anyhow::Ok(made.map(|(name, session)| Made { name, session }).collect())
    }))
    .await
}

/// An id and its session.
#[derive(Debug)]
struct Made {
    name: String,
    session: Session,
}

/// Median of the milliseconds that one transition takes when there is no other: a session begins
/// again, on ids spread over all.
async fn alone(address: &str, ids: usize) -> Result<f64> {
    let mut client = RawClient::connect(address).await?;
    let mut times = Vec::with_capacity(ALONE);
    for number in 0..ALONE {
        let name = format!("id-{}", number * (ids / ACTIVE + 1) % ids);
        let request = txn::init_request(&name, TIMEOUT_MS);
        let mut pace = tokio::time::interval(Duration::from_millis(10));
        loop {
            pace.tick().await;
            let begin = now();
            let answer = client.call(&request, txn::INIT_VERSION).await?;
            // Kafka finishes transactions behind its answers.
            if answer.error_code != txn::CONCURRENT {
                times.push(now().duration_since(begin));
                check(answer.error_code, "InitProducerId")?;
                break;
            }
        }
    }
    times.sort();
    let middle = times.get(times.len() / 2).context("no times")?;
    Ok(middle.as_secs_f64() * 1e3)
}

/// From the process to its port, and to the commit of one of the transactions that were open.
fn start_with_open(
    runtime: &Runtime,
    broker: &mut Running,
    count: usize,
    add: &mut impl FnMut(String, &'static str, f64),
) -> Result<()> {
    progress(&format!("{count} open transactions"));
    let address = broker.address();
    let open = async {
        let made = begin_range(&address, 0..count).await?;
        try_join_all(made.iter().map(|part| open_all(&address, part))).await?;
        anyhow::Ok(made)
    };
    let made = runtime.block_on(open)?;
    let one = made.first().and_then(|part| part.first());
    let one = one.context("no transactions")?;
    broker.process().kill()?;
    let begin = now();
    broker.restart()?;
    let port = now().duration_since(begin).as_secs_f64();
    let mut last = None;
    let committed = poll_until(Duration::from_mins(2), Duration::from_millis(2), || {
        last = runtime.block_on(commit(&broker.address(), one)).err();
        last.is_none()
    });
    if !committed {
        bail!("no commit after a start with open transactions: {last:?}");
    }
    let commit = now().duration_since(begin).as_secs_f64();
    let what = format!("start after kill -9 with {count} open transactions");
    add(format!("{what}: port open"), SECONDS, port);
    add(format!("{what}: one of them committed"), SECONDS, commit);
    Ok(())
}

/// Opens a transaction of each id by one batch.
async fn open_all(address: &str, ids: &[Made]) -> Result<()> {
    let mut client = RawClient::connect(address).await?;
    let version = Dialect::V2.produce_version();
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    for (part, ids) in ids.chunks(WINDOW).enumerate() {
        let mut left: Vec<(i32, &Made)> = Vec::with_capacity(WINDOW);
        for (at, made) in ids.iter().enumerate() {
            let partition = i32::try_from(part * WINDOW + at)? % PARTITIONS;
            left.push((partition, made));
        }
        while !left.is_empty() {
            for (partition, made) in &left {
                let batch = BatchSpec {
                    producer_id: made.session.0,
                    producer_epoch: made.session.1,
                    base_sequence: 0,
                    attributes: txn::TRANSACTIONAL,
                    records: vec![Record::value("x")],
                    ..BatchSpec::default()
                };
                let batch = batch.build();
                let request = txn::produce_request(&made.name, TOPIC, *partition, batch);
                client.send(&request, version).await?;
            }
            let mut again = Vec::new();
            for one in left {
                let (_, answer) = client.receive::<ProduceRequest>(version).await?;
                let topic = answer.responses.first();
                let first = topic.and_then(|topic| topic.partition_responses.first());
                match first.context("no partition")?.error_code {
                    txn::CONCURRENT => again.push(one),
                    code => check(code, "Produce")?,
                }
            }
            left = again;
            if !left.is_empty() {
                pace.tick().await;
            }
        }
    }
    Ok(())
}

async fn commit(address: &str, made: &Made) -> Result<()> {
    let mut client = RawClient::connect(address).await?;
    let request = txn::end_request(&made.name, made.session, true);
    let answer = client.call(&request, Dialect::V2.end_version()).await?;
    check(answer.error_code, "EndTxn")
}
