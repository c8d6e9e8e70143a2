//! Compaction against a naive model: seeded histories of keys, tombstones, transactions, trims and
//! crashes in the middle of compaction, over the real journal on a volume in memory, and over
//! `layout=kv` in directories.
//!
//! Every history of the journal is one thread and no real time, so its seed repeats it:
//! `FENCEPOST_COMPACTION_SEED=17 cargo test -p tests --test compaction`. sled has threads of its
//! own: there the seed repeats what was asked, and at which step of the volume it ended.
//! `FENCEPOST_COMPACTION_KV=500` is how many of them there are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::future::ready;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use coordinator::machine::producer::ProducerEntry;
use coordinator::volume::format::Restored;
use gateway::admitted::Admitted;
use gateway::partition::{
    AppendError, CompactionPass, CompactionRules, Isolation, Lane, Marker, Opening, Partition,
    PartitionDeps, PartitionSnapshot, RetentionRules, SnapshotFiles, UNPACKING_MAX,
    compact_together,
};
use parking_lot::Mutex;
use store_adapter::batch::{Batch, BatchHeader};
use store_adapter::conformance::gate::GateVolume;
use store_adapter::control::EndTxnMarker;
use store_adapter::ids::{
    LeaderEpoch, LogId, OwnerEpoch, ProducerEpoch, ProducerId, Sequence, ShardId,
};
use store_adapter::journal::{
    FlushPolicy, JournalConfig, JournalCounters, JournalStore, MemoryIndex,
};
use store_adapter::kv::{KvConfig, KvStore};
use store_adapter::rebuild::each;
use store_adapter::runtime::{BoxFuture, Clock, Env, Random, Runtime};
use store_adapter::store::{LogStore, Passed};
use store_adapter::volume::memory::{MemoryVolume, Step, StepHook, StepOutcome};
use store_adapter::volume::{PosixVolume, Volume, VolumePath};
use tempfile::TempDir;
use tests::raw::batch::{BatchSpec, Record};
use tests::tell;
use tokio::sync::{Notify, Semaphore};
use uuid::Uuid;

const HISTORIES: u64 = 500;
/// Those over `layout=kv`, which take real time.
const KV_HISTORIES: u64 = 40;
const SHARD: ShardId = ShardId(0);
const LOG: LogId = LogId {
    topic: Uuid::from_u128(1),
    partition: 0,
};
const KEYS: u64 = 8;
/// Producers of transactions, and those without.
const IN_TXNS: [i64; 3] = [1, 2, 3];
const ALONE: [i64; 2] = [11, 12];

/// Time that only the history moves: who sleeps lets others run.
#[derive(Debug)]
struct HistoryClock(AtomicI64);

impl Clock for HistoryClock {
    fn wall_ms(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.wall_ms().unsigned_abs())
    }
    fn sleep(&self, _duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::task::yield_now())
    }
}

/// The time of day of the history; who sleeps does so.
#[derive(Debug)]
struct SleepingClock(Arc<HistoryClock>, Arc<dyn Clock>);

impl Clock for SleepingClock {
    fn wall_ms(&self) -> i64 {
        self.0.wall_ms()
    }
    fn monotonic(&self) -> Duration {
        self.1.monotonic()
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.1.sleep(duration)
    }
}

/// Every task on the one thread of the history; they end with its runtime.
#[derive(Debug)]
struct OneThread(tokio::runtime::Handle);

impl Runtime for OneThread {
    fn spawn(&self, _name: &str, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        let join = self.0.spawn(task);
        Box::pin(async move { join.await.unwrap() })
    }
    fn spawn_io(&self, name: &str, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        self.spawn(name, task)
    }
}

#[derive(Debug)]
struct Seeded(Mutex<fastrand::Rng>);

impl Random for Seeded {
    fn next_u64(&self) -> u64 {
        self.0.lock().u64(..)
    }
}

/// The newest snapshot; what was written is durable.
#[derive(Debug, Default)]
struct Kept(Mutex<Option<PartitionSnapshot>>);

impl SnapshotFiles for Kept {
    fn read(&self, _log: LogId) -> BoxFuture<'_, Option<Restored>> {
        let restored = self.0.lock().clone().map(|snapshot| Restored {
            proofs: snapshot.image.last_batch.into_iter().collect(),
            image: snapshot.image,
        });
        Box::pin(ready(restored))
    }
    fn write(&self, snapshot: PartitionSnapshot) -> BoxFuture<'_, Result<(), String>> {
        *self.0.lock() = Some(snapshot);
        Box::pin(ready(Ok(())))
    }
}

