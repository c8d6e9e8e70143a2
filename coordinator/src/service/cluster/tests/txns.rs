//! Transactional ids on a memory volume: crashes at every step, takers, damage, shared writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use store_adapter::ids::{BrokerId, ProducerEpoch, ProducerId};
use store_adapter::runtime::BoxFuture;
use store_adapter::volume::memory::{StepFault, StepOutcome};
use store_adapter::volume::{Volume as _, VolumePath};
use uuid::Uuid;

use super::super::ClusterNode;
use super::world::{Group, How, Interrupt, Site, World, host};
use crate::machine::group::offsets::TxnEnd;
use crate::machine::txn::{
    AddClass, Added, Dispatch, EndReply, EndTxn, EntryName, Fence, Groups, Home, InitProducerId,
    Named, Session, Transition, TxnError, TxnState,
};
use crate::service::marker_queue::MarkerQueues;
use crate::service::producer_ids::ProducerIdError;
use crate::service::txns::{
    Done, FenceSink, GroupDecisions, HistorySink, Homes, MarkerQueue, MarkerSink, PortError,
    ProducerIdSource, SlotFiles, SlotState, TxnConfig, TxnPorts, Txns,
};
use crate::slot_hash::fnv1a32;
use crate::volume::format::{MarkerQueueFile, TxnSlotFile, decode};
use crate::volume::layout::Place;

/// By producer and number of the transaction: direction and epoch of its markers.
type Markers = BTreeMap<(i64, u64), BTreeSet<(bool, i16)>>;

/// What happens outside of the coordinator: it outlives brokers.
#[derive(Debug, Default)]
pub(super) struct Outside {
    next_id: AtomicI64,
    markers: Mutex<Markers>,
    groups: Mutex<BTreeMap<(i64, u64), BTreeSet<bool>>>,
    pub(super) fences: Mutex<BTreeMap<i64, i16>>,
    pub(super) queued: Mutex<Vec<(BrokerId, MarkerQueueFile)>>,
    history: Mutex<Vec<(String, TxnState, TxnState, &'static str)>>,
    pub(super) no_markers: AtomicBool,
    /// The queue of this broker takes nothing.
    pub(super) shut: Mutex<Option<BrokerId>>,
    /// The topic of this id is gone.
    pub(super) gone: Mutex<Option<Uuid>>,
    pub(super) remote: AtomicBool,
    /// Partitions that are not here are led by the broker of this number, plus one.
    pub(super) moved: AtomicI64,
    /// Where entries go instead.
    pub(super) queue: Mutex<Option<MarkerQueues>>,
    /// Who leads a partition, or has the group, whose number is -1. Empty: as `remote` says.
    pub(super) led: Mutex<BTreeMap<i32, BrokerId>>,
    /// Markers fail as long as it is not 0, and count it down.
    pub(super) failing: AtomicI64,
    /// Publications fail as long as it is not 0, and count it down.
    pub(super) failing_fences: AtomicI64,
    /// It is known that none can be published.
    pub(super) unready: AtomicBool,
    /// Markers are waited for without end.
    pub(super) hangs: AtomicBool,
}

impl ProducerIdSource for Outside {
    fn next_id(&self) -> BoxFuture<'_, Result<ProducerId, ProducerIdError>> {
        let id = ProducerId(1_000 + self.next_id.fetch_add(1, Ordering::Relaxed));
        Box::pin(std::future::ready(Ok(id)))
    }
}

impl Homes for Outside {
    fn partition(&self, _: &str, topic: Option<Uuid>, number: i32) -> Home {
        if topic.is_some() && *self.gone.lock() == topic {
            return Home::Deleted;
        }
        if let Some(leader) = self.led.lock().get(&number) {
            return Home::Broker(*leader);
        }
        if self.remote.load(Ordering::Relaxed) {
            let moved = self.moved.load(Ordering::Relaxed);
            Home::Broker(BrokerId(1 + i32::try_from(moved).unwrap()))
        } else {
            Home::Here
        }
    }

    fn group(&self, _: &str) -> Home {
        let led = self.led.lock();
        led.get(&-1)
            .map_or(Home::Here, |leader| Home::Broker(*leader))
    }
}

impl MarkerSink for Outside {
    fn write(&self, order: Dispatch, _: i32) -> Done<'_> {
        if self.hangs.load(Ordering::Relaxed) {
            return Box::pin(std::future::pending());
        }
        let left = self.failing.load(Ordering::Relaxed);
        if left > 0 || self.no_markers.load(Ordering::Relaxed) {
            self.failing.store((left - 1).max(0), Ordering::Relaxed);
            let error = PortError("no marker can be written".to_owned());
            return Box::pin(std::future::ready(Err(error)));
        }
        let mut markers = self.markers.lock();
        let written = markers.entry((order.pid.0, order.txn_seq)).or_default();
        written.insert((order.commit, order.marker_epoch.0));
        Box::pin(std::future::ready(Ok(())))
    }
}

impl GroupDecisions for Outside {
    fn decide(&self, _: Groups, end: TxnEnd) -> Done<'_> {
        let mut groups = self.groups.lock();
        let number = (end.producer_id.0, end.number.txn_seq);
        groups.entry(number).or_default().insert(end.commit);
        Box::pin(std::future::ready(Ok(())))
    }
}

