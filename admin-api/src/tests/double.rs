//! A process with a few transactions, and a way to ask it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use coordinator::machine::group::GroupError;
use coordinator::machine::group::offsets::{
    Committed, OffsetTable, StagedOffset, StagedTxn, TableParts,
};
use coordinator::machine::producer::id_block::{BLOCK_LEN, IdBlock};
use coordinator::machine::producer::{BatchMeta, MarkerInfo, ProducerStates};
use coordinator::machine::txn::{Client, TxnEntry, TxnError, TxnState};
use coordinator::service::cluster::{Found, QueuedMarkers};
use coordinator::service::txns::SlotGap;
use coordinator::volume::format::{
    Extra, FencesFile, HistoryLine, IdBlockFile, MarkerQueueFile, decode,
};
use parking_lot::{Condvar, Mutex};
use serde_json::Value;
use tokio::sync::Notify;
use tower::ServiceExt as _;

use crate::views::{
    Bounds, BoxFuture, HistoryView, HoldView, IdPattern, Job, KafkaCode, Look, NoPartition,
    PartitionView, Pass,
};
use crate::*;

/// The time in these tests.
pub(super) const NOW: i64 = 1_790_000_060_000;
/// An id that is hostile to paths, logs and pages.
pub(super) const HOSTILE: &str = "a/b%2F..?#&\"<script>'\u{202e}\u{1f980} abort\n";

#[derive(Debug, Default)]
pub(super) struct Double {
    pub(super) ids: Mutex<BTreeMap<Arc<str>, TxnEntry>>,
    pub(super) gaps: Vec<SlotGap>,
    pub(super) partitions: Mutex<BTreeMap<(String, i32), Led>>,
    pub(super) lines: Vec<HistoryLine>,
    pub(super) holds: Mutex<Vec<HoldView>>,
    /// Why nothing that is decided is carried out.
    pub(super) why_stuck: Option<Arc<str>>,
    /// What an abort answers.
    pub(super) refuses: Option<TxnError>,
    /// Requests never end.
    pub(super) stuck: bool,
    /// Sleeps of so long are over at once.
    pub(super) late: Option<Duration>,
    /// How often all ids were looked at.
    pub(super) visits: AtomicUsize,
    /// Ends by itself while coordinators are asked.
    pub(super) ends: Option<Arc<str>>,
    /// Closed by who wants that looking at ids takes long.
    pub(super) gate: Arc<Gate>,
    /// Holds what is carried out.
    pub(super) held: Option<Arc<Held>>,
    /// The next transaction begins before an abort comes.
    pub(super) moves_on: bool,
    pub(super) groups: BTreeMap<String, Arc<OffsetTable>>,
}

/// Something that is being carried out.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) begun: Notify,
    pub(super) go_on: Notify,
}

/// Lets nobody pass until it is opened, if it was closed.
#[derive(Debug, Default)]
pub(super) struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
    /// Somebody waits, or gave up.
    pub(super) waits: Notify,
    pub(super) gave_up: AtomicBool,
}

impl Gate {
    pub(super) fn close(&self) {
        *self.closed.lock() = true;
    }

    pub(super) fn open(&self) {
        *self.closed.lock() = false;
        self.opened.notify_all();
    }

    /// Blocks the thread; not for ever, so that a test that hangs ends.
    fn pass(&self) {
        let mut closed = self.closed.lock();
        if !*closed {
            return;
        }
        self.waits.notify_one();
        let end = self
            .opened
            .wait_while_for(&mut closed, |closed| *closed, Duration::from_mins(2));
        if end.timed_out() {
            self.gave_up.store(true, Ordering::SeqCst);
            self.waits.notify_one();
        }
    }
}

/// A partition of the process.
#[derive(Debug)]
pub(super) struct Led {
    producers: ProducerStates,
    end: i64,
}

impl Led {
    fn view(&self) -> PartitionView {
        PartitionView {
            topic_id: "12345678-9abc-4def-8123-456789abcdef".to_owned(),
            leader_epoch: 3,
            log_start: 0,
            high_watermark: self.end,
            last_stable: self.producers.last_stable_offset(self.end),
            expiration_ms: 86_400_000,
        }
    }