/// Stops the process at one step.
#[derive(Debug, Default)]
struct StopAt {
    armed: AtomicBool,
    behind: bool,
    left: AtomicU64,
    stopped: AtomicBool,
    stops: Arc<Notify>,
}

impl StepHook for StopAt {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let counts = self.armed.load(Ordering::SeqCst) && step.op.changes();
        let mut outcome = StepOutcome::Proceed;
        if self.stopped.load(Ordering::SeqCst) {
            outcome = StepOutcome::Stop;
        } else if counts && self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            self.stopped.store(true, Ordering::SeqCst);
            self.stops.notify_one();
            outcome = if self.behind {
                StepOutcome::StopAfter
            } else {
                StepOutcome::Stop
            };
        }
        Box::pin(ready(outcome))
    }
}

/// Where a history lies.
#[derive(Debug)]
enum Disk {
    Memory(MemoryVolume, Arc<MemoryIndex>),
    Directory(TempDir),
}

/// How the process that a history is in ends.
enum Stop {
    /// At a step of the volume in memory.
    Memory(Arc<StopAt>),
    /// At a step of the directory, but sled's own.
    Directory(GateVolume),
}

impl Stop {
    /// So many steps from now, or a part of them.
    fn arm(&self, steps: u64) {
        match self {
            Self::Memory(hook) => {
                hook.left.store(steps, Ordering::SeqCst);
                hook.armed.store(true, Ordering::SeqCst);
            }
            // A pass takes fewer there.
            Self::Directory(gate) => gate.stop_at(steps / 3),
        }
    }

    /// It goes on; whether it was armed.
    fn disarm(&self) -> bool {
        match self {
            Self::Memory(hook) => hook.armed.swap(false, Ordering::SeqCst),
            Self::Directory(gate) => {
                let armed = !gate.has_come();
                gate.go_on();
                armed
            }
        }
    }

    async fn stopped(&self) {
        match self {
            Self::Memory(hook) => hook.stops.notified().await,
            Self::Directory(gate) => gate.stopped().await,
        }
    }

    /// Whether it came when nobody waited for it.
    fn has_stopped(&self) -> bool {
        match self {
            Self::Memory(hook) => hook.stopped.load(Ordering::SeqCst),
            Self::Directory(gate) => gate.has_stopped(),
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else if let Err(error) = fs::copy(entry.path(), target) {
            // sled replaces its own files.
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
        }
    }
}

/// What became of a record's transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is in none, or in one that was committed.
    Stays,
    Aborted,
    Open,
}

/// A record as it was sent.
#[derive(Debug, Clone)]
struct Sent {
    offset: i64,
    key: Bytes,
    value: Option<Bytes>,
    producer: i64,
    fate: Fate,
    /// When the first pass behind it began.
    looked_at: Option<i64>,
}

type Seen = (i64, Bytes, Option<Bytes>);

#[derive(Debug, Clone, Default)]
struct Producer {
    next_sequence: i32,
    in_txn: bool,
    txn_seq: u64,
    /// Its last batch, and where that is.
    last: Option<(BatchSpec, i64)>,
}

/// What was looked for, over all histories.
#[derive(Debug, Default)]
struct Tally {
    passes: u64,
    crashes: u64,
    records_gone: u64,
    tombstones_gone: u64,
    aborted_gone: u64,
    markers_gone: u64,
    duplicates: u64,
    /// Producers that the log alone told of.
    from_the_log: u64,
}

#[derive(Debug)]
struct History {
    rng: fastrand::Rng,
    disk: Disk,
    clock: Arc<HistoryClock>,
    snapshots: Arc<Kept>,
    instance: u64,
    segment_bytes: u64,
    flush: FlushPolicy,
    delete_retention_ms: i64,
    sent: Vec<Sent>,
    markers: BTreeSet<i64>,
    producers: BTreeMap<i64, Producer>,
    log_start: i64,
    /// Whether the snapshot is lost: the log alone tells of producers.
    lost: bool,
    /// What the partition knew of producers, and its bounds.
    known: (BTreeMap<ProducerId, ProducerEntry>, i64, i64),
    tally: Tally,
}

enum End {
    Crashed,
    Done,
}