impl FenceSink for Outside {
    fn ready(&self) -> Done<'_> {
        let ready = if self.unready.load(Ordering::Relaxed) {
            Err(PortError("no fence can be published".to_owned()))
        } else {
            Ok(())
        };
        Box::pin(std::future::ready(ready))
    }

    fn publish(&self, fences: Vec<Fence>) -> Done<'_> {
        let left = self.failing_fences.load(Ordering::Relaxed);
        if left > 0 {
            self.failing_fences.store(left - 1, Ordering::Relaxed);
            let error = PortError("no fence can be published".to_owned());
            return Box::pin(std::future::ready(Err(error)));
        }
        let mut known = self.fences.lock();
        for fence in fences {
            let epoch = known.entry(fence.pid.0).or_default();
            *epoch = fence.epoch.0.max(*epoch);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

impl MarkerQueue for Outside {
    fn enqueue(
        &self,
        to: BrokerId,
        record_epoch: ProducerEpoch,
        entry: MarkerQueueFile,
    ) -> Done<'_> {
        if *self.shut.lock() == Some(to) {
            let error = PortError("its queue takes nothing".to_owned());
            return Box::pin(std::future::ready(Err(error)));
        }
        if let Some(queue) = self.queue.lock().clone() {
            return Box::pin(async move { queue.enqueue(to, record_epoch, entry).await });
        }
        self.queued.lock().push((to, entry));
        Box::pin(std::future::ready(Ok(())))
    }
}

impl HistorySink for Outside {
    fn record(&self, _: u32, id: &str, at: &Transition) {
        let line = (id.to_owned(), at.from, at.to, at.cause.name());
        self.history.lock().push(line);
    }
}

/// A broker with its transactional ids.
#[derive(Debug, Clone)]
pub(super) struct Running {
    world: World,
    pub(super) node: ClusterNode,
    pub(super) txns: Txns,
}

pub(super) fn slot_of(id: &str) -> u32 {
    fnv1a32(id.as_bytes()) % 50
}

/// Two ids of different slots, and one that shares the slot of the first.
pub(super) fn ids() -> [String; 3] {
    let first = "tx-commit".to_owned();
    let shares = (0..).map(|n| format!("tx-{n}"));
    let third = shares.into_iter().find(|id| slot_of(id) == slot_of(&first));
    [first, "tx-abort".to_owned(), third.unwrap()]
}

impl Running {
    pub(super) fn try_start(
        site: &Site,
        outside: &Arc<Outside>,
        process: Group,
        hook: Arc<Interrupt>,
    ) -> Option<Self> {
        let node = site.try_start(process, hook)?.ok()?;
        let running = Self::serve(site, outside, node, process);
        running.ready().then_some(running)
    }

    /// With the tasks of its transactions in the process `process`.
    pub(super) fn serve(
        site: &Site,
        outside: &Arc<Outside>,
        node: ClusterNode,
        process: Group,
    ) -> Self {
        let ports = TxnPorts {
            ids: outside.clone(),
            homes: outside.clone(),
            markers: outside.clone(),
            groups: outside.clone(),
            fences: outside.clone(),
            queue: outside.clone(),
            history: outside.clone(),
        };
        let used: BTreeSet<u32> = ids().iter().map(|id| slot_of(id)).collect();
        let mut slots = node.txn_slots();
        assert_eq!(slots.len(), 50);
        // Of the others nothing is asked.
        slots.retain(|(slot, _)| used.contains(slot));
        let files: Arc<dyn SlotFiles> = node.txn_files();
        let env = site.world.env(process);
        let txns = Txns::start(&env, TxnConfig::default(), &files, ports, 50, slots);
        let world = site.world.clone();
        Self { world, node, txns }
    }

    pub(super) fn start(site: &Site, outside: &Arc<Outside>, process: Group) -> Self {
        Self::try_start(site, outside, process, Interrupt::none()).unwrap()
    }

    /// Waits until every slot is taken over; `false` if that never comes.
    pub(super) fn ready(&self) -> bool {
        for _ in 0..100 {
            if self.txns.slots_loading() == 0 {
                return true;
            }
            let clock = self.world.env(Group::MAX).clock;
            let sleep = clock.sleep(Duration::from_millis(100));
            if self.world.run(sleep).is_none() {
                return false;
            }
        }
        false
    }

    /// `None` where it hangs.
    pub(super) fn init(&self, id: &str) -> Option<Result<Session, TxnError>> {
        let (txns, id) = (self.txns.clone(), id.to_owned());
        self.world.run(async move {
            let none = session(-1, -1);
            let request = InitProducerId {
                version: 5,
                id_is_empty: false,
                timeout_ms: 60_000,
                claimed: none,
                client: None,
            };
            txns.init_producer_id(&id, &request).await
        })
    }

    pub(super) fn add(&self, id: &str, session: Session) -> Option<Result<Added, TxnError>> {
        self.add_all(id, session, &[0])
    }

