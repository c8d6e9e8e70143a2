//! A whole run: prepare the topic and the producers, drive the connections, report.

#![allow(
    clippy::cast_precision_loss,
    reason = "rates and quantiles are reported to few digits"
)]

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
use crate::raw::{RawClient, ops};
use crate::wallclock;

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
        Mode::Fetch => {
            let (leader, positions) = runtime.block_on(prepare_fetch(args))?;
            let mut peers = fetchers(args, &leader, &positions)?;
            measure(args, &mut peers)
        }
    }
}

fn measure<P: Peer>(args: &Args, peers: &mut [P]) -> Result<Report> {
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
    let mut client = RawClient::connect(&args.bootstrap).await?;
    let found = ops::metadata(&mut client, &args.topic).await?;
    let code = found.topics.first().map_or(0, |topic| topic.error_code);
    let metadata = if code == ResponseError::UnknownTopicOrPartition.code() {
        let configs = args.topic_config_pairs()?;
        ops::create_topic(&mut client, &args.topic, args.partitions, &configs).await?
    } else {
        ops::await_topic(&mut client, &args.topic, args.partitions).await?
    };
    let mut identities = vec![None; args.connections];
    if !args.no_idempotence {
        for identity in &mut identities {
            *identity = Some(ops::init_producer_id(&mut client).await?);
        }
    }
    Ok((ops::sole_leader(&metadata)?, identities))
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
    let metadata = ops::await_topic(&mut client, &args.topic, args.partitions).await?;
    let count = args.partitions;
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
