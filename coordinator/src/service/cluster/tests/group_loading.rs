//! Groups while their files are found and read: what is answered, and by whom it is not held up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use store_adapter::runtime::BoxFuture;
use store_adapter::volume::VolumePath;
use store_adapter::volume::memory::{Step, StepFault, StepHook, StepOp, StepOutcome};

use super::groups::{Running, path, site};
use crate::machine::group::GroupError;

/// Files that can't be opened.
#[derive(Debug)]
struct Unreadable {
    paths: Vec<VolumePath>,
    healed: AtomicBool,
}

impl Unreadable {
    fn new(groups: &[&str]) -> Arc<Self> {
        Arc::new(Self {
            paths: groups.iter().map(|group| path(group)).collect(),
            healed: AtomicBool::new(false),
        })
    }
}

impl StepHook for Unreadable {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let fails = step.op == StepOp::Open
            && self.paths.contains(&step.path)
            && !self.healed.load(Ordering::Relaxed);
        Box::pin(std::future::ready(if fails {
            StepOutcome::Fail(StepFault::Io)
        } else {
            StepOutcome::Proceed
        }))
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
    let hook = Unreadable::new(&[&bad, &lost]);
    let second = Running::try_start(&site, 2, hook.clone()).unwrap();
    assert_eq!(second.fetch("good"), [(0, 5)].into());
    assert_eq!(second.commit("good", 0, 6), Some(Ok(())));
    let loading = Some(Err(GroupError::CoordinatorLoading));
    assert_eq!(second.commit(&bad, 0, 1), loading);
    site.world.pass(Duration::from_secs(2));
    assert_eq!(second.commit(&bad, 0, 1), loading);
    assert!(second.listed().unwrap().contains(&"good".to_owned()));
    hook.healed.store(true, Ordering::Relaxed);
    // The one that somebody named, and the one that nobody did.
    site.world.pass(Duration::from_mins(1));
    let mut all = vec![bad.clone(), "good".to_owned(), lost.clone()];
    all.sort();
    assert_eq!(second.listed(), Ok(all));
    for group in [&bad, &lost] {
        assert_eq!(second.fetch(group), [(0, 5)].into());
    }
}
