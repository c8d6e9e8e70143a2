//! A whole run: prepare the topic and the producers, drive the connections, report.

#![allow(
    clippy::cast_precision_loss,
    reason = "rates and quantiles are reported to few digits"
)]

use std::io::{BufRead as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kafka_protocol::error::ResponseError;

use super::config::{Args, Mode, StartAt};
use super::engine::{Peer, Span, drive};
use super::fetch::{Fetcher, Position};
use super::produce::{Producer, Schedule};
use super::report::{Report, Tally};
use super::template::{Tail, Template};
use super::transact::{Id, Plan, Transactor};
use crate::raw::batch::Record;
use crate::raw::txn::{self, Dialect};
use crate::raw::{RawClient, ops};
use crate::wallclock;

/// Timeout of the generator's transactions.
const TRANSACTION_TIMEOUT_MS: i32 = 60_000;

/// Runs what `args` ask for. Blocks; any error of the broker is an error of the run.
pub fn run(args: &Args) -> Result<Report> {
    args.check()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match args.mode {
        Mode::Produce => {
            let (leader, identities) = runtime.block_on(prepare_produce(args))?;
            let mut peers = producers(args, &leader, &identities)?;
            measure(args, &mut peers)
        }
        Mode::Transact => {
            let prepared = runtime.block_on(prepare_transact(args))?;
            let mut peers = transactors(args, prepared)?;
            measure(args, &mut peers)
        }
        Mode::Fetch => {
            let (leader, positions) = runtime.block_on(prepare_fetch(args))?;
            let mut peers = fetchers(args, &leader, &positions)?;
            measure(args, &mut peers)
        }
    }
}

fn measure<P: Peer>(args: &Args, peers: &mut [P]) -> Result<Report> {
    if args.wait {
        let mut out = std::io::stdout().lock();
        writeln!(out, "ready").and_then(|()| out.flush())?;
        std::io::stdin().lock().read_line(&mut String::new())?;
    }
    let begin = wallclock::now();
    let measure_from = begin + Duration::from_secs_f64(args.warmup_seconds);
    let span = Span {
        end: args
            .seconds
            .map(|seconds| measure_from + Duration::from_secs_f64(seconds)),
        bytes: args.bytes,
        stall: Duration::from_secs_f64(args.stall_seconds),
    };
    let mut tally = Tally::new(measure_from)?;
    let cpu_before = cpu_seconds();
    drive(peers, &span, &mut tally)?;
    let mut report = tally.report();
    report.client_cpu_seconds = cpu_seconds() - cpu_before;
    if report.requests == 0 {
        bail!("nothing was answered within the measured span");
    }
    Ok(report)
}

/// User and system time that this process has used.
fn cpu_seconds() -> f64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

/// Address of the leader, and one producer id and epoch per connection.
async fn prepare_produce(args: &Args) -> Result<(String, Vec<Option<(i64, i16)>>)> {
    let (mut client, leader) = prepare_topic(args).await?;
    let mut identities = vec![None; args.connections];
    if !args.no_idempotence {
        for identity in &mut identities {
            *identity = Some(ops::init_producer_id(&mut client).await?);
        }
    }
    Ok((leader, identities))
}

/// A connection, and the address of the topic's leader.
async fn prepare_topic(args: &Args) -> Result<(RawClient, String)> {
    let mut client = RawClient::connect(&args.bootstrap).await?;
    let found = ops::metadata(&mut client, &args.topic).await?;
    let code = found.topics.first().map_or(0, |topic| topic.error_code);
    let metadata = if code == ResponseError::UnknownTopicOrPartition.code() {
        let configs = args.topic_config_pairs()?;
        ops::create_topic(&mut client, &args.topic, args.partitions, &configs).await?
    } else {
        ops::await_topic(&mut client, &args.topic, args.partitions).await?
    };
    Ok((client, ops::sole_leader(&metadata)?))
}

/// Address of the leader, which is also taken for the coordinator of every id, and the ids with
/// their sessions.
async fn prepare_transact(args: &Args) -> Result<(String, Vec<(String, txn::Session)>)> {
    let (mut client, leader) = prepare_topic(args).await?;
    let numbers = (0..args.ids).map(|index| index * args.id_step);
    let ids: Vec<String> = numbers
        .map(|number| format!("{}-{number}", args.id_prefix))
        .collect();
    txn::await_coordinator(&mut client, &args.id_prefix).await?;
    let sessions = txn::begin_all(&mut client, &ids, TRANSACTION_TIMEOUT_MS).await?;
    Ok((leader, ids.into_iter().zip(sessions).collect()))
}

fn transactors(
    args: &Args,
    (leader, ids): (String, Vec<(String, txn::Session)>),
) -> Result<Vec<Transactor>> {
    let mut random = fastrand::Rng::with_seed(0x5EED);
    let records = (0..args.transaction_records).map(|_| {
        let mut value = vec![0; args.record_bytes];
        random.fill(&mut value);
        Record::value(value)
    });
    let plan = Arc::new(Plan {
        topic: args.topic.clone(),
        dialect: if args.transaction_version == 1 {
            Dialect::V1
        } else {
            Dialect::V2
        },
        records: records.collect(),
        retry: Duration::from_millis(args.retry_ms),
    });
    let count = ids.len();
    let interval = args
        .rate
        .map(|rate| Duration::from_secs_f64(count as f64 / rate));
    let begin = wallclock::now();
    let mut dealt: Vec<Vec<Id>> = Vec::new();
    dealt.resize_with(args.connections.min(count), Vec::new);
    let connections = dealt.len();
    for (index, (name, session)) in ids.into_iter().enumerate() {
        let share = index as f64 / count as f64;
        let schedule = interval.map(|interval| Schedule {
            next: begin + interval.mul_f64(share),
            interval,
        });
        let partition = i32::try_from(index)? % args.partitions;
        let id = Id::new(name, session, partition, begin, schedule);
        dealt[index % connections].push(id);
    }
    let connect = |ids| Transactor::connect(&leader, Arc::clone(&plan), ids);
    dealt.into_iter().map(connect).collect()
}

fn producers(
    args: &Args,
    leader: &str,
    identities: &[Option<(i64, i16)>],
) -> Result<Vec<Producer>> {
    let timestamp_ms = i64::try_from(
        std::time::UNIX_EPOCH
            .elapsed()
            .context("the clock is before 1970")?
            .as_millis(),
    )?;
    let tail = Arc::new(Tail::new(
        args.batch_bytes,
        args.record_bytes,
        timestamp_ms,
    )?);
    let template = Template::new(&args.topic, args.acks, args.batches_per_request, tail)?;
    let template = Arc::new(template);
    let partitions = usize::try_from(args.partitions)?;
    let interval = args.rate_mb.map(|rate| {
        let each = rate * 1e6 / args.connections as f64;
        Duration::from_secs_f64(template.batch_bytes() as f64 / each)
    });
    let begin = wallclock::now();
    let mut producers = Vec::with_capacity(identities.len());
    for (index, &identity) in identities.iter().enumerate() {
        // Connections begin at different partitions, and at different phases of the interval.
        let share = index as f64 / identities.len() as f64;
        let schedule = interval.map(|interval| Schedule {
            next: begin + interval.mul_f64(share),
            interval,
        });
        producers.push(Producer::connect(
            leader,
            Arc::clone(&template),
            identity,
            partitions,
            index * partitions / identities.len(),
            args.in_flight,
            schedule,
        )?);
    }
    Ok(producers)
}

/// Address of the leader, and where to read each partition.
async fn prepare_fetch(args: &Args) -> Result<(String, Vec<Position>)> {
    let mut client = RawClient::connect(&args.bootstrap).await?;
    let count = args.partitions;
    let found = ops::metadata(&mut client, &args.topic).await?;
    let there = found
        .topics
        .first()
        .map_or(0, |topic| topic.partitions.len());
    let there = i32::try_from(there)?.max(count);
    let metadata = ops::await_topic(&mut client, &args.topic, there).await?;
    let ends = ops::list_offsets(&mut client, &args.topic, count, ops::LATEST).await?;
    let positions = match args.start_at {
        StartAt::Latest => (0..)
            .zip(ends)
            .map(|(partition, end)| Position {
                partition,
                start: end,
                next: end,
                end: None,
            })
            .collect(),
        StartAt::Earliest => {
            let starts = ops::list_offsets(&mut client, &args.topic, count, ops::EARLIEST).await?;
            let bounds = starts.into_iter().zip(ends);
            let position = |(partition, (start, end))| Position {
                partition,
                start,
                next: start,
                end: Some(end),
            };
            (0..).zip(bounds).map(position).collect()
        }
    };
    Ok((ops::sole_leader(&metadata)?, positions))
}

/// Partitions are dealt out to the connections; with more connections than partitions some are
/// read more than once.
fn fetchers(args: &Args, leader: &str, positions: &[Position]) -> Result<Vec<Fetcher>> {
    let mut fetchers = Vec::with_capacity(args.connections);
    for index in 0..args.connections {
        let mine: Vec<Position> = if args.connections <= positions.len() {
            positions
                .iter()
                .skip(index)
                .step_by(args.connections)
                .copied()
                .collect()
        } else {
            vec![positions[index % positions.len()]]
        };
        fetchers.push(Fetcher::connect(leader, args, mine)?);
    }
    Ok(fetchers)
}
