//! Row 16: commits of offsets, rebalances, and what many members cost.
//!
//! Members and consumers are raw clients: no client library's pauses are in the figures.

#![allow(
    clippy::cast_precision_loss,
    reason = "rates and sizes are reported to few digits"
)]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use futures_util::future::try_join_all;
use kafka_protocol::messages::{HeartbeatRequest, OffsetCommitRequest};
use tokio::runtime::{Builder, Runtime};

use super::results::{Case, KIB, MS, PER_SECOND, Results, SECONDS, US};
use super::subject::{Running, Subject};
use super::{Args, progress};
use crate::raw::{RawClient, group, ops};
use crate::wallclock::{now, poll_until};

const TOPIC: &str = "groups";
/// Partitions of the topic; a committing connection has one of its own.
const PARTITIONS: i32 = 64;
/// Groups and connections that commit.
const COMMIT_CASES: [(usize, usize); 2] = [(1, 16), (64, 64)];
/// Commits that a connection may have unanswered.
const IN_FLIGHT: i64 = 5;
/// Members that join at once.
const REBALANCES: [usize; 3] = [3, 30, 300];
/// Pause between heartbeats of members that wait for a rebalance.
const HEARTBEAT: Duration = Duration::from_millis(20);
/// Groups and members of each, of the case with many.
const MANY: (usize, usize) = (1_000, 10);
/// Heartbeats that a connection may have unanswered.
const BEATS_IN_FLIGHT: usize = 32;
/// Groups with offsets, of the start.
const STORED: usize = 10_000;
/// Those of them that are asked after it.
const ASKED: usize = 100;
/// Connections that commit their offsets.
const STORING: usize = 8;
const SESSION_MS: i32 = 300_000;
const REBALANCE_IN_PROGRESS: i16 = 27;
const HEARTBEAT_VERSION: i16 = 3;

/// Measures every case: commits and rebalances on one broker, many members on another, so that
/// its memory has grown by nothing else, and a start on a third.
pub(super) fn measure(
    args: &Args,
    subject: Subject,
    dir: &Path,
    results: &mut Results,
) -> Result<()> {
    let broker = Running::start(subject, dir)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let address = broker.address();
    runtime.block_on(prepare(&address))?;
    let mut add = |what: String, unit, value| {
        let row = 16;
        results.add(subject, Case { row, what, unit }, value);
    };
    let seconds = if args.quick { 0.5 } else { 4.0 };
    // A JVM is slow until its hot code is compiled: the same work, not measured.
    runtime.block_on(commits(&address, 4, 16, seconds))?;
    for (groups, connections) in COMMIT_CASES {
        progress(&format!("offset commits, {groups} groups"));
        let rate = runtime.block_on(commits(&address, groups, connections, seconds))?;
        let plural = if groups == 1 { "" } else { "s" };
        let what = format!(
            "offset commits, {groups} group{plural}, {connections} connections, {IN_FLIGHT} in \
             flight on each"
        );
        add(what, PER_SECOND, rate);
    }
    if !subject.is_main() {
        return Ok(());
    }
    for members in REBALANCES {
        progress(&format!("{members} members join, one leaves"));
        let (joining, leaving) = runtime.block_on(rebalance(&address, members))?;
        add(format!("{members} members join at once"), MS, joining);
        add(format!("one of {members} members leaves"), MS, leaving);
    }
    drop(broker);
    let mut broker = Running::start(subject, dir)?;
    runtime.block_on(prepare(&broker.address()))?;
    let share = if args.quick { 20 } else { 1 };
    many(&runtime, &mut broker, (MANY.0 / share, MANY.1), &mut add)?;
    drop(broker);
    let mut broker = Running::start(subject, dir)?;
    runtime.block_on(prepare(&broker.address()))?;
    start(&runtime, &mut broker, STORED / share, &mut add)
}

/// Makes the topic, and what the broker needs before its first group.
async fn prepare(address: &str) -> Result<()> {
    let mut client = RawClient::connect(address).await?;
    ops::create_topic(&mut client, TOPIC, PARTITIONS, &[]).await?;
    group::await_coordinator(&mut client, "first").await
}