    pub(super) fn add_all(
        &self,
        id: &str,
        session: Session,
        partitions: &[i32],
    ) -> Option<Result<Added, TxnError>> {
        let (txns, id) = (self.txns.clone(), id.to_owned());
        let named = partitions.iter().map(|partition| Named {
            topic: "a".into(),
            topic_id: Some(Uuid::from_u128(7)),
            partition: *partition,
        });
        let named: Vec<Named> = named.collect();
        self.world.run(async move {
            let group: Arc<str> = "g".into();
            let class = AddClass::Client(3);
            txns.add_groups(&id, session, &group, class, None).await?;
            txns.add_partitions(&id, session, &named, class, None).await
        })
    }

    pub(super) fn end(
        &self,
        id: &str,
        session: Session,
        commit: bool,
    ) -> Option<Result<EndReply, TxnError>> {
        let (txns, id) = (self.txns.clone(), id.to_owned());
        self.world.run(async move {
            let request = EndTxn {
                version: 5,
                session,
                commit,
                client: None,
            };
            txns.end_txn(&id, &request).await
        })
    }

    fn reconcile(&self) {
        let txns = self.txns.clone();
        let done = self.world.run(async move {
            for id in txns.unfinished() {
                assert_eq!(txns.reconcile(&id).await, Ok(true));
            }
            txns.flush();
        });
        done.unwrap();
    }

    pub(super) fn state(&self, id: &str) -> (TxnState, Session, u64) {
        let entry = self.txns.describe(id).unwrap().unwrap();
        (
            entry.state,
            session(entry.pid.0, entry.epoch.0),
            entry.txn_seq,
        )
    }
}

pub(super) fn session(pid: i64, epoch: i16) -> Session {
    Session {
        pid: ProducerId(pid),
        epoch: ProducerEpoch(epoch),
    }
}

pub(super) fn path(id: &str) -> VolumePath {
    Place::TxnSlot(slot_of(id)).path()
}

pub(super) fn site(seed: u64) -> Site {
    let world = World::new(seed);
    let site = Site::new(&world);
    let node = site.start(0);
    let stopped = world.run(async move { node.stop().await });
    stopped.unwrap().unwrap();
    world.kill(0);
    site
}

#[test]
fn a_transaction_outlives_restarts() {
    let site = site(1);
    let outside = Arc::new(Outside::default());
    let [id, ..] = ids();
    let first = Running::start(&site, &outside, 1);
    let begun = first.init(&id).unwrap().unwrap();
    assert_eq!(begun, session(1_000, 0));
    assert_eq!(first.add(&id, begun), Some(Ok(Added::InTxn(1))));
    site.world.kill(1);
    site.volume.power_cut(3);
    let second = Running::start(&site, &outside, 2);
    assert_eq!(second.state(&id), (TxnState::Ongoing, begun, 1));
    let ended = second.end(&id, begun, true).unwrap().unwrap();
    assert_eq!(ended, Some(session(1_000, 1)));
    assert_eq!(outside.markers.lock()[&(1_000, 1)], [(true, 1)].into());
    assert_eq!(outside.groups.lock()[&(1_000, 1)], [true].into());
    assert_eq!(second.end(&id, begun, true).unwrap(), Ok(ended));
    assert_eq!(
        second.end(&id, begun, false).unwrap(),
        Err(TxnError::InvalidTxnState)
    );
    // Complete is written by the next pass, and derived before that.
    site.world.kill(2);
    let third = Running::start(&site, &outside, 3);
    assert_eq!(third.state(&id).0, TxnState::PrepareCommit);
    third.reconcile();
    site.world.pass(Duration::from_secs(1));
    site.world.kill(3);
    let fourth = Running::start(&site, &outside, 4);
    let is = fourth.state(&id);
    assert_eq!(is, (TxnState::CompleteCommit, session(1_000, 1), 1));
    assert_eq!(outside.markers.lock()[&(1_000, 1)], [(true, 1)].into());
    let lines = outside.history.lock().clone();
    let causes: Vec<&str> = lines.iter().map(|line| line.3).collect();
    let client = ["client"; 4];
    assert_eq!(causes, [&client[..], &["finished"; 2]].concat());
}

#[test]
fn an_abort_never_hits_the_next_transaction_of_a_session() {
    let site = site(6);
    let outside = Arc::new(Outside::default());
    let [id, ..] = ids();
    let running = Running::start(&site, &outside, 1);
    let begun = running.init(&id).unwrap().unwrap();
    running.add(&id, begun).unwrap().unwrap();
    let commit = EndTxn {
        version: 4,
        session: begun,
        commit: true,
        client: None,
    };
    let (txns, of) = (running.txns.clone(), id.clone());
    let ended = async move { txns.end_txn(&of, &commit).await };
    assert_eq!(running.world.run(ended).unwrap(), Ok(None));
    running.add(&id, begun).unwrap().unwrap();
    let abort = |txn_seq: u64| {
        let (txns, id) = (running.txns.clone(), id.clone());
        let asked = async move { txns.abort(&id, Some(begun), Some(txn_seq)).await };
        running.world.run(asked).unwrap()
    };
    // The epoch is the same: only the number tells them apart.
    assert_eq!(abort(1), Err(TxnError::InvalidTxnState));
    assert_eq!(running.state(&id), (TxnState::Ongoing, begun, 2));
    assert_eq!(abort(2), Ok(()));
    assert_eq!(running.state(&id).0, TxnState::CompleteAbort);
}

