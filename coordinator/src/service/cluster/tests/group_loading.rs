//! Groups while their files are found and read: what is answered, and by whom it is not held up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use store_adapter::runtime::BoxFuture;
use store_adapter::volume::VolumePath;
use store_adapter::volume::memory::{Step, StepFault, StepHook, StepOp, StepOutcome};
use tokio::sync::watch;

use super::group_members::{caller, new_member};
use super::groups::{Running, path, site};
use crate::machine::group::GroupError;
use crate::service::groups::{Reply, TopicPartitions};

/// Files that can't be opened until they are healed.
#[derive(Debug)]
struct Unreadable {
    paths: Vec<VolumePath>,
    /// Whether it is an error to open them; else it takes until they are healed.
    fails: bool,
    healed: watch::Sender<bool>,
    met: AtomicU64,
}

impl Unreadable {
    fn new(groups: &[&str], fails: bool) -> Arc<Self> {
        Arc::new(Self {
            paths: groups.iter().map(|group| path(group)).collect(),
            fails,
            healed: watch::channel(false).0,
            met: AtomicU64::new(0),
        })
    }

    fn heal(&self) {
        self.healed.send_replace(true);
    }
}

impl StepHook for Unreadable {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let mut healed = self.healed.subscribe();
        let met = step.op == StepOp::Open && self.paths.contains(&step.path);
        self.met.fetch_add(u64::from(met), Ordering::Relaxed);
        let fails = met && self.fails && !*healed.borrow();
        Box::pin(async move {
            if fails {
                return StepOutcome::Fail(StepFault::Io);
            }
            if met {
                healed.wait_for(|healed| *healed).await.unwrap();
            }
            StepOutcome::Proceed
        })
    }
}

impl Running {
    fn listed(&self) -> Result<Vec<String>, GroupError> {
        let listed = self.groups.list()?;
        Ok(listed.into_iter().map(|g| g.group.to_string()).collect())
    }
}

#[test]
fn a_file_that_does_not_tell_its_group_holds_up_no_other() {
    let site = site(40);
    let (bad, lost) = ("bad-".repeat(100), "lost".repeat(100));
    let first = Running::start(&site, 1);
    for group in [&*bad, &*lost, "good"] {
        assert_eq!(first.commit(group, 0, 5), Some(Ok(())));
    }
    site.world.kill(1);
    let hook = Unreadable::new(&[&bad, &lost], true);
    let second = Running::try_start(&site, 2, hook.clone()).unwrap();
    assert_eq!(second.fetch("good"), [(0, 5)].into());
    assert_eq!(second.commit("good", 0, 6), Some(Ok(())));
    let loading = Some(Err(GroupError::CoordinatorLoading));
    assert_eq!(second.commit(&bad, 0, 1), loading);
    site.world.pass(Duration::from_secs(2));
    assert_eq!(second.commit(&bad, 0, 1), loading);
    assert!(second.listed().unwrap().contains(&"good".to_owned()));
    hook.heal();
    // The one that somebody named, and the one that nobody did.
    site.world.pass(Duration::from_mins(1));
    let mut all = vec![bad.clone(), "good".to_owned(), lost.clone()];
    all.sort();
    assert_eq!(second.listed(), Ok(all));
    for group in [&bad, &lost] {
        assert_eq!(second.fetch(group), [(0, 5)].into());
    }
}

#[test]
fn a_group_that_is_not_read_yet_is_not_shown_as_an_empty_one() {
    let site = site(41);
    let first = Running::start(&site, 1);
    for group in ["slow", "good"] {
        assert_eq!(first.commit(group, 0, 5), Some(Ok(())));
    }
    site.world.kill(1);
    let loading = Err(GroupError::CoordinatorLoading);
    // It takes long to read it: a list would lack it.
    let hook = Unreadable::new(&["slow"], false);
    let second = Running::try_start(&site, 2, hook.clone()).unwrap();
    site.world.pass(Duration::from_secs(2));
    assert_eq!(second.groups.describe("slow"), loading.clone());
    assert_eq!(second.listed(), Err(GroupError::CoordinatorLoading));
    let Reply::Now(Err(refused)) = second.groups.join("slow", new_member()) else {
        panic!("it is not known who may join");
    };
    assert_eq!(refused.error, GroupError::CoordinatorLoading);
    assert_eq!(second.state("good"), Some("Empty"));
    hook.heal();
    site.world.pass(Duration::from_secs(1));
    assert_eq!(second.state("slow"), Some("Empty"));
    assert_eq!(
        second.listed(),
        Ok(vec!["good".to_owned(), "slow".to_owned()])
    );
    // It can't be read: others are listed without it.
    site.world.kill(2);
    let hook = Unreadable::new(&["slow"], true);
    let third = Running::try_start(&site, 3, hook.clone()).unwrap();
    site.world.pass(Duration::from_secs(2));
    assert_eq!(third.groups.describe("slow"), loading);
    assert_eq!(third.listed(), Ok(vec!["good".to_owned()]));
    hook.heal();
    site.world.pass(Duration::from_mins(1));
    assert_eq!(third.state("slow"), Some("Empty"));
}

