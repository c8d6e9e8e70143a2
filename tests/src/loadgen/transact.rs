//! One connection of many transactional ids, each of which has one transaction after the other.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use kafka_protocol::messages::{AddPartitionsToTxnRequest, EndTxnRequest, ProduceRequest};
use kafka_protocol::protocol::Request;

use super::engine::{Peer, Span};
use super::produce::{Schedule, next_sequence};
use super::report::Tally;
use super::wire::Wire;
use crate::raw::batch::{BatchSpec, Record};
use crate::raw::ops::check;
use crate::raw::txn::{self, Dialect, Session};
use crate::raw::{decode_response, encode_request};

/// COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, NOT_ENOUGH_REPLICAS
/// (what the first dialect is told of a coordinator that is busy), CONCURRENT_TRANSACTIONS.
const PASSES: [i16; 5] = [14, 15, 16, 19, txn::CONCURRENT];

/// What every transaction of a run is.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) topic: String,
    pub(super) dialect: Dialect,
    /// The records of a transaction: one batch to one partition.
    pub(super) records: Vec<Record>,
    /// Pause before a request is sent again that was told to come again.
    pub(super) retry: Duration,
}

/// Where an id is in its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Between two transactions.
    Rest,
    Add,
    Produce,
    End,
}

/// A transactional id.
#[derive(Debug)]
pub(super) struct Id {
    name: String,
    session: Session,
    /// It writes to one partition only, so it has one sequence.
    partition: i32,
    sequence: i32,
    step: Step,
    /// Moment from which the transaction is counted.
    since: Instant,
    /// When the request of the step is to be sent again; `None` while it is answered or at rest.
    again: Option<Instant>,
    schedule: Option<Schedule>,
}

impl Id {
    pub(super) fn new(
        name: String,
        session: Session,
        partition: i32,
        since: Instant,
        schedule: Option<Schedule>,
    ) -> Self {
        Self {
            name,
            session,
            partition,
            sequence: 0,
            step: Step::Rest,
            since,
            again: None,
            schedule,
        }
    }

    /// The moment from which a transaction that begins now is counted; `None` if none is due.
    fn take_due(&mut self, now: Instant, span: &Span) -> Option<Instant> {
        let Some(schedule) = &mut self.schedule else {
            return (!span.is_over(now, 0)).then_some(now);
        };
        // What was due before the end is done, late or not: leaving it out would hide a stall.
        let due = schedule.next;
        if due > now || span.is_over(due, 0) {
            return None;
        }
        schedule.next += schedule.interval;
        Some(due)
    }

    /// The request of the present step.
    fn request(&self, plan: &Plan, correlation_id: i32) -> Result<Bytes> {
        let Self {
            name,
            session,
            partition,
            ..
        } = self;
        let dialect = plan.dialect;
        match self.step {
            Step::Rest => bail!("{name} is at rest"),
            Step::Add => {
                let request = txn::add_request(name, *session, &plan.topic, *partition);
                encode_request(&request, txn::ADD_VERSION, correlation_id)
            }
            Step::Produce => {
                let batch = BatchSpec {
                    producer_id: session.0,
                    producer_epoch: session.1,
                    base_sequence: self.sequence,
                    attributes: txn::TRANSACTIONAL,
                    records: plan.records.clone(),
                    ..BatchSpec::default()
                };
                let batch = batch.build();
                let request = txn::produce_request(name, &plan.topic, *partition, batch);
                encode_request(&request, dialect.produce_version(), correlation_id)
            }
            Step::End => {
                let request = txn::end_request(name, *session, true);
                encode_request(&request, dialect.end_version(), correlation_id)
            }
        }
    }

    /// Takes the answer to the present step; its error code.
    fn answered(&mut self, plan: &Plan, frame: Bytes) -> Result<i16> {
        match self.step {
            Step::Rest => bail!("{} awaited no answer", self.name),
            Step::Add => {
                let answer = decode::<AddPartitionsToTxnRequest>(frame, txn::ADD_VERSION)?;
                let topic = answer.results_by_topic_v3_and_below.first();
                let first = topic.and_then(|topic| topic.results_by_partition.first());
                Ok(first.context("no partition")?.partition_error_code)
            }
            Step::Produce => {
                let version = plan.dialect.produce_version();
                let answer = decode::<ProduceRequest>(frame, version)?;
                let topic = answer.responses.first();
                let first = topic.and_then(|topic| topic.partition_responses.first());
                let code = first.context("no partition")?.error_code;
                if code == 0 {
                    let records = i32::try_from(plan.records.len())?;
                    self.sequence = next_sequence(self.sequence, records);
                }
                Ok(code)
            }
            Step::End => {
                let version = plan.dialect.end_version();
                let answer = decode::<EndTxnRequest>(frame, version)?;
                if plan.dialect == Dialect::V2 && answer.error_code == 0 {
                    self.session = (answer.producer_id.0, answer.producer_epoch);
                    self.sequence = 0;
                }
                Ok(answer.error_code)
            }
        }
    }
}