    fn has_open(&self, entry: &TxnEntry) -> bool {
        let producer = self.producers.producer(entry.pid);
        producer.is_some_and(|one| one.current_txn_first_offset.is_some())
    }

    /// Ends what a producer has open.
    fn end(&mut self, n: i64) {
        let mut marker = batch(n, self.end, 0);
        marker.is_control = true;
        marker.marker = Some(MarkerInfo {
            commit: true,
            coordinator_epoch: 0,
            txn_seq: Some(1),
        });
        self.producers.replay(&marker);
        self.end += 1;
    }
}

/// A pid of broker 0.
pub(super) fn pid(n: i64) -> i64 {
    (1 << 40) + n
}

pub(super) fn entry(n: i64, state: TxnState) -> TxnEntry {
    // The types of ids are not this crate's: the numbers come out of a block.
    let mut block = IdBlock::reserve(decode_broker(), n / BLOCK_LEN * BLOCK_LEN)
        .unwrap()
        .0;
    let skipped = n % BLOCK_LEN;
    for _ in 0..skipped {
        block.take();
    }
    let mut entry = TxnEntry::new(block.take().unwrap(), 60_000, NOW - 90_000);
    entry.state = state;
    entry
}

fn decode_broker() -> store_adapter::ids::BrokerId {
    store_adapter::ids::BrokerId(0)
}

pub(super) fn ongoing(n: i64, topic: &str, partition: i32, age_ms: i64) -> TxnEntry {
    let mut entry = entry(n, TxnState::Ongoing);
    entry.partitions = [(Arc::from(topic), [partition].into())].into();
    entry.start_ms = Some(NOW - age_ms);
    entry.txn_seq = 1;
    entry.client = Some(Client {
        id: "app".into(),
        address: "10.0.0.7:52114".into(),
        software: "librdkafka 2".into(),
    });
    entry
}

fn batch(n: i64, base_offset: i64, last: i32) -> BatchMeta {
    BatchMeta {
        producer_id: entry(n, TxnState::Empty).pid,
        producer_epoch: store_adapter::ids::ProducerEpoch(0),
        first_seq: store_adapter::ids::Sequence(0),
        last_seq: store_adapter::ids::Sequence(last),
        base_offset,
        last_offset: base_offset + i64::from(last),
        max_timestamp: NOW - 50_000,
        append_ms: NOW - 50_000,
        crc: 7,
        is_transactional: true,
        is_control: false,
        implicit_add: false,
        marker: None,
    }
}

/// A partition to which producers have appended three records each, in open transactions.
pub(super) fn partition(open: &[i64]) -> Led {
    let mut producers = ProducerStates::new(86_400_000);
    let mut end = 0;
    for n in open {
        producers.replay(&batch(*n, end, 2));
        end += 3;
    }
    Led { producers, end }
}

impl Double {
    /// Ids: `open` holds partition orders/0, `done` is complete, and a hostile one is open too.
    pub(super) fn new() -> Self {
        let mut prepared = ongoing(3, "orders", 1, 5_000);
        prepared.state = TxnState::PrepareCommit;
        let ids = [
            (Arc::from("open"), ongoing(1, "orders", 0, 50_000)),
            (Arc::from("done"), entry(2, TxnState::CompleteCommit)),
            (Arc::from("prepared"), prepared),
            (Arc::from(HOSTILE), ongoing(4, "orders", 2, 70_000)),
        ];
        let orders = |n: i32| ("orders".to_owned(), n);
        Self {
            ids: Mutex::new(ids.into()),
            partitions: Mutex::new(
                [
                    (orders(0), partition(&[1, 9])),
                    (orders(1), partition(&[3])),
                    (orders(2), partition(&[4])),
                    (orders(3), partition(&[9])),
                    (orders(4), partition(&[])),
                ]
                .into(),
            ),
            groups: [("g/1".to_owned(), table())].into(),
            ..Self::default()
        }
    }
}