/// Says which history it was.
struct Announced(u64);

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, one: Self) {
        self.passes += one.passes;
        self.crashes += one.crashes;
        self.records_gone += one.records_gone;
        self.tombstones_gone += one.tombstones_gone;
        self.aborted_gone += one.aborted_gone;
        self.markers_gone += one.markers_gone;
        self.duplicates += one.duplicates;
        self.from_the_log += one.from_the_log;
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("FENCEPOST_COMPACTION_SEED={}", self.0);
        }
    }
}

/// All histories, each on a disk of its own, and what was looked for in them; `None` where only one
/// was asked for.
fn play(count: u64, disk: impl Fn() -> Disk) -> Option<Tally> {
    let only = std::env::var("FENCEPOST_COMPACTION_SEED").ok();
    let only = only.map(|seed| seed.parse::<u64>().unwrap());
    let seeds = only.map_or(0..count, |seed| seed..seed + 1);
    let mut all = Tally::default();
    for seed in seeds {
        let announced = Announced(seed);
        all += run(seed, disk());
        drop(announced);
    }
    tell(&format!("compaction: {all:?}"));
    only.is_none().then_some(all)
}

#[test]
fn the_compacted_log_is_what_a_naive_model_says() {
    let disk = || Disk::Memory(MemoryVolume::new(), Arc::default());
    let Some(all) = play(HISTORIES, disk) else {
        return;
    };
    // Each of them was really looked at.
    assert!(
        all.passes > HISTORIES && all.crashes > HISTORIES / 2,
        "{all:?}"
    );
    assert!(all.records_gone > 10 * HISTORIES, "{all:?}");
    let rare = [
        all.tombstones_gone,
        all.aborted_gone,
        all.markers_gone,
        all.duplicates,
        all.from_the_log,
    ];
    assert!(
        rare.into_iter().all(|count| count > HISTORIES / 10),
        "{all:?}"
    );
}

#[test]
fn with_layout_kv_the_compacted_log_is_what_a_naive_model_says() {
    let count = std::env::var("FENCEPOST_COMPACTION_KV").ok();
    let count = count.map_or(KV_HISTORIES, |count| count.parse().unwrap());
    let disk = || Disk::Directory(tempfile::tempdir().unwrap());
    let Some(all) = play(count, disk) else {
        return;
    };
    assert!(all.passes > count && all.crashes > count / 4, "{all:?}");
    assert!(all.records_gone > 10 * count, "{all:?}");
}

/// What comes due together is written anew once, however many partitions share the files.
#[test]
fn partitions_that_share_files_are_compacted_together() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(together(runtime.handle()));
}

async fn together(handle: &tokio::runtime::Handle) {
    let env = Env {
        clock: Arc::new(HistoryClock(AtomicI64::new(1_000_000))),
        runtime: Arc::new(OneThread(handle.clone())),
        random: Arc::new(Seeded(Mutex::new(fastrand::Rng::with_seed(1)))),
    };
    let volume = MemoryVolume::new();
    let counters = Arc::new(JournalCounters::default());
    let config = JournalConfig {
        segment_bytes: 8_000,
        counters: Arc::clone(&counters),
        ..JournalConfig::default()
    };
    let (on, index) = (Arc::new(volume.clone()), Arc::<MemoryIndex>::default());
    let store = Arc::new(JournalStore::new(env.clone(), on, index, config));
    let owner = OwnerEpoch {
        assignment: 1,
        instance: 1,
    };
    store.open_shard(SHARD, owner).await.unwrap();
    let mut leds = Vec::new();
    for partition in 0..4 {
        let log = LogId { partition, ..LOG };
        store.create(log, "t", SHARD).await.unwrap();
        let deps = deps(
            &env,
            Arc::clone(&store) as Arc<dyn LogStore>,
            Arc::default(),
        );
        let led = Partition::open(log, "t".into(), LeaderEpoch(1), i64::MAX, deps).await;
        leds.push(led.unwrap());
    }
    for number in 0..20 {
        let record = Record {
            key: Some(Bytes::from(format!("k{}", number % 2))),
            value: Some(Bytes::from(vec![b'v'; 300])),
        };
        let spec = BatchSpec {
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            attributes: 0,
            timestamp_ms: 1_000,
            records: vec![record],
        };
        for led in &leds {
            send(led, &spec.build()).await.unwrap();
        }
    }
    let pass = CompactionPass {
        rules: CompactionRules {
            min_dirty_ratio: 0,
            ..CompactionRules::default()
        },
        retention: RetentionRules {
            segment_bytes: 0,
            ..RetentionRules::default()
        },
        budget: 1 << 20,
        may_seal: true,
    };
    let mut told = Vec::new();
    let each = leds.iter().map(Arc::clone);
    compact_together(each, &|_| Some(pass), &mut |led, done| {
        told.push((led.id().partition, done.unwrap().unwrap().rewritten.upto));
    })
    .await;
    assert_eq!(told, [(0, 19), (1, 19), (2, 19), (3, 19)]);
    let journal = VolumePath::root()
        .join("__store")
        .join("shard-0")
        .join("journal");
    let files = volume.list(&journal).await.unwrap().len();
    assert!(files > 3, "{files}");
    // None more than once, and not the one that is being written, which is new.
    let written = counters.rewrites.load(Ordering::SeqCst);
    assert!(written > 0, "nothing was written anew");
    assert!(
        written < u64::try_from(files).unwrap(),
        "{written} of {files}"
    );
    for led in &leds {
        let (seen, _) = read(led, Isolation::ReadUncommitted).await;
        let left: Vec<i64> = seen.iter().map(|seen| seen.0).collect();
        // The last batch is left alone, and so is what only it makes old.
        assert_eq!(left, [17, 18, 19]);
    }
}

