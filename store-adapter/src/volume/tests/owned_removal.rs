//! Targets that are removed and written anew: in order, and when a process stops, a step fails or
//! is executed late, or the power is cut, at every one of the steps.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{counter, on_each_volume, path};
use crate::fault::{Fault, plant};
use crate::ids::{BrokerId, OwnerEpoch};
use crate::runtime::BoxFuture;
use crate::volume::memory::{MemoryVolume, Step, StepFault, StepHook, StepOutcome};
use crate::volume::owned::{Area, Claim, OwnedError, OwnedFiles, PresentOwner};
use crate::volume::{Volume, VolumePath, block_on};

const AREA: Area = Area::GroupSlot(3);
/// What a target says of which nothing is left.
const GONE: &str = "gone";

fn owner(instance: u64) -> PresentOwner {
    PresentOwner {
        epoch: OwnerEpoch {
            assignment: 1,
            instance,
        },
        broker: BrokerId(0),
        instance,
    }
}

async fn names(volume: &Arc<dyn Volume>, dir: &VolumePath) -> Vec<String> {
    let entries = volume.list(dir).await.unwrap();
    entries.into_iter().map(|entry| entry.name).collect()
}

#[test]
fn a_removed_target_was_never_written() {
    on_each_volume(async |volume| {
        volume.create_dir_all(&path("g")).await.unwrap();
        let files = OwnedFiles::new(volume.clone(), counter(0));
        let claim = files.take_over(AREA, owner(1)).await.unwrap();
        for name in ["short", &"l".repeat(240)] {
            let target = path("g").join(name);
            for text in ["one", "two"] {
                claim.replace(&target, Bytes::from(text)).await.unwrap();
                claim.remove(&target).await.unwrap();
                assert_eq!(claim.read(&target, 9).await, Ok(None), "{name}");
                assert_eq!(claim.is_condemned(&target).await, Ok(false));
            }
            // Also when it is not there.
            claim.remove(&target).await.unwrap();
            assert_eq!(names(&volume, &path("g")).await, [""; 0]);
            let left = names(&volume, &AREA.dir()).await;
            assert_eq!(left, ["current.json", "own-1.1"], "{name}");
        }
    });
}

#[test]
fn only_the_owner_removes() {
    on_each_volume(async |volume| {
        volume.create_dir_all(&path("g")).await.unwrap();
        let files = OwnedFiles::new(volume.clone(), counter(0));
        let target = path("g/x.json");
        let old = files.take_over(AREA, owner(1)).await.unwrap();
        old.replace(&target, Bytes::from(GONE)).await.unwrap();
        let new = files.take_over(AREA, owner(2)).await.unwrap();
        new.replace(&target, Bytes::from("new")).await.unwrap();
        assert_eq!(old.remove(&target).await, Err(OwnedError::Stale));
        let later = files.take_over(AREA, owner(3)).await.unwrap();
        assert_eq!(later.is_condemned(&target).await, Ok(false));
        let read = later.read(&target, 9).await;
        assert_eq!(read, Ok(Some(Bytes::from("new"))));
    });
}

/// Lets some steps in a row have these outcomes, and all others proceed.
#[derive(Debug)]
struct Disturb {
    from: usize,
    outcomes: Vec<StepOutcome>,
    count: Mutex<usize>,
}

impl StepHook for Disturb {
    fn before(&self, _: &Step) -> BoxFuture<'static, StepOutcome> {
        let mut count = self.count.lock();
        let at = count.checked_sub(self.from);
        let outcome = at.and_then(|at| self.outcomes.get(at));
        *count += 1;
        let outcome = outcome.copied().unwrap_or(StepOutcome::Proceed);
        Box::pin(std::future::ready(outcome))
    }
}

/// What the target may say; `None` is nothing.
type Known = Arc<Mutex<Vec<Option<String>>>>;

