//! Produce (key 0), versions 3 to 13.
//!
//! v3 transactional id; v5 log start; v8 record errors; v10 current leader on error 6; v12 the
//! client speaks TV2; v13 topics by id. Order of checks: Kafka's (`KafkaApis.handleProduceRequest`,
//! `ReplicaManager.handleProduceAppend`, `UnifiedLog`).
//!
//! Differences from Kafka: acks=1 is answered like acks=all (one commit); null records, records
//! that do not decode and gaps in offset deltas are answered with 87; the same partition twice in
//! one request is 87 for it and nothing of it is appended.
//!
//! The first batch of a transaction on a partition waits for the coordinator, at most 100 ms
//! (KIP-890), and is ordered then. What transactions of other producers send on the connection goes
//! on meanwhile; batches of no transaction that come behind it wait in their first stage.

mod answers;
mod judged;
mod leader;
mod whole;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::TopicProduceResponse;
use kafka_protocol::messages::{ProduceRequest, ProduceResponse};
use store_adapter::batch::BatchHeader;
use store_adapter::runtime::BoxFuture;
use tokio::sync::oneshot;

use self::answers::{appended, failed, refused};
use self::judged::{Judged, Verdict};
use self::whole::BatchesOf;
use crate::api::{ApiResponse, CloseReason, RequestContext, Staged};
use crate::broker::{Broker, HostedTopic};
use crate::error_code;
use crate::partition::validate::{self, ValidateError};
use crate::partition::{AppendError, Appended, Opening, Partition, Ticket};
use crate::turns::{Key, Keys, Turn};
use crate::txns::{self, Candidate, Looked, Question, Verification};

/// Where an answer stands: topic and partition within the request.
type Place = (usize, usize);

/// The least time that a commit is waited for. Kafka's `timeout_ms` bounds only the wait for other
/// replicas: an append to the leader's own log is finished whatever it says, also 0 or negative.
const COMMIT_PATIENCE_MIN: Duration = Duration::from_secs(1);

/// One partition of the request after the first stage.
enum Outcome {
    Refused(Refusal),
    Appending {
        ticket: Ticket,
        timestamp: Timestamp,
        partition: Arc<Partition>,
    },
}

/// Why a partition is refused before the append path.
enum Refusal {
    Code(ResponseError),
    Invalid(ValidateError, Option<i64>),
}

/// What `log_append_time_ms` says on success.
#[derive(Clone, Copy)]
enum Timestamp {
    Create,
    LogAppend(i64),
}

/// A request before its batches are ordered.
struct Unordered {
    broker: Arc<Broker>,
    context: RequestContext,
    request: ProduceRequest,
    /// What refuses all of it.
    whole: Option<ResponseError>,
    hosted: Vec<Result<Arc<HostedTopic>, ResponseError>>,
    duplicates: BTreeSet<Place>,
    /// What was judged before anything is ordered.
    judged: Judged,
}

/// First stage: verify, validate, classify, queue. Second stage: the commits.
pub(crate) async fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: ProduceRequest,
) -> Staged<ApiResponse> {
    let (whole, batches) = match whole::judge(&request) {
        Ok(batches) => (None, batches),
        Err(code) => (Some(code), BatchesOf::default()),
    };
    let turns = &context.connection.turns;
    let keys = batches.keys(&request);
    let free = if batches.others {
        // What is of no transaction lies in the log behind all that came before it.
        turns.none().await
    } else {
        let with_others = || keys.iter().cloned().chain([Key::OtherBatches]).collect();
        turns.free(with_others).await
    };
    if let Err(reason) = free {
        return Staged::Close(reason);
    }
    let mut unordered = Unordered {
        broker: broker.clone(),
        context: context.clone(),
        whole,
        hosted: find_topics(broker, context, &request.topic_data),
        duplicates: duplicate_partitions(&request.topic_data),
        request,
        judged: Judged::new(),
    };
    unordered.judge().await;
    if batches.producer.is_none() {
        return unordered.now(&BTreeMap::new());
    }
    let (places, candidates) = unordered.candidates();
    match txns::look(broker, context.version, candidates) {
        Looked::Known(verified) => unordered.now(&places.into_iter().zip(verified).collect()),
        // Its connection may be closed for it, and is then closed at once.
        Looked::Asks(question) if unordered.request.acks == 0 => {
            let verified = unordered.ask(places, question).await;
            unordered.now(&verified)
        }
        Looked::Asks(question) => unordered.verified(keys, places, question),
    }
}

