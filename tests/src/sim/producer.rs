//! An idempotent producer: up to five requests in flight, retries in order with the same sequences.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use gateway::api::{ApiRequest, ApiResponse};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::ProduceRequest;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use tokio::sync::oneshot;

use super::clients::{Client, Target};
use super::history::{Ack, BatchId, Place, RecordId};
use super::net::{Broken, Connection};
use crate::raw::batch::{BatchSpec, Record};
use crate::raw::ops::topic_name;

/// `max.in.flight.requests.per.connection`.
const IN_FLIGHT_MAX: usize = 5;
/// Batches that a producer has made and that are not acknowledged.
const PENDING_MAX: usize = 8;

struct Pending {
    batch: BatchId,
    bytes: Bytes,
    in_flight: bool,
    tried: bool,
}

/// What an answer means for its batch.
enum Verdict {
    Acked,
    Retry {
        elsewhere: bool,
    },
    /// The producer id is of no use any more.
    NewSession,
    /// The topic is gone.
    Gone,
}

/// One producer.
pub(crate) struct Producer {
    pub(crate) client: Client,
    pub(crate) targets: Vec<Target>,
    /// Batches to be made.
    pub(crate) total: u32,
    /// Retries are sent one at a time, as Java's producer does; otherwise all at once.
    pub(crate) cautious: bool,
    /// Longest pause between two batches, ms.
    pub(crate) think_ms: u64,
}

struct Session {
    number: u32,
    producer_id: i64,
    next: BTreeMap<Place, i32>,
    pending: VecDeque<Pending>,
    flights: VecDeque<(BatchId, oneshot::Receiver<ApiResponse>)>,
    connection: Connection,
}

impl Producer {
    /// Produces until every batch is acknowledged, or given up with its session or topic.
    pub(crate) async fn run(self) {
        let mut left = self.total;
        while left > 0 {
            let producer_id = self.client.producer_id().await;
            let number = self.client.history.session(producer_id);
            let mut session = Session {
                number,
                producer_id,
                next: BTreeMap::new(),
                pending: VecDeque::new(),
                flights: VecDeque::new(),
                connection: self.client.connect().await,
            };
            left = self.produce(&mut session, left).await;
        }
    }

    /// Works through one session; how many batches are still to be made.
    async fn produce(&self, session: &mut Session, mut left: u32) -> u32 {
        loop {
            let world = &self.client.world;
            while left > 0
                && session.pending.len() < PENDING_MAX
                && (session.pending.is_empty() || world.chance(60))
            {
                self.make(session);
                left -= 1;
            }
            if session.pending.is_empty() {
                return left;
            }
            if self.send(session).await.is_err() {
                self.reconnect(session).await;
                continue;
            }
            let Some((batch, wait)) = session.flights.pop_front() else {
                self.client.pause(1, 10).await;
                continue;
            };
            let Some(answer) = self.client.answer(wait).await else {
                self.reconnect(session).await;
                continue;
            };
            let waiting = session.pending.iter_mut().find(|p| p.batch == batch);
            if let Some(waiting) = waiting {
                waiting.in_flight = false;
            }
            match self.judge(session, batch, &answer) {
                Verdict::Acked => session.pending.retain(|p| p.batch != batch),
                Verdict::Retry { elsewhere } => {
                    self.client.pause(1, 40).await;
                    if elsewhere {
                        self.reconnect(session).await;
                    }
                }
                Verdict::NewSession => return left,
                Verdict::Gone => {
                    let topic = batch.first.place.0;
                    session.pending.retain(|p| p.batch.first.place.0 != topic);
                    return left;
                }
            }
            if self.think_ms > 0 {
                self.client.pause(0, self.think_ms).await;
            }
        }
    }

    /// Everything that is not acknowledged goes again, in order.
    async fn reconnect(&self, session: &mut Session) {
        session.flights.clear();
        for pending in &mut session.pending {
            pending.in_flight = false;
        }
        session.connection = self.client.connect().await;
    }

