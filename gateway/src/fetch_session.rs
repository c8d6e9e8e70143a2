//! Incremental fetch sessions (KIP-227; `FetchSession.scala` of Kafka). Pure: time and session ids
//! are arguments.
//!
//! Bounds: at most `max.incremental.fetch.session.cache.slots` sessions, each holding the
//! partitions of one request that the frame guard accepted.

use std::collections::BTreeMap;

use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

/// A session may be replaced by another one after this long without use, ms (Kafka's
/// `MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS`).
const EVICTION_MS: u64 = 120_000;

/// How a partition is named in one session: by topic id from v13 on, by name before.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FetchKey {
    /// Topic id; nil up to v12.
    pub topic_id: Uuid,
    /// Name; empty from v13 on.
    pub name: StrBytes,
    /// Partition number.
    pub partition: i32,
}

/// What a client asks of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchWish {
    /// First offset wanted.
    pub fetch_offset: i64,
    /// Byte limit of the partition.
    pub max_bytes: i32,
    /// The client's leader epoch, -1 for none.
    pub current_leader_epoch: i32,
    /// Epoch of the last record that the client has, -1 for none.
    pub last_fetched_epoch: i32,
}

/// What an answer said of one partition, for comparing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    /// High watermark.
    pub high_watermark: i64,
    /// First offset.
    pub log_start: i64,
    /// Whether records were returned.
    pub has_records: bool,
    /// Whether there is an error or a diverging epoch.
    pub has_error: bool,
}

/// Why a session request is refused; the whole answer carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// 70.
    #[error("no such fetch session")]
    NotFound,
    /// 71.
    #[error("wrong fetch session epoch")]
    InvalidEpoch,
    /// 106.
    #[error("the session names topics in the other way")]
    TopicIdMismatch,
}

/// What is to be read for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchPlan {
    /// Session id of the answer; 0 for none.
    pub session_id: i32,
    /// Whether only what changed is answered.
    pub incremental: bool,
    /// Partitions in the order in which they are served.
    pub wishes: Vec<(FetchKey, FetchWish)>,
}

/// A decoded fetch request, as far as sessions care.
#[derive(Debug, Clone)]
pub struct SessionRequest {
    /// Session id of the request; 0 for none.
    pub session_id: i32,
    /// Session epoch: -1 final or sessionless, 0 full, else the next one.
    pub epoch: i32,
    /// Whether topics are named by id (v13+).
    pub by_id: bool,
    /// Partitions listed.
    pub wishes: Vec<(FetchKey, FetchWish)>,
    /// Partitions to forget.
    pub forgotten: Vec<FetchKey>,
}

#[derive(Debug)]
struct Entry {
    wish: FetchWish,
    /// Place in the order of serving.
    place: u64,
    /// High watermark and log start last answered.
    sent: Option<(i64, i64)>,
}

#[derive(Debug)]
struct Session {
    epoch: i32,
    by_id: bool,
    created_ms: u64,
    used_ms: u64,
    next_place: u64,
    entries: BTreeMap<FetchKey, Entry>,
    order: BTreeMap<u64, FetchKey>,
}

/// All sessions of a broker.
#[derive(Debug)]
pub struct FetchSessions {
    slots: usize,
    sessions: BTreeMap<i32, Session>,
}

impl FetchSessions {
    /// An empty cache of at most `slots` sessions; 0 switches sessions off.
    pub fn new(slots: usize) -> Self {
        Self {
            slots,
            sessions: BTreeMap::new(),
        }
    }

    /// Sessions held.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether no session is held.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Decides what a request reads. `random` makes a new session's id.
    pub fn plan(
        &mut self,
        request: SessionRequest,
        now_ms: u64,
        random: u64,
    ) -> Result<FetchPlan, SessionError> {
        if request.epoch <= 0 {
            self.sessions.remove(&request.session_id);
            let wishes = each_once(request.wishes);
            let request = SessionRequest { wishes, ..request };
            let session_id = if request.epoch == 0 {
                self.open(&request, now_ms, random)
            } else {
                0
            };
            return Ok(FetchPlan {
                session_id,
                incremental: false,
                wishes: request.wishes,
            });
        }
        let session = self
            .sessions
            .get_mut(&request.session_id)
            .ok_or(SessionError::NotFound)?;
        if session.epoch != request.epoch {
            return Err(SessionError::InvalidEpoch);
        }
        if session.by_id != request.by_id {
            return Err(SessionError::TopicIdMismatch);
        }
        session.epoch = if session.epoch == i32::MAX {
            1
        } else {
            session.epoch + 1
        };
        session.used_ms = now_ms;
        for key in &request.forgotten {
            session.forget(key);
        }
        for (key, wish) in request.wishes {
            session.put(key, wish);
        }
        let wishes = session
            .order
            .values()
            .filter_map(|key| {
                session
                    .entries
                    .get(key)
                    .map(|entry| (key.clone(), entry.wish))
            })
            .collect();
        Ok(FetchPlan {
            session_id: request.session_id,
            incremental: true,
            wishes,
        })
    }

