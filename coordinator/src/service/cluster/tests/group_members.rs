//! Members of groups on a memory volume: what of them outlives a crash.

use std::collections::BTreeMap;
use std::future::Future as _;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;

use super::groups::{Running, file, serve_with, site};
use crate::machine::group::GroupError;
use crate::machine::group::classic::{Caller, Join, Joined, Leaving, Protocol, Sync};
use crate::service::groups::{GroupConfig, Reply};

fn caller(joined: &Joined) -> Caller<'_> {
    Caller {
        member_id: joined.member_id.as_str(),
        instance_id: None,
    }
}

impl Running {
    /// Joins as the only member of a group, which is stable then.
    fn join_alone(&self, group: &str) -> Joined {
        let join = Join {
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
        };
        let joined = match self.groups.join(group, join) {
            Reply::Now(reply) => reply.unwrap(),
            Reply::Later(reply) => self.world.run(reply).unwrap().unwrap().unwrap(),
        };
        let sync = Sync {
            caller: caller(&joined),
            generation: joined.generation,
            protocol_type: None,
            protocol_name: None,
            assignments: vec![(joined.member_id.0.clone(), Bytes::from_static(b"a"))],
        };
        match self.groups.sync(group, sync) {
            Reply::Now(reply) => reply.unwrap(),
            Reply::Later(reply) => self.world.run(reply).unwrap().unwrap().unwrap(),
        };
        joined
    }

    fn leave(&self, group: &str, joined: &Joined) {
        let leaving = Leaving {
            member_id: joined.member_id.0.clone(),
            instance_id: None,
            reason: None,
        };
        assert_eq!(self.groups.leave(group, &[leaving]), Ok(vec![Ok(())]));
    }

    /// Commits as a member.
    fn commit_as(&self, group: &str, joined: &Joined, offset: i64) -> Result<(), GroupError> {
        let who = (caller(joined), joined.generation);
        let pending = self.prepare_as(group, who, ("a", 0, offset))?;
        self.world.run(pending.durable()).unwrap()
    }

    fn state(&self, group: &str) -> Option<&'static str> {
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
    assert_eq!(second.state("g"), Some("Empty"));
    let unknown = Err(GroupError::UnknownMemberId);
    assert_eq!(second.commit_as("g", &joined, 5), unknown);
    assert_eq!(second.groups.heartbeat("g", caller(&joined), 1), unknown);
    // A group that never was there is told apart.
    let missing = second.commit_as("h", &joined, 5);
    assert_eq!(missing, Err(GroupError::IllegalGeneration));
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
    let start = |process| {
        let node = site.start(process);
        let running = serve_with(&site.world, node, process, config.clone());
        assert!(running.ready());
        running
    };
    let running = start(1);
    let joined = running.join_alone("g");
    site.world.pass(Duration::from_secs(30));
    assert_eq!(running.state("g"), Some("Stable"));
    running.leave("g", &joined);
    assert_eq!(running.state("g"), Some("Empty"));
    site.world.pass(Duration::from_secs(11));
    assert_eq!(running.state("g"), None);
    assert!(file(&site, "g").unwrap().deleted);
    // One whose members a crash took, too; and it begins anew.
    running.join_alone("g");
    site.world.pass(Duration::from_secs(1));
    assert!(!file(&site, "g").unwrap().deleted);
    site.world.kill(1);
    let running = start(2);
    assert_eq!(running.state("g"), Some("Empty"));
    site.world.pass(Duration::from_secs(11));
    assert_eq!(running.state("g"), None);
}

#[test]
fn when_a_group_became_empty_outlives_a_restart() {
    let site = site(23);
    let mut config = GroupConfig::default();
    config.offsets.retention_ms = 600_000;
    config.offsets.retention_check_interval = Duration::from_secs(10);
    let start = |process| {
        let node = site.start(process);
        let running = serve_with(&site.world, node, process, config.clone());
        assert!(running.ready());
        running
    };
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
    assert!(file(&site, "g").unwrap().deleted);
    assert_eq!(running.groups.describe("g"), Ok(None));
    assert!(running.groups.cell("g").is_none());
}