impl Unordered {
    /// Orders the batches.
    fn order(&mut self, verified: &BTreeMap<Place, Verification>) -> Vec<(Place, Outcome)> {
        let mut judged = std::mem::take(&mut self.judged);
        let mut outcomes = Vec::new();
        for (t, (topic, hosted)) in self.request.topic_data.iter().zip(&self.hosted).enumerate() {
            for (p, data) in topic.partition_data.iter().enumerate() {
                let refuse = |code| Outcome::Refused(Refusal::Code(code));
                let outcome = match (self.whole, hosted) {
                    (Some(code), _) => refuse(code),
                    (None, Err(code)) => refuse(*code),
                    (None, Ok(_)) if self.duplicates.contains(&(t, p)) => {
                        refuse(ResponseError::InvalidRecord)
                    }
                    (None, Ok(hosted)) => {
                        let judged = judged.remove(&(t, p));
                        self.append(hosted, data, verified.get(&(t, p)), judged)
                    }
                };
                outcomes.push(((t, p), outcome));
            }
        }
        outcomes
    }

    fn now(mut self, verified: &BTreeMap<Place, Verification>) -> Staged<ApiResponse> {
        let outcomes = self.order(verified);
        if self.request.acks == 0 {
            return unacknowledged(outcomes, self.context.version);
        }
        let answer = Answering::of(&self);
        Staged::Later(Box::pin(answer.answer(outcomes)))
    }

