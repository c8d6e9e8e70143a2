//! The offsets of groups on a memory volume: crashes at every step, takers, damage, a full disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use store_adapter::ids::{ProducerEpoch, ProducerId};
use store_adapter::volume::memory::{StepFault, StepHook, StepOutcome};
use store_adapter::volume::{Volume as _, VolumePath};

use super::super::ClusterNode;
use super::world::{Group, How, Interrupt, Site, World, host};
use super::{create, delete};
use crate::machine::group::GroupError;
use crate::machine::group::classic::Caller;
use crate::machine::group::offsets::{NewOffset, NewTxn, StageError, TxnEnd, TxnNumber};
use crate::service::groups::{
    FetchedOffset, GroupConfig, GroupFiles, Groups, OffsetCommit, Offsets, Pending, TopicPartitions,
};
use crate::service::txns::GroupDecisions;
use crate::volume::format::{GroupOffsetsFile, decode};
use crate::volume::layout::Place;

/// A broker with its groups.
#[derive(Debug, Clone)]
pub(super) struct Running {
    pub(super) world: World,
    pub(super) node: ClusterNode,
    pub(super) groups: Groups,
    pub(super) offsets: Offsets,
}

pub(super) const SIMPLE: Caller<'static> = Caller {
    member_id: "",
    instance_id: None,
};

pub(super) fn serve_with(
    world: &World,
    node: ClusterNode,
    process: Group,
    config: GroupConfig,
) -> Running {
    let env = world.env(process);
    let groups = Groups::start(&env, config, Arc::new(node.clone()));
    let files: Arc<dyn GroupFiles> = node.group_files();
    let (view, slots) = (node.watch_view(), node.group_slots());
    let offsets = Offsets::start(&env, &groups, &files, view, slots);
    let world = world.clone();
    Running {
        world,
        node,
        groups,
        offsets,
    }
}

impl Running {
    /// `None` where it hangs.
    pub(super) fn try_start(site: &Site, process: Group, hook: Arc<dyn StepHook>) -> Option<Self> {
        let node = site.try_start(process, hook)?.ok()?;
        let running = serve_with(&site.world, node, process, GroupConfig::default());
        running.ready().then_some(running)
    }

    pub(super) fn start(site: &Site, process: Group) -> Self {
        Self::try_start(site, process, Interrupt::none()).unwrap()
    }

    pub(super) fn start_with(site: &Site, process: Group, config: &GroupConfig) -> Self {
        let node = site.start(process);
        let running = serve_with(&site.world, node, process, config.clone());
        assert!(running.ready());
        running
    }

    /// Waits until every slot is taken over; `false` if that never comes.
    pub(super) fn ready(&self) -> bool {
        for _ in 0..100 {
            if self.offsets.slots_loading() == 0 {
                return true;
            }
            let sleep = self
                .world
                .env(Group::MAX)
                .clock
                .sleep(Duration::from_millis(100));
            if self.world.run(sleep).is_none() {
                return false;
            }
        }
        false
    }

    fn prepare(
        &self,
        group: &str,
        topic: &str,
        partition: i32,
        offset: i64,
    ) -> Result<Pending, GroupError> {
        self.prepare_as(group, (SIMPLE, -1), (topic, partition, offset))
    }