impl Double {
    fn aborted(&self, id: &str, (pid, epoch): (i64, i16), txn_seq: u64) -> Result<(), TxnError> {
        let mut ids = self.ids.lock();
        let Some(entry) = ids.get_mut(id) else {
            return Err(TxnError::InvalidProducerIdMapping);
        };
        if self.moves_on {
            // Its client has ended it and begun the next one.
            entry.txn_seq += 1;
        }
        if (entry.pid.0, entry.epoch.0) != (pid, epoch) {
            return Err(TxnError::ProducerFenced);
        }
        match (entry.state, self.refuses) {
            (state, _) if state.prepared().is_some() => Err(TxnError::ConcurrentTransactions),
            (TxnState::Ongoing, Some(TxnError::CoordinatorNotAvailable)) => {
                entry.state = TxnState::PrepareAbort;
                Err(TxnError::CoordinatorNotAvailable)
            }
            (TxnState::Ongoing, Some(error)) => Err(error),
            (TxnState::Ongoing, None) if entry.txn_seq == txn_seq => {
                entry.state = TxnState::CompleteAbort;
                Ok(())
            }
            _ => Err(TxnError::InvalidTxnState),
        }
    }
}

fn table() -> Arc<OffsetTable> {
    let committed = Committed {
        offset: 1,
        leader_epoch: None,
        metadata: "m".into(),
        commit_ms: Some(5),
        expire_ms: None,
        seq: Some(1),
    };
    let staged = StagedOffset {
        offset: 3,
        leader_epoch: Some(2),
        metadata: "".into(),
        seq: 2,
    };
    let txn = StagedTxn {
        producer_epoch: store_adapter::ids::ProducerEpoch(0),
        transactional_id: "open".to_owned(),
        txn_seq: 1,
        offsets: [(Arc::from("orders"), [(0, staged)].into())].into(),
    };
    let parts = TableParts {
        committed: [(Arc::from("orders"), [(0, committed)].into())].into(),
        staged: [(entry(1, TxnState::Empty).pid, txn)].into(),
        ..TableParts::default()
    };
    Arc::new(parts.into())
}

fn ready<T: Send + 'static>(value: T) -> BoxFuture<'static, T> {
    Box::pin(std::future::ready(value))
}

impl TxnViews for Double {
    fn now_ms(&self) -> i64 {
        NOW
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        if self.stuck || self.late == Some(duration) {
            ready(())
        } else {
            Box::pin(std::future::pending())
        }
    }

    #[allow(clippy::disallowed_methods, reason = "beside the thread of the test")]
    fn work(&self, job: Job) -> bool {
        drop(std::thread::spawn(job));
        true
    }