fn deps(env: &Env, store: Arc<dyn LogStore>, snapshots: Arc<Kept>) -> PartitionDeps {
    PartitionDeps {
        snapshot_pace: Arc::default(),
        lane: Lane::start(env, "lane").0,
        env: env.clone(),
        store,
        snapshots,
        fences: Arc::default(),
        classified: Arc::default(),
        refusals: Arc::default(),
        repair: Arc::default(),
        space: None,
        unpacking: Arc::new(Semaphore::new(UNPACKING_MAX)),
    }
}

fn run(seed: u64, disk: Disk) -> Tally {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut history = History {
        disk,
        clock: Arc::new(HistoryClock(AtomicI64::new(1_000_000))),
        snapshots: Arc::default(),
        instance: 1,
        segment_bytes: rng.u64(2_000..12_000),
        flush: if rng.u8(..8) == 0 {
            FlushPolicy::Os
        } else {
            FlushPolicy::Fsync
        },
        delete_retention_ms: [0, 0, 2_000, 50_000][rng.usize(..4)],
        sent: Vec::new(),
        markers: BTreeSet::new(),
        producers: BTreeMap::new(),
        log_start: 0,
        lost: false,
        known: (BTreeMap::new(), 0, 0),
        tally: Tally::default(),
        rng,
    };
    loop {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let end = runtime.block_on(history.session(runtime.handle()));
        // Nothing of the process happens any more.
        drop(runtime);
        match end {
            End::Done => return history.tally,
            End::Crashed => history.crashed(),
        }
    }
}

impl History {
    fn crashed(&mut self) {
        self.tally.crashes += 1;
        self.instance += 1;
        if self.rng.u8(..4) == 0 {
            *self.snapshots.0.lock() = None;
            self.lost = true;
        }
        let Disk::Memory(volume, index) = &mut self.disk else {
            return;
        };
        // What was acknowledged under flush.policy=os outlives no power cut.
        if self.flush == FlushPolicy::Fsync && self.rng.bool() {
            volume.power_cut(self.rng.u64(..));
        }
        if self.rng.bool() {
            *index = Arc::default();
        }
    }

    /// A process: its surroundings, its store, and how it ends.
    fn process(&mut self, handle: &tokio::runtime::Handle) -> (Env, Arc<dyn LogStore>, Stop) {
        let mut env = Env {
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            runtime: Arc::new(OneThread(handle.clone())),
            random: Arc::new(Seeded(Mutex::new(self.rng.fork()))),
        };
        let behind = self.rng.bool();
        match &self.disk {
            Disk::Memory(volume, index) => {
                let hook = Arc::new(StopAt {
                    behind,
                    ..StopAt::default()
                });
                let mount = volume.mount(Arc::clone(&hook) as Arc<dyn StepHook>, None);
                let config = JournalConfig {
                    segment_bytes: self.segment_bytes,
                    flush: self.flush,
                    ..JournalConfig::default()
                };
                let (on, index) = (Arc::new(mount), Arc::clone(index));
                let store = JournalStore::new(env.clone(), on, index, config);
                (env, Arc::new(store), Stop::Memory(hook))
            }
            Disk::Directory(dir) => {
                let real = Env::real();
                env.clock = Arc::new(SleepingClock(Arc::clone(&self.clock), real.clock));
                env.runtime = real.runtime;
                let volume = Arc::new(PosixVolume::open(dir.path()).unwrap());
                let gate = GateVolume::new(volume, Arc::default());
                let config = KvConfig {
                    flush: self.flush,
                    ..KvConfig::default()
                };
                let on = Arc::new(gate.clone());
                let store = KvStore::new(env.clone(), on, dir.path(), config);
                (env, Arc::new(store), Stop::Directory(gate))
            }
        }
    }