    /// Whether an incremental answer must name `key`; records what it says.
    pub fn answer(&mut self, session_id: i32, key: &FetchKey, answered: Answered) -> bool {
        let Some(session) = self.sessions.get_mut(&session_id) else {
            return true;
        };
        let Some(entry) = session.entries.get_mut(key) else {
            return true;
        };
        let now = (answered.high_watermark, answered.log_start);
        let changed = entry.sent != Some(now);
        // After an error the next answer names the partition again, whatever it says.
        entry.sent = (!answered.has_error).then_some(now);
        if answered.has_records {
            session.order.remove(&entry.place);
            entry.place = session.next_place;
            session.order.insert(session.next_place, key.clone());
            session.next_place += 1;
        }
        changed || answered.has_records || answered.has_error
    }

    fn open(&mut self, request: &SessionRequest, now_ms: u64, random: u64) -> i32 {
        if request.wishes.is_empty() || !self.make_room(request.wishes.len(), now_ms) {
            return 0;
        }
        let mut id = i32::try_from(random & 0x7fff_ffff).unwrap_or(1).max(1);
        while self.sessions.contains_key(&id) {
            id = if id == i32::MAX { 1 } else { id + 1 };
        }
        let mut session = Session {
            epoch: 1,
            by_id: request.by_id,
            created_ms: now_ms,
            used_ms: now_ms,
            next_place: 0,
            entries: BTreeMap::new(),
            order: BTreeMap::new(),
        };
        for (key, wish) in &request.wishes {
            session.put(key.clone(), *wish);
        }
        self.sessions.insert(id, session);
        id
    }

    fn make_room(&mut self, size: usize, now_ms: u64) -> bool {
        if self.sessions.len() < self.slots {
            return true;
        }
        let idle = |session: &Session| now_ms.saturating_sub(session.used_ms) >= EVICTION_MS;
        let old = |session: &Session| now_ms.saturating_sub(session.created_ms) >= EVICTION_MS;
        let victim = self
            .sessions
            .iter()
            .filter(|(_, session)| idle(session))
            .min_by_key(|(id, session)| (session.used_ms, **id))
            .or_else(|| {
                self.sessions
                    .iter()
                    .filter(|(_, session)| old(session) && session.entries.len() < size)
                    .min_by_key(|(id, session)| (session.entries.len(), **id))
            })
            .map(|(id, _)| *id);
        victim.is_some_and(|id| self.sessions.remove(&id).is_some())
    }
}

/// A partition that is named many times is read once, as it was named last.
fn each_once(wishes: Vec<(FetchKey, FetchWish)>) -> Vec<(FetchKey, FetchWish)> {
    let mut last = BTreeMap::new();
    for (key, wish) in &wishes {
        last.insert(key.clone(), *wish);
    }
    let once = |(key, _)| last.remove(&key).map(|wish| (key, wish));
    wishes.into_iter().filter_map(once).collect()
}