    /// Orders the batches when their coordinator has answered: now, or in a task of its own. What
    /// its client sends behind it, or that it goes away, makes no difference.
    fn verified(
        mut self,
        keys: Keys,
        places: Vec<Place>,
        question: Question,
    ) -> Staged<ApiResponse> {
        let answer = Answering::of(&self);
        let runtime = self.broker.env().runtime.clone();
        let connection = self.context.connection.clone();
        let mut ordering: BoxFuture<'static, _> = Box::pin(async move {
            let verified = self.ask(places, question).await;
            self.order(&verified)
        });
        if let Some(outcomes) = (&mut ordering).now_or_never() {
            return Staged::Later(Box::pin(answer.answer(outcomes)));
        }
        let turn = Turn::take(&connection, keys);
        let (ordered, wait) = oneshot::channel();
        let task = async move {
            let outcomes = ordering.await;
            drop(turn);
            if ordered.send(outcomes).is_err() {
                tracing::trace!("nobody waits for these batches any more");
            }
        };
        drop(runtime.spawn("produce-verified", Box::pin(task)));
        Staged::Later(Box::pin(async move {
            // Without an outcome nothing is said about what may have been appended.
            let outcomes = wait.await.unwrap_or_default();
            answer.answer(outcomes).await
        }))
    }

    async fn ask(&self, places: Vec<Place>, question: Question) -> BTreeMap<Place, Verification> {
        let id = self.request.transactional_id.as_ref();
        let id = id.map_or("", |id| id.as_str());
        let verified = question.ask(&self.broker, &self.context, id).await;
        places.into_iter().zip(verified).collect()
    }

    /// The batches that may open a transaction on their partition (row 11).
    fn candidates(&self) -> (Vec<Place>, Vec<Candidate>) {
        let (mut places, mut candidates) = (Vec::new(), Vec::new());
        for (t, (topic, hosted)) in self.request.topic_data.iter().zip(&self.hosted).enumerate() {
            let Ok(hosted) = hosted else { continue };
            for (p, data) in topic.partition_data.iter().enumerate() {
                let batch = validate::single_batch(data.records.as_ref(), self.context.version);
                let batch = batch.ok().filter(validate::Single::is_transactional);
                let header = batch.and_then(|batch| BatchHeader::read(batch.bytes()).ok());
                let partition = hosted.any_partition(data.index);
                if let (Some(header), Some(partition), false) =
                    (header, partition, self.duplicates.contains(&(t, p)))
                {
                    places.push((t, p));
                    candidates.push(Candidate {
                        topic: hosted.clone(),
                        partition: partition.clone(),
                        header,
                    });
                }
            }
        }
        (places, candidates)
    }

    fn append(
        &self,
        hosted: &HostedTopic,
        data: &PartitionProduceData,
        verified: Option<&Verification>,
        judged: Option<Verdict>,
    ) -> Outcome {
        let version = self.context.version;
        let refuse = |code| Outcome::Refused(Refusal::Code(code));
        // One that does not serve now is asked all the same: it remembers what it refused.
        let Some(partition) = hosted.any_partition(data.index) else {
            return refuse(ResponseError::UnknownTopicOrPartition);
        };
        let records = match validate::single_batch(data.records.as_ref(), version) {
            Ok(records) => records,
            Err(error) => return Outcome::Refused(Refusal::Invalid(error, None)),
        };
        let opening = match verified.map_or(Ok(Opening::None), Verification::opening) {
            Ok(opening) => opening,
            Err(why) => return refuse(error_code::unverified(why, version)),
        };
        if !matches!(self.request.acks, -1..=1) {
            return refuse(ResponseError::InvalidRequiredAcks);
        }
        let now_ms = self.broker.env().clock.wall_ms();
        let admitted = self.context.admitted.clone();
        let judge = || validate::batch(records, &hosted.rules, now_ms);
        match judged.unwrap_or_else(judge) {
            Ok(valid) => Outcome::Appending {
                ticket: partition.append_opening(&valid.batch, opening, admitted),
                timestamp: valid
                    .log_append_time
                    .map_or(Timestamp::Create, Timestamp::LogAppend),
                partition: partition.clone(),
            },
            Err(error) => {
                let has_log_start = error_code::validate_has_log_start(&error);
                let log_start = has_log_start.then(|| partition.visible().log_start);
                Outcome::Refused(Refusal::Invalid(error, log_start))
            }
        }
    }
}

/// The topics of a request, in its order.
fn find_topics(
    broker: &Broker,
    context: &RequestContext,
    topics: &[TopicProduceData],
) -> Vec<Result<Arc<HostedTopic>, ResponseError>> {
    let by_id = context.version >= 13;
    let find = |topic: &TopicProduceData| {
        if by_id {
            let hosted = broker.topic_by_id(topic.topic_id);
            hosted.ok_or(ResponseError::UnknownTopicId)
        } else {
            broker.find_topic(&topic.name).map_err(error_code::no_topic)
        }
    };
    topics.iter().map(find).collect()
}

/// Partitions that are named more than once.
fn duplicate_partitions(topics: &[TopicProduceData]) -> BTreeSet<Place> {
    let mut first = BTreeMap::new();
    let mut duplicates = BTreeSet::new();
    for (t, topic) in topics.iter().enumerate() {
        for (p, data) in topic.partition_data.iter().enumerate() {
            let key = (topic.topic_id, topic.name.as_str(), data.index);
            if let Some(place) = first.insert(key, (t, p)) {
                duplicates.insert(place);
                duplicates.insert((t, p));
            }
        }
    }
    duplicates
}