#[test]
fn an_administrator_aborts_what_was_looked_at_and_sees_every_id() {
    let site = site(5);
    let outside = Arc::new(Outside::default());
    let [id, other, ..] = ids();
    let running = Running::start(&site, &outside, 1);
    let begun = running.init(&id).unwrap().unwrap();
    running.add(&id, begun).unwrap().unwrap();
    running.init(&other).unwrap().unwrap();
    let abort = |expected: Option<Session>| {
        let (txns, id) = (running.txns.clone(), id.clone());
        let asked = async move { txns.abort(&id, expected, None).await };
        running.world.run(asked).unwrap()
    };
    let wrong = [
        (session(1_000, 3), TxnError::ProducerFenced),
        (session(9, 0), TxnError::InvalidProducerIdMapping),
    ];
    for (looked_at, refused) in wrong {
        assert_eq!(abort(Some(looked_at)), Err(refused));
    }
    assert_eq!(running.state(&id).0, TxnState::Ongoing);
    assert_eq!(abort(Some(begun)), Ok(()));
    assert_eq!(outside.markers.lock()[&(1_000, 1)], [(false, 1)].into());
    assert_eq!(outside.fences.lock()[&1_000], 1);
    let late = running.end(&id, begun, true).unwrap();
    assert_eq!(late, Err(TxnError::InvalidTxnState));
    assert_eq!(abort(None), Err(TxnError::InvalidTxnState));
    let causes: Vec<_> = outside.history.lock().iter().map(|line| line.3).collect();
    assert!(causes.contains(&"admin"), "{causes:?}");
    let mut seen = BTreeSet::new();
    let gaps = running.txns.visit(&mut |id, entry| {
        seen.insert((id.to_string(), entry.state));
    });
    let expected = [(other, TxnState::Empty), (id, TxnState::CompleteAbort)];
    assert_eq!(seen, expected.into());
    // Of the other slots nothing is asked in these tests.
    assert_eq!(gaps.len(), 48);
    assert!(gaps.iter().all(|gap| gap.state == SlotState::Elsewhere));
}

#[test]
fn a_new_session_ends_the_one_before() {
    let site = site(2);
    let outside = Arc::new(Outside::default());
    let [id, ..] = ids();
    let running = Running::start(&site, &outside, 1);
    let old = running.init(&id).unwrap().unwrap();
    running.add(&id, old).unwrap().unwrap();
    outside.no_markers.store(true, Ordering::Relaxed);
    assert_eq!(
        running.init(&id).unwrap(),
        Err(TxnError::ConcurrentTransactions)
    );
    assert_eq!(outside.fences.lock()[&1_000], 1);
    let late = running.end(&id, old, true).unwrap();
    assert_eq!(late, Err(TxnError::ConcurrentTransactions));
    outside.no_markers.store(false, Ordering::Relaxed);
    running.reconcile();
    assert_eq!(outside.markers.lock()[&(1_000, 1)], [(false, 1)].into());
    assert_eq!(running.init(&id).unwrap(), Ok(session(1_000, 2)));
    assert_eq!(
        running.add(&id, old).unwrap(),
        Err(TxnError::ProducerFenced)
    );
    // Where the markers can be written, the first answer is the new session.
    let new = session(1_000, 2);
    running.add(&id, new).unwrap().unwrap();
    assert_eq!(running.init(&id).unwrap(), Ok(session(1_000, 4)));
}

#[test]
fn a_decision_that_takes_too_long_stays_and_is_finished() {
    let site = site(3);
    let outside = Arc::new(Outside::default());
    let [id, ..] = ids();
    let running = Running::start(&site, &outside, 1);
    let begun = running.init(&id).unwrap().unwrap();
    running.add(&id, begun).unwrap().unwrap();
    outside.no_markers.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        let late = running.end(&id, begun, true).unwrap();
        assert_eq!(late, Err(TxnError::CoordinatorNotAvailable));
    }
    assert_eq!(running.state(&id).0, TxnState::PrepareCommit);
    assert_eq!(running.txns.unfinished(), [Arc::from(id.as_str())]);
    outside.no_markers.store(false, Ordering::Relaxed);
    running.reconcile();
    let ended = running.end(&id, begun, true).unwrap();
    assert_eq!(ended, Ok(Some(session(1_000, 1))));
}

#[test]
fn what_fails_for_a_moment_is_tried_again_while_the_client_waits() {
    let site = site(10);
    let outside = Arc::new(Outside::default());
    let [id, ..] = ids();
    let running = Running::start(&site, &outside, 1);
    let begun = running.init(&id).unwrap().unwrap();
    running.add(&id, begun).unwrap().unwrap();
    outside.failing.store(5, Ordering::Relaxed);
    let ended = running.end(&id, begun, true).unwrap();
    assert_eq!(ended, Ok(Some(session(1_000, 1))));
    assert_eq!(outside.markers.lock()[&(1_000, 1)], [(true, 1)].into());
    // What lasts is left to the pass, for which nobody waits.
    let next = session(1_000, 1);
    running.add(&id, next).unwrap().unwrap();
    outside.no_markers.store(true, Ordering::Relaxed);
    let late = running.end(&id, next, true).unwrap();
    assert_eq!(late, Err(TxnError::CoordinatorNotAvailable));
    site.world.pass(Duration::from_secs(20));
    outside.no_markers.store(false, Ordering::Relaxed);
    site.world.pass(Duration::from_secs(20));
    assert_eq!(running.state(&id).0, TxnState::PrepareCommit);
    running.reconcile();
    assert_eq!(running.state(&id).0, TxnState::CompleteCommit);
}