impl Session {
    fn put(&mut self, key: FetchKey, wish: FetchWish) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.wish = wish;
            return;
        }
        let place = self.next_place;
        self.next_place += 1;
        self.order.insert(place, key.clone());
        self.entries.insert(
            key,
            Entry {
                wish,
                place,
                sent: None,
            },
        );
    }

    fn forget(&mut self, key: &FetchKey) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(partition: i32) -> FetchKey {
        FetchKey {
            topic_id: Uuid::nil(),
            name: StrBytes::from_static_str("t"),
            partition,
        }
    }

    fn wish(fetch_offset: i64) -> FetchWish {
        FetchWish {
            fetch_offset,
            max_bytes: 1,
            current_leader_epoch: -1,
            last_fetched_epoch: -1,
        }
    }

    fn request(session_id: i32, epoch: i32, partitions: &[i32]) -> SessionRequest {
        SessionRequest {
            session_id,
            epoch,
            by_id: false,
            wishes: partitions.iter().map(|p| (key(*p), wish(0))).collect(),
            forgotten: Vec::new(),
        }
    }

    fn idle(high_watermark: i64) -> Answered {
        Answered {
            high_watermark,
            log_start: 0,
            has_records: false,
            has_error: false,
        }
    }

    #[test]
    fn a_sessionless_fetch_has_no_session() {
        let mut cache = FetchSessions::new(2);
        let plan = cache.plan(request(0, -1, &[0, 1]), 0, 7).unwrap();
        assert_eq!(
            (plan.session_id, plan.incremental, plan.wishes.len()),
            (0, false, 2)
        );
        assert!(cache.is_empty());
    }

    #[test]
    fn epochs_count_up_and_wrap_to_one() {
        let mut cache = FetchSessions::new(2);
        let id = cache.plan(request(0, 0, &[0]), 0, 7).unwrap().session_id;
        assert_eq!(id, 7);
        assert_eq!(
            cache.plan(request(8, 1, &[]), 0, 0),
            Err(SessionError::NotFound)
        );
        assert_eq!(
            cache.plan(request(7, 2, &[]), 0, 0),
            Err(SessionError::InvalidEpoch)
        );
        assert!(cache.plan(request(7, 1, &[]), 0, 0).unwrap().incremental);
        assert_eq!(
            cache.plan(request(7, 1, &[]), 0, 0),
            Err(SessionError::InvalidEpoch)
        );
        cache.sessions.get_mut(&7).unwrap().epoch = i32::MAX;
        assert!(cache.plan(request(7, i32::MAX, &[]), 0, 0).is_ok());
        assert!(cache.plan(request(7, 1, &[]), 0, 0).is_ok());
        assert_eq!(
            cache.plan(request(7, -1, &[0]), 0, 0).unwrap().session_id,
            0
        );
        assert!(cache.is_empty());
    }

    #[test]
    fn a_session_keeps_one_way_of_naming() {
        let mut cache = FetchSessions::new(2);
        cache.plan(request(0, 0, &[0]), 0, 7).unwrap();
        let crossed = SessionRequest {
            by_id: true,
            ..request(7, 1, &[])
        };
        assert_eq!(
            cache.plan(crossed, 0, 0),
            Err(SessionError::TopicIdMismatch)
        );
    }

    #[test]
    fn only_what_changed_is_answered_and_served_partitions_go_last() {
        let mut cache = FetchSessions::new(2);
        cache.plan(request(0, 0, &[0, 1, 2]), 0, 7).unwrap();
        for partition in 0..3 {
            assert!(
                cache.answer(7, &key(partition), idle(5)),
                "the first answer names all"
            );
        }
        cache.plan(request(7, 1, &[]), 0, 0).unwrap();
        assert!(!cache.answer(7, &key(0), idle(5)));
        assert!(
            cache.answer(7, &key(1), idle(6)),
            "a moved high watermark is news"
        );
        let records = Answered {
            has_records: true,
            ..idle(6)
        };
        assert!(cache.answer(7, &key(0), records));
        let order: Vec<i32> = cache
            .plan(request(7, 2, &[]), 0, 0)
            .unwrap()
            .wishes
            .iter()
            .map(|(key, _)| key.partition)
            .collect();
        assert_eq!(order, [1, 2, 0]);
        let failed = Answered {
            has_error: true,
            ..idle(6)
        };
        assert!(cache.answer(7, &key(2), failed));
        assert!(
            cache.answer(7, &key(2), idle(6)),
            "the first answer after an error names it"
        );
    }

    #[test]
    fn forgotten_partitions_are_gone_and_new_offsets_are_taken() {
        let mut cache = FetchSessions::new(2);
        cache.plan(request(0, 0, &[0, 1]), 0, 7).unwrap();
        let mut next = request(7, 1, &[]);
        next.forgotten = vec![key(0)];
        next.wishes = vec![(key(1), wish(9)), (key(4), wish(3))];
        let plan = cache.plan(next, 0, 0).unwrap();
        assert_eq!(plan.wishes, [(key(1), wish(9)), (key(4), wish(3))]);
    }

    #[test]
    fn a_full_cache_gives_way_only_to_idle_or_smaller_sessions() {
        let mut cache = FetchSessions::new(1);
        assert_eq!(cache.plan(request(0, 0, &[0]), 0, 7).unwrap().session_id, 7);
        assert_eq!(
            cache
                .plan(request(0, 0, &[0, 1]), 1_000, 8)
                .unwrap()
                .session_id,
            0
        );
        cache.plan(request(7, 1, &[]), 119_000, 0).unwrap();
        assert_eq!(
            cache
                .plan(request(0, 0, &[0]), 121_000, 8)
                .unwrap()
                .session_id,
            0
        );
        assert_eq!(
            cache
                .plan(request(0, 0, &[0, 1]), 121_000, 8)
                .unwrap()
                .session_id,
            8
        );
        assert_eq!(
            cache
                .plan(request(0, 0, &[0]), 300_000, 9)
                .unwrap()
                .session_id,
            9
        );
        assert_eq!(cache.len(), 1);
        assert_eq!(
            FetchSessions::new(0)
                .plan(request(0, 0, &[0]), 0, 9)
                .unwrap()
                .session_id,
            0
        );
    }
}
