//! One fetching connection: one Fetch at a time over its share of the partitions.

use std::ops::Range;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{BrokerId, FetchRequest};

use super::answer::{self, Walked};
use super::config::Args;
use super::engine::{Peer, Span};
use super::report::Tally;
use super::wire::Wire;
use crate::raw::{encode_request, ops};

/// Version of Fetch that is sent: the newest with topic names.
const FETCH_VERSION: i16 = 12;

/// Where one partition is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    pub(super) partition: i32,
    /// Where reading began, and begins again with `repeat`.
    pub(super) start: i64,
    /// Offset to fetch next.
    pub(super) next: i64,
    /// Where reading ends, if it does.
    pub(super) end: Option<i64>,
}

impl Position {
    fn is_at_end(&self) -> bool {
        self.end.is_some_and(|end| self.next >= end)
    }
}

/// A fetching connection.
#[derive(Debug)]
pub(super) struct Fetcher {
    wire: Wire,
    request: FetchRequest,
    /// In the order in which they are asked for.
    positions: Vec<Position>,
    repeat: bool,
    verify: bool,
    correlation_id: i32,
    /// When the unanswered Fetch was sent.
    sent: Option<Instant>,
    over: bool,
}

impl Fetcher {
    /// A connection to `address` that reads `positions`.
    pub(super) fn connect(address: &str, args: &Args, positions: Vec<Position>) -> Result<Self> {
        let topic = FetchTopic::default().with_topic(ops::topic_name(&args.topic));
        let request = FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_max_wait_ms(args.max_wait_ms)
            .with_min_bytes(args.min_bytes)
            .with_max_bytes(args.max_bytes)
            .with_session_epoch(-1)
            .with_topics(vec![topic]);
        let mut fetcher = Self {
            wire: Wire::connect(address)?,
            request,
            positions,
            repeat: args.repeat,
            verify: args.verify,
            correlation_id: 0,
            sent: None,
            over: false,
        };
        let template = FetchPartition::default()
            .with_current_leader_epoch(-1)
            .with_partition_max_bytes(args.partition_max_bytes);
        let count = fetcher.positions.len();
        if let Some(topic) = fetcher.request.topics.first_mut() {
            topic.partitions = vec![template; count];
        }
        Ok(fetcher)
    }

    /// Encodes the next Fetch; false when every partition is at its end.
    fn encode(&mut self) -> Result<bool> {
        if self.repeat && self.positions.iter().all(Position::is_at_end) {
            for position in &mut self.positions {
                position.next = position.start;
            }
        }
        let open = self
            .positions
            .iter()
            .filter(|position| !position.is_at_end());
        let topic = self.request.topics.first_mut().context("no topic")?;
        let mut used = 0;
        for (position, partition) in open.zip(&mut topic.partitions) {
            partition.partition = position.partition;
            partition.fetch_offset = position.next;
            used += 1;
        }
        // Partitions behind the used ones are read to their end; they come back with `repeat`.
        let spare = topic.partitions.split_off(used);
        self.correlation_id = self.correlation_id.wrapping_add(1);
        let frame = encode_request(&self.request, FETCH_VERSION, self.correlation_id)?;
        self.request
            .topics
            .first_mut()
            .context("no topic")?
            .partitions
            .extend(spare);
        if used > 0 {
            let mut buffer = self.wire.buffer();
            buffer.clear();
            buffer.extend_from_slice(&frame);
            self.wire.queue(buffer);
        }
        Ok(used > 0)
    }

    fn advance(&mut self, walked: &[(i32, Walked)]) -> Result<()> {
        for &(partition, walked) in walked {
            let index = self.positions.iter().position(|p| p.partition == partition);
            let index =
                index.with_context(|| format!("partition {partition} was not asked for"))?;
            // The broker fills an answer in the order of the request: who was served goes last.
            let mut position = self.positions.remove(index);
            position.next = walked.next_offset;
            self.positions.push(position);
        }
        Ok(())
    }
}

impl Peer for Fetcher {
    fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }

    fn send(&mut self, now: Instant, span: &Span, tally: &mut Tally) -> Result<()> {
        if self.sent.is_none() && !self.over {
            if span.is_over(now, tally.asked) || !self.encode()? {
                self.over = true;
            } else {
                self.sent = Some(now);
            }
        }
        self.wire.flush(&[], &[])
    }

    fn answer(&mut self, frame: Range<usize>, now: Instant, tally: &mut Tally) -> Result<()> {
        let since = self.sent.take().context("an answer to nothing")?;
        let frame = self.wire.frame(frame);
        let answered = answer::correlation_id(frame)?;
        if answered != self.correlation_id {
            bail!(
                "expected the answer to {}, got that to {answered}",
                self.correlation_id
            );
        }
        let mut walked = Vec::with_capacity(self.positions.len());
        let (mut bytes, mut records) = (0, 0);
        answer::each_fetched(frame, |partition, batches| {
            if batches.is_empty() {
                return Ok(());
            }
            let position = self.positions.iter().find(|p| p.partition == partition);
            let position = position.with_context(|| format!("partition {partition} unasked"))?;
            let run = answer::walk(batches, position.next, self.verify)?;
            if run.batches == 0 {
                bail!(
                    "partition {partition}: not one whole batch in {} bytes",
                    batches.len()
                );
            }
            bytes += run.bytes;
            records += run.records;
            walked.push((partition, run));
            Ok(())
        })?;
        self.advance(&walked)?;
        tally.asked += bytes;
        tally.count(now, since, bytes, records);
        Ok(())
    }

    fn due(&self) -> Option<Instant> {
        None
    }

    fn is_done(&self, _now: Instant, _span: &Span, _tally: &Tally) -> bool {
        self.over && self.sent.is_none()
    }
}