fn decode<R: Request>(frame: Bytes, version: i16) -> Result<R::Response> {
    Ok(decode_response::<R>(frame, version)?.1)
}

/// A connection with its transactional ids.
#[derive(Debug)]
pub(super) struct Transactor {
    wire: Wire,
    plan: Arc<Plan>,
    ids: Vec<Id>,
    /// Whose requests are unanswered, in order.
    in_flight: VecDeque<usize>,
    /// Correlation id of the oldest unanswered request.
    oldest: i32,
}

impl Transactor {
    /// A connection to `address`.
    pub(super) fn connect(address: &str, plan: Arc<Plan>, ids: Vec<Id>) -> Result<Self> {
        Ok(Self {
            wire: Wire::connect(address)?,
            plan,
            in_flight: VecDeque::with_capacity(ids.len()),
            ids,
            oldest: 0,
        })
    }

    /// Queues the request of an id's step.
    fn queue(&mut self, index: usize) -> Result<()> {
        let waiting = i32::try_from(self.in_flight.len())?;
        let request = self.ids[index].request(&self.plan, self.oldest.wrapping_add(waiting))?;
        let mut glue = self.wire.buffer();
        glue.clear();
        glue.extend_from_slice(&request);
        self.wire.queue(glue);
        self.in_flight.push_back(index);
        Ok(())
    }
}

impl Peer for Transactor {
    fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }

    fn send(&mut self, now: Instant, span: &Span, _: &mut Tally) -> Result<()> {
        for index in 0..self.ids.len() {
            let id = &mut self.ids[index];
            if id.step == Step::Rest {
                let Some(since) = id.take_due(now, span) else {
                    continue;
                };
                id.since = since;
                id.step = match self.plan.dialect {
                    Dialect::V1 => Step::Add,
                    Dialect::V2 => Step::Produce,
                };
            } else if id.again.is_none_or(|again| again > now) {
                continue;
            }
            id.again = None;
            self.queue(index)?;
        }
        self.wire.flush(&[], &[])
    }

    fn answer(&mut self, frame: Range<usize>, now: Instant, tally: &mut Tally) -> Result<()> {
        let frame = Bytes::copy_from_slice(self.wire.frame(frame));
        let index = self.in_flight.pop_front().context("an answer to nothing")?;
        let correlation_id = super::answer::correlation_id(&frame)?;
        if correlation_id != self.oldest {
            bail!(
                "expected the answer to {}, got that to {correlation_id}",
                self.oldest
            );
        }
        self.oldest = self.oldest.wrapping_add(1);
        let id = &mut self.ids[index];
        let code = id.answered(&self.plan, frame)?;
        if PASSES.contains(&code) {
            id.again = Some(now + self.plan.retry);
            tally.retries += 1;
            return Ok(());
        }
        check(code, &format!("{:?} of {}", id.step, id.name))?;
        id.step = match id.step {
            Step::Rest | Step::End => {
                tally.count(now, id.since, 0, self.plan.records.len() as u64);
                id.step = Step::Rest;
                return Ok(());
            }
            Step::Add => Step::Produce,
            Step::Produce => Step::End,
        };
        self.queue(index)
    }

    fn due(&self) -> Option<Instant> {
        let due = self.ids.iter().filter_map(|id| match id.step {
            Step::Rest => id.schedule.map(|schedule| schedule.next),
            _ => id.again,
        });
        due.min()
    }

    fn is_done(&self, now: Instant, span: &Span, _: &Tally) -> bool {
        self.ids.iter().all(|id| {
            let next = id.schedule.map_or(now, |schedule| schedule.next);
            id.step == Step::Rest && span.is_over(next, 0)
        })
    }
}
