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
//! The first batch of a transaction on a partition waits for the coordinator in the first stage, at
//! most 100 ms (KIP-890); no other request waits there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::{
    BatchIndexAndErrorMessage, PartitionProduceResponse, TopicProduceResponse,
};
use kafka_protocol::messages::{ProduceRequest, ProduceResponse};
use kafka_protocol::protocol::StrBytes;
use store_adapter::batch::BatchHeader;

use crate::api::{ApiResponse, CloseReason, RequestContext, Staged};
use crate::broker::{Broker, HostedTopic};
use crate::error_code;
use crate::partition::validate::{self, ValidateError};
use crate::partition::{AppendError, Appended, Opening, Partition, Ticket};
use crate::txns::{self, Candidate, Verification};

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

/// First stage: verify, validate, classify, queue. Second stage: the commits.
pub(crate) async fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: ProduceRequest,
) -> Staged<ApiResponse> {
    let acks = request.acks;
    let timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
    let timeout = timeout.max(COMMIT_PATIENCE_MIN);
    let (whole, transactional) = match judge_whole(&request) {
        Ok(transactional) => (None, transactional),
        Err(code) => (Some(code), false),
    };
    let duplicates = duplicate_partitions(&request.topic_data);
    let hosted = find_topics(broker, context, &request.topic_data);
    let verified = if transactional {
        verify(broker, context, &request, &hosted, &duplicates).await
    } else {
        BTreeMap::new()
    };
    let mut outcomes = Vec::new();
    for (t, (topic, hosted)) in request.topic_data.iter().zip(&hosted).enumerate() {
        for (p, data) in topic.partition_data.iter().enumerate() {
            let outcome = match (whole, hosted) {
                (Some(code), _) => Outcome::Refused(Refusal::Code(code)),
                (None, Err(code)) => Outcome::Refused(Refusal::Code(*code)),
                (None, Ok(_)) if duplicates.contains(&(t, p)) => {
                    Outcome::Refused(Refusal::Code(ResponseError::InvalidRecord))
                }
                (None, Ok(hosted)) => {
                    let verified = verified.get(&(t, p));
                    append(broker, context, acks, hosted, data, verified)
                }
            };
            outcomes.push(((t, p), outcome));
        }
    }
    drop(verified);
    let version = context.version;
    let broker = broker.clone();
    if acks == 0 {
        return unacknowledged(outcomes, version);
    }
    Staged::Later(Box::pin(answer(
        broker,
        version,
        timeout,
        request.topic_data,
        outcomes,
    )))
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

/// Asks the coordinator about the batches that would open a transaction on their partition
/// (row 11).
async fn verify(
    broker: &Broker,
    context: &RequestContext,
    request: &ProduceRequest,
    hosted: &[Result<Arc<HostedTopic>, ResponseError>],
    duplicates: &BTreeSet<Place>,
) -> BTreeMap<Place, Verification> {
    let (mut places, mut candidates) = (Vec::new(), Vec::new());
    for (t, (topic, hosted)) in request.topic_data.iter().zip(hosted).enumerate() {
        let Ok(hosted) = hosted else { continue };
        for (p, data) in topic.partition_data.iter().enumerate() {
            let batch = validate::single_batch(data.records.as_ref(), context.version);
            let batch = batch.ok().filter(validate::Single::is_transactional);
            let header = batch.and_then(|batch| BatchHeader::read(batch.bytes()).ok());
            let partition = hosted.any_partition(data.index);
            if let (Some(header), Some(partition), false) =
                (header, partition, duplicates.contains(&(t, p)))
            {
                places.push((t, p));
                candidates.push(Candidate {
                    topic: &hosted.name,
                    topic_id: hosted.id,
                    partition,
                    header,
                });
            }
        }
    }
    let transactional_id = request.transactional_id.as_ref();
    let transactional_id = transactional_id.map_or("", |id| id.as_str());
    let verified = txns::verify(broker, context, transactional_id, &candidates).await;
    places.into_iter().zip(verified).collect()
}

/// Refusals that concern every partition of the request (rows 2, 6 and 10); otherwise whether it
/// has transactional batches.
fn judge_whole(request: &ProduceRequest) -> Result<bool, ResponseError> {
    let mut transactional = None;
    for data in request
        .topic_data
        .iter()
        .flat_map(|topic| &topic.partition_data)
    {
        let Some(records) = &data.records else {
            continue;
        };
        match validate::peek(records) {
            validate::Peek::Corrupt => return Err(ResponseError::CorruptMessage),
            validate::Peek::Transactional {
                producer_id,
                producer_epoch,
            } => {
                if request.transactional_id.is_none() {
                    return Err(ResponseError::TransactionalIdAuthorizationFailed);
                }
                let seen = *transactional.get_or_insert((producer_id, producer_epoch));
                if seen != (producer_id, producer_epoch) {
                    return Err(ResponseError::InvalidProducerIdMapping);
                }
            }
            validate::Peek::Plain => {}
        }
    }
    Ok(transactional.is_some())
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

fn append(
    broker: &Arc<Broker>,
    context: &RequestContext,
    acks: i16,
    hosted: &HostedTopic,
    data: &PartitionProduceData,
    verified: Option<&Verification>,
) -> Outcome {
    let version = context.version;
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
    if !matches!(acks, -1..=1) {
        return refuse(ResponseError::InvalidRequiredAcks);
    }
    let now_ms = broker.env().clock.wall_ms();
    match validate::batch(records, &hosted.rules, now_ms) {
        Ok(valid) => Outcome::Appending {
            ticket: partition.append_opening(&valid.batch, opening, context.admitted.clone()),
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

async fn answer(
    broker: Arc<Broker>,
    version: i16,
    timeout: Duration,
    topics: Vec<TopicProduceData>,
    outcomes: Vec<(Place, Outcome)>,
) -> ApiResponse {
    let deadline = broker.env().clock.sleep(timeout);
    let mut deadline = Some(deadline);
    let mut response = ProduceResponse::default();
    for topic in topics {
        let mut answered = TopicProduceResponse::default();
        answered.name = topic.name;
        answered.topic_id = topic.topic_id;
        answered.partition_responses = topic
            .partition_data
            .iter()
            .map(|data| PartitionProduceResponse::default().with_index(data.index))
            .collect();
        response.responses.push(answered);
    }
    for ((t, p), outcome) in outcomes {
        let filled = match outcome {
            Outcome::Refused(refusal) => refused(refusal),
            Outcome::Appending {
                ticket,
                timestamp,
                partition,
            } => {
                let outcome = within(ticket, &mut deadline).await;
                appended(outcome, timestamp, &partition, version)
            }
        };
        let place = response
            .responses
            .get_mut(t)
            .and_then(|topic| topic.partition_responses.get_mut(p));
        if let Some(place) = place {
            let index = place.index;
            *place = filled;
            place.index = index;
        }
    }
    ApiResponse::Produce(Box::new(response))
}

/// The ticket's answer, or a time-out once `deadline` has passed. Giving up waiting cancels
/// nothing.
async fn within(
    ticket: Ticket,
    deadline: &mut Option<store_adapter::runtime::BoxFuture<'static, ()>>,
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
        None => futures_util::future::FutureExt::now_or_never(outcome)
            .unwrap_or(Err(AppendError::TimedOut)),
    }
}

fn failed(code: ResponseError, log_start: Option<i64>) -> PartitionProduceResponse {
    let mut response = PartitionProduceResponse::default();
    response.error_code = code.code();
    response.base_offset = -1;
    response.log_append_time_ms = -1;
    response.log_start_offset = log_start.unwrap_or(-1);
    response
}

fn refused(refusal: Refusal) -> PartitionProduceResponse {
    match refusal {
        Refusal::Code(code) => failed(code, None),
        Refusal::Invalid(error, log_start) => {
            let mut response = failed(error_code::validate(&error), log_start);
            response.error_message = Some(StrBytes::from_string(error.to_string()));
            response.record_errors = error
                .record_errors()
                .map(|(index, message)| {
                    let mut entry = BatchIndexAndErrorMessage::default();
                    entry.batch_index = index;
                    entry.batch_index_error_message = Some(StrBytes::from_string(message));
                    entry
                })
                .collect();
            response
        }
    }
}

fn appended(
    outcome: Result<Appended, AppendError>,
    timestamp: Timestamp,
    partition: &Partition,
    version: i16,
) -> PartitionProduceResponse {
    let appended = match outcome {
        Ok(appended) => appended,
        Err(error) => {
            let log_start =
                error_code::has_log_start(&error).then(|| partition.visible().log_start);
            return failed(error_code::append(&error, version), log_start);
        }
    };
    let mut response = PartitionProduceResponse::default();
    response.base_offset = appended.base_offset;
    response.log_start_offset = appended.log_start;
    response.log_append_time_ms = match (appended.duplicate_of, timestamp) {
        (Some(max_timestamp), _) => max_timestamp,
        (None, Timestamp::LogAppend(ms)) => ms,
        (None, Timestamp::Create) => -1,
    };
    response
}