    pub(super) fn prepare_as(
        &self,
        group: &str,
        (caller, generation): (Caller<'_>, i32),
        (topic, partition, offset): (&str, i32, i64),
    ) -> Result<Pending, GroupError> {
        let view = self.node.view();
        let new = NewOffset {
            topic: topic.into(),
            topic_id: view.topics.get(topic).unwrap().id,
            partition,
            offset,
            leader_epoch: Some(1),
            metadata: "m".into(),
        };
        let commit = OffsetCommit {
            caller,
            generation,
            offsets: vec![new],
            retention_ms: None,
            missing: GroupError::IllegalGeneration,
        };
        self.offsets.commit(group, commit)
    }

    /// Commits, as a client that waits; `None` where it hangs.
    pub(super) fn commit(
        &self,
        group: &str,
        partition: i32,
        offset: i64,
    ) -> Option<Result<(), GroupError>> {
        match self.prepare(group, "a", partition, offset) {
            Ok(pending) => self.world.run(pending.durable()),
            Err(error) => Some(Err(error)),
        }
    }

    /// Commits, as a client that tries again; `None` where it hangs.
    fn commit_until_done(&self, group: &str, partition: i32, offset: i64) -> Option<()> {
        for _ in 0..20 {
            if self.commit(group, partition, offset)? == Ok(()) {
                return Some(());
            }
            let sleep = self
                .world
                .env(Group::MAX)
                .clock
                .sleep(Duration::from_millis(200));
            self.world.run(sleep)?;
        }
        panic!("{group} takes no commit");
    }

    fn try_fetch(&self, group: &str) -> Result<BTreeMap<i32, i64>, GroupError> {
        let fetched = self.offsets.fetch(group, None, true)?;
        let mut found = BTreeMap::new();
        for (number, offset) in fetched.into_iter().flat_map(|topic| topic.partitions) {
            if let FetchedOffset::Committed { offset, .. } = offset {
                found.insert(number, offset);
            }
        }
        Ok(found)
    }

    /// What the group has, as a client that tries again while it is loaded.
    pub(super) fn fetch(&self, group: &str) -> BTreeMap<i32, i64> {
        for _ in 0..50 {
            match self.try_fetch(group) {
                Ok(found) => return found,
                Err(error) => assert_eq!(error, GroupError::CoordinatorLoading),
            }
            self.world.pass(Duration::from_millis(100));
        }
        panic!("{group} can't be read");
    }
}

pub(super) fn path(group: &str) -> VolumePath {
    Place::GroupOffsets(group.to_owned()).path()
}

/// The file of a group on the volume, or nothing.
pub(super) fn file(site: &Site, group: &str) -> Option<GroupOffsetsFile> {
    let (volume, path) = (site.volume.clone(), path(group));
    let bytes = site
        .world
        .run(async move { volume.read(&path, u64::MAX).await });
    bytes
        .unwrap()
        .ok()
        .map(|bytes: Bytes| decode(&bytes).unwrap())
}

pub(super) fn site(seed: u64) -> Site {
    let world = World::new(seed);
    let site = Site::new(&world);
    let node = site.start(0);
    create(&world, &node, "a").unwrap();
    world
        .run(async move { node.stop().await })
        .unwrap()
        .unwrap();
    world.kill(0);
    site
}

#[test]
fn offsets_outlive_a_restart() {
    let site = site(1);
    let first = Running::start(&site, 1);
    assert_eq!(first.commit("g", 0, 5), Some(Ok(())));
    assert_eq!(first.commit("g", 1, 6), Some(Ok(())));
    assert_eq!(first.commit(&"long".repeat(100), 1, 7), Some(Ok(())));
    site.world.kill(1);
    site.volume.power_cut(3);
    let second = Running::start(&site, 2);
    assert_eq!(second.fetch("g"), [(0, 5), (1, 6)].into());
    assert_eq!(second.fetch(&"long".repeat(100)), [(1, 7)].into());
    assert_eq!(second.fetch("other"), BTreeMap::new());
}

/// What a life was told before its crash: by group, the last acknowledged offset and the next one,
/// which may be there.
type Told = BTreeMap<&'static str, (i64, i64)>;

/// Commits in turn, four at a time. `None` where it hangs.
fn live(running: &Running, told: &mut Told) -> Option<()> {
    for round in 1..4_i64 {
        let mut waiting = Vec::new();
        for group in ["g1", "g2"] {
            let entry = told.entry(group).or_default();
            entry.1 = round;
            for _ in 0..2 {
                match running.prepare(group, "a", 0, round) {
                    Ok(pending) => waiting.push((group, pending)),
                    Err(error) => panic!("{group}: {error}"),
                }
            }
        }
        for (group, pending) in waiting {
            running.world.run(pending.durable())?.unwrap();
            let entry = told.entry(group).or_default();
            entry.0 = round;
        }
    }
    Some(())
}

#[test]
fn a_crash_at_any_step_loses_no_acknowledged_commit() {
    let counted = Interrupt::none();
    Running::try_start(&site(0), 1, counted.clone()).unwrap();
    let mut crashes = 0;
    // The start itself makes equal steps for each slot: some are looked at.
    let starting = (0..counted.steps()).step_by(29);
    for at in starting.chain(counted.steps()..) {
        for cut in [None, Some(at)] {
            let site = site(at);
            let hook = Interrupt::new(at, How::Stop);
            let mut told = Told::new();
            let running = Running::try_start(&site, 1, hook.clone());
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
            for group in ["g1", "g2"] {
                file(&site, group);
            }
            let again = Running::start(&site, 2);
            for (group, (acknowledged, open)) in &told {
                let found = again.fetch(group).get(&0).copied().unwrap_or(0);
                let allowed = found == *acknowledged || found == *open;
                assert!(
                    allowed,
                    "step {at}, cut {cut:?}: {group} {found}, told {told:?}"
                );
                again.commit_until_done(group, 0, 9).unwrap();
                assert_eq!(again.fetch(group), [(0, 9)].into());
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
    Running::try_start(&site(0), 2, counted.clone()).unwrap();
    let mut failures = 0;
    let starting = (0..counted.steps()).step_by(29);
    for at in starting.chain(counted.steps()..) {
        for fault in faults {
            let site = site(at);
            let hook = Interrupt::new(at, How::Once(fault));
            let Some(running) = Running::try_start(&site, 2, hook.clone()) else {
                // The start itself was told.
                continue;
            };
            let mut acknowledged = 0;
            for offset in 1..5 {
                let outcome = running.commit("g", 0, offset).unwrap();
                if outcome == Ok(()) {
                    acknowledged = offset;
                } else {
                    failures += 1;
                    running.commit_until_done("g", 0, offset).unwrap();
                    acknowledged = offset;
                }
                assert_eq!(running.fetch("g"), [(0, acknowledged)].into(), "step {at}");
            }
            site.world.kill(2);
            site.volume.power_cut(at);
            let again = Running::start(&site, 3);
            assert_eq!(again.fetch("g"), [(0, acknowledged)].into(), "step {at}");
            if hook.steps() <= at {
                assert!(failures > 10, "only {failures} failures");
                return;
            }
        }
    }
}

/// An owner that is held at step `at` of a commit while another takes over; whether there was one.
fn taken_over_at(at: u64, steps_before: u64) -> bool {
    let mut site = site(7);
    let hook = Interrupt::new(steps_before + at, How::Hold);
    let old = Running::try_start(&site, 1, hook.clone()).unwrap();
    assert_eq!(old.commit("g", 0, 5), Some(Ok(())));
    let pending = old.prepare("g", "a", 0, 1).unwrap();
    site.world.pass(Duration::from_millis(500));
    if hook.steps() <= steps_before + at {
        return false;
    }
    site.host = host("b", 1);
    site.host.boot_id = "another".into();
    let new = Running::start(&site, 2);
    let taken = new.fetch("g")[&0];
    assert_eq!(new.commit("g", 0, 6), Some(Ok(())));
    let offsets = path("g").to_string();
    let before = site.files()[&offsets].clone();
    hook.release();
    let outcome = site.world.run(pending.durable()).unwrap();
    match outcome {
        Ok(()) => assert_eq!(taken, 1, "step {at}: acknowledged and not taken over"),
        Err(error) => assert_eq!(error, GroupError::NotCoordinator, "step {at}"),
    }
    assert_eq!(old.commit("g", 0, 2), Some(Err(GroupError::NotCoordinator)));
    assert_eq!(old.try_fetch("g"), Err(GroupError::NotCoordinator));
    assert_eq!(site.files()[&offsets], before, "step {at}");
    assert_eq!(new.fetch("g"), [(0, 6)].into());
    true
}

#[test]
fn a_taker_fences_the_old_owner() {
    let hook = Interrupt::none();
    let counted = Running::try_start(&site(7), 1, hook.clone()).unwrap();
    assert_eq!(counted.commit("g", 0, 5), Some(Ok(())));
    let steps_before = hook.steps();
    let held = (0..1_000)
        .take_while(|at| taken_over_at(*at, steps_before))
        .count();
    // Create, write, sync, rename, sync of the directory.
    assert!(held >= 5, "held at {held} steps");
}

#[test]
fn a_damaged_file_stops_its_group_alone() {
    let site = site(8);
    let first = Running::start(&site, 1);
    for group in ["bad", "gone", "good"] {
        assert_eq!(first.commit(group, 0, 5), Some(Ok(())));
    }
    site.world.kill(1);
    site.put(&path("bad"), b"{\"offsets\":{\"a/0\":");
    let (volume, gone) = (site.volume.clone(), path("gone"));
    site.world
        .run(async move { volume.remove(&gone).await })
        .unwrap()
        .unwrap();
    let second = Running::start(&site, 2);
    assert_eq!(second.fetch("good"), [(0, 5)].into());
    site.world.pass(Duration::from_secs(2));
    let loading = Some(Err(GroupError::CoordinatorLoading));
    for group in ["bad", "gone"] {
        assert_eq!(second.try_fetch(group), Err(GroupError::CoordinatorLoading));
        assert_eq!(second.commit(group, 0, 1), loading, "{group}");
        let topics = [TopicPartitions {
            topic: "a".into(),
            partitions: vec![0],
        }];
        let deleted = second.offsets.delete(group, &topics).err();
        assert_eq!(deleted, Some(GroupError::CoordinatorLoading), "{group}");
    }
    assert_eq!(second.commit("good", 0, 6), Some(Ok(())));
    let damaged: Vec<String> = second.node.damage().into_iter().map(|d| d.path).collect();
    assert_eq!(damaged, [path("bad").to_string(), path("gone").to_string()]);
    assert!(second.node.damage()[0].copy.is_some());
    // Repaired, it serves again by itself.
    site.put(
        &path("bad"),
        br#"{"offsets":{"a/0":4},"group":"bad","seq":3}"#,
    );
    site.world.pass(Duration::from_secs(2));
    assert_eq!(second.fetch("bad"), [(0, 4)].into());
}

/// The decision on a transaction of producer 7, epoch 0.
fn ended(txn_seq: u64, commit: bool) -> TxnEnd {
    TxnEnd {
        producer_id: ProducerId(7),
        number: TxnNumber {
            epoch: ProducerEpoch(0),
            txn_seq,
        },
        commit,
    }
}

#[test]
fn a_group_that_can_not_be_decided_holds_no_other_up() {
    let site = site(14);
    let first = Running::start(&site, 1);
    for group in ["bad", "good"] {
        assert_eq!(stage(&first, group, 1), Ok(()));
    }
    site.world.kill(1);
    site.put(&path("bad"), b"{");
    let second = Running::start(&site, 2);
    let stable = |running: &Running| {
        let asked = [TopicPartitions {
            topic: "a".into(),
            partitions: vec![0],
        }];
        let fetched = running.offsets.fetch("good", Some(&asked), true).unwrap();
        let partitions = fetched.iter().flat_map(|topic| &topic.partitions);
        partitions
            .map(|(_, offset)| offset.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(stable(&second), [FetchedOffset::Unstable]);
    let offsets = second.offsets.clone();
    let groups = ["bad".into(), "good".into()].into();
    let decided = async move { GroupDecisions::decide(&offsets, groups, ended(1, true)).await };
    assert!(site.world.run(decided).unwrap().is_err());
    assert_eq!(second.fetch("good"), [(0, 5)].into());
    assert_ne!(stable(&second), [FetchedOffset::Unstable]);
}

/// A name is not an identity: what was sent for the topic that had it before comes too late.
#[test]
fn an_offset_that_waited_for_its_transaction_does_not_drop_those_of_a_new_topic() {
    let site = site(15);
    let running = Running::start(&site, 1);
    let late = staged(&running, 1);
    let topic = running.node.view().topics.get("a").unwrap().id;
    delete(&site.world, &running.node, topic).unwrap();
    let refused = running
        .offsets
        .stage("g", SIMPLE, -1, &late.0, vec![late.1.clone()]);
    assert_eq!(refused.unwrap().err(), Some(StageError::TopicGone));
    create(&site.world, &running.node, "a").unwrap();
    assert_eq!(running.commit("g", 0, 7), Some(Ok(())));
    let refused = running
        .offsets
        .stage("g", SIMPLE, -1, &late.0, vec![late.1]);
    assert_eq!(refused.unwrap().err(), Some(StageError::TopicGone));
    assert_eq!(running.fetch("g"), [(0, 7)].into());
}

#[test]
fn a_damaged_file_under_a_hashed_name_stops_its_group_alone() {
    let site = site(13);
    let (bad, good) = ("bad-".repeat(100), "good".repeat(100));
    let first = Running::start(&site, 1);
    for group in [&bad, &good] {
        assert_eq!(first.commit(group, 0, 5), Some(Ok(())));
    }
    site.world.kill(1);
    site.put(&path(&bad), b"{");
    let second = Running::start(&site, 2);
    assert_eq!(second.fetch(&good), [(0, 5)].into());
    let loading = Err(GroupError::CoordinatorLoading);
    assert_eq!(second.try_fetch(&bad), loading);
    site.world.pass(Duration::from_secs(2));
    assert_eq!(second.try_fetch(&bad), loading);
    let repaired = format!("{{\"offsets\":{{\"a/0\":4}},\"group\":{bad:?},\"seq\":3}}");
    site.put(&path(&bad), repaired.as_bytes());
    site.world.pass(Duration::from_secs(2));
    assert_eq!(second.fetch(&bad), [(0, 4)].into());
}

#[test]
fn groups_that_are_only_asked_for_take_no_memory() {
    let site = site(14);
    let running = Running::start(&site, 1);
    for number in 0..100 {
        // As long as names can be, and hashed.
        let group = format!("{number}-{}", "long".repeat(100));
        assert_eq!(running.try_fetch(&group), Ok(BTreeMap::new()));
        assert!(running.groups.cell(&group).is_none());
    }
}

#[test]
fn commits_that_wait_share_a_write() {
    let site = site(9);
    let hook = Interrupt::none();
    let running = Running::try_start(&site, 1, hook.clone()).unwrap();
    assert_eq!(running.commit("g", 0, 0), Some(Ok(())));
    let steps = |work: &dyn Fn()| {
        let before = hook.steps();
        work();
        hook.steps() - before
    };
    let one = steps(&|| assert_eq!(running.commit("g", 0, 1), Some(Ok(()))));
    let many = steps(&|| {
        let all: Vec<Pending> = (0..64)
            .map(|n| running.prepare("g", "a", 0, n).unwrap())
            .collect();
        for pending in all {
            assert_eq!(running.world.run(pending.durable()), Some(Ok(())));
        }
    });
    // Create, write, sync, rename, sync of the directory.
    assert_eq!(one, 5);
    assert!(
        many <= 2 * one,
        "{many} steps for 64 commits, {one} for one"
    );
    assert_eq!(running.fetch("g"), [(0, 63)].into());
}

#[test]
fn a_topic_takes_its_offsets_along() {
    let site = site(10);
    let running = Running::start(&site, 1);
    assert_eq!(running.commit("g", 0, 5), Some(Ok(())));
    let id = running.node.view().topics.get("a").unwrap().id;
    delete(&site.world, &running.node, id).unwrap();
    assert_eq!(running.fetch("g"), BTreeMap::new());
    site.world.pass(Duration::from_secs(1));
    assert_eq!(file(&site, "g").unwrap().offsets, Some(BTreeMap::new()));
    create(&site.world, &running.node, "a").unwrap();
    assert_eq!(running.fetch("g"), BTreeMap::new());
    assert_eq!(running.commit("g", 1, 1), Some(Ok(())));
    assert_eq!(running.fetch("g"), [(1, 1)].into());
}

impl Running {
    pub(super) fn delete_group(&self, group: &'static str) -> Result<(), GroupError> {
        let offsets = self.offsets.clone();
        let deleted = self
            .world
            .run(async move { offsets.delete_group(group).await });
        deleted.unwrap()
    }
}

/// Everything that the volume has of group `g`, in its area too.
fn left_of_g(site: &Site) -> Vec<String> {
    let names = site.files().into_keys();
    names
        .filter(|name| name.contains("__consumer_offsets"))
        .collect()
}

#[test]
fn a_deleted_group_leaves_nothing() {
    let site = site(11);
    let running = Running::start(&site, 1);
    assert_eq!(running.commit("g", 0, 5), Some(Ok(())));
    assert_eq!(left_of_g(&site).len(), 2, "its file and the mark");
    assert_eq!(running.delete_group("g"), Ok(()));
    assert_eq!(running.delete_group("g"), Err(GroupError::GroupIdNotFound));
    assert_eq!(running.fetch("g"), BTreeMap::new());
    running.world.pass(Duration::from_secs(1));
    assert_eq!(left_of_g(&site), [""; 0]);
    assert!(running.groups.cell("g").is_none());
    site.world.kill(1);
    site.volume.power_cut(0);
    let again = Running::start(&site, 2);
    assert_eq!(again.fetch("g"), BTreeMap::new());
    assert_eq!(again.delete_group("g"), Err(GroupError::GroupIdNotFound));
    for offset in 1..4 {
        assert_eq!(again.commit("g", 0, offset), Some(Ok(())));
        assert_eq!(again.fetch("g"), [(0, offset)].into());
        assert_eq!(again.delete_group("g"), Ok(()));
    }
    assert_eq!(again.commit("g", 0, 4), Some(Ok(())));
    site.world.kill(2);
    assert_eq!(Running::start(&site, 3).fetch("g"), [(0, 4)].into());
}

#[test]
fn what_older_brokers_left_of_deleted_groups_goes_at_the_start() {
    let site = site(14);
    let gone = br#"{"group":"g","deleted":true}"#;
    site.put(&path("g"), gone);
    site.put(
        &path(&"long".repeat(100)),
        br#"{"group":"other","deleted":true}"#,
    );
    site.put(
        &path("kept"),
        br#"{"group":"kept","deleted":true,"more":1}"#,
    );
    let running = Running::start(&site, 1);
    assert_eq!(running.fetch("g"), BTreeMap::new());
    running.world.pass(Duration::from_secs(2));
    assert!(file(&site, "g").is_none());
    assert!(
        file(&site, "kept").is_some(),
        "it has what nobody here knows"
    );
    assert_eq!(running.commit("g", 0, 5), Some(Ok(())));
    site.world.kill(1);
    assert_eq!(Running::start(&site, 2).fetch("g"), [(0, 5)].into());
}

/// Commits for a group, deletes it, and begins anew; `may` has what may be committed, 0 for none.
/// `None` where it hangs.
fn come_and_go(running: &Running, may: &mut Vec<i64>) -> Option<()> {
    for offset in 1..4 {
        may.push(offset);
        running.commit_until_done("g", 0, offset)?;
        *may = vec![offset];
        if offset == 3 {
            break;
        }
        may.push(0);
        let offsets = running.offsets.clone();
        let deleting = async move { offsets.delete_group("g").await };
        if running.world.run(deleting)? == Ok(()) {
            *may = vec![0];
        }
        // Its file goes.
        running.world.pass(Duration::from_secs(1));
    }
    Some(())
}

#[test]
fn a_group_that_comes_back_is_kept_whatever_its_removal_met() {
    let counted = Interrupt::none();
    let running = Running::try_start(&site(0), 1, counted.clone()).unwrap();
    let begun = counted.steps();
    come_and_go(&running, &mut vec![0]).unwrap();
    let ended = counted.steps();
    assert!(ended > begun + 50, "{begun} to {ended}");
    let hows = [
        How::Stop,
        How::Once(StepOutcome::Fail(StepFault::Io)),
        How::Once(StepOutcome::FailAfter(StepFault::Io)),
        How::Once(StepOutcome::Late(StepFault::Io)),
    ];
    for (at, how) in (begun..ended).zip(hows.iter().cycle()) {
        let site = site(at);
        let hook = Interrupt::new(at, *how);
        let running = Running::try_start(&site, 1, hook).unwrap();
        let mut may = vec![0];
        let survived = come_and_go(&running, &mut may).is_some();
        assert!(survived || *how == How::Stop, "step {at}, {how:?}");
        for process in 2..4 {
            site.world.kill(process - 1);
            if *how == How::Stop {
                site.volume.power_cut(at);
            }
            let again = Running::start(&site, process);
            let found = again.fetch("g").get(&0).copied().unwrap_or(0);
            assert!(
                may.contains(&found),
                "step {at}, {how:?}: {found} of {may:?}"
            );
            again.commit_until_done("g", 0, 100).unwrap();
            may = vec![100];
            while !site.volume.late().is_empty() {
                // What it was for is gone, or condemned.
                drop(site.volume.run_late(0));
            }
        }
    }
}

#[test]
fn a_group_whose_offsets_expired_is_gone() {
    let site = site(12);
    let mut config = GroupConfig::default();
    config.offsets.retention_ms = 60_000;
    config.offsets.retention_check_interval = Duration::from_secs(10);
    let running = Running::start_with(&site, 1, &config);
    assert_eq!(running.commit("g", 0, 5), Some(Ok(())));
    site.world.pass(Duration::from_secs(50));
    assert_eq!(running.commit("h", 0, 6), Some(Ok(())));
    assert_eq!(running.fetch("g"), [(0, 5)].into());
    site.world.pass(Duration::from_secs(30));
    assert_eq!(running.fetch("g"), BTreeMap::new());
    running.world.pass(Duration::from_secs(1));
    assert!(file(&site, "g").is_none());
    assert_eq!(running.fetch("h"), [(0, 6)].into());
}

/// Ends a transaction of producer 7 for a group, durably.
fn decide(running: &Running, group: &str, txn_seq: u64, commit: bool) {
    let decided = running.offsets.decide(group, ended(txn_seq, commit));
    let pending = decided.unwrap().expect("nothing earlier is open");
    assert_eq!(running.world.run(pending.durable()), Some(Ok(())));
}

/// An offset of a transaction of producer 7.
fn staged(running: &Running, txn_seq: u64) -> (NewTxn, NewOffset) {
    let view = running.node.view();
    let txn = NewTxn {
        producer_id: ProducerId(7),
        producer_epoch: ProducerEpoch(0),
        transactional_id: "tx".into(),
        txn_seq,
    };
    let new = NewOffset {
        topic: "a".into(),
        topic_id: view.topics.get("a").unwrap().id,
        partition: 0,
        offset: 5,
        leader_epoch: None,
        metadata: "".into(),
    };
    (txn, new)
}

/// What becomes of an offset that is staged for a transaction of producer 7, once it is durable.
fn stage(running: &Running, group: &str, txn_seq: u64) -> Result<(), StageError> {
    let (txn, new) = staged(running, txn_seq);
    let staged = running.offsets.stage(group, SIMPLE, -1, &txn, vec![new]);
    let pending = staged.unwrap()?;
    assert_eq!(running.world.run(pending.durable()), Some(Ok(())));
    Ok(())
}

/// An offset of a transaction that has ended would be staged for ever.
#[test]
fn an_offset_that_comes_behind_the_end_of_its_transaction_is_refused() {
    let site = site(13);
    let mut config = GroupConfig::default();
    config.offsets.retention_check_interval = Duration::from_secs(10);
    config.offsets.producer_id_expiration_ms = 60_000;
    let start = |process| Running::start_with(&site, process, &config);
    let first = start(1);
    let remove = |running: &Running, group: &'static str| {
        let offsets = running.offsets.clone();
        let deleted = running
            .world
            .run(async move { offsets.delete_group(group).await });
        deleted.unwrap()
    };
    // One that never was, one that was deleted, one that is deleted behind the decision.
    first.commit("deleted", 0, 1).unwrap().unwrap();
    assert_eq!(remove(&first, "deleted"), Ok(()));
    first.commit("late", 0, 1).unwrap().unwrap();
    let groups = ["never", "deleted", "late"];
    for group in groups {
        decide(&first, group, 1, false);
    }
    assert_eq!(remove(&first, "late"), Ok(()));
    let refused = |running: &Running| {
        for group in groups {
            let late = stage(running, group, 1);
            assert_eq!(late, Err(StageError::Decided), "{group}");
            // It is no group that clients see.
            assert_eq!(running.fetch(group), BTreeMap::new());
            assert_eq!(remove(running, group), Err(GroupError::GroupIdNotFound));
        }
    };
    refused(&first);
    site.world.pass(Duration::from_secs(30));
    refused(&first);
    site.world.kill(1);
    site.volume.power_cut(3);
    let second = start(2);
    refused(&second);
    // The next transaction of the producer is none of that.
    assert_eq!(stage(&second, "never", 2), Ok(()));
    decide(&second, "never", 2, true);
    assert_eq!(second.fetch("never"), [(0, 5)].into());
    // Producer ids live so long.
    site.world.pass(Duration::from_secs(90));
    for group in ["deleted", "late"] {
        assert!(file(&site, group).is_none(), "{group}");
    }
    assert_eq!(second.fetch("never"), [(0, 5)].into());
}

#[test]
fn deletions_of_many_groups_are_written_side_by_side() {
    let site = site(45);
    let running = Running::start(&site, 1);
    for group in ["g", "h"] {
        assert_eq!(running.commit(group, 0, 5), Some(Ok(())));
    }
    let first = running.offsets.delete_group("g");
    let second = running.offsets.delete_group("h");
    // Ordered: nobody waits for the first one.
    assert_eq!(site.world.run(second), Some(Ok(())));
    assert_eq!(running.fetch("g"), BTreeMap::new());
    assert_eq!(site.world.run(first), Some(Ok(())));
    assert_eq!(running.groups.describe("g"), Ok(None));
}

#[test]
fn offsets_of_all_groups_share_their_memory() {
    let site = site(46);
    let config = GroupConfig {
        offsets_bytes_max: 2_000,
        ..GroupConfig::default()
    };
    let start = |process| Running::start_with(&site, process, &config);
    let first = start(1);
    for group in ["g", "h"] {
        assert_eq!(first.commit(group, 0, 5), Some(Ok(())));
    }
    let refused = Some(Err(GroupError::CoordinatorNotAvailable));
    let full = |running: &Running| {
        assert_eq!(running.commit("i", 0, 5), refused);
        assert!(running.groups.cell("i").is_none(), "nothing is kept of it");
        assert_eq!(running.commit("g", 1, 5), refused);
        // What is there goes on.
        assert_eq!(running.commit("g", 0, 6), Some(Ok(())));
    };
    full(&first);
    site.world.kill(1);
    let second = start(2);
    for group in ["g", "h"] {
        second.fetch(group);
    }
    full(&second);
    assert_eq!(second.delete_group("h"), Ok(()));
    site.world.pass(Duration::from_secs(1));
    assert_eq!(second.commit("i", 0, 5), Some(Ok(())));
}

/// They are kept beside what is committed, and a repeat takes no more.
#[test]
fn staged_offsets_take_their_room() {
    let site = site(47);
    let config = GroupConfig {
        offsets_bytes_max: 1_400,
        ..GroupConfig::default()
    };
    let running = Running::start_with(&site, 1, &config);
    assert_eq!(running.commit("g", 0, 5), Some(Ok(())));
    let (txn, new) = staged(&running, 1);
    let refused = running.offsets.stage("g", SIMPLE, -1, &txn, vec![new]);
    assert_eq!(refused.err(), Some(GroupError::CoordinatorNotAvailable));
    assert_eq!(running.delete_group("g"), Ok(()));
    site.world.pass(Duration::from_secs(1));
    for _ in 0..2 {
        assert_eq!(stage(&running, "h", 1), Ok(()));
    }
}