#[test]
fn a_transaction_ends_however_full_its_slot_is() {
    let site = site(12);
    let outside = Arc::new(Outside::default());
    let [id, _, shares] = ids();
    let running = Running::start(&site, &outside, 1);
    let begun = running.init(&id).unwrap().unwrap();
    // Six bytes each in the file, and twice.
    let named = (0..100).map(|number| Named {
        topic: format!("{number}-{}", "\u{1}".repeat(15 << 10)).into(),
        topic_id: Some(Uuid::from_u128(number)),
        partition: 0,
    });
    let (txns, named): (_, Vec<Named>) = (running.txns.clone(), named.collect());
    let (of, class) = (id.clone(), AddClass::Client(3));
    let added = site
        .world
        .run(async move { txns.add_partitions(&of, begun, &named, class, None).await });
    assert_eq!(added, Some(Ok(Added::InTxn(1))));
    // Nothing more fits.
    let full = Some(Err(TxnError::CoordinatorNotAvailable));
    assert_eq!(running.add(&id, begun), full);
    let ended = running.end(&id, begun, true).unwrap();
    assert_eq!(ended, Ok(Some(session(1_000, 1))));
    // Behind it there is room again.
    running.reconcile();
    running.init(&shares).unwrap().unwrap();
    let next = running.init(&id).unwrap().unwrap();
    assert_eq!(running.add(&id, next), Some(Ok(Added::InTxn(2))));
}

#[test]
fn a_pass_that_is_dropped_leaves_the_decision_to_the_next() {
    let site = site(11);
    let outside = Arc::new(Outside::default());
    let [id, ..] = ids();
    let running = Running::start(&site, &outside, 1);
    let begun = running.init(&id).unwrap().unwrap();
    running.add(&id, begun).unwrap().unwrap();
    outside.no_markers.store(true, Ordering::Relaxed);
    running.end(&id, begun, true).unwrap().unwrap_err();
    site.world.pass(Duration::from_secs(20));
    outside.hangs.store(true, Ordering::Relaxed);
    let (txns, of) = (running.txns.clone(), id.clone());
    let late = site.world.env(0).clock.sleep(Duration::from_secs(1));
    let dropped = site.world.run(async move {
        tokio::select! {
            biased;
            outcome = txns.reconcile(&of) => Some(outcome),
            () = late => None,
        }
    });
    assert_eq!(dropped, Some(None));
    outside.hangs.store(false, Ordering::Relaxed);
    outside.no_markers.store(false, Ordering::Relaxed);
    running.reconcile();
    assert_eq!(running.state(&id).0, TxnState::CompleteCommit);
}

#[test]
fn time_outs_and_expiry() {
    let site = site(4);
    let outside = Arc::new(Outside::default());
    let [id, ..] = ids();
    let running = Running::start(&site, &outside, 1);
    let begun = running.init(&id).unwrap().unwrap();
    running.add(&id, begun).unwrap().unwrap();
    let now = || running.world.env(0).clock.wall_ms();
    assert!(running.txns.overdue(now()).is_empty());
    site.world.pass(Duration::from_secs(61));
    assert_eq!(running.txns.overdue(now()), [Arc::from(id.as_str())]);
    let (txns, reaped) = (running.txns.clone(), id.clone());
    let reaped = site.world.run(async move { txns.reap(&reaped).await });
    assert_eq!(reaped, Some(Ok(true)));
    // There is nothing to abort any more.
    let (txns, ended) = (running.txns.clone(), id.clone());
    let reaped = site.world.run(async move { txns.reap(&ended).await });
    assert_eq!(reaped, Some(Ok(false)));
    assert_eq!(running.state(&id).0, TxnState::CompleteAbort);
    assert_eq!(outside.fences.lock()[&1_000], 1);
    let week = 7 * 24 * 3_600_000;
    assert!(running.txns.expired(now()).is_empty());
    assert_eq!(running.txns.expired(now() + week).len(), 1);
}

