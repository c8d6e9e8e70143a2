//! Members of groups on a memory volume: what of them outlives a crash.

use std::collections::BTreeMap;
use std::future::Future as _;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use store_adapter::volume::memory::{StepFault, StepOutcome};
use tokio::sync::oneshot;

use super::groups::{Running, file, site};
use super::world::{How, Interrupt, Site, host};
use crate::machine::group::GroupError;
use crate::machine::group::classic::{Caller, Join, Joined, Leaving, Protocol, Sync, SyncReply};
use crate::service::groups::{GroupConfig, Reply};

type Answer = oneshot::Receiver<SyncReply>;

pub(super) fn caller(joined: &Joined) -> Caller<'_> {
    Caller {
        member_id: joined.member_id.as_str(),
        instance_id: None,
    }
}

pub(super) fn new_member() -> Join {
    Join {
        member_id: "".into(),
        instance_id: None,
        client_id: "c".into(),
        client_host: "/127.0.0.1".into(),
        session_timeout_ms: 60_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: "consumer".into(),
        protocols: vec![Protocol {
            name: "range".into(),
            metadata: Bytes::new(),
        }],
        requires_member_id: false,
        supports_skip_assignment: true,
        reason: None,
    }
}

impl Running {
    /// Joins as the only member of a group, which is stable then.
    pub(super) fn join_alone(&self, group: &str) -> Joined {
        self.join_as(group, new_member())
    }

    fn join_as(&self, group: &str, join: Join) -> Joined {
        let joined = self.join(group, join);
        self.world
            .run(self.sync(group, &joined))
            .unwrap()
            .unwrap()
            .unwrap();
        joined
    }

    fn join(&self, group: &str, join: Join) -> Joined {
        match self.groups.join(group, join) {
            Reply::Now(reply) => reply.unwrap(),
            Reply::Later(reply) => self.world.run(reply).unwrap().unwrap().unwrap(),
        }
    }

    /// Asks for the assignment; a leader assigns to itself.
    fn sync(&self, group: &str, joined: &Joined) -> Answer {
        let leads = joined.leader == joined.member_id;
        let own = (joined.member_id.0.clone(), Bytes::from_static(b"a"));
        let sync = Sync {
            caller: caller(joined),
            generation: joined.generation,
            protocol_type: None,
            protocol_name: None,
            assignments: if leads { vec![own] } else { Vec::new() },
        };
        match self.groups.sync(group, sync) {
            Reply::Now(reply) => {
                let (told, wait) = oneshot::channel();
                told.send(reply).unwrap();
                wait
            }
            Reply::Later(wait) => wait,
        }
    }

    pub(super) fn leave(&self, group: &str, joined: &Joined) {
        let leaving = Leaving {
            member_id: joined.member_id.0.clone(),
            instance_id: None,
            reason: None,
        };
        assert_eq!(self.groups.leave(group, &[leaving]), Ok(vec![Ok(())]));
    }

    /// Commits as a member.
    pub(super) fn commit_as(
        &self,
        group: &str,
        joined: &Joined,
        offset: i64,
    ) -> Result<(), GroupError> {
        let who = (caller(joined), joined.generation);
        let pending = self.prepare_as(group, who, ("a", 0, offset))?;
        self.world.run(pending.durable()).unwrap()
    }

    pub(super) fn state(&self, group: &str) -> Option<&'static str> {
        let described = self.groups.describe(group).unwrap();
        described.map(|described| described.state.name())
    }
}

#[test]
fn a_member_is_a_stranger_after_a_crash_also_of_a_group_without_offsets() {
    let site = site(20);
    let first = Running::start(&site, 1);
    let joined = first.join_alone("g");
    site.world.pass(Duration::from_secs(1));
    let written = file(&site, "g").unwrap();
    assert_eq!(written.protocol_type.as_deref(), Some("consumer"));
    assert_eq!(written.offsets, Some(BTreeMap::new()));
    site.world.kill(1);
    site.volume.power_cut(20);
    let second = Running::start(&site, 2);
    assert_eq!(second.fetch("g"), BTreeMap::new());
    assert_eq!(second.state("g"), Some("PreparingRebalance"));
    let unknown = Err(GroupError::UnknownMemberId);
    assert_eq!(second.commit_as("g", &joined, 5), unknown);
    assert_eq!(second.groups.heartbeat("g", caller(&joined), 1), unknown);
    // A group that never was there is told apart.
    let missing = second.commit_as("h", &joined, 5);
    assert_eq!(missing, Err(GroupError::IllegalGeneration));
}