    async fn session(&mut self, handle: &tokio::runtime::Handle) -> End {
        let (env, store, stop) = self.process(handle);
        let end = self.lives(&env, Arc::clone(&store), &stop).await;
        let Stop::Directory(gate) = &stop else {
            return end;
        };
        let Disk::Directory(dir) = &mut self.disk else {
            return end;
        };
        // What a process leaves that is killed there; then its threads may end too.
        let left = tempfile::tempdir().unwrap();
        if matches!(end, End::Crashed) {
            copy(dir.path(), left.path());
            gate.end();
        }
        let closed = store.close().await;
        match end {
            End::Crashed => *dir = left,
            End::Done => closed.unwrap(),
        }
        end
    }

    /// Works on what is there, until the process ends.
    async fn lives(&mut self, env: &Env, store: Arc<dyn LogStore>, stop: &Stop) -> End {
        let led = self.lead(env, store).await;
        self.check(&led, None).await;
        let mut left = self.rng.u32(10..60);
        // A history ends without a crash, and sooner or later it does end.
        let mut crashes = self.instance < 5 && self.rng.u8(..4) > 0;
        while left > 0 || crashes {
            left = left.saturating_sub(1);
            match self.rng.u8(..20) {
                0..=11 => self.append(&led).await,
                12..=14 => self.end_txn(&led).await,
                15 => self.trim(&led).await,
                16 => self.repeat(&led).await,
                17 => {
                    let ms = self.rng.i64(1..20_000);
                    self.clock.0.fetch_add(ms, Ordering::SeqCst);
                }
                _ => {
                    if crashes && self.rng.bool() {
                        stop.arm(self.rng.u64(..30));
                    }
                    tokio::select! {
                        biased;
                        () = stop.stopped() => return End::Crashed,
                        () = self.pass(&led) => {}
                    }
                    if stop.disarm() {
                        crashes &= left > 0;
                    }
                }
            }
            if stop.has_stopped() {
                // It came behind the pass, when nobody waited for it.
                return End::Crashed;
            }
        }
        self.pass(&led).await;
        End::Done
    }

    async fn lead(&mut self, env: &Env, store: Arc<dyn LogStore>) -> Arc<Partition> {
        let owner = OwnerEpoch {
            assignment: 1,
            instance: self.instance,
        };
        let info = store.open_shard(SHARD, owner).await.unwrap();
        assert_eq!(info.damaged, []);
        store.create(LOG, "t", SHARD).await.unwrap();
        let deps = deps(env, store, Arc::clone(&self.snapshots));
        let epoch = LeaderEpoch(u32::try_from(self.instance).unwrap());
        let led = Partition::open(LOG, "t".into(), epoch, i64::MAX, deps).await;
        let led = led.unwrap();
        if std::mem::take(&mut self.lost) {
            self.check_log_alone(&led).await;
        } else {
            // A log that was compacted tells of its producers what it told before.
            assert_eq!(known(&led), self.known);
        }
        led
    }