/// Commits per second of consumers without membership, as fast as each is answered.
async fn commits(address: &str, groups: usize, connections: usize, seconds: f64) -> Result<f64> {
    let mut clients = try_join_all((0..connections).map(|_| RawClient::connect(address))).await?;
    for (number, client) in clients.iter_mut().enumerate().take(groups) {
        group::await_coordinator(client, &format!("commits-{groups}-{number}")).await?;
    }
    let warm = now() + Duration::from_secs_f64(seconds / 4.0);
    let end = warm + Duration::from_secs_f64(seconds);
    let load = clients
        .into_iter()
        .enumerate()
        .map(async |(number, mut client)| {
            let name = format!("commits-{groups}-{}", number % groups);
            let partition = i32::try_from(number)?;
            let (mut sent, mut answered, mut counted) = (0_i64, 0_i64, 0_u64);
            loop {
                while sent - answered < IN_FLIGHT && (sent == 0 || now() < end) {
                    sent += 1;
                    let offsets = [(partition, sent)];
                    let request = group::commit_request(&name, ("", -1), TOPIC, &offsets);
                    client.send(&request, group::COMMIT_VERSION).await?;
                }
                if answered == sent {
                    break;
                }
                let version = group::COMMIT_VERSION;
                let (_, answer) = client.receive::<OffsetCommitRequest>(version).await?;
                let topic = answer.topics.first().context("no topic")?;
                let first = topic.partitions.first().context("no partition")?;
                ops::check(first.error_code, "OffsetCommit")?;
                answered += 1;
                counted += u64::from((warm..end).contains(&now()));
            }
            let kept = group::committed(&mut client, &name, TOPIC, PARTITIONS).await?;
            let kept = kept.get(number).copied();
            ensure!(
                kept == Some(sent),
                "{name}: committed {sent}, kept {kept:?}"
            );
            Ok(counted)
        });
    let counted: u64 = try_join_all(load).await?.into_iter().sum();
    Ok(counted as f64 / seconds)
}

/// A member on a connection.
struct Member {
    client: RawClient,
    id: String,
    generation: i32,
}

impl Member {
    async fn connect(address: &str) -> Result<Self> {
        Ok(Self {
            client: RawClient::connect(address).await?,
            id: String::new(),
            generation: -1,
        })
    }

    /// Joins until a generation has `count` members. The leader tells everybody how many there
    /// are; who is told another number sends heartbeats until it is time to join again.
    async fn settle(&mut self, name: &str, count: usize, mut joins: bool) -> Result<()> {
        let mut pace = tokio::time::interval(HEARTBEAT);
        loop {
            if joins {
                let client = &mut self.client;
                let joined = group::join(client, name, &self.id, TOPIC, SESSION_MS).await?;
                ops::check(joined.error_code, "JoinGroup")?;
                self.id = joined.member_id.to_string();
                self.generation = joined.generation_id;
                let told = Bytes::from(joined.members.len().to_string());
                let members = joined.members.iter();
                let given: Vec<_> = members
                    .map(|member| (member.member_id.clone(), told.clone()))
                    .collect();
                let synced = group::sync(client, name, &joined, &given).await?;
                if synced.error_code == REBALANCE_IN_PROGRESS {
                    continue;
                }
                ops::check(synced.error_code, "SyncGroup")?;
                if synced.assignment == count.to_string() {
                    return Ok(());
                }
            }
            pace.tick().await;
            let client = &mut self.client;
            let code = group::heartbeat(client, name, &self.id, self.generation).await?;
            joins = code == REBALANCE_IN_PROGRESS;
            if !joins {
                ops::check(code, "Heartbeat")?;
            }
        }
    }
}

/// Milliseconds until `count` members that join at once share a generation, and until the rest
/// does after one has left.
async fn rebalance(address: &str, count: usize) -> Result<(f64, f64)> {
    let name = format!("rebalance-{count}");
    let mut members = try_join_all((0..count).map(|_| Member::connect(address))).await?;
    for member in members.iter_mut().take(1) {
        group::await_coordinator(&mut member.client, &name).await?;
    }
    let begin = now();
    try_join_all(members.iter_mut().map(|m| m.settle(&name, count, true))).await?;
    let joining = now().duration_since(begin);
    let mut leaver = members.pop().context("no members")?;
    let begin = now();
    let leave = group::leave(&mut leaver.client, &name, &leaver.id);
    let rest = members
        .iter_mut()
        .map(|m| m.settle(&name, count - 1, false));
    tokio::try_join!(leave, try_join_all(rest))?;
    let leaving = now().duration_since(begin);
    Ok((joining.as_secs_f64() * 1e3, leaving.as_secs_f64() * 1e3))
}