/// Repeats what fails without being certain to have happened.
macro_rules! until_done {
    ($attempt:expr) => {
        loop {
            match $attempt.await {
                Ok(done) => break done,
                Err(OwnedError::NotApplied(_) | OwnedError::MaybeApplied(_)) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    };
}

/// The first name that may be used.
async fn place(claim: &Claim) -> VolumePath {
    for number in 0..50 {
        let target = path(&format!("g/{number:02}.json"));
        if !until_done!(claim.is_condemned(&target)) {
            return target;
        }
    }
    panic!("every name is condemned");
}

/// Takes over, checks what it reads, deletes it, removes the target, and writes it anew.
async fn live(files: OwnedFiles, instance: u64, known: Known) {
    let claim = until_done!(files.take_over(AREA, owner(instance)));
    let target = place(&claim).await;
    let read = until_done!(claim.read(&target, 100));
    let read = read.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
    let read = read.filter(|text| text != GONE);
    assert!(
        known.lock().contains(&read),
        "{read:?} in {:?}",
        known.lock()
    );
    *known.lock() = vec![read, None];
    until_done!(claim.replace(&target, Bytes::from(GONE)));
    *known.lock() = vec![None];
    // However it ends, the next name that may be used is used.
    drop(claim.remove(&target).await);
    let text = format!("by {instance}");
    known.lock().push(Some(text.clone()));
    let target = place(&claim).await;
    until_done!(claim.replace(&target, Bytes::from(text.clone())));
    *known.lock() = vec![Some(text)];
}

struct World {
    volume: MemoryVolume,
    known: Known,
    instance: u64,
}

impl World {
    fn new() -> Self {
        let volume = MemoryVolume::new();
        block_on(volume.create_dir_all(&path("g"))).unwrap();
        Self {
            volume,
            known: Arc::new(Mutex::new(vec![None])),
            instance: 0,
        }
    }

    /// The next instance lives. Whether to its end, and how many steps it did.
    fn life(&mut self, from: usize, outcomes: &[StepOutcome]) -> (bool, usize) {
        self.instance += 1;
        let count = Mutex::new(0);
        let hook = Arc::new(Disturb {
            from,
            outcomes: outcomes.to_vec(),
            count,
        });
        let mount = Arc::new(self.volume.mount(hook.clone(), None));
        let files = OwnedFiles::new(mount, counter(self.instance << 32));
        let life = live(files, self.instance, self.known.clone());
        let mut context = Context::from_waker(Waker::noop());
        let ended = matches!(pin!(life).poll(&mut context), Poll::Ready(()));
        let steps = *hook.count.lock();
        (ended, steps)
    }

    fn healthy_life(&mut self) {
        let (ended, _) = self.life(0, &[]);
        assert!(ended);
    }
}

/// Disturbs every step of a life that finds a target, and of the life behind it.
fn each_step(outcomes: &[StepOutcome], mut then: impl FnMut(&mut World, usize)) {
    let mut world = World::new();
    world.healthy_life();
    let (_, steps) = world.life(0, &[]);
    assert!(steps > 30, "{steps}");
    for step in 0..steps {
        let mut world = World::new();
        world.healthy_life();
        world.life(step, outcomes);
        then(&mut world, step);
    }
}

#[test]
fn a_stop_at_any_step_loses_nothing() {
    for outcome in [StepOutcome::Stop, StepOutcome::StopAfter] {
        each_step(&[outcome], |world, _| {
            world.healthy_life();
            world.healthy_life();
        });
    }
}

#[test]
fn a_stop_of_one_after_the_other_loses_nothing() {
    each_step(&[StepOutcome::StopAfter], |world, _| {
        for step in (0..40).step_by(3) {
            world.life(step, &[StepOutcome::StopAfter]);
        }
        world.healthy_life();
    });
}

#[test]
fn an_error_at_any_step_loses_nothing() {
    let outcomes = [
        StepOutcome::Fail(StepFault::Io),
        StepOutcome::FailAfter(StepFault::Io),
    ];
    for outcome in outcomes {
        for width in [1, 2, 5] {
            each_step(&vec![outcome; width], |world, _| {
                world.healthy_life();
                world.healthy_life();
            });
        }
    }
}

/// What a server holds back is executed when others have written since.
fn executed_late() {
    let late = StepOutcome::Late(StepFault::Io);
    // Its process hears of an error, or stops.
    for outcomes in [&[late][..], &[late, StepOutcome::Stop]] {
        each_step(outcomes, |world, _| {
            world.healthy_life();
            while !world.volume.late().is_empty() {
                // Without its source it does nothing.
                drop(world.volume.run_late(0));
            }
            world.healthy_life();
            world.healthy_life();
        });
    }
}

#[test]
fn a_step_that_a_server_executes_late_loses_nothing() {
    executed_late();
}

#[test]
fn a_removal_that_is_not_announced_is_found() {
    plant(Some(Fault::RemovalNotAnnounced));
    let found = std::panic::catch_unwind(executed_late);
    plant(None);
    found.expect_err("nothing was lost");
}

#[test]
fn a_power_cut_at_any_step_loses_nothing() {
    each_step(&[StepOutcome::StopAfter], |world, step| {
        if step.is_multiple_of(2) {
            world.life(step / 2, &[StepOutcome::Stop]);
        }
        for seed in 0..12 {
            world.volume.power_cut(seed);
            world.life(step, &[StepOutcome::StopAfter]);
        }
        world.volume.power_cut(12);
        world.healthy_life();
    });
}
