//! A client of one transactional id: sessions, each of some transactions.

use std::collections::BTreeMap;
use std::sync::Arc;

use gateway::api::{ApiRequest, ApiResponse};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic,
};
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, EndTxnRequest, GroupId,
    InitProducerIdRequest, ProduceRequest, ProducerId, TransactionalId, TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
};
use kafka_protocol::protocol::StrBytes;

use super::super::clients::{Client, Target};
use super::super::history::{Place, RecordId};
use super::super::net::Connection;
use super::shown::Own;
use super::{AGAIN, MARK, TxnLedger, Wish, name};
use crate::raw::batch::{BatchSpec, Record};
use crate::raw::ops::topic_name;

/// Transactional bit of a batch's attributes.
const TRANSACTIONAL: i16 = 0x10;
/// Codes that end a session: another one has begun, or the transaction timed out.
const FENCED: [i16; 4] = [47, 48, 49, 90];
const INVALID_TXN_STATE: i16 = 48;
const UNKNOWN_SERVER_ERROR: i16 = -1;
/// The last epoch that is handed out.
const EPOCH_LAST: i16 = 32_766;
/// Commits that somebody tries to abort behind their answer, in a hundred.
const MEDDLES: u64 = 30;
/// Steps behind which a client looks at its transaction over HTTP, in a hundred.
const LOOKS: u64 = 20;

/// One client of one transactional id; others may have the same id.
#[derive(Clone)]
pub(crate) struct Transactor {
    pub(crate) client: Client,
    pub(crate) ledger: Arc<TxnLedger>,
    /// Number of the transactional id.
    pub(crate) id: u32,
    /// Topic of its records and its group's offsets.
    pub(crate) on: Target,
    /// Transactions to be begun.
    pub(crate) total: u32,
    /// `transaction.timeout.ms`.
    pub(crate) timeout_ms: i32,
    /// Longest pause between two steps, ms.
    pub(crate) think_ms: u64,
}

/// The session is over: another one began, or the transaction timed out.
struct Fenced;

struct Session {
    producer: (i64, i16),
    /// Whether it speaks the dialect in which every transaction raises the epoch.
    tv2: bool,
    next: BTreeMap<Place, i32>,
    /// First offsets of the open transaction, as they were acknowledged.
    acked: BTreeMap<Place, i64>,
    /// Whether the offset of the group is staged in it.
    offset: bool,
    /// To the leader of partitions, and to the coordinator: clients have one to each.
    leader: Connection,
    coordinator: Connection,
}

impl Session {
    fn connection(&mut self, api: &str) -> &mut Connection {
        if api == "Produce" {
            &mut self.leader
        } else {
            &mut self.coordinator
        }
    }
}

impl Transactor {
    /// Works until the last of its transactions was begun and, mostly, ended.
    pub(crate) async fn run(self) {
        let mut left = self.total;
        while left > 0 {
            let mut session = self.session().await;
            while left > 0 {
                left -= 1;
                self.client.history.moved();
                if self.transaction(&mut session).await.is_err() {
                    // The one that fenced it is given some time.
                    self.client.pause(0, 200).await;
                    break;
                }
                if self.client.world.chance(10) {
                    break;
                }
            }
        }
    }

    fn transactional_id(&self) -> TransactionalId {
        TransactionalId(StrBytes::from_string(name(self.id)))
    }

    async fn think(&self) {
        if self.think_ms > 0 {
            self.client.pause(0, self.think_ms).await;
        }
    }

    /// Asks until there is an answer that is no "try again". Finds another server after each.
    async fn ask<R>(
        &self,
        api: &str,
        session: &mut Session,
        request: impl Fn(&Session) -> (ApiRequest, i16),
        answer: impl Fn(ApiResponse) -> Option<(i16, R)>,
    ) -> (i16, R) {
        loop {
            let (request, version) = request(session);
            let found = self
                .client
                .ask(session.connection(api), request, version)
                .await;
            let found = found.map(&answer);
            let code = found
                .as_ref()
                .map(|found| found.as_ref().map(|found| found.0));
            let (id, server) = (self.id, session.connection(api).server);
            let note = format!(
                "{api} v{version} of {id} {:?}: {code:?} by {server}",
                session.producer
            );
            self.client.world.note(&note);
            match found {
                Some(Some((code, _))) if is_again(code) => self.client.pause(1, 40).await,
                Some(Some(found)) => return found,
                Some(None) => self
                    .client
                    .history
                    .violation("an answer to another request"),
                None => {}
            }
            *session.connection(api) = self.client.connect_elsewhere(Some(server)).await;
        }
    }