#[test]
fn what_is_queued_elsewhere_gates_the_next_transaction() {
    let site = site(5);
    let outside = Arc::new(Outside::default());
    outside.remote.store(true, Ordering::Relaxed);
    let [id, ..] = ids();
    let running = Running::start(&site, &outside, 1);
    let begun = running.init(&id).unwrap().unwrap();
    running.add(&id, begun).unwrap().unwrap();
    let next = running.end(&id, begun, true).unwrap().unwrap().unwrap();
    let queued = outside.queued.lock().clone();
    assert_eq!(queued.len(), 1);
    let (to, entry) = &queued[0];
    assert_eq!(
        (*to, entry.producer_epoch, entry.txn_seq),
        (BrokerId(1), 1, Some(1))
    );
    assert!(entry.groups.is_empty() && entry.topic_ids["a"] == Uuid::from_u128(7));
    let gated = Err(TxnError::ConcurrentTransactions);
    assert_eq!(running.add(&id, next).unwrap(), gated);
    running.reconcile();
    site.world.pass(Duration::from_secs(1));
    site.world.kill(1);
    // A new coordinator has the gate from the file.
    let again = Running::start(&site, &outside, 2);
    assert_eq!(again.add(&id, next).unwrap(), gated);
    assert_eq!(again.txns.owed().len(), 1);
    let (txns, of) = (again.txns.clone(), id.clone());
    let what = entry.asked();
    let confirmed = site.world.run(async move {
        let done = EntryName {
            broker: BrokerId(1),
            pid: ProducerId(1_000),
            record_epoch: ProducerEpoch(0),
        };
        let other = txns.confirm(&of, &done, 2, &what).await;
        (other, txns.confirm(&of, &done, 1, &what).await)
    });
    assert_eq!(confirmed, Some((Ok(false), Ok(true))));
    assert_eq!(again.add(&id, next).unwrap(), Ok(Added::InTxn(2)));
}

/// What a client was told of its id.
#[derive(Debug, Clone, Default)]
struct Told {
    session: Option<Session>,
    /// The last transaction's direction, if it was acknowledged.
    ended: Option<bool>,
    /// It asked for an end and heard nothing.
    asked: Option<bool>,
}

/// Two transactions of each id. `None` where it hangs.
fn live(running: &Running, told: &mut BTreeMap<String, Told>) -> Option<()> {
    for commit in [true, false] {
        for id in ids() {
            let mut at = match told.get(&id).and_then(|told| told.session) {
                Some(at) => at,
                None => running.init(&id)?.unwrap(),
            };
            let entry = told.entry(id.clone()).or_default();
            entry.session = Some(at);
            entry.ended = None;
            running.add(&id, at)?.unwrap();
            entry.asked = Some(commit);
            at = running.end(&id, at, commit)?.unwrap().unwrap();
            *entry = Told {
                session: Some(at),
                ended: Some(commit),
                asked: None,
            };
        }
    }
    Some(())
}

/// Checks what a new process finds against what clients were told.
fn check(running: &Running, outside: &Outside, told: &BTreeMap<String, Told>, step: u64) {
    for (id, told) in told {
        let Some(was) = told.session else { continue };
        let (state, is, txn_seq) = running.state(id);
        assert!(
            is.epoch >= was.epoch && is.pid == was.pid,
            "step {step}: {id} {is:?} {told:?}"
        );
        let direction = state.prepared().or(state.completed());
        if let Some(ended) = told.ended {
            assert_eq!(direction, Some(ended), "step {step}: {id} {told:?}");
        } else if let (Some(found), Some(asked)) = (direction, told.asked)
            && is.epoch > was.epoch
        {
            assert_eq!(found, asked, "step {step}: {id}");
        }
        for seq in 1..=txn_seq {
            let markers = outside.markers.lock();
            let written = markers.get(&(is.pid.0, seq)).map_or(0, BTreeSet::len);
            assert!(written <= 1, "step {step}: {id} #{seq} {markers:?}");
        }
    }
    running.reconcile();
    assert!(running.txns.unfinished().is_empty());
}

#[test]
fn a_crash_at_any_step_decides_once_and_goes_on() {
    let counted = Interrupt::none();
    let outside = Arc::new(Outside::default());
    Running::try_start(&site(0), &outside, 1, counted.clone()).unwrap();
    let mut crashes = 0;
    // The steps of the node's own start are crossed elsewhere.
    for at in counted.steps().saturating_sub(14).. {
        for cut in [None, Some(at)] {
            let site = site(at);
            let outside = Arc::new(Outside::default());
            let hook = Interrupt::new(at, How::Stop);
            let mut told = BTreeMap::new();
            let running = Running::try_start(&site, &outside, 1, hook.clone());
            let survived = running.and_then(|running| live(&running, &mut told));
            if survived.is_some() && hook.steps() <= at {
                assert!(crashes > 60, "only {crashes} crashes");
                return;
            }
            crashes += 1;
            site.world.kill(1);
            if let Some(seed) = cut {
                site.volume.power_cut(seed);
            }
            let again = Running::start(&site, &outside, 2);
            check(&again, &outside, &told, at);
            for id in ids() {
                let before = told.get(&id).and_then(|told| told.session);
                let begun = again.init(&id).unwrap().unwrap();
                assert!(
                    before.is_none_or(|before| begun.epoch > before.epoch),
                    "step {at}"
                );
                again.add(&id, begun).unwrap().unwrap();
                again.end(&id, begun, true).unwrap().unwrap();
            }
            assert!(again.node.damage().is_empty(), "{:?}", again.node.damage());
        }
    }
}