    #[allow(clippy::disallowed_methods, reason = "outlives its request")]
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        drop(tokio::spawn(task));
    }

    fn kafka_address(&self) -> String {
        "127.0.0.1:9092".to_owned()
    }

    fn broker(&self) -> i32 {
        0
    }

    fn kafka_code(&self, error: TxnError) -> KafkaCode {
        let (code, name, retriable) = match error {
            TxnError::InvalidTxnState => (48, "INVALID_TXN_STATE", false),
            TxnError::ConcurrentTransactions => (51, "CONCURRENT_TRANSACTIONS", true),
            TxnError::ProducerFenced => (90, "PRODUCER_FENCED", false),
            TxnError::CoordinatorNotAvailable => (15, "COORDINATOR_NOT_AVAILABLE", true),
            _ => (-1, "UNKNOWN_SERVER_ERROR", false),
        };
        KafkaCode {
            code,
            name: name.to_owned(),
            retriable,
        }
    }

    fn id_pattern(&self, pattern: &str) -> Result<IdPattern, String> {
        let pattern = pattern.to_owned();
        if pattern == "(" {
            return Err("not a regular expression".to_owned());
        }
        Ok(Box::new(move |id| id == pattern))
    }

    fn slot_of(&self, id: &str) -> u32 {
        if id == "damaged" { 7 } else { 1 }
    }

    fn why_stuck(&self, _: &str) -> Option<Arc<str>> {
        self.why_stuck.clone()
    }

    fn visit(&self, look: &mut dyn FnMut(&Arc<str>, &TxnEntry)) -> Vec<SlotGap> {
        self.visits.fetch_add(1, Ordering::SeqCst);
        self.gate.pass();
        let mut ids = self.ids.lock();
        if let Some(id) = &self.ends
            && let Some(entry) = ids.get_mut(id)
            && entry.state == TxnState::Ongoing
        {
            for led in self.partitions.lock().values_mut() {
                if led.has_open(entry) {
                    led.end(entry.pid.0 - pid(0));
                }
            }
            entry.state = TxnState::CompleteCommit;
            entry.partitions.clear();
        }
        for (id, entry) in &*ids {
            look(id, entry);
        }
        self.gaps.clone()
    }

    fn transaction(&self, id: &str) -> Result<Option<TxnEntry>, TxnError> {
        let slot = self.slot_of(id);
        if self.gaps.iter().any(|gap| gap.slot == slot) {
            return Err(TxnError::CoordinatorNotAvailable);
        }
        Ok(self.ids.lock().get(id).cloned())
    }

    fn history<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<HistoryView, String>> {
        let lines = self.lines.iter();
        let lines = lines.filter(|line| line.transactional_id == id).cloned();
        ready(Ok(HistoryView {
            lines: lines.collect(),
            unreadable: 1,
            lost: 2,
        }))
    }

    fn partition(
        &self,
        topic: &str,
        partition: i32,
        look: Look<'_>,
    ) -> Result<PartitionView, NoPartition> {
        match topic {
            "damaged" => return Err(NoPartition::Damaged),
            "offline" => return Err(NoPartition::Unavailable("the shard is offline".to_owned())),
            "orders" => {}
            _ => return Err(NoPartition::UnknownTopic),
        }
        let partitions = self.partitions.lock();
        let found = partitions.get(&(topic.to_owned(), partition));
        let found = found.ok_or(NoPartition::UnknownPartition)?;
        look(&found.producers);
        Ok(found.view())
    }

    fn bounds(&self, topic: &str, partition: i32) -> Option<Bounds> {
        let view = self.partition(topic, partition, &mut |_| {}).ok()?;
        Some(Bounds {
            high_watermark: view.high_watermark,
            last_stable: view.last_stable,
        })
    }

    fn held_back(&self, max: usize) -> (Vec<(String, i32)>, usize) {
        let partitions = self.partitions.lock();
        let held = partitions.iter().filter(|(_, led)| {
            let view = led.view();
            view.last_stable < view.high_watermark
        });
        let mut held: Vec<_> = held.map(|(at, _)| at.clone()).collect();
        let count = held.len();
        held.truncate(max);
        (held, count)
    }

    fn group(&self, group: &str) -> Result<Option<Arc<OffsetTable>>, GroupError> {
        if group == "loading" {
            return Err(GroupError::CoordinatorLoading);
        }
        Ok(self.groups.get(group).cloned())
    }

    fn fences(&self) -> BoxFuture<'_, Result<Vec<Found<FencesFile>>, String>> {
        let file = decode(br#"{"7":3,"8":1,"+seenMs":{"7":5}}"#).unwrap();
        let torn = Err("torn".to_owned());
        ready(Ok([Ok(file), torn]
            .map(|content| Found {
                broker: decode_broker(),
                content,
            })
            .into()))
    }

    fn marker_queue(&self) -> BoxFuture<'_, Result<(Vec<QueuedMarkers>, usize), String>> {
        let file = MarkerQueueFile {
            transactional_id: "open".to_owned(),
            producer_id: 7,
            producer_epoch: 1,
            commit: true,
            coordinator_epoch: 1,
            partitions: Vec::new(),
            txn_seq: Some(4),
            topic_ids: BTreeMap::new(),
            groups: vec!["g".to_owned()],
            enqueued_ms: Some(NOW - 3_000),
            extra: Extra::new(),
        };
        let entry = QueuedMarkers {
            to: store_adapter::ids::BrokerId(1),
            pid: entry(1, TxnState::Empty).pid,
            epoch: store_adapter::ids::ProducerEpoch(0),
            done: None,
            content: Ok(file),
        };
        let done = QueuedMarkers {
            done: Some(3),
            content: Err("torn".to_owned()),
            ..entry.clone()
        };
        ready(Ok((vec![entry, done], 5)))
    }

    fn id_blocks(&self) -> BoxFuture<'_, Result<Vec<Found<IdBlockFile>>, String>> {
        let content = decode(br#"{"nextBlock":3000}"#).map_err(|error| error.0);
        ready(Ok(vec![Found {
            broker: decode_broker(),
            content,
        }]))
    }

    fn abort<'a>(
        &'a self,
        id: &'a str,
        session: (i64, i16),
        txn_seq: u64,
    ) -> BoxFuture<'a, Result<(), TxnError>> {
        Box::pin(async move {
            if let Some(held) = &self.held {
                held.begun.notify_one();
                held.go_on.notified().await;
            }
            self.aborted(id, session, txn_seq)
        })
    }

    fn reap(&self) -> BoxFuture<'_, Pass> {
        Box::pin(async move {
            if let Some(held) = &self.held {
                held.begun.notify_one();
                held.go_on.notified().await;
            }
            Pass {
                done: vec![HOSTILE.to_owned()],
                failed: vec![("x".to_owned(), "held".to_owned())],
                remaining: 3,
            }
        })
    }

    fn reconcile(&self) -> BoxFuture<'_, Pass> {
        ready(Pass::default())
    }

    fn hold(&self, transactional_id: Option<&str>) -> Option<HoldView> {
        let mut holds = self.holds.lock();
        let number = u64::try_from(holds.len()).unwrap() + 1;
        let hold = HoldView {
            number,
            transactional_id: transactional_id.map(str::to_owned),
            since_ms: NOW,
            orders: 0,
        };
        holds.push(hold.clone());
        Some(hold)
    }

    fn release(&self, number: u64) -> bool {
        let mut holds = self.holds.lock();
        let before = holds.len();
        holds.retain(|hold| hold.number != number);
        holds.len() < before
    }

    fn holds(&self) -> Vec<HoldView> {
        self.holds.lock().clone()
    }
}

