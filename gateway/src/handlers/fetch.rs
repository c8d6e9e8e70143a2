//! Fetch (key 1), versions 4 to 18.
//!
//! v7 sessions; v9 leader epoch fencing; v12 last fetched epoch; v13 topics by id; v16 node
//! endpoints. Whole batches only; the first non-empty partition returns its first batch even above
//! both limits; later ones stay within them. A long poll waits for the high watermark, or the last
//! stable offset, of what was asked for.
//!
//! Differences from Kafka: negative byte limits are read as 0 (Kafka answers -1).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::select_all;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::FetchRequest;
use uuid::Uuid;

use super::text;
use crate::admitted::Admitted;
use crate::answer_budget::{AnswerBudget, AnswerRoom};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::{Broker, HostedTopic};
use crate::error_code;
use crate::fetch_session::{
    Answered, FetchKey, FetchPlan, FetchWish, SessionError, SessionRequest,
};
use crate::partition::{EpochEnd, Isolation, Partition};
use crate::wire::fetch::{FetchPartitionReply, FetchReply, FetchTopicReply};

/// Partitions of a request that keeps little while it waits: some 20 KiB.
const FEW: usize = 64;

/// What holds for the whole request.
#[derive(Debug, Clone, Copy)]
struct Limits {
    max_bytes: usize,
    min_bytes: usize,
    max_wait: Duration,
    isolation: Isolation,
}

/// A wish with the partition behind it.
struct Target {
    key: FetchKey,
    wish: FetchWish,
    topic: Option<Arc<HostedTopic>>,
    partition: Result<Arc<Partition>, ResponseError>,
}

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &FetchRequest,
) -> Staged<ApiResponse> {
    let by_id = context.version >= 13;
    let limits = limits(broker, request);
    let session = session_request(request, by_id);
    let now = broker.env().clock.monotonic();
    let random = broker.env().random.next_u64();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let plan = broker.sessions().lock().plan(session, now_ms, random);
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => return Staged::Now(refused(error)),
    };
    // Nothing of the request is kept. One that waits for little keeps its place in memory instead
    // of what it has of the budget; others make way when that is wanted.
    let few = plan.wishes.len() <= FEW;
    let parked = few.then(|| context.admitted.parked()).flatten();
    let is_parked = parked.is_some();
    let held = parked.unwrap_or_else(|| context.admitted.clone());
    let broker = broker.clone();
    let answer = Box::pin(async move {
        let session_id = plan.session_id;
        let incremental = plan.incremental;
        let targets = targets(&broker, plan, by_id);
        let wanted = (!is_parked).then_some(&held);
        let look = poll(&broker, &targets, limits, wanted).await;
        let mut reply = assemble(&broker, session_id, incremental, targets, look.replies);
        reply.room = look.room;
        drop(held);
        ApiResponse::Fetch(Box::new(reply))
    });
    if is_parked {
        Staged::Parked(answer)
    } else {
        Staged::Later(answer)
    }
}

fn limits(broker: &Broker, request: &FetchRequest) -> Limits {
    let bytes = |n: i32| usize::try_from(n).unwrap_or(0);
    let max_bytes = bytes(request.max_bytes).min(broker.config().fetch_max_bytes);
    Limits {
        max_bytes,
        min_bytes: bytes(request.min_bytes).min(max_bytes),
        max_wait: Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0)),
        isolation: Isolation::from_wire(request.isolation_level),
    }
}

fn session_request(request: &FetchRequest, by_id: bool) -> SessionRequest {
    let topic_id = |id: Uuid| if by_id { id } else { Uuid::nil() };
    let mut wishes = Vec::new();
    for topic in &request.topics {
        // Copied: sessions outlive the request, and must not hold its frame.
        let name = text(&topic.topic);
        for partition in &topic.partitions {
            let key = FetchKey {
                topic_id: topic_id(topic.topic_id),
                name: name.clone(),
                partition: partition.partition,
            };
            let wish = FetchWish {
                fetch_offset: partition.fetch_offset,
                max_bytes: partition.partition_max_bytes,
                current_leader_epoch: partition.current_leader_epoch,
                last_fetched_epoch: partition.last_fetched_epoch,
            };
            wishes.push((key, wish));
        }
    }
    let mut forgotten = Vec::new();
    for topic in &request.forgotten_topics_data {
        forgotten.extend(topic.partitions.iter().map(|partition| FetchKey {
            topic_id: topic_id(topic.topic_id),
            name: topic.topic.0.clone(),
            partition: *partition,
        }));
    }
    SessionRequest {
        session_id: request.session_id,
        epoch: request.session_epoch,
        by_id,
        wishes,
        forgotten,
    }
}

fn refused(error: SessionError) -> ApiResponse {
    let code = match error {
        SessionError::NotFound => ResponseError::FetchSessionIdNotFound,
        SessionError::InvalidEpoch => ResponseError::InvalidFetchSessionEpoch,
        SessionError::TopicIdMismatch => ResponseError::FetchSessionTopicIdError,
    };
    ApiResponse::Fetch(Box::new(FetchReply {
        error_code: code.code(),
        ..FetchReply::default()
    }))
}