    /// What a log tells that was compacted and lost its snapshot: of every producer whose last
    /// batch was not trimmed the sequence and how its transaction stands, and the bounds.
    async fn check_log_alone(&mut self, led: &Arc<Partition>) {
        let (entries, high_watermark, last_stable) = known(led);
        assert_eq!((high_watermark, last_stable), (self.known.1, self.known.2));
        for (id, producer) in &mut self.producers {
            let Some((spec, base)) = &producer.last else {
                continue;
            };
            let count = i32::try_from(spec.records.len()).unwrap();
            if base + i64::from(count) <= self.log_start {
                // Of what was trimmed nothing tells: it begins anew.
                producer.last = None;
                producer.next_sequence = 0;
                continue;
            }
            let entry = &entries[&ProducerId(*id)];
            let before = &self.known.0[&ProducerId(*id)];
            assert_eq!(entry.epoch, ProducerEpoch(0));
            let last = Sequence(producer.next_sequence - 1);
            assert_eq!(entry.window.last_seq(), Some(last), "producer {id}");
            let first = |entry: &ProducerEntry| entry.current_txn_first_offset;
            assert_eq!(first(entry), first(before), "producer {id}");
            if !producer.in_txn {
                assert_eq!(entry.last_marker, before.last_marker, "producer {id}");
            }
            // The same batch again, and one behind a gap.
            assert_eq!(send(led, &spec.build()).await, Ok((*base, true)));
            let gap = BatchSpec {
                base_sequence: producer.next_sequence + 1,
                ..spec.clone()
            };
            let refused = send(led, &gap.build()).await;
            assert_eq!(refused, Err(AppendError::OutOfOrderSequence));
            if producer.txn_seq > 0 && !producer.in_txn {
                // Its marker again is none.
                let again = marker(*id, producer.txn_seq, true);
                let at = led.append_marker(again).outcome().await.unwrap();
                assert_eq!(at.base_offset, -1, "producer {id}");
            }
            self.tally.from_the_log += 1;
        }
        assert_eq!(known(led), (entries, high_watermark, last_stable));
        self.known = known(led);
    }

    async fn append(&mut self, led: &Arc<Partition>) {
        let id = match self.rng.u8(..4) {
            0 => -1,
            1 => ALONE[self.rng.usize(..ALONE.len())],
            _ => IN_TXNS[self.rng.usize(..IN_TXNS.len())],
        };
        let in_txn = IN_TXNS.contains(&id);
        let producer = self.producers.entry(id).or_default();
        let records: Vec<Record> = (0..self.rng.usize(1..5))
            .map(|_| {
                let key = Bytes::from(format!("k{}", self.rng.u64(..KEYS)));
                let tombstone = self.rng.u8(..5) == 0;
                let len = self.rng.usize(..300);
                let number = self.rng.u64(..);
                let value = Bytes::from(format!("{number:>len$}"));
                Record {
                    key: Some(key),
                    value: (!tombstone).then_some(value),
                }
            })
            .collect();
        let time = self.clock.wall_ms();
        let idempotent = id >= 0;
        let spec = BatchSpec {
            producer_id: id,
            producer_epoch: if idempotent { 0 } else { -1 },
            base_sequence: if idempotent {
                producer.next_sequence
            } else {
                -1
            },
            attributes: if in_txn { 0x10 } else { 0 },
            timestamp_ms: time,
            records: records.clone(),
        };
        producer.next_sequence += i32::try_from(records.len()).unwrap();
        producer.in_txn = in_txn;
        let base = send(led, &spec.build()).await.unwrap().0;
        producer.last = idempotent.then_some((spec, base));
        for (offset, record) in (base..).zip(records) {
            self.sent.push(Sent {
                offset,
                key: record.key.unwrap(),
                value: record.value,
                producer: id,
                fate: if in_txn { Fate::Open } else { Fate::Stays },
                looked_at: None,
            });
        }
        self.known = known(led);
    }

    async fn end_txn(&mut self, led: &Arc<Partition>) {
        let open = self
            .producers
            .iter_mut()
            .find(|(_, producer)| producer.in_txn);
        let Some((id, producer)) = open else {
            return;
        };
        producer.in_txn = false;
        producer.txn_seq += 1;
        let commit = self.rng.u8(..3) > 0;
        let marker = marker(*id, producer.txn_seq, commit);
        let at = led.append_marker(marker).outcome().await.unwrap();
        self.markers.insert(at.base_offset);
        for sent in &mut self.sent {
            if sent.producer == *id && sent.fate == Fate::Open {
                sent.fate = if commit { Fate::Stays } else { Fate::Aborted };
            }
        }
        self.known = known(led);
    }

    async fn trim(&mut self, led: &Arc<Partition>) {
        let visible = led.visible();
        if self.rng.u8(..3) > 0 || visible.last_stable <= visible.log_start {
            return;
        }
        let reach = visible.log_start..=visible.last_stable.min(visible.log_start + 20);
        let start = led.delete_records(self.rng.i64(reach)).await.unwrap();
        self.log_start = self.log_start.max(start);
        self.sent.retain(|sent| sent.offset >= start);
        self.markers = self.markers.split_off(&start);
        self.known = known(led);
        self.check(led, None).await;
    }

