//! Reads partitions to where they end, and prints what is there.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::time::Duration;

use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::{BrokerId, FetchRequest, TopicName};

use super::super::client::{Client, RETRY_PAUSE, passes};
use super::super::ends::{EARLIEST, Isolation, LATEST, at};
use super::super::output::{Failure, check};
use super::super::topics::{Cluster, Place, text};
use super::batches::{self, Look, Seen};
use super::format::{At, Printer};
use super::places::{Range, outside};
use super::written;

/// Versions by which topics have names: later ones have ids.
const BY_NAME: i16 = 12;
/// How long brokers wait for new records, all together.
const WAIT: Duration = Duration::from_millis(500);
/// Most bytes of an answer, unless a single batch is larger.
const ANSWER_LEN: i32 = 8 << 20;
/// Most bytes of a partition in it.
const PARTITION_LEN: i32 = 1 << 20;
/// OFFSET_OUT_OF_RANGE.
const OUT_OF_RANGE: i16 = 1;

/// Why reading ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// Everything that was wanted was printed.
    Done,
    /// Nobody reads the output any more.
    OutputClosed,
}

/// A partition that is read.
#[derive(Debug, Clone, Copy)]
struct Reading {
    next: i64,
    stop: i64,
    /// Whether there is nothing to read up to the last stable offset.
    is_stable_read: bool,
}

/// Partitions of a topic that are read.
#[derive(Debug)]
pub(super) struct Reader {
    topic: String,
    partitions: BTreeMap<i32, Reading>,
    isolation: Isolation,
    shows_all: bool,
    /// Records that may still be printed.
    left: Option<u64>,
    /// Which partition is asked for first, so that each has its turn.
    turn: usize,
}

/// What became of a partition in an answer.
enum Step {
    Read,
    /// A leader is to be looked for.
    Again(Failure),
    /// The log has no such offset, or has it no longer.
    OutOfRange(i32),
    Ended(Ended),
}

impl Reader {
    pub(super) fn new(
        topic: &str,
        ranges: &BTreeMap<Place, Range>,
        isolation: Isolation,
        shows_all: bool,
        count: Option<u64>,
    ) -> Self {
        let partitions = ranges.iter().map(|((_, partition), range)| {
            let reading = Reading {
                next: range.from,
                stop: range.stop,
                is_stable_read: false,
            };
            (*partition, reading)
        });
        Self {
            topic: topic.to_owned(),
            partitions: partitions.collect(),
            isolation,
            shows_all,
            left: count,
            turn: 0,
        }
    }