    fn make(&self, session: &mut Session) {
        let world = &self.client.world;
        let target = &self.targets[world.index(self.targets.len())];
        let partition = world.small(target.partitions);
        let place = (target.id, partition);
        let next = session.next.entry(place).or_insert(0);
        let count = 1 + world.small(4);
        let batch = BatchId {
            first: RecordId {
                session: session.number,
                place,
                sequence: *next,
            },
            count,
        };
        *next += count;
        let filler = world.index(300);
        let compacts = self.client.history.compacts();
        let spec = BatchSpec {
            producer_id: session.producer_id,
            producer_epoch: 0,
            base_sequence: batch.first.sequence,
            timestamp_ms: self.client.env.clock.wall_ms(),
            records: batch
                .records()
                .map(|record| Record {
                    key: compacts.then(|| Bytes::copy_from_slice(&[record.key()])),
                    ..Record::value(record.payload(filler))
                })
                .collect(),
            ..BatchSpec::default()
        };
        self.client.history.sent(batch);
        session.pending.push_back(Pending {
            batch,
            bytes: spec.build(),
            in_flight: false,
            tried: false,
        });
    }

    /// Sends what may be sent.
    async fn send(&self, session: &mut Session) -> Result<(), Broken> {
        while session.flights.len() < IN_FLIGHT_MAX {
            let Some(index) = self.next_to_send(session) else {
                return Ok(());
            };
            let pending = &mut session.pending[index];
            pending.in_flight = true;
            pending.tried = true;
            let batch = pending.batch;
            let target = self.targets.iter().find(|t| t.id == batch.first.place.0);
            let Some(target) = target else { continue };
            let by_id = self.client.world.chance(50);
            let request = produce_request(target, by_id, batch.first.place.1, &pending.bytes);
            let version = if by_id { 13 } else { 9 };
            let wait = session
                .connection
                .send(request, version, vec![batch])
                .await?;
            session.flights.push_back((batch, wait));
        }
        Ok(())
    }

    fn next_to_send(&self, session: &Session) -> Option<usize> {
        let mut blocked: Vec<Place> = Vec::new();
        for (index, pending) in session.pending.iter().enumerate() {
            let place = pending.batch.first.place;
            if pending.in_flight {
                continue;
            }
            if blocked.contains(&place) {
                continue;
            }
            let first = session
                .pending
                .iter()
                .find(|p| p.batch.first.place == place);
            let is_first = first.is_some_and(|first| first.batch == pending.batch);
            if self.cautious && pending.tried && !is_first {
                // Java: a retry waits until everything before it is answered.
                blocked.push(place);
                continue;
            }
            return Some(index);
        }
        None
    }

    fn judge(&self, session: &Session, batch: BatchId, answer: &ApiResponse) -> Verdict {
        let ApiResponse::Produce(answer) = answer else {
            self.client.history.violation("another answer to Produce");
            return Verdict::NewSession;
        };
        let partition = answer
            .responses
            .first()
            .and_then(|topic| topic.partition_responses.first());
        let Some(partition) = partition else {
            self.client.history.violation("an empty answer to Produce");
            return Verdict::NewSession;
        };
        let place = batch.first.place;
        let code = partition.error_code;
        match ResponseError::try_from_code(code) {
            None => {
                let ack = Ack {
                    offset: partition.base_offset,
                    server: session.connection.server,
                };
                self.client.history.acked(batch, ack);
                Verdict::Acked
            }
            Some(ResponseError::OutOfOrderSequenceNumber) => {
                let first = session
                    .pending
                    .iter()
                    .find(|p| p.batch.first.place == place);
                if first.is_some_and(|first| first.batch == batch) {
                    self.client.history.refused(batch);
                    Verdict::NewSession
                } else {
                    Verdict::Retry { elsewhere: false }
                }
            }
            Some(ResponseError::UnknownTopicId | ResponseError::UnknownTopicOrPartition)
                if self.client.history.may_be_deleted(place.0) =>
            {
                Verdict::Gone
            }
            Some(error) if error.is_retriable() => Verdict::Retry {
                elsewhere: error == ResponseError::NotLeaderOrFollower,
            },
            Some(error) => {
                let what = format!("{batch:?} was answered with {code} ({error:?})");
                self.client.history.violation(&what);
                Verdict::NewSession
            }
        }
    }
}

/// A Produce request of one batch, by topic name (v9) or id (v13).
pub(crate) fn produce_request(
    target: &Target,
    by_id: bool,
    partition: i32,
    bytes: &Bytes,
) -> ApiRequest {
    let data = PartitionProduceData::default()
        .with_index(partition)
        .with_records(Some(bytes.clone()));
    let topic = TopicProduceData::default().with_partition_data(vec![data]);
    let topic = if by_id {
        topic.with_topic_id(target.id)
    } else {
        topic.with_name(topic_name(&target.name))
    };
    let request = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![topic]);
    ApiRequest::Produce(Box::new(request))
}