#[test]
fn a_failure_at_any_step_is_told_and_passes() {
    let faults = [
        StepOutcome::Fail(StepFault::Io),
        StepOutcome::Fail(StepFault::NoSpace),
        StepOutcome::FailAfter(StepFault::Io),
    ];
    let counted = Interrupt::none();
    let outside = Arc::new(Outside::default());
    Running::try_start(&site(0), &outside, 2, counted.clone()).unwrap();
    let mut failures = Vec::new();
    for at in counted.steps().. {
        for fault in faults {
            let site = site(at);
            let outside = Arc::new(Outside::default());
            let hook = Interrupt::new(at, How::Once(fault));
            let running = Running::try_start(&site, &outside, 2, hook.clone()).unwrap();
            let [id, ..] = ids();
            // As a client that tries again what may be tried again.
            let mut told = BTreeMap::new();
            let begun = until(&running, &mut failures, |running| {
                running.init(&id).unwrap()
            });
            until(&running, &mut failures, |running| {
                running.add(&id, begun).unwrap()
            });
            let ended = until(&running, &mut failures, |running| {
                running.end(&id, begun, true).unwrap()
            });
            let entry = Told {
                session: ended,
                ended: Some(true),
                asked: None,
            };
            told.insert(id, entry);
            site.world.kill(2);
            site.volume.power_cut(at);
            let again = Running::start(&site, &outside, 3);
            check(&again, &outside, &told, at);
            if hook.steps() <= at {
                assert!(failures.len() > 10, "only {failures:?}");
                // What may have happened is read again before anything is decided.
                assert!(
                    failures.contains(&TxnError::CoordinatorLoading),
                    "{failures:?}"
                );
                return;
            }
        }
    }
}

fn until<R>(
    running: &Running,
    failures: &mut Vec<TxnError>,
    ask: impl Fn(&Running) -> Result<R, TxnError>,
) -> R {
    for _ in 0..60 {
        match ask(running) {
            Ok(reply) => return reply,
            Err(
                error @ (TxnError::CoordinatorNotAvailable
                | TxnError::CoordinatorLoading
                | TxnError::ConcurrentTransactions),
            ) => failures.push(error),
            Err(error) => panic!("{error}"),
        }
        running.reconcile();
        running.world.pass(Duration::from_millis(100));
    }
    panic!("it does not pass");
}

/// An owner that is held at step `at` of a commit while another takes over; whether there was one.
fn taken_over_at(at: u64, steps_before: u64) -> bool {
    let mut site = site(7);
    let outside = Arc::new(Outside::default());
    let [id, ..] = ids();
    let hook = Interrupt::new(steps_before + at, How::Hold);
    let old = Running::try_start(&site, &outside, 1, hook.clone()).unwrap();
    let begun = old.init(&id).unwrap().unwrap();
    old.add(&id, begun).unwrap().unwrap();
    let (txns, held) = (old.txns.clone(), id.clone());
    let (tell, told) = tokio::sync::oneshot::channel();
    let task = async move {
        let request = EndTxn {
            version: 5,
            session: begun,
            commit: true,
            client: None,
        };
        tell.send(txns.end_txn(&held, &request).await).unwrap();
    };
    drop(site.world.env(1).runtime.spawn("held", Box::pin(task)));
    site.world.pass(Duration::from_millis(500));
    if hook.steps() <= steps_before + at {
        return false;
    }
    site.host = host("b", 1);
    site.host.boot_id = "another".into();
    let new = Running::start(&site, &outside, 2);
    let taken = new.state(&id).0;
    new.reconcile();
    let fenced = new.init(&id).unwrap().unwrap();
    new.add(&id, fenced).unwrap().unwrap();
    let before = site.files()[&path(&id).to_string()].clone();
    hook.release();
    match site.world.run(told).unwrap().unwrap() {
        Ok(_) => assert_eq!(taken, TxnState::PrepareCommit, "step {at}"),
        Err(error) => assert_eq!(error, TxnError::NotCoordinator, "step {at}"),
    }
    let refused = old.init(&id).unwrap();
    assert_eq!(refused, Err(TxnError::NotCoordinator), "step {at}");
    assert_eq!(site.files()[&path(&id).to_string()], before, "step {at}");
    let markers = outside.markers.lock();
    assert!(
        markers.values().all(|written| written.len() == 1),
        "step {at}: {markers:?}"
    );
    true
}

#[test]
fn a_taker_fences_the_old_owner() {
    let hook = Interrupt::none();
    let site = site(7);
    let outside = Arc::new(Outside::default());
    let [id, ..] = ids();
    let counted = Running::try_start(&site, &outside, 1, hook.clone()).unwrap();
    let begun = counted.init(&id).unwrap().unwrap();
    counted.add(&id, begun).unwrap().unwrap();
    let steps_before = hook.steps();
    let held = (0..100)
        .take_while(|at| taken_over_at(*at, steps_before))
        .count();
    // Create, write, sync, rename, sync of the directory.
    assert!(held >= 5, "held at {held} steps");
}

