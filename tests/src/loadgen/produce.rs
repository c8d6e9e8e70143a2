//! One producing connection: an idempotent producer with a bounded number of requests in flight.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::answer;
use super::engine::{Peer, Span};
use super::report::Tally;
use super::template::{Stamp, Template};
use super::wire::Wire;

/// When a fixed rate makes the next request due.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    pub(super) next: Instant,
    pub(super) interval: Duration,
}

/// A producing connection.
#[derive(Debug)]
pub(super) struct Producer {
    wire: Wire,
    template: Arc<Template>,
    /// Producer id and epoch; `None` sends without.
    identity: Option<(i64, i16)>,
    /// Next sequence of each partition.
    sequences: Vec<i32>,
    /// Partition of the next batch.
    cursor: usize,
    in_flight_max: usize,
    /// Moment from which each unanswered request is counted, in order.
    in_flight: VecDeque<Instant>,
    /// Correlation id of the oldest unanswered request.
    oldest: i32,
    schedule: Option<Schedule>,
    stamps: Vec<Stamp>,
}

impl Producer {
    /// A connection to `address` whose first batch goes to partition `cursor`.
    pub(super) fn connect(
        address: &str,
        template: Arc<Template>,
        identity: Option<(i64, i16)>,
        partitions: usize,
        cursor: usize,
        in_flight_max: usize,
        schedule: Option<Schedule>,
    ) -> Result<Self> {
        Ok(Self {
            wire: Wire::connect(address)?,
            template,
            identity,
            sequences: vec![0; partitions],
            cursor: cursor % partitions,
            in_flight_max,
            in_flight: VecDeque::with_capacity(in_flight_max),
            oldest: 0,
            schedule,
            stamps: Vec::new(),
        })
    }

    /// The moment from which a request sent now is counted; `None` if none is due.
    fn take_due(&mut self, now: Instant, span: &Span, asked: u64) -> Option<Instant> {
        let Some(schedule) = &mut self.schedule else {
            return (!span.is_over(now, asked)).then_some(now);
        };
        // What was due before the end is sent, late or not: leaving it out would hide a stall.
        let due = schedule.next;
        if due > now || span.is_over(due, asked) {
            return None;
        }
        schedule.next += schedule.interval;
        Some(due)
    }

    fn queue(&mut self, counted_from: Instant) -> Result<()> {
        self.stamps.clear();
        for _ in 0..self.template.batches() {
            let sequence = &mut self.sequences[self.cursor];
            let (producer_id, producer_epoch) = self.identity.unwrap_or((-1, -1));
            let base_sequence = if self.identity.is_some() {
                *sequence
            } else {
                -1
            };
            *sequence = next_sequence(*sequence, self.template.tail.records);
            let partition = i32::try_from(self.cursor)?;
            self.stamps.push(Stamp {
                partition,
                producer_id,
                producer_epoch,
                base_sequence,
            });
            self.cursor = (self.cursor + 1) % self.sequences.len();
        }
        let correlation_id = self
            .oldest
            .wrapping_add(i32::try_from(self.in_flight.len())?);
        let mut glue = self.wire.buffer();
        self.template.patch(&mut glue, correlation_id, &self.stamps);
        self.wire.queue(glue);
        self.in_flight.push_back(counted_from);
        Ok(())
    }
}

/// The sequence after `records` more, which wraps to 0 behind 2^31 - 1.
pub(super) fn next_sequence(sequence: i32, records: i32) -> i32 {
    sequence.wrapping_add(records) & i32::MAX
}

impl Peer for Producer {
    fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }

    fn send(&mut self, now: Instant, span: &Span, tally: &mut Tally) -> Result<()> {
        while self.in_flight.len() < self.in_flight_max {
            let Some(counted_from) = self.take_due(now, span, tally.asked) else {
                break;
            };
            tally.asked += self.template.batch_bytes() as u64;
            self.queue(counted_from)?;
        }
        let template = Arc::clone(&self.template);
        self.wire.flush(template.cuts(), &template.tail.bytes)
    }

    fn answer(&mut self, frame: Range<usize>, now: Instant, tally: &mut Tally) -> Result<()> {
        let frame = self.wire.frame(frame);
        let since = self.in_flight.pop_front().context("an answer to nothing")?;
        let answered = answer::correlation_id(frame)?;
        if answered != self.oldest {
            bail!(
                "expected the answer to {}, got that to {answered}",
                self.oldest
            );
        }
        self.oldest = self.oldest.wrapping_add(1);
        let batches = self.template.batches();
        answer::check_produce(frame, batches)?;
        let records = batches as u64 * u64::from(self.template.tail.records.unsigned_abs());
        tally.count(now, since, self.template.batch_bytes() as u64, records);
        Ok(())
    }

    fn due(&self) -> Option<Instant> {
        let room = self.in_flight.len() < self.in_flight_max;
        self.schedule.filter(|_| room).map(|schedule| schedule.next)
    }

    fn is_done(&self, now: Instant, span: &Span, tally: &Tally) -> bool {
        let next = self.schedule.map_or(now, |schedule| schedule.next);
        self.in_flight.is_empty() && span.is_over(next, tally.asked)
    }
}

#[cfg(test)]
mod tests {
    use super::next_sequence;

    #[test]
    fn sequences_wrap_to_zero_as_kafkas_do() {
        assert_eq!(next_sequence(0, 64), 64);
        assert_eq!(next_sequence(i32::MAX, 1), 0);
        assert_eq!(next_sequence(i32::MAX - 1, 5), 3);
    }
}