    /// A retry of a batch that was acknowledged, whatever became of it since.
    async fn repeat(&mut self, led: &Arc<Partition>) {
        let alone = ALONE.iter().filter_map(|id| self.producers.get(id));
        for (spec, base) in alone.filter_map(|producer| producer.last.as_ref()) {
            assert_eq!(send(led, &spec.build()).await, Ok((*base, true)));
            self.tally.duplicates += 1;
        }
        assert_eq!(known(led), self.known);
    }

    async fn pass(&mut self, led: &Arc<Partition>) {
        let whole = self.rng.u8(..4) > 0;
        let pass = CompactionPass {
            rules: CompactionRules {
                min_dirty_ratio: 0,
                min_lag_ms: if self.rng.u8(..4) == 0 { 3_000 } else { 0 },
                max_lag_ms: i64::MAX,
                delete_retention_ms: self.delete_retention_ms,
            },
            retention: RetentionRules {
                segment_bytes: 0,
                ..RetentionRules::default()
            },
            budget: if whole {
                1 << 20
            } else {
                self.rng.usize(1..600)
            },
            may_seal: self.rng.bool(),
        };
        let now = self.clock.wall_ms();
        for sent in &mut self.sent {
            sent.looked_at.get_or_insert(now);
        }
        let done = led.compact(pass).await.unwrap();
        self.tally.passes += u64::from(done.is_some());
        assert_eq!(known(led), self.known);
        let swept = done.filter(|_| whole).map(|done| done.rewritten.upto);
        self.check(led, swept).await;
    }

    /// Compares what is read with what was sent. Below `swept` every key has one record.
    async fn check(&mut self, led: &Arc<Partition>, swept: Option<i64>) {
        let visible = led.visible();
        assert_eq!(visible.log_start, self.log_start);
        let open = self.sent.iter().find(|sent| sent.fate == Fate::Open);
        assert_eq!(
            visible.last_stable,
            open.map_or(visible.high_watermark, |sent| sent.offset)
        );
        let (all, markers) = read(led, Isolation::ReadUncommitted).await;
        let (committed, _) = read(led, Isolation::ReadCommitted).await;
        let sent: BTreeMap<i64, &Sent> = self.sent.iter().map(|sent| (sent.offset, sent)).collect();
        for (offset, key, value) in all.iter().chain(&committed) {
            let sent = sent
                .get(offset)
                .unwrap_or_else(|| panic!("nobody sent {offset}"));
            assert_eq!((key, value), (&sent.key, &sent.value), "offset {offset}");
        }
        for (offset, ..) in &committed {
            assert_eq!(
                sent[offset].fate,
                Fate::Stays,
                "offset {offset} is not committed"
            );
        }
        assert!(markers.is_subset(&self.markers));
        let present: BTreeSet<i64> = all.iter().map(|seen| seen.0).collect();
        let shown: BTreeSet<i64> = committed.iter().map(|seen| seen.0).collect();
        for (offset, _) in sent.range(visible.last_stable..) {
            assert!(present.contains(offset), "undecided {offset} is gone");
        }
        let stable = || {
            self.sent
                .iter()
                .filter(|sent| sent.offset < visible.last_stable)
        };
        let stays = || stable().filter(|sent| sent.fate == Fate::Stays);
        let mut newest: BTreeMap<&Bytes, &Sent> = BTreeMap::new();
        for sent in stays() {
            newest.insert(&sent.key, sent);
        }
        let now = self.clock.wall_ms();
        for (key, sent) in &newest {
            if shown.contains(&sent.offset) {
                continue;
            }
            let offset = sent.offset;
            assert!(
                sent.value.is_none(),
                "the newest of {key:?}, {offset}, is gone"
            );
            // So long from when it was first alone, not from when it was sent.
            let horizon = sent.looked_at.map(|at| at + self.delete_retention_ms);
            assert!(
                horizon.is_some_and(|horizon| now >= horizon),
                "the tombstone {offset} went too soon"
            );
            let older = stays().find(|older| older.key == *key && shown.contains(&older.offset));
            assert!(
                older.is_none(),
                "{older:?} came back after tombstone {offset}"
            );
        }
        if let Some(swept) = swept {
            let mut keys = BTreeSet::new();
            for (offset, key, _) in all.iter().take_while(|seen| seen.0 < swept) {
                assert!(keys.insert(key), "{key:?} twice below {swept}, at {offset}");
                assert_ne!(sent[offset].fate, Fate::Aborted, "offset {offset}");
            }
        }
        let gone = |sent: &&Sent| !present.contains(&sent.offset);
        let count = |one: &dyn Fn(&&Sent) -> bool| {
            u64::try_from(stable().filter(gone).filter(|sent| one(sent)).count()).unwrap()
        };
        let tombstones = newest.values().filter(|sent| gone(sent)).count();
        let tally = &mut self.tally;
        tally.records_gone = tally.records_gone.max(count(&|_| true));
        tally.aborted_gone = tally
            .aborted_gone
            .max(count(&|sent| sent.fate == Fate::Aborted));
        tally.tombstones_gone = tally
            .tombstones_gone
            .max(u64::try_from(tombstones).unwrap());
        let markers = self.markers.len() - markers.len();
        tally.markers_gone = tally.markers_gone.max(u64::try_from(markers).unwrap());
    }
}