#[test]
fn a_damaged_slot_stops_its_ids_alone() {
    let site = site(8);
    let outside = Arc::new(Outside::default());
    let [bad, good, _] = ids();
    let first = Running::start(&site, &outside, 1);
    let begun = first.init(&good).unwrap().unwrap();
    first.init(&bad).unwrap().unwrap();
    site.world.kill(1);
    site.put(&path(&bad), b"{\"tx-commit\":{");
    let second = Running::start(&site, &outside, 2);
    assert_eq!(second.add(&good, begun).unwrap(), Ok(Added::InTxn(1)));
    let refused = second.init(&bad).unwrap();
    assert_eq!(refused, Err(TxnError::CoordinatorNotAvailable));
    let damage = second.node.damage();
    assert_eq!(damage.len(), 1);
    assert_eq!(damage[0].path, path(&bad).to_string());
    assert!(damage[0].copy.is_some());
    let kept = site.files()[&path(&bad).to_string()].clone();
    assert_eq!(kept, b"{\"tx-commit\":{");
    // Repaired, it serves again by itself; an id of another slot is no repair.
    site.put(&path(&bad), br#"{"tx-abort":{"pid":7,"epoch":4}}"#);
    site.world.pass(Duration::from_secs(10));
    let refused = second.init(&bad).unwrap();
    assert_eq!(refused, Err(TxnError::CoordinatorNotAvailable));
    site.put(&path(&bad), br#"{"tx-commit":{"pid":7,"epoch":4}}"#);
    site.world.pass(Duration::from_secs(10));
    assert_eq!(second.init(&bad).unwrap(), Ok(session(7, 5)));
}

#[test]
fn transitions_of_a_slot_share_a_write() {
    let site = site(9);
    let outside = Arc::new(Outside::default());
    let [id, ..] = ids();
    let hook = Interrupt::none();
    let running = Running::try_start(&site, &outside, 1, hook.clone()).unwrap();
    running.init(&id).unwrap().unwrap();
    let steps = |work: &dyn Fn()| {
        let before = hook.steps();
        work();
        hook.steps() - before
    };
    let one = steps(&|| {
        running.init(&id).unwrap().unwrap();
    });
    // Create, write, sync, rename, sync of the directory.
    assert_eq!(one, 5);
    let slot = slot_of(&id);
    let many: Vec<String> = (0..)
        .map(|n| format!("id-{n}"))
        .filter(|id| slot_of(id) == slot)
        .take(64)
        .collect();
    let all = steps(&|| {
        let mut waiting = Vec::new();
        for id in &many {
            let (txns, id) = (running.txns.clone(), id.clone());
            let (tell, told) = tokio::sync::oneshot::channel();
            let task = async move {
                let request = InitProducerId {
                    version: 5,
                    id_is_empty: false,
                    timeout_ms: 60_000,
                    claimed: session(-1, -1),
                    client: None,
                };
                let told = txns.init_producer_id(&id, &request).await;
                tell.send(told).unwrap();
            };
            drop(site.world.env(1).runtime.spawn("one", Box::pin(task)));
            waiting.push(told);
        }
        for told in waiting {
            site.world.run(told).unwrap().unwrap().unwrap();
        }
    });
    assert!(all <= 2 * one, "{all} steps for 64 ids, {one} for one");
    let (volume, at) = (site.volume.clone(), path(&id));
    let bytes: Bytes = site
        .world
        .run(async move { volume.read(&at, u64::MAX).await })
        .unwrap()
        .unwrap();
    let file: TxnSlotFile = decode(&bytes).unwrap();
    assert_eq!(file.ids.len(), 65);
}

/// A broker that committed a transaction and is stopped at the first step behind that.
fn stopped_after(site: &Site, outside: &Arc<Outside>, hook: &Arc<Interrupt>) -> (Running, Session) {
    let [id, ..] = ids();
    let running = Running::try_start(site, outside, 1, hook.clone()).unwrap();
    let begun = running.init(&id).unwrap().unwrap();
    running.add(&id, begun).unwrap().unwrap();
    running.end(&id, begun, true).unwrap().unwrap();
    (running, begun)
}

/// What it remembers is of a transaction before: it must not tell a client that the one that is
/// open elsewhere has ended.
#[test]
fn an_owner_that_was_taken_over_answers_nothing_from_memory() {
    let [id, ..] = ids();
    let hook = Interrupt::none();
    stopped_after(&site(8), &Arc::default(), &hook);
    let hook = Interrupt::new(hook.steps(), How::Hold);
    let mut site = site(8);
    let outside = Arc::new(Outside::default());
    let (old, begun) = stopped_after(&site, &outside, &hook);
    site.world.pass(Duration::from_secs(1));
    site.host = host("b", 1);
    site.host.boot_id = "another".into();
    let new = Running::start(&site, &outside, 2);
    new.reconcile();
    let next = new.state(&id).1;
    assert_eq!(new.add(&id, next), Some(Ok(Added::InTxn(2))));
    assert!(old.txns.coordinates(&id));
    hook.release();
    let lost = TxnError::NotCoordinator;
    // It would be a repetition, and the other way, of the end before.
    assert_eq!(old.end(&id, begun, true).unwrap(), Err(lost));
    assert_eq!(old.end(&id, begun, false).unwrap(), Err(lost));
    assert_eq!(old.add(&id, next), Some(Err(lost)));
    // Who knows that sends nobody to itself, and speaks for none of its ids.
    assert!(!old.txns.coordinates(&id) && new.txns.coordinates(&id));
    assert_eq!(new.state(&id), (TxnState::Ongoing, next, 2));
}
