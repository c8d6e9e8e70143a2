//! Fetch (key 1), versions 4 to 18.
//!
//! v7 sessions; v9 leader epoch fencing; v12 last fetched epoch; v13 topics by id; v16 leaders and
//! node endpoints on errors 6 and 74. Whole batches only; the first non-empty partition returns its
//! first batch even above both limits; later ones stay within them. A long poll waits for the high
//! watermark, or the last stable offset, of what was asked for; it ends with its topic, and reads
//! again when enough has come.
//!
//! Differences from Kafka: negative byte limits are read as 0 (Kafka answers -1).

mod poll;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::FetchRequest;
use kafka_protocol::protocol::StrBytes;
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use self::poll::{beside_records, poll};
use super::text;
use crate::answer_budget::AnswerRoom;
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::{Broker, HostedTopic};
use crate::error_code;
use crate::fetch_session::{Answered, FetchKey, FetchWish, SessionError, SessionRequest};
use crate::partition::{Isolation, Partition};
use crate::wire::fetch::{FetchPartitionReply, FetchReply, FetchTopicReply};

/// First version whose answers name leaders.
const LEADERS_FROM: i16 = 16;

/// Partitions of a request that keeps little while it waits: some 30 KiB.
const FEW: usize = 64;

/// Bytes that a partition takes while a request waits for it.
const WAITING: usize = 512;

/// Partitions for which the sessions are held at a time.
const NEWS_AT_ONCE: usize = 256;

/// What holds for the whole request.
#[derive(Debug, Clone, Copy)]
struct Limits {
    by_id: bool,
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
    let limits = limits(broker, request, by_id);
    let session = session_request(request, by_id);
    let now = broker.env().clock.monotonic();
    let random = broker.env().random.next_u64();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let plan = broker.sessions().lock().plan(session, now_ms, random);
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => return Staged::Now(refused(error)),
    };
    // Nothing of the request is kept. One that waits for little, or for much as long as there is
    // room for that, keeps its place in memory instead of what it has of the budget; others make
    // way when that is wanted.
    let kept = room_to_wait(broker, plan.wishes.len());
    let parked = kept.as_ref().and_then(|_| context.admitted.parked());
    let is_parked = parked.is_some();
    let held = parked.unwrap_or_else(|| context.admitted.clone());
    let broker = broker.clone();
    let frame = Frame {
        version: context.version,
        listener: context.connection.listener,
        session_id: plan.session_id,
        incremental: plan.incremental,
    };
    let answer = Box::pin(async move {
        let wishes = plan.wishes.into_iter();
        let mut targets: Vec<Target> = wishes
            .map(|wish| Target::new(&broker, wish, by_id))
            .collect();
        let wanted = (!is_parked).then_some(&held);
        let look = poll(&broker, &mut targets, limits, wanted).await;
        let is_wide = targets.len() > FEW;
        let mut reply = assemble(&broker, &frame, targets, look.replies);
        let mut room = look.room;
        if is_wide {
            let named = reply.topics.iter().map(|topic| topic.partitions.len());
            let beside = beside_records(named.sum());
            match &mut room {
                Some(room) => {
                    // No more than it has.
                    room.fit(look.bytes + beside);
                }
                None if beside > 0 => room = Some(broker.answers().room(beside).await),
                None => {}
            }
        }
        reply.room = room.map(AnswerRoom::from).unwrap_or_default();
        drop((held, kept));
        ApiResponse::Fetch(Box::new(reply))
    });
    if is_parked {
        Staged::Parked(answer)
    } else {
        Staged::Later(answer)
    }
}

/// Room for what a request of so many partitions keeps while it waits; `None` if there is none.
fn room_to_wait(broker: &Broker, partitions: usize) -> Option<OwnedSemaphorePermit> {
    let bytes = if partitions > FEW {
        partitions.saturating_mul(WAITING)
    } else {
        0
    };
    let kib = u32::try_from(bytes / 1024).ok()?;
    let room = Arc::clone(broker.wide_polls());
    room.try_acquire_many_owned(kib).ok()
}