fn marker(id: i64, txn_seq: u64, commit: bool) -> Marker {
    Marker {
        producer_id: ProducerId(id),
        producer_epoch: ProducerEpoch(0),
        commit,
        coordinator_epoch: 1,
        txn_seq: Some(txn_seq),
    }
}

fn known(led: &Partition) -> (BTreeMap<ProducerId, ProducerEntry>, i64, i64) {
    let (visible, entries) = led.look(|producers| {
        let entries = producers.producers().map(|(id, entry)| (id, entry.clone()));
        entries.collect()
    });
    (entries, visible.high_watermark, visible.last_stable)
}

/// Base offset of a batch, and whether it was there already.
async fn send(led: &Arc<Partition>, bytes: &Bytes) -> Result<(i64, bool), AppendError> {
    let batch = Batch::parse(bytes.clone()).unwrap();
    let ticket = led.append_opening(&batch, Opening::Unverified, Admitted::default());
    let appended = ticket.outcome().await?;
    Ok((appended.base_offset, appended.duplicate_of.is_some()))
}

/// What a client sees that reads from the start on, a few batches at a time; and the markers.
async fn read(led: &Partition, isolation: Isolation) -> (Vec<Seen>, BTreeSet<i64>) {
    let (mut seen, mut markers) = (Vec::new(), BTreeSet::new());
    let mut next = led.visible().log_start;
    while next < led.readable_end(isolation) {
        let outcome = led.read(next, 700, isolation).await.unwrap();
        let aborted = outcome.aborted.unwrap_or_default();
        let mut aborted: BTreeSet<(i64, i64)> = aborted.iter().map(|(id, at)| (*at, *id)).collect();
        let mut hidden = BTreeSet::new();
        assert!(!outcome.batches.is_empty(), "nothing from {next} on");
        for batch in outcome.batches.into_iter().filter_map(Passed::read) {
            let header = BatchHeader::read(&batch.bytes).unwrap();
            assert_eq!(
                (header.base_offset, header.last_offset()),
                (batch.base_offset, batch.last_offset)
            );
            assert!(
                batch.last_offset >= next,
                "{} behind {next}",
                batch.last_offset
            );
            while let Some((at, id)) = aborted.first().copied()
                && at <= batch.last_offset
            {
                aborted.pop_first();
                hidden.insert(id);
            }
            if header.is_control() {
                markers.insert(batch.base_offset);
                if EndTxnMarker::read(&batch.bytes).is_some_and(|marker| !marker.commit) {
                    hidden.remove(&header.producer_id.0);
                }
            } else if !(header.is_transactional() && hidden.contains(&header.producer_id.0)) {
                each(&batch.bytes, |record| {
                    let offset = header.base_offset + i64::from(record.offset_delta);
                    if offset >= next {
                        let key = Bytes::copy_from_slice(record.key.unwrap());
                        seen.push((offset, key, record.value.map(Bytes::copy_from_slice)));
                    }
                })
                .unwrap();
            }
            next = batch.last_offset + 1;
        }
    }
    assert!(seen.is_sorted_by(|a, b| a.0 < b.0));
    (seen, markers)
}