pub(super) struct Well;

impl Views for Well {
    fn live(&self) -> Result<(), String> {
        Ok(())
    }

    fn checks(&self) -> Vec<Check> {
        Vec::new()
    }

    fn metrics(&self) -> Result<String, String> {
        Ok(String::new())
    }
}

/// A surface with that health.
pub(super) fn parts(views: Arc<dyn Views>) -> Parts {
    Parts {
        views,
        txns: Arc::new(Double::new()),
        token: None,
        faults: false,
    }
}

/// A surface that can be asked many times.
#[derive(Clone)]
pub(super) struct Site(Router);

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
}

impl Answer {
    /// The path of the next page.
    pub(super) fn next(&self) -> Option<String> {
        let link = self.headers.get("link")?.to_str().unwrap();
        let link = link.strip_prefix('<').unwrap();
        Some(link.strip_suffix(">; rel=\"next\"").unwrap().to_owned())
    }

    /// The body as JSON, of the type that goes with the status.
    pub(super) fn json(&self) -> Value {
        let expected = if self.status < 300 {
            "application/json"
        } else {
            "application/problem+json"
        };
        assert_eq!(self.headers["content-type"], expected, "{}", self.text);
        let value: Value = serde_json::from_str(&self.text).unwrap();
        if self.status >= 300 {
            assert_eq!(value["status"], self.status);
        }
        value
    }
}

impl Site {
    pub(super) fn new(double: Double) -> Self {
        Self::shared(&Arc::new(double))
    }

    /// Over a process that is looked at from outside too.
    pub(super) fn shared(double: &Arc<Double>) -> Self {
        Self::of(Parts {
            txns: Arc::<Double>::clone(double),
            faults: true,
            ..parts(Arc::new(Well))
        })
    }

    pub(super) fn of(parts: Parts) -> Self {
        Self(router(parts))
    }

    pub(super) fn routed(router: Router) -> Self {
        Self(router)
    }

    pub(super) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.0.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            text: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        let request = Request::get(path).body(Body::empty()).unwrap();
        self.send(request).await
    }

    pub(super) async fn post(&self, path: &str, body: &str) -> Answer {
        let request = Request::post(path).header("content-type", "application/json");
        self.send(request.body(Body::from(body.to_owned())).unwrap())
            .await
    }
}
