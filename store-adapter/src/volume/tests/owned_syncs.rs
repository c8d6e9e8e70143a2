//! Replaces side by side in one directory: how many syncs they need, and that none is answered
//! before a sync that began behind its rename.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{counter, path};
use crate::fault::{Fault, plant};
use crate::ids::{BrokerId, OwnerEpoch};
use crate::runtime::BoxFuture;
use crate::volume::memory::{Step, StepFault, StepHook, StepOp, StepOutcome};
use crate::volume::owned::{Area, Claim, OwnedError, OwnedFiles, PresentOwner};
use crate::volume::{MemoryVolume, Volume, VolumePath, block_on};

const AREA: Area = Area::GroupSlot(3);

fn dir() -> VolumePath {
    path("groups")
}

/// Holds every sync of the directory until it is let go.
#[derive(Debug, Clone, Default)]
struct Hold(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    begun: usize,
    /// What becomes of the syncs that may end, in order.
    ends: Vec<StepOutcome>,
}

impl Hold {
    fn begun(&self) -> usize {
        self.0.lock().begun
    }

    fn end(&self, outcome: StepOutcome) {
        self.0.lock().ends.push(outcome);
    }
}

impl StepHook for Hold {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        if step.op != StepOp::SyncDir || step.path != dir() {
            return Box::pin(std::future::ready(StepOutcome::Proceed));
        }
        let number = {
            let mut held = self.0.lock();
            held.begun += 1;
            held.begun - 1
        };
        let held = self.0.clone();
        Box::pin(std::future::poll_fn(move |_| {
            match held.lock().ends.get(number) {
                Some(outcome) => Poll::Ready(*outcome),
                None => Poll::Pending,
            }
        }))
    }
}

type Replace = Pin<Box<dyn Future<Output = Result<(), OwnedError>>>>;

/// A replace as long as it is under way, and then its answer.
type UnderWay = (Option<Replace>, Option<Result<(), OwnedError>>);

/// Replaces under way, each with its answer once it has one.
struct World {
    volume: MemoryVolume,
    hold: Hold,
    claim: Arc<Claim>,
    replaces: Vec<UnderWay>,
}

impl World {
    fn new() -> Self {
        let volume = MemoryVolume::new();
        block_on(volume.create_dir_all(&dir())).unwrap();
        let hold = Hold::default();
        let mount = Arc::new(volume.mount(Arc::new(hold.clone()), None));
        let files = OwnedFiles::new(mount, counter(0));
        let owner = PresentOwner {
            epoch: OwnerEpoch {
                assignment: 1,
                instance: 1,
            },
            broker: BrokerId(0),
            instance: 1,
        };
        let claim = Arc::new(block_on(files.take_over(AREA, owner)).unwrap());
        Self {
            volume,
            hold,
            claim,
            replaces: Vec::new(),
        }
    }

    fn target(number: usize) -> VolumePath {
        dir().join(&format!("{number}.json"))
    }

    /// Begins `count` more replaces, each of a file of its own, as far as they come.
    fn begin(&mut self, count: usize) {
        for _ in 0..count {
            let target = Self::target(self.replaces.len());
            let claim = self.claim.clone();
            let replace: Replace =
                Box::pin(async move { claim.put(&target, Bytes::from_static(b"{}")).await });
            self.replaces.push((Some(replace), None));
            self.go_on();
        }
    }

    /// Polls all until none comes further.
    fn go_on(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        // The turn goes from one to the next, also backwards.
        for _ in 0..=self.replaces.len() {
            for (replace, answer) in &mut self.replaces {
                if let Some(future) = replace
                    && let Poll::Ready(outcome) = future.as_mut().poll(&mut context)
                {
                    *replace = None;
                    *answer = Some(outcome);
                }
            }
        }
    }

    fn end_sync(&mut self, outcome: StepOutcome) {
        self.hold.end(outcome);
        self.go_on();
    }

    fn answered(&self) -> Vec<usize> {
        let answers = self.replaces.iter().enumerate();
        let answers = answers.filter(|(_, (_, answer))| answer.is_some());
        answers.map(|(number, _)| number).collect()
    }

    /// Whether every replace that was answered well outlives a power cut.
    fn nothing_is_lost(&self) -> bool {
        let answers = self.replaces.iter().enumerate();
        let well: Vec<usize> = answers
            .filter(|(_, (_, answer))| *answer == Some(Ok(())))
            .map(|(number, _)| number)
            .collect();
        // The seed that keeps nothing that was not synced.
        let seed = (0..100).find(|seed| fastrand::Rng::with_seed(*seed).u8(0..4) == 0);
        self.volume.power_cut(seed.unwrap());
        well.into_iter()
            .all(|number| block_on(self.volume.open(&Self::target(number))).is_ok())
    }
}

#[test]
fn replaces_side_by_side_share_syncs() {
    let mut world = World::new();
    world.begin(5);
    // Four came while the first was syncing.
    assert_eq!((world.hold.begun(), world.answered().len()), (1, 0));
    world.end_sync(StepOutcome::Proceed);
    assert_eq!((world.hold.begun(), world.answered()), (2, vec![0]));
    // Too late for the second.
    world.begin(1);
    world.end_sync(StepOutcome::Proceed);
    assert_eq!(
        (world.hold.begun(), world.answered()),
        (3, vec![0, 1, 2, 3, 4])
    );
    world.end_sync(StepOutcome::Proceed);
    assert_eq!((world.hold.begun(), world.answered().len()), (3, 6));
    // Nobody syncs any more: who comes does.
    world.begin(1);
    world.end_sync(StepOutcome::Proceed);
    assert_eq!((world.hold.begun(), world.answered().len()), (4, 7));
    assert!(world.nothing_is_lost());
}

#[test]
fn at_no_moment_does_a_power_cut_lose_what_was_answered() {
    for ended in 0..4 {
        let mut world = World::new();
        world.begin(3);
        for _ in 0..ended {
            world.end_sync(StepOutcome::Proceed);
            world.begin(2);
        }
        assert!(world.nothing_is_lost(), "after {ended} syncs");
    }
}

#[test]
fn who_does_not_wait_for_the_shared_sync_is_found() {
    plant(Some(Fault::SyncNotAwaited));
    let mut world = World::new();
    world.begin(3);
    plant(None);
    assert!(!world.nothing_is_lost());
}

#[test]
fn a_sync_that_fails_is_everybodys_who_waited_for_it() {
    let mut world = World::new();
    world.begin(3);
    world.end_sync(StepOutcome::Proceed);
    world.begin(1);
    world.end_sync(StepOutcome::Fail(StepFault::Io));
    let is_uncertain = |number: usize| {
        let answer = &world.replaces[number].1;
        matches!(answer, Some(Err(OwnedError::MaybeApplied(_))))
    };
    assert_eq!(world.answered(), [0, 1, 2]);
    assert!(is_uncertain(1) && is_uncertain(2));
    world.end_sync(StepOutcome::Proceed);
    assert_eq!(world.replaces[3].1, Some(Ok(())));
}

#[test]
fn who_is_gone_gives_its_turn_on() {
    for gone in [&[0][..], &[1], &[0, 1], &[1, 2]] {
        let mut world = World::new();
        world.begin(4);
        for number in gone {
            world.replaces[*number].0 = None;
        }
        world.go_on();
        for _ in 0..4 {
            world.end_sync(StepOutcome::Proceed);
        }
        let left: Vec<usize> = (0..4).filter(|number| !gone.contains(number)).collect();
        assert_eq!(world.answered(), left, "without {gone:?}");
    }
}