/// acks=0: queued is all that is promised; a partition that fails closes the connection, now or
/// when that is known.
fn unacknowledged(outcomes: Vec<(Place, Outcome)>, version: i16) -> Staged<ApiResponse> {
    let close = move |code: ResponseError| CloseReason::UnacknowledgedError(code.code());
    let mut queued = Vec::new();
    for (_, outcome) in outcomes {
        let code = match outcome {
            Outcome::Refused(Refusal::Code(code)) => code,
            Outcome::Refused(Refusal::Invalid(error, _)) => error_code::validate(&error),
            Outcome::Appending { ticket, .. } => match ticket {
                Ticket::Ready(Ok(_)) => continue,
                Ticket::Ready(Err(error)) => error_code::append(&error, version),
                Ticket::Queued(_) => {
                    queued.push(ticket);
                    continue;
                }
            },
        };
        return Staged::Close(close(code));
    }
    if queued.is_empty() {
        return Staged::Silent;
    }
    Staged::Unsaid(Box::pin(async move {
        for ticket in queued {
            if let Err(error) = ticket.outcome().await {
                return Some(close(error_code::append(&error, version)));
            }
        }
        None
    }))
}

/// An answer before anything is known of its partitions.
struct Answering {
    broker: Arc<Broker>,
    version: i16,
    listener: usize,
    timeout: Duration,
    response: ProduceResponse,
}

impl Answering {
    /// Every partition is said to have failed in a way that leaves open whether it did.
    fn of(unordered: &Unordered) -> Self {
        let version = unordered.context.version;
        let unknown = failed(error_code::append(&AppendError::Uncertain, version), None);
        let mut response = ProduceResponse::default();
        for topic in &unordered.request.topic_data {
            let mut answered = TopicProduceResponse::default();
            answered.name = topic.name.clone();
            answered.topic_id = topic.topic_id;
            answered.partition_responses = topic
                .partition_data
                .iter()
                .map(|data| unknown.clone().with_index(data.index))
                .collect();
            response.responses.push(answered);
        }
        let timeout_ms = u64::try_from(unordered.request.timeout_ms).unwrap_or(0);
        Self {
            broker: unordered.broker.clone(),
            version,
            listener: unordered.context.connection.listener,
            timeout: Duration::from_millis(timeout_ms).max(COMMIT_PATIENCE_MIN),
            response,
        }
    }

    /// Fills in what became of each partition.
    async fn answer(mut self, outcomes: Vec<(Place, Outcome)>) -> ApiResponse {
        let mut deadline = Some(self.broker.env().clock.sleep(self.timeout));
        for ((t, p), outcome) in outcomes {
            let filled = match outcome {
                Outcome::Refused(refusal) => refused(refusal),
                Outcome::Appending {
                    ticket,
                    timestamp,
                    partition,
                } => {
                    let outcome = within(ticket, &mut deadline).await;
                    let elsewhere = outcome == Err(AppendError::NotLeader);
                    let mut filled = appended(outcome, timestamp, &partition, self.version);
                    if elsewhere {
                        leader::name(&mut filled, self.broker.said_leader(&partition));
                    }
                    filled
                }
            };
            let topic = self.response.responses.get_mut(t);
            let place = topic.and_then(|topic| topic.partition_responses.get_mut(p));
            if let Some(place) = place {
                let index = place.index;
                *place = filled;
                place.index = index;
            }
        }
        let broker = &self.broker;
        leader::locate(&mut self.response, |_| broker.address(self.listener));
        ApiResponse::Produce(Box::new(self.response))
    }
}

/// The ticket's answer, or a time-out once `deadline` has passed. Giving up waiting cancels
/// nothing.
async fn within(
    ticket: Ticket,
    deadline: &mut Option<BoxFuture<'static, ()>>,
) -> Result<Appended, AppendError> {
    let outcome = Box::pin(ticket.outcome());
    match deadline.take() {
        Some(timer) => match futures_util::future::select(outcome, timer).await {
            futures_util::future::Either::Left((outcome, timer)) => {
                *deadline = Some(timer);
                outcome
            }
            futures_util::future::Either::Right(_) => Err(AppendError::TimedOut),
        },
        None => outcome.now_or_never().unwrap_or(Err(AppendError::TimedOut)),
    }
}