fn targets(broker: &Broker, plan: FetchPlan, by_id: bool) -> Vec<Target> {
    let find = |key: &FetchKey| {
        if by_id {
            let topic = broker.topic_by_id(key.topic_id);
            topic.ok_or(ResponseError::UnknownTopicId)
        } else {
            broker.find_topic(&key.name).map_err(error_code::no_topic)
        }
    };
    plan.wishes
        .into_iter()
        .map(|(key, wish)| {
            let topic = find(&key);
            let partition = match &topic {
                Err(code) => Err(*code),
                Ok(topic) => match topic.partition(key.partition) {
                    None => Err(ResponseError::UnknownTopicOrPartition),
                    Some(led) => led.map_err(|e| error_code::unavailable_partition(&e)),
                },
            };
            Target {
                key,
                wish,
                topic: topic.ok(),
                partition,
            }
        })
        .collect()
}

/// What one look at the partitions gave.
struct Look {
    replies: Vec<FetchPartitionReply>,
    /// Bytes of records.
    bytes: usize,
    room: AnswerRoom,
    /// Records were left out for lack of room: how many bytes would do.
    starved: Option<usize>,
    /// More may be there than the room allowed.
    cut: bool,
}

/// Reads, and while there is too little and no error, waits for more. Nothing is held meanwhile:
/// what there is when the time has passed is read again.
async fn poll(
    broker: &Broker,
    targets: &[Target],
    limits: Limits,
    held: Option<&Admitted>,
) -> Look {
    let mut deadline = broker.env().clock.sleep(limits.max_wait);
    let mut last = limits.max_wait.is_zero();
    let mut least = 0;
    loop {
        // Subscribed before the read, so that nothing between the two is missed.
        let mut watches: Vec<_> = targets
            .iter()
            .filter_map(|target| target.partition.as_ref().ok().map(|led| led.watch()))
            .collect();
        let mut released = broker.answers().watch();
        let look = look(broker.answers(), targets, limits, least).await;
        let settled = look
            .replies
            .iter()
            .any(|reply| reply.error_code != 0 || reply.diverging_epoch.is_some());
        let enough = look.bytes >= limits.min_bytes && look.starved.is_none();
        if enough || look.cut || settled || last || watches.is_empty() {
            return look;
        }
        least = look.starved.unwrap_or(0);
        let starved = look.starved.is_some();
        drop(look);
        let changed = select_all(watches.iter_mut().map(|watch| Box::pin(watch.changed())));
        tokio::select! {
            biased;
            // The broker stops, the time has passed, or others wait for what the request holds:
            // answer with what there is.
            () = broker.stopping() => last = true,
            () = &mut deadline => last = true,
            () = wanted(held) => last = true,
            _ = changed => {}
            () = broker.answers().released(&mut released), if starved => {}
        }
    }
}

async fn wanted(held: Option<&Admitted>) {
    match held {
        Some(held) => held.wanted().await,
        None => std::future::pending().await,
    }
}

/// Reads as much as there is room for; without records if there is none.
async fn look(
    answers: &AnswerBudget,
    targets: &[Target],
    mut limits: Limits,
    least: usize,
) -> Look {
    let mut starved = None;
    let wanted = wanted_bytes(targets, limits);
    if let Some(wanted) = wanted {
        starved = Some(least);
        if let Some(mut room) = answers.take(wanted, least) {
            limits.max_bytes = limits.max_bytes.min(room.limit());
            let replies = read_all(targets, limits, true).await;
            let bytes = replies.iter().flat_map(|reply| &reply.records);
            let bytes: usize = bytes.map(Bytes::len).sum();
            let limit = room.limit();
            if room.fit(bytes) {
                return Look {
                    replies,
                    bytes,
                    room: room.into(),
                    starved: None,
                    cut: limit < wanted && bytes > 0 && bytes >= limit / 2,
                };
            }
            starved = Some(bytes);
        }
    }
    Look {
        replies: read_all(targets, limits, false).await,
        bytes: 0,
        room: AnswerRoom::default(),
        starved,
        cut: false,
    }
}

/// Bytes that the records of an answer may have, going by the limits; `None` without any.
fn wanted_bytes(targets: &[Target], limits: Limits) -> Option<usize> {
    let readable = targets.iter().filter(|target| {
        let led = target.partition.as_ref().ok();
        led.is_some_and(|led| target.wish.fetch_offset < led.readable_end(limits.isolation))
    });
    let bytes = |target: &Target| usize::try_from(target.wish.max_bytes).unwrap_or(0);
    let sums = readable.map(bytes).reduce(usize::saturating_add);
    sums.map(|sum| sum.min(limits.max_bytes).max(1))
}

async fn read_all(targets: &[Target], limits: Limits, records: bool) -> Vec<FetchPartitionReply> {
    let mut left = limits.max_bytes;
    let mut any = false;
    let mut replies = Vec::with_capacity(targets.len());
    for target in targets {
        let reply = match &target.partition {
            Ok(partition) => {
                // Without records only what needs no reading is answered.
                let left = records.then_some(left);
                read_one(partition, target, limits, left, any).await
            }
            Err(code) => Err(*code),
        };
        let reply = reply.unwrap_or_else(|code| failed(target.key.partition, code));
        let bytes: usize = reply.records.iter().map(Bytes::len).sum();
        any |= bytes > 0;
        left = left.saturating_sub(bytes);
        replies.push(reply);
    }
    replies
}