    /// Reads until everything wanted is printed.
    ///
    /// # Errors
    /// What does not pass within the client's patience.
    pub(super) async fn run(
        &mut self,
        client: &mut Client,
        printer: &Printer,
        out: &mut impl Write,
    ) -> Result<Ended, Failure> {
        let mut good = client.monotonic();
        let topic = [self.topic.clone()];
        let mut cluster = Cluster::ask(client, Some(&topic)).await?;
        loop {
            if self.left == Some(0) || self.partitions.values().all(|p| p.next >= p.stop) {
                return Ok(Ended::Done);
            }
            let step = match self.round(client, &cluster, printer, out).await {
                Ok(step) => step,
                Err(failure @ (Failure::Unreachable(_) | Failure::TimedOut(_))) => {
                    Step::Again(failure)
                }
                Err(failure) => return Err(failure),
            };
            // What was read is seen at once, whatever comes next.
            match out.flush() {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    return Ok(Ended::OutputClosed);
                }
                flushed => written(flushed)?,
            }
            match step {
                Step::Read => good = client.monotonic(),
                Step::Ended(ended) => return Ok(ended),
                Step::OutOfRange(index) => {
                    let place = (self.topic.clone(), index);
                    let next = self.partitions.get(&index).map_or(0, |p| p.next);
                    // The answer that says so does not say what there is.
                    let (start, end) = bounds(client, &cluster, &place).await?;
                    return Err(Failure::Refused(outside(&place, next, start, end)));
                }
                Step::Again(failure) => {
                    if client.monotonic().saturating_sub(good) >= client.patience() {
                        return Err(failure);
                    }
                    client.pause(RETRY_PAUSE).await;
                    // What is wrong with it, the next round says.
                    if let Ok(found) = Cluster::look(client, Some(&topic), false).await {
                        cluster = found;
                    }
                }
            }
        }
    }

    /// One request to each leader, or two where some partitions are read beyond what is stable.
    async fn round(
        &mut self,
        client: &mut Client,
        cluster: &Cluster,
        printer: &Printer,
        out: &mut impl Write,
    ) -> Result<Step, Failure> {
        let mut asked: BTreeMap<(i32, i8), Vec<i32>> = BTreeMap::new();
        for (partition, reading) in &self.partitions {
            if reading.next >= reading.stop {
                continue;
            }
            let place = (self.topic.clone(), *partition);
            let leader = cluster.partitions.get(&place).map(|held| held.leader);
            if let Err(failure) = cluster.leader(&place) {
                return Ok(Step::Again(failure));
            }
            // Only a reader of what is committed is told what was aborted.
            let level = if self.shows_all && !reading.is_stable_read {
                Isolation::ReadCommitted
            } else {
                self.isolation
            };
            let key = (leader.unwrap_or(-1), level.level());
            asked.entry(key).or_default().push(*partition);
        }
        self.turn = self.turn.wrapping_add(1);
        let share = u32::try_from(asked.len()).unwrap_or(1).max(1);
        let wait = (WAIT / share).min(client.patience() / 2);
        for ((leader, level), mut partitions) in asked {
            let count = partitions.len().max(1);
            partitions.rotate_left(self.turn % count);
            let address = cluster.broker(leader)?;
            let request = self.request(&partitions, level, wait);
            let answer = client
                .call_upto(Some(address), BY_NAME, |_| request)
                .await?;
            check(answer.error_code, || format!("Fetch from {address}"))?;
            for data in answer.responses.iter().flat_map(|topic| &topic.partitions) {
                let step = self.partition(data, level, leader, printer, out)?;
                if !matches!(step, Step::Read) {
                    return Ok(step);
                }
            }
        }
        Ok(Step::Read)
    }

    fn request(&self, partitions: &[i32], level: i8, wait: Duration) -> FetchRequest {
        let partitions = partitions.iter().filter_map(|index| {
            let reading = self.partitions.get(index)?;
            let asked = FetchPartition::default()
                .with_partition(*index)
                .with_current_leader_epoch(-1)
                .with_fetch_offset(reading.next)
                .with_log_start_offset(-1)
                .with_partition_max_bytes(PARTITION_LEN);
            Some(asked)
        });
        let topic = FetchTopic::default()
            .with_topic(TopicName(text(&self.topic)))
            .with_partitions(partitions.collect());
        FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_max_wait_ms(i32::try_from(wait.as_millis()).unwrap_or(i32::MAX))
            .with_min_bytes(1)
            .with_max_bytes(ANSWER_LEN)
            .with_isolation_level(level)
            .with_session_epoch(-1)
            .with_topics(vec![topic])
    }

    /// Prints what an answer has of a partition.
    fn partition(
        &mut self,
        data: &PartitionData,
        level: i8,
        leader: i32,
        printer: &Printer,
        out: &mut impl Write,
    ) -> Result<Step, Failure> {
        let index = data.partition_index;
        let Some(reading) = self.partitions.get(&index).copied() else {
            return Ok(Step::Read);
        };
        if data.error_code == OUT_OF_RANGE {
            return Ok(Step::OutOfRange(index));
        }
        if let Err(failure) = check(data.error_code, || format!("{}-{index}", self.topic)) {
            return if passes(data.error_code) {
                Ok(Step::Again(failure))
            } else {
                Err(failure)
            };
        }
        let stable = data.last_stable_offset;
        let beyond = reading.next >= stable;
        let is_committed = level == Isolation::ReadCommitted.level();
        if self.shows_all && !is_committed && !beyond {
            // More is decided by now: it is read again, with what was aborted.
            self.set(index, reading.next, false);
            return Ok(Step::Read);
        }
        let look = self.look(data, &reading);
        let at = At {
            topic: &self.topic,
            partition: index,
            leader,
        };
        let mut left = self.left;
        let mut printed = Ok(());
        let show = |seen: &Seen<'_>| {
            if left == Some(0) {
                return ControlFlow::Break(());
            }
            printed = printer.print(out, at, seen);
            left = left.map(|left| left - 1);
            if printed.is_err() || left == Some(0) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let records = data.records.clone().unwrap_or_default();
        let next = batches::read(records, &look, show);
        let next =
            next.map_err(|why| Failure::Refused(format!("{}-{index}, {why}", self.topic)))?;
        self.left = left;
        match printed {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Ok(Step::Ended(Ended::OutputClosed));
            }
            printed => written(printed)?,
        }
        let to_end = self.isolation == Isolation::ReadUncommitted;
        self.set(index, next, to_end && next >= stable);
        if self.left == Some(0) {
            return Ok(Step::Ended(Ended::Done));
        }
        Ok(Step::Read)
    }

    fn look(&self, data: &PartitionData, reading: &Reading) -> Look {
        let aborted = data.aborted_transactions.iter().flatten();
        let mut aborted: Vec<(i64, i64)> = aborted
            .map(|txn| (txn.producer_id.0, txn.first_offset))
            .collect();
        aborted.sort_by_key(|(_, first)| *first);
        Look {
            position: reading.next,
            stop: reading.stop,
            stable: data.last_stable_offset,
            aborted,
            shows_all: self.shows_all,
        }
    }

    fn set(&mut self, index: i32, next: i64, is_stable_read: bool) {
        if let Some(reading) = self.partitions.get_mut(&index) {
            reading.next = next;
            reading.is_stable_read = is_stable_read;
        }
    }
}

/// Where the log begins, and where it ends.
async fn bounds(
    client: &mut Client,
    cluster: &Cluster,
    place: &Place,
) -> Result<(i64, i64), Failure> {
    let leaders = cluster.leaders();
    let mut bounds = [0; 2];
    for (bound, time) in bounds.iter_mut().zip([EARLIEST, LATEST]) {
        let found = at(client, &leaders, [place], time).await?;
        *bound = found.get(place).copied().flatten().unwrap_or(0);
    }
    let [start, end] = bounds;
    Ok((start, end))
}