/// Memory of many members and the price of their heartbeats.
fn many(
    runtime: &Runtime,
    broker: &mut Running,
    (groups, each): (usize, usize),
    add: &mut impl FnMut(String, &'static str, f64),
) -> Result<()> {
    let shape = format!("{} members in {groups} groups", groups * each);
    progress(&shape);
    let address = broker.address();
    let mut lanes = runtime.block_on(try_join_all((0..each).map(|_| Member::connect(&address))))?;
    let before = broker.process().rss_bytes()?;
    // Per connection: the member that it carries of every group.
    let mut carried: Vec<Vec<(String, String, i32)>> = vec![Vec::new(); each];
    for number in 0..groups {
        let name = format!("many-{number}");
        for lane in lanes.iter_mut().take(1) {
            runtime.block_on(group::await_coordinator(&mut lane.client, &name))?;
        }
        let settled = lanes.iter_mut().map(|lane| {
            lane.id.clear();
            lane.settle(&name, each, true)
        });
        runtime.block_on(try_join_all(settled))?;
        for (lane, carried) in lanes.iter().zip(&mut carried) {
            carried.push((name.clone(), lane.id.clone(), lane.generation));
        }
    }
    let bytes = broker.process().rss_bytes()?.saturating_sub(before) as f64;
    let per_member = bytes / (groups * each) as f64 / 1024.0;
    add(
        format!("resident memory per member, {shape}"),
        KIB,
        per_member,
    );

    let cpu = broker.process().cpu_seconds()?;
    let begin = now();
    let rounds = 10;
    let load = lanes.iter_mut().zip(&carried);
    let beats = load.map(|(lane, carried)| beat(&mut lane.client, carried, rounds));
    let count: usize = runtime.block_on(try_join_all(beats))?.into_iter().sum();
    let seconds = now().duration_since(begin).as_secs_f64();
    let cpu = broker.process().cpu_seconds()? - cpu;
    add(
        format!("heartbeats at the limit, {shape}"),
        PER_SECOND,
        count as f64 / seconds,
    );
    let what = format!("broker CPU per heartbeat, {shape}");
    add(what, US, cpu * 1e6 / count as f64);
    Ok(())
}

/// Heartbeats of every carried member, `rounds` times; how many there were.
async fn beat(
    client: &mut RawClient,
    carried: &[(String, String, i32)],
    rounds: usize,
) -> Result<usize> {
    let mut waiting = 0;
    for (name, id, generation) in carried.iter().cycle().take(carried.len() * rounds) {
        let request = group::heartbeat_request(name, id, *generation);
        client.send(&request, HEARTBEAT_VERSION).await?;
        waiting += 1;
        if waiting == BEATS_IN_FLIGHT {
            heard(client).await?;
            waiting -= 1;
        }
    }
    for _ in 0..waiting {
        heard(client).await?;
    }
    Ok(carried.len() * rounds)
}

/// From the process to its port, and to the answers about groups all over.
fn start(
    runtime: &Runtime,
    broker: &mut Running,
    count: usize,
    add: &mut impl FnMut(String, &'static str, f64),
) -> Result<()> {
    progress(&format!("start with {count} groups"));
    let address = broker.address();
    let numbers: Vec<usize> = (0..count).collect();
    let parts = numbers.chunks(count.div_ceil(STORING));
    runtime.block_on(try_join_all(parts.map(|part| store(&address, part))))?;
    broker.process().kill()?;
    let begin = now();
    broker.restart()?;
    let port = now().duration_since(begin).as_secs_f64();
    let asked: Vec<usize> = (0..count).step_by((count / ASKED).max(1)).collect();
    let (mut known, mut last) = (0, None);
    let ready = poll_until(Duration::from_mins(2), Duration::from_millis(2), || {
        let rest = asked.get(known..).unwrap_or_default();
        last = runtime.block_on(ask(&address, rest, &mut known)).err();
        last.is_none()
    });
    if !ready {
        bail!("no offsets after a start with {count} groups: {last:?}");
    }
    let all = now().duration_since(begin).as_secs_f64();
    let what = format!("start after kill -9 with {count} groups");
    add(format!("{what}: port open"), SECONDS, port);
    add(format!("{what}: {ASKED} of them answered"), SECONDS, all);
    Ok(())
}

/// Commits an offset of each group.
async fn store(address: &str, groups: &[usize]) -> Result<()> {
    let mut client = RawClient::connect(address).await?;
    for part in groups.chunks(BEATS_IN_FLIGHT) {
        for number in part {
            let offsets = [(0, i64::try_from(*number)?)];
            let name = format!("stored-{number}");
            let request = group::commit_request(&name, ("", -1), TOPIC, &offsets);
            client.send(&request, group::COMMIT_VERSION).await?;
        }
        for _ in part {
            let version = group::COMMIT_VERSION;
            let (_, answer) = client.receive::<OffsetCommitRequest>(version).await?;
            let topic = answer.topics.first().context("no topic")?;
            let first = topic.partitions.first().context("no partition")?;
            ops::check(first.error_code, "OffsetCommit")?;
        }
    }
    Ok(())
}

/// Asks for the offset of each group in turn, and counts those that were told.
async fn ask(address: &str, groups: &[usize], known: &mut usize) -> Result<()> {
    let mut client = RawClient::connect(address).await?;
    for number in groups {
        let name = format!("stored-{number}");
        let kept = group::committed(&mut client, &name, TOPIC, 1).await?;
        ensure!(kept == [i64::try_from(*number)?], "{name}: kept {kept:?}");
        *known += 1;
    }
    Ok(())
}

async fn heard(client: &mut RawClient) -> Result<()> {
    let (_, answer) = client
        .receive::<HeartbeatRequest>(HEARTBEAT_VERSION)
        .await?;
    if answer.error_code != 0 {
        bail!("Heartbeat: {}", answer.error_code);
    }
    Ok(())
}
