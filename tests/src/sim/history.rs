//! What clients and volume saw, and the rules that are judged while it happens.
//!
//! A record is known by who sent it, where to, and with which sequence number; its payload says
//! so. An offset that was acknowledged or read once holds that record for ever.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use uuid::Uuid;

use super::executor::World;
use super::owners::Owners;
use super::plan::{Mode, Plan};

/// A partition: topic id and number.
pub(crate) type Place = (Uuid, i32);

/// Keys of a partition.
const KEYS: u64 = 7;
/// Violations kept; the first one decides, the others help.
const VIOLATIONS_MAX: usize = 20;

/// One record, by its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecordId {
    /// Session of a producer; unique in the run.
    pub(crate) session: u32,
    /// Where it was sent.
    pub(crate) place: Place,
    /// Sequence number.
    pub(crate) sequence: i32,
}

impl RecordId {
    /// The payload, with `filler` bytes behind it.
    pub(crate) fn payload(self, filler: usize) -> Bytes {
        let mut bytes = BytesMut::with_capacity(28 + filler);
        bytes.put_u32(self.session);
        bytes.put_slice(self.place.0.as_bytes());
        bytes.put_i32(self.place.1);
        bytes.put_i32(self.sequence);
        bytes.put_bytes(0x2e, filler);
        bytes.freeze()
    }

    /// Its key on a topic that is compacted.
    pub(crate) fn key(self) -> u8 {
        let number = u64::from(self.session) + u64::from(self.sequence.unsigned_abs());
        u8::try_from(number % KEYS).unwrap_or(0)
    }

    /// Reads a payload.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (session, rest) = bytes.split_first_chunk::<4>()?;
        let (topic, rest) = rest.split_first_chunk::<16>()?;
        let (partition, rest) = rest.split_first_chunk::<4>()?;
        let sequence = rest.first_chunk::<4>()?;
        Some(Self {
            session: u32::from_be_bytes(*session),
            place: (Uuid::from_bytes(*topic), i32::from_be_bytes(*partition)),
            sequence: i32::from_be_bytes(*sequence),
        })
    }
}

/// A batch: its first record and how many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BatchId {
    /// The first record.
    pub(crate) first: RecordId,
    /// Records.
    pub(crate) count: i32,
}

impl BatchId {
    /// Its records, in order.
    pub(crate) fn records(self) -> impl Iterator<Item = RecordId> {
        (0..self.count).map(move |n| RecordId {
            sequence: self.first.sequence + n,
            ..self.first
        })
    }
}

/// An acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ack {
    /// Base offset in the answer.
    pub(crate) offset: i64,
    /// The instance that answered.
    pub(crate) server: u64,
}

/// What is known of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicFate {
    /// Its name.
    pub(crate) name: String,
    /// How many partitions were asked for.
    pub(crate) partitions: usize,
    /// A deletion was sent.
    pub(crate) delete_sent: bool,
    /// A deletion was answered with success.
    pub(crate) deleted: bool,
}

/// An instance's place in the order of owners.
#[derive(Debug, Default)]
struct Ownership {
    /// Instance number on the volume, once up.
    instance: Option<u64>,
    /// Ends of the logs when it came up.
    ends: BTreeMap<Place, i64>,
    /// Shard of each partition.
    shards: BTreeMap<Place, u32>,
    /// Looks at a shard's claim: shard, event, instance that was found.
    checks: Vec<(u32, u64, u64)>,
    /// First submission of each batch here.
    submitted: BTreeMap<BatchId, u64>,
}

#[derive(Debug, Default)]
struct Inner {
    events: u64,
    progress: u64,
    violations: Vec<String>,
    producer_ids: BTreeSet<i64>,
    sessions: Vec<i64>,
    sent: BTreeSet<BatchId>,
    acked: BTreeMap<BatchId, Ack>,
    /// Acknowledged, and then the power was cut under `flush.policy=os`.
    forgotten: BTreeMap<BatchId, Ack>,
    seen: BTreeMap<Place, BTreeMap<i64, RecordId>>,
    shown_end: BTreeMap<Place, i64>,
    /// Batches refused as out of order though everything before them was acknowledged.
    refused: Vec<BatchId>,
    topics: BTreeMap<Uuid, TopicFate>,
    owners: BTreeMap<u64, Ownership>,
    /// Who named itself owner of a shard: shard, event, server.
    claims: Vec<(u32, u64, u64)>,
    areas: Owners,
}