    async fn session(&self) -> Session {
        let mut session = Session {
            producer: (-1, -1),
            tv2: self.client.world.chance(50),
            next: BTreeMap::new(),
            acked: BTreeMap::new(),
            offset: false,
            leader: self.client.connect().await,
            coordinator: self.client.connect().await,
        };
        loop {
            let (code, producer) = self.init(&mut session, (-1, -1)).await;
            if code == 0 {
                self.ledger.session(&self.client, self.id, producer);
                session.producer = producer;
                return session;
            }
            let what = format!("InitProducerId of {} was answered with {code}", self.id);
            self.client.history.violation(&what);
            self.client.pause(10, 50).await;
        }
    }

    async fn init(&self, session: &mut Session, claimed: (i64, i16)) -> (i16, (i64, i16)) {
        let version = if session.tv2 { 5 } else { 4 };
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(self.transactional_id()))
            .with_transaction_timeout_ms(self.timeout_ms)
            .with_producer_id(ProducerId(claimed.0))
            .with_producer_epoch(claimed.1);
        let request = |_: &Session| {
            let request = Box::new(request.clone());
            (ApiRequest::InitProducerId(request), version)
        };
        let answer = |answer| match answer {
            ApiResponse::InitProducerId(a) => {
                Some((a.error_code, (a.producer_id.0, a.producer_epoch)))
            }
            _ => None,
        };
        self.ask("InitProducerId", session, request, answer).await
    }

    /// One transaction: records, an offset perhaps, the end perhaps.
    async fn transaction(&self, session: &mut Session) -> Result<(), Fenced> {
        let number = self.ledger.begin(self.id);
        (session.acked, session.offset) = (BTreeMap::new(), false);
        let world = &self.client.world;
        world.note(&format!("txn {number} of {:?} begins", session.producer));
        let mut whole = true;
        let batches = world.small(5);
        for _ in 0..batches {
            let place = (self.on.id, world.small(self.on.partitions));
            if !session.tv2 {
                self.add_partition(session, place).await?;
            }
            self.produce(session, number, place).await?;
            self.look(session, session.producer, None).await;
            self.think().await;
            if world.chance(4) {
                whole = false;
                break;
            }
        }
        let with_offset = batches == 0 || world.chance(40);
        if with_offset && whole {
            self.offset(session, number).await?;
            self.look(session, session.producer, None).await;
            self.think().await;
        }
        match world.below(100) {
            // Walks away: the next session aborts it, or time does.
            0..12 => {
                self.client.pause(0, 300).await;
                Err(Fenced)
            }
            12..85 if whole => self.end(session, number, Wish::Commit).await,
            _ => self.end(session, number, Wish::Abort).await,
        }
    }

    /// Looks at the transaction over HTTP: it is as this client knows, or another has fenced it.
    async fn look(&self, session: &Session, records: (i64, i16), ended: Option<Wish>) {
        if !self.client.world.chance(LOOKS) {
            return;
        }
        let own = Own {
            id: self.id,
            records,
            session: session.producer,
            acked: session.acked.clone(),
            offset: session.offset,
            ended,
        };
        own.look(&self.client, &self.ledger, &self.on).await;
    }

    /// An administrator takes what was committed for a transaction that hangs, and aborts it: that
    /// is refused, or comes to nothing. Only where the commit may not have got everywhere yet.
    async fn meddle(&self, session: &Session, records: (i64, i16)) {
        if !self.ledger.queues || !self.client.world.chance(MEDDLES) {
            return;
        }
        let topic = WritableTxnMarkerTopic::default()
            .with_name(topic_name(&self.on.name))
            .with_partition_indexes(session.acked.keys().map(|place| place.1).collect());
        let marker = WritableTxnMarker::default()
            .with_producer_id(ProducerId(records.0))
            .with_producer_epoch(records.1)
            .with_transaction_result(false)
            .with_topics(vec![topic]);
        let request = WriteTxnMarkersRequest::default().with_markers(vec![marker]);
        let request = ApiRequest::WriteTxnMarkers(Box::new(request));
        let answer = self.client.ask(&session.leader, request, 1).await;
        let note = format!("{records:?} of {} is to be aborted: {answer:?}", self.id);
        self.client.world.note(&note);
    }

    /// What a code that is no success means to a session.
    fn judge(&self, api: &str, code: i16) -> Result<(), Fenced> {
        if code == 0 {
            return Ok(());
        }
        if !FENCED.contains(&code) {
            let what = format!("{api} of {} was answered with {code}", self.id);
            self.client.history.violation(&what);
        }
        Err(Fenced)
    }

    async fn add_partition(&self, session: &mut Session, place: Place) -> Result<(), Fenced> {
        let request = |session: &Session| {
            let topic = AddPartitionsToTxnTopic::default()
                .with_name(topic_name(&self.on.name))
                .with_partitions(vec![place.1]);
            let request = AddPartitionsToTxnRequest::default()
                .with_v3_and_below_transactional_id(self.transactional_id())
                .with_v3_and_below_producer_id(ProducerId(session.producer.0))
                .with_v3_and_below_producer_epoch(session.producer.1)
                .with_v3_and_below_topics(vec![topic]);
            (ApiRequest::AddPartitionsToTxn(Box::new(request)), 3)
        };
        let answer = |answer| match answer {
            ApiResponse::AddPartitionsToTxn(answer) => {
                let topic = answer.results_by_topic_v3_and_below.first();
                let partition = topic.and_then(|topic| topic.results_by_partition.first());
                partition.map(|partition| (partition.partition_error_code, ()))
            }
            _ => None,
        };
        let (code, ()) = self
            .ask("AddPartitionsToTxn", session, request, answer)
            .await;
        self.judge("AddPartitionsToTxn", code)
    }

    async fn produce(
        &self,
        session: &mut Session,
        number: u32,
        place: Place,
    ) -> Result<(), Fenced> {
        let world = &self.client.world;
        let count = 1 + world.small(3);
        let base = *session.next.entry(place).or_insert(0);
        // Numbers of records are those of the producer: they only grow within a transaction.
        let record = |n: i32| RecordId {
            session: MARK | number,
            place,
            sequence: base + n,
        };
        let records: Vec<RecordId> = (0..count).map(record).collect();
        let spec = BatchSpec {
            producer_id: session.producer.0,
            producer_epoch: session.producer.1,
            base_sequence: base,
            attributes: TRANSACTIONAL,
            timestamp_ms: self.client.env.clock.wall_ms(),
            records: records
                .iter()
                .map(|r| Record::value(r.payload(20)))
                .collect(),
        };
        let bytes = spec.build();
        let (by_id, tv2) = (world.chance(50), session.tv2);
        let request = |_: &Session| {
            let data = PartitionProduceData::default()
                .with_index(place.1)
                .with_records(Some(bytes.clone()));
            let topic = TopicProduceData::default().with_partition_data(vec![data]);
            let (topic, version) = match (tv2, by_id) {
                (true, true) => (topic.with_topic_id(self.on.id), 13),
                (true, false) => (topic.with_name(topic_name(&self.on.name)), 12),
                (false, _) => (topic.with_name(topic_name(&self.on.name)), 11),
            };
            let request = ProduceRequest::default()
                .with_transactional_id(Some(self.transactional_id()))
                .with_acks(-1)
                .with_timeout_ms(30_000)
                .with_topic_data(vec![topic]);
            (ApiRequest::Produce(Box::new(request)), version)
        };
        let answer = |answer| match answer {
            ApiResponse::Produce(answer) => {
                let topic = answer.responses.first();
                let partition = topic.and_then(|topic| topic.partition_responses.first());
                partition.map(|partition| (partition.error_code, partition.base_offset))
            }
            _ => None,
        };
        let (code, offset) = self.ask("Produce", session, request, answer).await;
        self.judge("Produce", code)?;
        session.next.insert(place, base + count);
        session.acked.entry(place).or_insert(offset);
        for (offset, record) in (offset..).zip(&records) {
            self.client.history.seen(place, offset, *record);
        }
        self.ledger.change(number, |txn| txn.acked.extend(records));
        Ok(())
    }

    /// The group's offset becomes this transaction's number, if it commits.
    async fn offset(&self, session: &mut Session, number: u32) -> Result<(), Fenced> {
        let group = GroupId(StrBytes::from_string(name(self.id)));
        if !session.tv2 {
            let request = |session: &Session| {
                let request = AddOffsetsToTxnRequest::default()
                    .with_transactional_id(self.transactional_id())
                    .with_producer_id(ProducerId(session.producer.0))
                    .with_producer_epoch(session.producer.1)
                    .with_group_id(group.clone());
                (ApiRequest::AddOffsetsToTxn(Box::new(request)), 3)
            };
            let answer = |answer| match answer {
                ApiResponse::AddOffsetsToTxn(answer) => Some((answer.error_code, ())),
                _ => None,
            };
            let (code, ()) = self.ask("AddOffsetsToTxn", session, request, answer).await;
            self.judge("AddOffsetsToTxn", code)?;
        }
        let request = |session: &Session| {
            let partition = TxnOffsetCommitRequestPartition::default()
                .with_committed_offset(i64::from(number))
                .with_committed_leader_epoch(-1)
                .with_committed_metadata(Some(StrBytes::default()));
            let topic = TxnOffsetCommitRequestTopic::default()
                .with_name(topic_name(&self.on.name))
                .with_partitions(vec![partition]);
            let request = TxnOffsetCommitRequest::default()
                .with_transactional_id(self.transactional_id())
                .with_group_id(group.clone())
                .with_producer_id(ProducerId(session.producer.0))
                .with_producer_epoch(session.producer.1)
                .with_topics(vec![topic]);
            let version = if session.tv2 { 5 } else { 3 };
            (ApiRequest::TxnOffsetCommit(Box::new(request)), version)
        };
        let answer = |answer| match answer {
            ApiResponse::TxnOffsetCommit(answer) => {
                let topic = answer.topics.first();
                let partition = topic.and_then(|topic| topic.partitions.first());
                partition.map(|partition| (partition.error_code, ()))
            }
            _ => None,
        };
        let (code, ()) = self.ask("TxnOffsetCommit", session, request, answer).await;
        self.judge("TxnOffsetCommit", code)?;
        session.offset = true;
        self.ledger.change(number, |txn| txn.offset = true);
        Ok(())
    }

    async fn end(&self, session: &mut Session, number: u32, wish: Wish) -> Result<(), Fenced> {
        self.ledger.change(number, |txn| txn.wish = wish);
        let request = |session: &Session| {
            let request = EndTxnRequest::default()
                .with_transactional_id(self.transactional_id())
                .with_producer_id(ProducerId(session.producer.0))
                .with_producer_epoch(session.producer.1)
                .with_committed(wish == Wish::Commit);
            let version = if session.tv2 { 5 } else { 3 };
            (ApiRequest::EndTxn(Box::new(request)), version)
        };
        let answer = |answer| match answer {
            ApiResponse::EndTxn(a) => Some((a.error_code, (a.producer_id.0, a.producer_epoch))),
            _ => None,
        };
        let (code, producer) = self.ask("EndTxn", session, request, answer).await;
        let world = &self.client.world;
        world.note(&format!("txn {number} {wish:?}: {code} {producer:?}"));
        if code == INVALID_TXN_STATE {
            // Time ended it, or there was nothing to end. It must never come to be committed.
            self.ledger.change(number, |txn| txn.refused = true);
        }
        self.judge("EndTxn", code)?;
        self.ledger.change(number, |txn| txn.answered = true);
        let records = session.producer;
        if session.tv2 {
            self.ledger.rotated(&self.client, self.id, producer.0);
            session.producer = producer;
            session.next.clear();
        }
        self.look(session, records, Some(wish)).await;
        if wish == Wish::Commit {
            self.meddle(session, records).await;
        }
        if !session.tv2 && world.chance(20) {
            // As a producer does that lost track of its sequences (KIP-360).
            let claimed = session.producer;
            let (code, producer) = self.init(session, claimed).await;
            if code == UNKNOWN_SERVER_ERROR && claimed.1 == EPOCH_LAST - 1 {
                // The answer that brought the last epoch was lost; as Apache Kafka has it.
                return Err(Fenced);
            }
            self.judge("InitProducerId of a session", code)?;
            self.ledger.rotated(&self.client, self.id, producer.0);
            session.producer = producer;
            session.next.clear();
        }
        Ok(())
    }
}

fn is_again(code: i16) -> bool {
    let retriable = ResponseError::try_from_code(code).is_some_and(|error| error.is_retriable());
    AGAIN.contains(&code) || retriable
}
