//! Incremental fetch sessions (KIP-227; `FetchSession.scala` of Kafka). Pure: time and session ids
//! are arguments.
//!
//! Bounds: at most `max.incremental.fetch.session.cache.slots` sessions, of [`SESSION_MAX`] bytes
//! each and [`TOTAL_MAX`] together. A request that would need more gets no session and is answered
//! all the same; a session that would outgrow them ends, and its client asks for all it wants.

use std::collections::{BTreeMap, BTreeSet};

use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

/// A session may be replaced by another one after this long without use, ms (Kafka's
/// `MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS`).
const EVICTION_MS: u64 = 120_000;

/// Bytes that the partitions of one session may take: what Kafka names in a request of 1 MiB.
const SESSION_MAX: usize = 8 << 20;
/// Bytes that those of all sessions may take.
const TOTAL_MAX: usize = 64 << 20;
/// Bytes that a partition takes in both maps, its name not counted.
const ENTRY: usize = 256;

/// Session epoch of a request that wants everything, and a session for it.
const FULL_EPOCH: i32 = 0;
/// Session epoch of one that wants no session, or none any more.
const FINAL_EPOCH: i32 = -1;

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
    /// Session epoch: -1 final or sessionless, 0 full, else what the session expects next.
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
    /// Bytes that they take.
    bytes: usize,
}

/// All sessions of a broker.
#[derive(Debug)]
pub struct FetchSessions {
    slots: usize,
    sessions: BTreeMap<i32, Session>,
    /// Bytes that all of them take.
    bytes: usize,
}

impl FetchSessions {
    /// An empty cache of at most `slots` sessions; 0 switches sessions off.
    pub fn new(slots: usize) -> Self {
        Self {
            slots,
            sessions: BTreeMap::new(),
            bytes: 0,
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
        if matches!(request.epoch, FINAL_EPOCH | FULL_EPOCH) {
            self.close(request.session_id);
            let wishes = each_once(request.wishes);
            let request = SessionRequest { wishes, ..request };
            let session_id = if request.epoch == FULL_EPOCH {
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
        self.go_on(request, now_ms)
    }

    fn go_on(&mut self, request: SessionRequest, now_ms: u64) -> Result<FetchPlan, SessionError> {
        let id = request.session_id;
        let session = self.sessions.get_mut(&id).ok_or(SessionError::NotFound)?;
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
        let before = session.bytes;
        let forgotten: BTreeSet<FetchKey> = request.forgotten.into_iter().collect();
        for key in &forgotten {
            session.forget(key);
        }
        let mut fits = true;
        // As in Kafka, what is both wanted and to be forgotten is forgotten.
        let wanted = request.wishes.into_iter();
        for (key, wish) in wanted.filter(|(key, _)| !forgotten.contains(key)) {
            fits = session.put(key, wish);
            if !fits {
                break;
            }
        }
        self.bytes = self.bytes - before + session.bytes;
        if session.entries.is_empty() {
            self.close(id);
            return Ok(FetchPlan {
                session_id: 0,
                incremental: false,
                wishes: Vec::new(),
            });
        }
        let fits = fits && self.fit(0, now_ms);
        match self.sessions.get(&id) {
            Some(session) if fits => Ok(FetchPlan {
                session_id: id,
                incremental: true,
                wishes: session.wishes(),
            }),
            _ => {
                self.close(id);
                Err(SessionError::NotFound)
            }
        }
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
        let bytes = request.wishes.iter().map(|(key, _)| key.bytes()).sum();
        if request.wishes.is_empty() || bytes > SESSION_MAX || self.slots == 0 {
            return 0;
        }
        if !self.fit(bytes, now_ms) || !self.make_room(request.wishes.len(), now_ms) {
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
            bytes: 0,
        };
        for (key, wish) in &request.wishes {
            session.put(key.clone(), *wish);
        }
        self.bytes += session.bytes;
        self.sessions.insert(id, session);
        id
    }

    fn close(&mut self, id: i32) -> bool {
        let closed = self.sessions.remove(&id);
        self.bytes -= closed.as_ref().map_or(0, |session| session.bytes);
        closed.is_some()
    }

    /// Whether `bytes` more find room, for which idle sessions give way.
    fn fit(&mut self, bytes: usize, now_ms: u64) -> bool {
        while self.bytes + bytes > TOTAL_MAX {
            let idle = self.idlest(now_ms);
            if !idle.is_some_and(|id| self.close(id)) {
                return false;
            }
        }
        true
    }

    /// The session that was not used for the longest time, if that is long enough.
    fn idlest(&self, now_ms: u64) -> Option<i32> {
        let idle = |session: &Session| now_ms.saturating_sub(session.used_ms) >= EVICTION_MS;
        let idle = self.sessions.iter().filter(|(_, session)| idle(session));
        idle.min_by_key(|(id, session)| (session.used_ms, **id))
            .map(|(id, _)| *id)
    }

    fn make_room(&mut self, size: usize, now_ms: u64) -> bool {
        if self.sessions.len() < self.slots {
            return true;
        }
        let old = |session: &Session| now_ms.saturating_sub(session.created_ms) >= EVICTION_MS;
        let victim = self.idlest(now_ms).or_else(|| {
            self.sessions
                .iter()
                .filter(|(_, session)| old(session) && session.entries.len() < size)
                .min_by_key(|(id, session)| (session.entries.len(), **id))
                .map(|(id, _)| *id)
        });
        victim.is_some_and(|id| self.close(id))
    }
}

impl FetchKey {
    /// Bytes that it takes in a session.
    fn bytes(&self) -> usize {
        ENTRY + self.name.len()
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
    /// What is read, in the order of serving.
    fn wishes(&self) -> Vec<(FetchKey, FetchWish)> {
        let entry = |key: &FetchKey| self.entries.get(key).map(|entry| (key.clone(), entry.wish));
        self.order.values().filter_map(entry).collect()
    }

    /// False if there is no room for it.
    fn put(&mut self, key: FetchKey, wish: FetchWish) -> bool {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.wish = wish;
            return true;
        }
        if self.bytes + key.bytes() > SESSION_MAX {
            return false;
        }
        self.bytes += key.bytes();
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
        true
    }

    fn forget(&mut self, key: &FetchKey) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.place);
            self.bytes -= key.bytes();
        }
    }
}

#[cfg(test)]
mod tests;