/// The history of one run.
#[derive(Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a property of the plan"
)]
pub(crate) struct History {
    world: World,
    inner: Mutex<Inner>,
    /// Whether an acknowledgement survives a power cut (`flush.policy=fsync`).
    durable: bool,
    /// Whether the store checks the shard's claim on the volume after each sync.
    claimed: bool,
    /// Whether records are deleted that are old, or too many.
    trims: bool,
    /// Whether of records of one key only the newest has to stay.
    compacts: bool,
}

impl History {
    /// An empty history.
    pub(crate) fn new(world: World, plan: &Plan) -> Self {
        Self {
            world,
            inner: Mutex::default(),
            durable: !plan.os_flush,
            claimed: plan.mode == Mode::Journal,
            trims: plan.retention.is_some(),
            compacts: plan.compaction.is_some(),
        }
    }

    /// Something that must never happen happened.
    pub(crate) fn violation(&self, what: &str) {
        self.world.note(&format!("VIOLATION {what}"));
        let mut inner = self.inner.lock();
        if inner.violations.len() < VIOLATIONS_MAX {
            inner.violations.push(what.to_owned());
        }
    }

    /// What went wrong so far.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.inner.lock().violations.clone()
    }

    /// Whether something went wrong.
    pub(crate) fn failed(&self) -> bool {
        !self.inner.lock().violations.is_empty()
    }

    /// Grows while producers get somewhere.
    pub(crate) fn progress(&self) -> u64 {
        self.inner.lock().progress
    }

    /// A producer id was handed out. A new session's number.
    pub(crate) fn session(&self, producer_id: i64) -> u32 {
        let (fresh, session) = {
            let mut inner = self.inner.lock();
            let fresh = inner.producer_ids.insert(producer_id);
            inner.sessions.push(producer_id);
            (fresh, inner.sessions.len() - 1)
        };
        if !fresh {
            self.violation(&format!("producer id {producer_id} was handed out twice"));
        }
        u32::try_from(session).unwrap_or(u32::MAX)
    }

    /// A client got somewhere.
    pub(crate) fn moved(&self) {
        self.inner.lock().progress += 1;
    }

    /// The producer id of a session.
    pub(crate) fn producer_id(&self, session: u32) -> Option<i64> {
        let index = usize::try_from(session).ok()?;
        self.inner.lock().sessions.get(index).copied()
    }

    /// A batch is about to be sent.
    pub(crate) fn sent(&self, batch: BatchId) {
        self.inner.lock().sent.insert(batch);
    }

    /// A batch reaches an instance's services.
    pub(crate) fn submitted(&self, batch: BatchId, server: u64) {
        let mut inner = self.inner.lock();
        inner.events += 1;
        let event = inner.events;
        let owner = inner.owners.entry(server).or_default();
        owner.submitted.entry(batch).or_insert(event);
    }

    /// A batch was acknowledged.
    pub(crate) fn acked(&self, batch: BatchId, ack: Ack) {
        self.world.note(&format!(
            "acked {batch:?} at {} by {}",
            ack.offset, ack.server
        ));
        let before = {
            let mut inner = self.inner.lock();
            inner.progress += 1;
            inner.acked.insert(batch, ack)
        };
        if let Some(before) = before
            && before.offset != ack.offset
        {
            self.violation(&format!(
                "{batch:?} was acknowledged at {before:?} and {ack:?}"
            ));
        }
        for (record, offset) in batch.records().zip(ack.offset..) {
            self.seen(batch.first.place, offset, record);
        }
        if self.claimed {
            self.check_claim_order(batch, ack);
        }
    }

    /// The order of events in the log: a success whose group was not followed by a look at the
    /// claim before another instance named itself owner.
    fn check_claim_order(&self, batch: BatchId, ack: Ack) {
        let late = {
            let inner = self.inner.lock();
            let Some(owner) = inner.owners.get(&ack.server) else {
                return;
            };
            let place = batch.first.place;
            let (Some(shard), Some(instance)) = (owner.shards.get(&place), owner.instance) else {
                return;
            };
            if owner.ends.get(&place).is_some_and(|end| ack.offset < *end) {
                return;
            }
            let Some(submitted) = owner.submitted.get(&batch) else {
                return;
            };
            let mut claims = inner
                .claims
                .iter()
                .filter(|(claimed, _, _)| claimed == shard);
            let own = claims.clone().find(|(_, _, server)| *server == ack.server);
            let own = own.map_or(0, |(_, event, _)| *event);
            let taken = claims.find(|(_, event, server)| *event > own && *server != ack.server);
            let taken = taken.map(|(_, event, _)| *event);
            taken.is_some_and(|taken| {
                !owner.checks.iter().any(|(checked, event, found)| {
                    checked == shard && *found == instance && (*submitted..taken).contains(event)
                })
            })
        };
        if late {
            self.violation(&format!(
                "{batch:?} was acknowledged by {} without a claim check, \
                 behind the claim of a taker",
                ack.server
            ));
        }
    }

    /// An instance read a shard's claim and found `instance`.
    pub(crate) fn claim_checked(&self, server: u64, shard: u32, instance: u64) {
        let mut inner = self.inner.lock();
        inner.events += 1;
        let event = inner.events;
        let owner = inner.owners.entry(server).or_default();
        owner.checks.push((shard, event, instance));
    }

    /// An instance named itself owner of a shard.
    pub(crate) fn claimed(&self, server: u64, shard: u32) {
        let mut inner = self.inner.lock();
        inner.events += 1;
        let event = inner.events;
        inner.claims.push((shard, event, server));
    }

    /// An instance did a step on a name of the volume.
    pub(crate) fn step(&self, server: u64, path: &str) {
        self.inner.lock().areas.step(server, path);
    }

    /// A rename took effect, done by `server`, or late.
    pub(crate) fn renamed(&self, server: Option<u64>, from: &str, to: &str) {
        let wrong = self.inner.lock().areas.renamed(server, from, to);
        if let Some(wrong) = wrong {
            self.violation(&wrong);
        }
    }

    /// An instance is up: its number on the volume, and per partition its shard and end.
    pub(crate) fn up(
        &self,
        server: u64,
        instance: u64,
        logs: impl IntoIterator<Item = (Place, u32, i64)>,
    ) {
        let mut inner = self.inner.lock();
        let owner = inner.owners.entry(server).or_default();
        owner.instance = Some(instance);
        for (place, shard, end) in logs {
            owner.ends.insert(place, end);
            owner.shards.insert(place, shard);
        }
    }

    /// Everything before this batch was acknowledged, and it was refused as out of order.
    pub(crate) fn refused(&self, batch: BatchId) {
        let mut inner = self.inner.lock();
        inner.progress += 1;
        inner.refused.push(batch);
    }

    /// A record was seen at an offset, in an answer or by a reader.
    pub(crate) fn seen(&self, place: Place, offset: i64, record: RecordId) {
        let other = {
            let mut inner = self.inner.lock();
            let held = inner.seen.entry(place).or_default();
            let held = *held.entry(offset).or_insert(record);
            (held != record).then_some(held)
        };
        if let Some(other) = other {
            self.violation(&format!(
                "offset {offset} of {place:?} held {other:?} and now {record:?}"
            ));
        }
        if record.place != place {
            self.violation(&format!("{record:?} lies in {place:?}"));
        }
    }

    /// A high watermark that a reader was told.
    pub(crate) fn shown(&self, place: Place, end: i64) {
        let mut inner = self.inner.lock();
        let shown = inner.shown_end.entry(place).or_default();
        *shown = end.max(*shown);
    }

    /// A topic was acknowledged as created, or seen.
    pub(crate) fn topic(&self, id: Uuid, name: &str, partitions: usize) {
        let gone = {
            let mut inner = self.inner.lock();
            let fate = inner.topics.entry(id).or_insert_with(|| TopicFate {
                name: name.to_owned(),
                partitions,
                delete_sent: false,
                deleted: false,
            });
            (fate.name != name || fate.partitions != partitions).then(|| fate.clone())
        };
        if let Some(fate) = gone {
            self.violation(&format!(
                "topic {id} is {fate:?} and now {name} with {partitions} partitions"
            ));
        }
    }

    /// A deletion is about to be sent.
    pub(crate) fn deleting(&self, id: Uuid) {
        if let Some(fate) = self.inner.lock().topics.get_mut(&id) {
            fate.delete_sent = true;
        }
    }

    /// A deletion succeeded.
    pub(crate) fn deleted(&self, id: Uuid) {
        let mut inner = self.inner.lock();
        if let Some(fate) = inner.topics.get_mut(&id) {
            fate.deleted = true;
        }
    }

    /// Whether a deletion of the topic was sent.
    pub(crate) fn may_be_deleted(&self, id: Uuid) -> bool {
        let inner = self.inner.lock();
        inner.topics.get(&id).is_some_and(|fate| fate.delete_sent)
    }

    /// Topics that were seen or acknowledged.
    pub(crate) fn topics(&self) -> BTreeMap<Uuid, TopicFate> {
        self.inner.lock().topics.clone()
    }

    /// Acknowledged batches.
    pub(crate) fn acknowledged(&self) -> BTreeMap<BatchId, Ack> {
        self.inner.lock().acked.clone()
    }

    /// Batches that were acknowledged before a promise was taken back.
    pub(crate) fn forgotten(&self) -> BTreeMap<BatchId, Ack> {
        self.inner.lock().forgotten.clone()
    }

    /// Batches refused though everything before them was acknowledged.
    pub(crate) fn refusals(&self) -> Vec<BatchId> {
        self.inner.lock().refused.clone()
    }

    /// What was seen of a partition, and the highest end that was shown.
    pub(crate) fn known(&self, place: Place) -> (BTreeMap<i64, RecordId>, i64) {
        let inner = self.inner.lock();
        let seen = inner.seen.get(&place).cloned().unwrap_or_default();
        (seen, inner.shown_end.get(&place).copied().unwrap_or(0))
    }

    /// Places of which something was seen.
    pub(crate) fn places(&self) -> BTreeSet<Place> {
        let inner = self.inner.lock();
        inner
            .seen
            .keys()
            .chain(inner.shown_end.keys())
            .copied()
            .collect()
    }

    /// How much was sent, acknowledged and seen.
    pub(crate) fn summary(&self) -> String {
        let inner = self.inner.lock();
        format!(
            "{} batches sent, {} acknowledged, {} records seen, {} producer ids, {} topics",
            inner.sent.len(),
            inner.acked.len(),
            inner.seen.values().map(BTreeMap::len).sum::<usize>(),
            inner.producer_ids.len(),
            inner.topics.len(),
        )
    }

    /// Whether an acknowledgement survives a power cut.
    pub(crate) fn durable(&self) -> bool {
        self.durable
    }

    /// Whether of records of one key only the newest has to stay.
    pub(crate) fn compacts(&self) -> bool {
        self.compacts
    }

    /// Whether a log may have lost its beginning.
    pub(crate) fn trims(&self) -> bool {
        self.trims
    }

    /// The power was cut under `flush.policy=os`: nothing that was promised holds any more.
    pub(crate) fn forget_promises(&self) {
        let mut inner = self.inner.lock();
        let acked = std::mem::take(&mut inner.acked);
        inner.forgotten.extend(acked);
        inner.seen.clear();
        inner.shown_end.clear();
        inner.refused.clear();
    }
}