async fn read_one(
    partition: &Partition,
    target: &Target,
    limits: Limits,
    left: Option<usize>,
    any: bool,
) -> Result<FetchPartitionReply, ResponseError> {
    let wish = &target.wish;
    partition
        .check_leader_epoch(wish.current_leader_epoch)
        .map_err(|error| error_code::read(&error))?;
    if let Some(end) = diverging(partition, wish).await? {
        let mut reply = reply(target.key.partition, partition.visible(), limits.isolation);
        reply.diverging_epoch = Some((end.epoch, end.end_offset));
        return Ok(reply);
    }
    let Some(left) = left else {
        let visible = partition.visible_from(wish.fetch_offset);
        let visible = visible.map_err(|error| error_code::read(&error))?;
        return Ok(reply(target.key.partition, visible, limits.isolation));
    };
    let limit = usize::try_from(wish.max_bytes).unwrap_or(0).min(left);
    if any && limit == 0 {
        let visible = partition.visible();
        return Ok(reply(target.key.partition, visible, limits.isolation));
    }
    let (from, isolation) = (wish.fetch_offset, limits.isolation);
    // Only the first batch of the answer may be larger than what is asked for.
    let outcome = if any {
        partition.read_within(from, limit, isolation).await
    } else {
        partition.read(from, limit, isolation).await
    };
    let outcome = outcome.map_err(|error| error_code::read(&error))?;
    let mut reply = reply(target.key.partition, outcome.visible, isolation);
    let records = outcome.batches.into_iter().map(|batch| batch.bytes);
    reply.records = records.collect();
    reply.aborted_transactions = outcome.aborted;
    Ok(reply)
}

/// Where the reader's log and this one part, if they do: the epoch of what it read last ended here
/// before the offset that it asks for.
async fn diverging(
    partition: &Partition,
    wish: &FetchWish,
) -> Result<Option<EpochEnd>, ResponseError> {
    if wish.last_fetched_epoch < 0 {
        return Ok(None);
    }
    let end = partition.end_of_epoch(wish.last_fetched_epoch).await;
    let end = end.map_err(|error| error_code::read(&error))?;
    if end == EpochEnd::UNKNOWN {
        return Err(ResponseError::OffsetOutOfRange);
    }
    let parted = end.epoch < wish.last_fetched_epoch || end.end_offset < wish.fetch_offset;
    Ok(parted.then_some(end))
}

fn reply(
    partition: i32,
    visible: crate::partition::Visible,
    isolation: Isolation,
) -> FetchPartitionReply {
    FetchPartitionReply {
        partition,
        error_code: 0,
        high_watermark: visible.high_watermark,
        last_stable_offset: visible.last_stable,
        log_start_offset: visible.log_start,
        diverging_epoch: None,
        current_leader: None,
        aborted_transactions: (isolation == Isolation::ReadCommitted).then(Vec::new),
        records: Vec::new(),
    }
}

fn failed(partition: i32, code: ResponseError) -> FetchPartitionReply {
    FetchPartitionReply {
        partition,
        error_code: code.code(),
        high_watermark: -1,
        last_stable_offset: -1,
        log_start_offset: -1,
        diverging_epoch: None,
        current_leader: None,
        aborted_transactions: None,
        records: Vec::new(),
    }
}

/// Groups the answers by topic; an incremental answer leaves out what did not change.
fn assemble(
    broker: &Broker,
    session_id: i32,
    incremental: bool,
    targets: Vec<Target>,
    replies: Vec<FetchPartitionReply>,
) -> FetchReply {
    let mut topics: Vec<FetchTopicReply> = Vec::new();
    let mut place: BTreeMap<(Uuid, String), usize> = BTreeMap::new();
    let mut sessions = broker.sessions().lock();
    for (target, reply) in targets.into_iter().zip(replies) {
        let answered = Answered {
            high_watermark: reply.high_watermark,
            log_start: reply.log_start_offset,
            has_records: !reply.records.is_empty(),
            has_error: reply.error_code != 0 || reply.diverging_epoch.is_some(),
        };
        let news = session_id == 0 || sessions.answer(session_id, &target.key, answered);
        if incremental && !news {
            continue;
        }
        let name = target
            .topic
            .map_or(target.key.name, |topic| topic.name.clone());
        let at = *place
            .entry((target.key.topic_id, name.to_string()))
            .or_insert_with(|| {
                topics.push(FetchTopicReply {
                    name,
                    topic_id: target.key.topic_id,
                    partitions: Vec::new(),
                });
                topics.len() - 1
            });
        if let Some(topic) = topics.get_mut(at) {
            topic.partitions.push(reply);
        }
    }
    FetchReply {
        error_code: 0,
        session_id,
        topics,
        ..FetchReply::default()
    }
}