fn limits(broker: &Broker, request: &FetchRequest, by_id: bool) -> Limits {
    let bytes = |n: i32| usize::try_from(n).unwrap_or(0);
    let max_bytes = bytes(request.max_bytes).min(broker.config().fetch_max_bytes);
    Limits {
        by_id,
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

impl Target {
    fn new(broker: &Broker, (key, wish): (FetchKey, FetchWish), by_id: bool) -> Self {
        let topic = if by_id {
            let topic = broker.topic_by_id(key.topic_id);
            topic.ok_or(ResponseError::UnknownTopicId)
        } else {
            broker.find_topic(&key.name).map_err(error_code::no_topic)
        };
        let partition = match &topic {
            Err(code) => Err(*code),
            Ok(topic) => match topic.partition(key.partition) {
                None => Err(ResponseError::UnknownTopicOrPartition),
                Some(led) => led.map_err(|e| error_code::unavailable_partition(&e)),
            },
        };
        Self {
            key,
            wish,
            topic: topic.ok(),
            partition,
        }
    }

    /// Whether its partition is another now, or does not serve any more. Looks where it closed.
    fn has_changed(&mut self, broker: &Broker, by_id: bool) -> bool {
        let before = match &self.partition {
            Ok(partition) if partition.is_closed() => partition,
            Ok(_) | Err(_) => return false,
        };
        let mut now = Self::new(broker, (self.key.clone(), self.wish), by_id);
        if matches!(now.partition, Err(ResponseError::UnknownTopicId)) {
            // As in Kafka: the id was known when the request came.
            now.partition = Err(ResponseError::UnknownTopicOrPartition);
        }
        let same = |led: &Arc<Partition>| Arc::ptr_eq(led, before);
        let changed = !now.partition.as_ref().is_ok_and(same);
        *self = now;
        changed
    }
}

/// What an answer says beside its partitions, and to whom.
struct Frame {
    version: i16,
    listener: usize,
    session_id: i32,
    incremental: bool,
}

/// Groups the answers by topic; an incremental answer leaves out what did not change.
fn assemble(
    broker: &Broker,
    frame: &Frame,
    targets: Vec<Target>,
    replies: Vec<FetchPartitionReply>,
) -> FetchReply {
    let session_id = frame.session_id;
    let news = news(broker, session_id, &targets, &replies);
    let mut topics: Vec<FetchTopicReply> = Vec::new();
    let mut place: BTreeMap<(Uuid, StrBytes), usize> = BTreeMap::new();
    let mut node_endpoints = Vec::new();
    for ((target, mut reply), is_news) in targets.into_iter().zip(replies).zip(news) {
        if frame.incremental && !is_news {
            continue;
        }
        reply.current_leader = leader(broker, frame.version, &target, reply.error_code);
        if let (Some((id, _)), true) = (reply.current_leader, node_endpoints.is_empty()) {
            let (host, port) = broker.address(frame.listener);
            node_endpoints.push((id, host, port));
        }
        let name = target
            .topic
            .map_or(target.key.name, |topic| topic.name.clone());
        let at = *place
            .entry((target.key.topic_id, name.clone()))
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
        node_endpoints,
        ..FetchReply::default()
    }
}

/// Which partitions the session was not told of yet.
fn news(
    broker: &Broker,
    session_id: i32,
    targets: &[Target],
    replies: &[FetchPartitionReply],
) -> Vec<bool> {
    if session_id == 0 {
        return vec![true; targets.len()];
    }
    let mut news = Vec::with_capacity(targets.len());
    let some = targets.chunks(NEWS_AT_ONCE);
    for (targets, replies) in some.zip(replies.chunks(NEWS_AT_ONCE)) {
        // Others need the sessions, too.
        let mut sessions = broker.sessions().lock();
        news.extend(targets.iter().zip(replies).map(|(target, reply)| {
            let answered = Answered {
                high_watermark: reply.high_watermark,
                log_start: reply.log_start_offset,
                has_records: !reply.records.is_empty(),
                has_error: reply.error_code != 0 || reply.diverging_epoch.is_some(),
            };
            sessions.answer(session_id, &target.key, answered)
        }));
    }
    news
}

/// Who leads a partition that was asked of another leader, or under another epoch (KIP-951).
fn leader(broker: &Broker, version: i16, target: &Target, code: i16) -> Option<(i32, i32)> {
    if !names_leader(version, code) {
        return None;
    }
    let topic = target.topic.as_ref()?;
    let partition = topic.any_partition(target.key.partition)?;
    let (id, epoch) = broker.said_leader(partition);
    Some((id.0, epoch))
}

fn names_leader(version: i16, code: i16) -> bool {
    let behind = [
        ResponseError::NotLeaderOrFollower,
        ResponseError::FencedLeaderEpoch,
    ];
    version >= LEADERS_FROM && behind.iter().any(|error| error.code() == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaders_are_named_to_who_is_behind_and_can_read_it() {
        for (version, code, named) in [
            (15, 74, false),
            (16, 74, true),
            (18, 6, true),
            (18, 0, false),
            (18, 3, false),
            (18, 75, false),
        ] {
            assert_eq!(names_leader(version, code), named, "v{version}: {code}");
        }
    }
}