#[test]
fn what_a_static_member_sent_before_a_crash_does_not_fence_it() {
    let site = site(40);
    let first = Running::start(&site, 1);
    let fixed = || Join {
        instance_id: Some("i".into()),
        ..new_member()
    };
    let before = first.join_as("g", fixed());
    site.world.pass(Duration::from_secs(1));
    site.world.kill(1);
    let second = Running::start(&site, 2);
    assert_eq!(second.fetch("g"), BTreeMap::new());
    let after = second.join_as("g", fixed());
    let commit = |joined: &Joined| {
        let caller = Caller {
            instance_id: Some("i"),
            ..caller(joined)
        };
        let prepared = second.prepare_as("g", (caller, joined.generation), ("a", 0, 5));
        prepared.map(drop)
    };
    assert_eq!(commit(&before), Err(GroupError::UnknownMemberId));
    assert_eq!(commit(&after), Ok(()));
    second.join_as("g", fixed());
    assert_eq!(commit(&after), Err(GroupError::FencedInstanceId));
}

#[test]
fn a_group_is_written_once_for_its_members() {
    let site = site(21);
    let running = Running::start(&site, 1);
    let writes = || {
        site.world.pass(Duration::from_secs(1));
        let counters = running.offsets.counters();
        counters.writes.load(std::sync::atomic::Ordering::Relaxed)
    };
    let joined = running.join_alone("g");
    assert_eq!(writes(), 1);
    running.leave("g", &joined);
    let joined = running.join_alone("g");
    assert_eq!(writes(), 1, "nothing is new");
    assert_eq!(running.commit_as("g", &joined, 5), Ok(()));
    assert_eq!(writes(), 2);
}

#[test]
fn a_group_that_lost_its_members_and_has_no_offsets_is_gone() {
    let site = site(22);
    let mut config = GroupConfig::default();
    config.offsets.retention_check_interval = Duration::from_secs(10);
    let start = |process| Running::start_with(&site, process, &config);
    let running = start(1);
    let joined = running.join_alone("g");
    site.world.pass(Duration::from_secs(30));
    assert_eq!(running.state("g"), Some("Stable"));
    running.leave("g", &joined);
    assert_eq!(running.state("g"), Some("Empty"));
    site.world.pass(Duration::from_secs(11));
    assert_eq!(running.state("g"), None);
    assert!(file(&site, "g").is_none());
    // One whose members a crash took, too; and it begins anew.
    running.join_alone("g");
    site.world.pass(Duration::from_secs(1));
    assert!(!file(&site, "g").unwrap().deleted);
    site.world.kill(1);
    let running = start(2);
    site.world.pass(Duration::from_secs(30));
    assert_eq!(running.state("g"), Some("PreparingRebalance"));
    site.world.pass(Duration::from_secs(45));
    assert_eq!(running.state("g"), None);
}

#[test]
fn when_a_group_became_empty_outlives_a_restart() {
    let site = site(23);
    let mut config = GroupConfig::default();
    config.offsets.retention_ms = 600_000;
    config.offsets.retention_check_interval = Duration::from_secs(10);
    let start = |process| Running::start_with(&site, process, &config);
    let running = start(1);
    let joined = running.join_alone("g");
    assert_eq!(running.commit_as("g", &joined, 5), Ok(()));
    running.leave("g", &joined);
    // Not from the commit, and not from the restart.
    site.world.pass(Duration::from_secs(20));
    site.world.kill(1);
    let running = start(2);
    site.world.pass(Duration::from_secs(280));
    site.world.pass(Duration::from_secs(270));
    assert_eq!(running.fetch("g"), [(0, 5)].into());
    site.world.pass(Duration::from_secs(50));
    assert_eq!(running.fetch("g"), BTreeMap::new());
    assert_eq!(running.state("g"), None);
}