#[test]
fn a_group_whose_members_a_restart_forgot_is_not_taken_for_an_empty_one() {
    let site = site(42);
    let first = Running::start(&site, 1);
    // Whose only member is never heard of again.
    let died = first.join_alone("died");
    assert_eq!(first.commit_as("died", &died, 5), Ok(()));
    site.world.pass(Duration::from_secs(61));
    for group in ["g", "back"] {
        let joined = first.join_alone(group);
        assert_eq!(first.commit_as(group, &joined, 5), Ok(()));
    }
    let left = first.join_alone("left");
    assert_eq!(first.commit_as("left", &left, 5), Ok(()));
    first.leave("left", &left);
    site.world.pass(Duration::from_secs(1));
    site.world.kill(1);
    site.volume.power_cut(42);
    let second = Running::start(&site, 2);
    let topics = [TopicPartitions {
        topic: "a".into(),
        partitions: vec![0],
    }];
    for group in ["g", "back"] {
        assert_eq!(second.fetch(group), [(0, 5)].into());
        assert_eq!(second.state(group), Some("PreparingRebalance"));
        // As to a group that has members.
        let unknown = Some(Err(GroupError::UnknownMemberId));
        assert_eq!(second.commit(group, 0, 1), unknown);
        let (outcomes, _) = second.offsets.delete(group, &topics).unwrap();
        assert_eq!(outcomes, [Err(GroupError::SubscribedToTopic)]);
    }
    assert_eq!(second.delete_group("g"), Err(GroupError::NonEmptyGroup));
    assert_eq!(second.fetch("g"), [(0, 5)].into());
    // Whose members had left, or were given up, is as empty as before.
    for group in ["left", "died"] {
        assert_eq!(second.state(group), Some("Empty"));
        assert_eq!(second.delete_group(group), Ok(()));
    }
    // With the first that comes back it is as ever.
    let joined = second.join_alone("back");
    let beat = second.groups.heartbeat("back", caller(&joined), 1);
    assert_eq!(beat, Ok(()));
    second.leave("back", &joined);
    assert_eq!(second.state("back"), Some("Empty"));
    assert_eq!(second.commit("back", 0, 1), Some(Ok(())));
    assert_eq!(second.delete_group("back"), Ok(()));
    // Where nobody comes back, its members are gone.
    site.world.pass(Duration::from_mins(1));
    assert_eq!(second.state("g"), Some("Empty"));
    assert_eq!(second.commit("g", 0, 1), Some(Ok(())));
    assert_eq!(second.delete_group("g"), Ok(()));
    assert_eq!(second.state("g"), None);
}

#[test]
fn who_looks_at_every_group_keeps_no_worker_busy() {
    let site = site(43);
    let running = Running::start(&site, 1);
    assert_eq!(running.commit("g", 0, 5), Some(Ok(())));
    let on_workers = site.world.on_workers();
    assert!(on_workers.contains("group-deadlines"), "{on_workers:?}");
    assert!(!on_workers.contains("group-retention"), "{on_workers:?}");
}

#[test]
fn files_that_stay_unreadable_are_tried_less_and_less_often() {
    let site = site(44);
    let first = Running::start(&site, 1);
    assert_eq!(first.commit("bad", 0, 5), Some(Ok(())));
    site.world.kill(1);
    let hook = Unreadable::new(&["bad"], true);
    let second = Running::try_start(&site, 2, hook.clone()).unwrap();
    let tries_in = |time: Duration| {
        let before = hook.met.load(Ordering::Relaxed);
        site.world.pass(time);
        hook.met.load(Ordering::Relaxed) - before
    };
    let first_minute = tries_in(Duration::from_mins(1));
    let second_minute = tries_in(Duration::from_mins(1));
    assert!(first_minute > second_minute, "{first_minute}");
    assert!((7..=8).contains(&second_minute), "{second_minute}");
    hook.heal();
    site.world.pass(Duration::from_secs(8));
    assert_eq!(second.fetch("bad"), [(0, 5)].into());
}