#[test]
fn offsets_of_topics_that_no_member_reads_expire_while_the_group_is_stable() {
    let site = site(26);
    let mut config = GroupConfig::default();
    config.offsets.retention_ms = 20_000;
    config.offsets.retention_check_interval = Duration::from_secs(5);
    let running = Running::start_with(&site, 1, &config);
    let reading = |topic: &str| {
        let metadata = [
            b"\0\0\0\0\0\x01\0\x01",
            topic.as_bytes(),
            b"\xff\xff\xff\xff",
        ]
        .concat();
        Join {
            protocols: vec![Protocol {
                name: "range".into(),
                metadata: metadata.into(),
            }],
            ..new_member()
        }
    };
    for (group, topic) in [("same", "a"), ("other", "b")] {
        let joined = running.join_as(group, reading(topic));
        assert_eq!(running.commit_as(group, &joined, 5), Ok(()));
    }
    site.world.pass(Duration::from_secs(12));
    assert_eq!(running.fetch("other"), [(0, 5)].into());
    site.world.pass(Duration::from_secs(20));
    assert_eq!(running.fetch("same"), [(0, 5)].into());
    assert_eq!(running.fetch("other"), BTreeMap::new());
    for group in ["same", "other"] {
        assert_eq!(running.state(group), Some("Stable"));
    }
}

#[test]
fn a_group_is_gone_also_when_nobody_waits_for_its_deletion() {
    let site = site(24);
    let running = Running::start(&site, 1);
    let member = running.join_alone("g");
    assert_eq!(running.commit_as("g", &member, 5), Ok(()));
    running.leave("g", &member);
    let offsets = running.offsets.clone();
    let mut deletion = Box::pin(async move { offsets.delete_group("g").await });
    let polled = running.world.run(async move {
        let polled = std::future::poll_fn(|cx| Poll::Ready(deletion.as_mut().poll(cx))).await;
        // The client is gone.
        drop(deletion);
        polled
    });
    assert_eq!(polled, Some(Poll::Pending));
    site.world.pass(Duration::from_secs(1));
    assert!(file(&site, "g").is_none());
    assert_eq!(running.groups.describe("g"), Ok(None));
    assert!(running.groups.cell("g").is_none());
}

/// A stable group `g`, and its owner, which is held at step `at`.
fn held(site: &Site, at: u64) -> (Running, Arc<Interrupt>, Joined) {
    let hook = Interrupt::new(at, How::Hold);
    let old = Running::try_start(site, 1, hook.clone()).unwrap();
    let joined = old.join_alone("g");
    assert_eq!(old.commit_as("g", &joined, 5), Ok(()));
    (old, hook, joined)
}

#[test]
fn who_waits_on_a_group_that_another_process_took_is_sent_away() {
    let (_, counted, _) = held(&site(25), u64::MAX);
    let mut site = site(25);
    let (old, hook, joined) = held(&site, counted.steps());
    let Reply::Later(waits) = old.groups.join("g", new_member()) else {
        panic!("it waits for the first member");
    };
    let who = (caller(&joined), joined.generation);
    let commit = old.prepare_as("g", who, ("a", 0, 6)).unwrap();
    // It stands still long enough to be taken for dead.
    site.world.pass(Duration::from_secs(5));
    site.host = host("b", 1);
    site.host.boot_id = "another".into();
    let new = Running::start(&site, 2);
    assert_eq!(new.fetch("g"), [(0, 5)].into());
    hook.release();
    let told = site.world.run(commit.durable()).unwrap();
    assert_eq!(told, Err(GroupError::NotCoordinator));
    let told = site.world.run(waits).unwrap().unwrap().unwrap_err();
    assert_eq!(told.error, GroupError::NotCoordinator);
    assert!(old.groups.cell("g").is_none());
    assert_eq!(old.groups.list(), Ok(Vec::new()));
    let beat = old.groups.heartbeat("g", caller(&joined), 1);
    assert_eq!(beat, Err(GroupError::NotCoordinator));
}

/// Two members of the next generation of `g`, the leader first.
fn next_generation(running: &Running) -> [Joined; 2] {
    let waits = [(); 2].map(|()| match running.groups.join("g", new_member()) {
        Reply::Later(waits) => waits,
        Reply::Now(reply) => panic!("{reply:?}"),
    });
    let mut joined = waits.map(|waits| running.world.run(waits).unwrap().unwrap().unwrap());
    joined.sort_by_key(|joined| joined.leader != joined.member_id);
    joined
}

#[test]
fn the_next_generation_reads_what_was_accepted_of_the_last() {
    let (_, counted, _) = held(&site(27), u64::MAX);
    let site = site(27);
    let (running, hook, joined) = held(&site, counted.steps());
    // Accepted, and still being written when its member leaves.
    let who = (caller(&joined), joined.generation);
    let commit = running.prepare_as("g", who, ("a", 0, 6)).unwrap();
    running.leave("g", &joined);
    let [leader, follower] = next_generation(&running);
    let mut parked = running.sync("g", &follower);
    let mut leads = running.sync("g", &leader);
    // Also who asks again in a stable group.
    let mut again = running.sync("g", &follower);
    assert_eq!(running.state("g"), Some("Stable"));
    site.world.pass(Duration::from_secs(5));
    let empty = Some(oneshot::error::TryRecvError::Empty);
    for answer in [&mut parked, &mut leads, &mut again] {
        assert_eq!(
            answer.try_recv().err(),
            empty,
            "older offsets could be read"
        );
    }
    assert_eq!(running.fetch("g"), [(0, 5)].into());
    hook.release();
    for answer in [parked, leads, again] {
        assert!(site.world.run(answer).unwrap().unwrap().is_ok());
        assert_eq!(running.fetch("g"), [(0, 6)].into());
    }
    assert_eq!(site.world.run(commit.durable()), Some(Ok(())));
}

#[test]
fn a_new_group_is_known_before_its_members_are_answered() {
    let start = |hook: &Arc<Interrupt>| {
        let site = site(28);
        let running = Running::try_start(&site, 1, hook.clone()).unwrap();
        (site, running)
    };
    let counted = Interrupt::none();
    drop(start(&counted));
    let at = counted.steps();
    // Killed while it is written: nobody was told of an assignment.
    let (site, running) = start(&Interrupt::new(at, How::Hold));
    let joined = running.join("g", new_member());
    let mut answer = running.sync("g", &joined);
    site.world.pass(Duration::from_secs(5));
    assert!(answer.try_recv().is_err());
    site.world.kill(1);
    site.volume.power_cut(28);
    assert_eq!(Running::start(&site, 2).state("g"), None);
    // Not written: its member hears that, asks again, and is known.
    let mut refused = 0;
    for step in at..at + 8 {
        let failed = How::Once(StepOutcome::Fail(StepFault::NoSpace));
        let (site, running) = start(&Interrupt::new(step, failed));
        let joined = running.join("g", new_member());
        let told = || {
            let answer = running.sync("g", &joined);
            site.world.run(answer).unwrap().unwrap()
        };
        while let Err(error) = told() {
            assert_eq!(error, GroupError::CoordinatorNotAvailable);
            refused += 1;
            assert!(refused < 100, "step {step}");
            site.world.pass(Duration::from_secs(1));
        }
        is_known_after_a_crash(&site, &joined);
    }
    assert!(refused > 0, "no step failed");
}

fn is_known_after_a_crash(site: &Site, joined: &Joined) {
    site.world.kill(1);
    site.volume.power_cut(29);
    let second = Running::start(site, 2);
    assert_eq!(second.fetch("g"), BTreeMap::new());
    let unknown = Err(GroupError::UnknownMemberId);
    assert_eq!(second.commit_as("g", joined, 5), unknown);
}
