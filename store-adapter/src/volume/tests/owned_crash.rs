//! The owned-file primitive when a process stops, a step fails, or the power is cut, at every one
//! of its steps.

use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{counter, path};
use crate::fault::{Fault, plant};
use crate::ids::{BrokerId, OwnerEpoch};
use crate::runtime::BoxFuture;
use crate::volume::memory::{MemoryVolume, Step, StepFault, StepHook, StepOp, StepOutcome};
use crate::volume::owned::{Area, Claim, OwnedError, OwnedFiles, PresentOwner};
use crate::volume::{Volume, VolumePath};

const AREA: Area = Area::GroupSlot(3);

fn targets() -> [VolumePath; 2] {
    [path("a/x.json"), path("b/x.json")]
}

/// Lets some steps of a mount, one behind the other, have `outcome`, and all others proceed.
#[derive(Debug)]
struct At {
    steps: Range<usize>,
    outcome: StepOutcome,
    count: Mutex<usize>,
}

impl StepHook for At {
    fn before(&self, _: &Step) -> BoxFuture<'static, StepOutcome> {
        let mut count = self.count.lock();
        let outcome = if self.steps.contains(&count) {
            self.outcome
        } else {
            StepOutcome::Proceed
        };
        *count += 1;
        Box::pin(std::future::ready(outcome))
    }
}

/// What is known of each target: the last content that was acknowledged, and the one that was
/// written when something went wrong.
#[derive(Debug, Default, Clone)]
struct Known {
    acknowledged: BTreeMap<VolumePath, String>,
    uncertain: Option<(VolumePath, String)>,
}

impl Known {
    fn allows(&self, target: &VolumePath, content: Option<&str>) -> bool {
        let acknowledged = self.acknowledged.get(target).map(String::as_str);
        let uncertain = self.uncertain.as_ref();
        content == acknowledged
            || uncertain.is_some_and(|(of, text)| of == target && content == Some(text.as_str()))
    }
}

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

async fn read(claim: &Claim, target: &VolumePath) -> Result<Option<String>, OwnedError> {
    let bytes = claim.read(target, 100).await?;
    Ok(bytes.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()))
}

/// Takes over again until the error has passed.
async fn take_over(files: &OwnedFiles, instance: u64) -> Claim {
    loop {
        match files.take_over(AREA, owner(instance)).await {
            Ok(claim) => return claim,
            Err(OwnedError::NotApplied(_) | OwnedError::MaybeApplied(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

async fn read_surely(claim: &Claim, target: &VolumePath) -> Option<String> {
    loop {
        match read(claim, target).await {
            Ok(text) => return text,
            Err(OwnedError::NotApplied(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// One instance's life: takes over, checks what it reads, and writes each target twice.
async fn live(files: OwnedFiles, instance: u64, known: Arc<Mutex<Known>>) {
    let claim = take_over(&files, instance).await;
    for target in targets() {
        let text = read_surely(&claim, &target).await;
        let mut known = known.lock();
        assert!(
            known.allows(&target, text.as_deref()),
            "{text:?} in {known:?}"
        );
        if let Some(text) = text {
            known.acknowledged.insert(target, text);
        }
    }
    known.lock().uncertain = None;
    for round in 0..2 {
        for target in targets() {
            let text = format!("{instance}-{round}");
            let before = known.lock().acknowledged.get(&target).cloned();
            known.lock().uncertain = Some((target.clone(), text.clone()));
            let outcome = claim.replace(&target, Bytes::from(text.clone())).await;
            let now = match outcome {
                Ok(()) => Some(text),
                Err(OwnedError::NotApplied(_)) => {
                    let found = read_surely(&claim, &target).await;
                    assert_eq!(found, before, "not applied");
                    before
                }
                Err(OwnedError::MaybeApplied(_)) => {
                    let found = read_surely(&claim, &target).await;
                    let either = found == before || found.as_ref() == Some(&text);
                    assert!(either, "{found:?}");
                    found
                }
                Err(error) => panic!("{error:?}"),
            };
            let mut known = known.lock();
            known.uncertain = None;
            if let Some(now) = now {
                known.acknowledged.insert(target, now);
            }
        }
    }
}

/// Polls `life` until it ends or stops for good. Whether it ended.
fn run(life: impl Future<Output = ()>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    matches!(pin!(life).poll(&mut context), Poll::Ready(()))
}

struct World {
    volume: MemoryVolume,
    known: Arc<Mutex<Known>>,
    instance: u64,
}

impl World {
    fn new() -> Self {
        let volume = MemoryVolume::new();
        crate::volume::block_on(async {
            for target in targets() {
                volume.create_dir_all(&target.parent()).await.unwrap();
            }
        });
        Self {
            volume,
            known: Arc::default(),
            instance: 0,
        }
    }

    /// The next instance lives, with `outcome` at its `steps`. Whether it lived to its end, and
    /// how many steps it did.
    fn life(&mut self, steps: Range<usize>, outcome: StepOutcome) -> (bool, usize) {
        self.instance += 1;
        let count = Mutex::new(0);
        let hook = Arc::new(At {
            steps,
            outcome,
            count,
        });
        let mount = Arc::new(self.volume.mount(hook.clone(), None));
        let files = OwnedFiles::new(mount, counter(self.instance << 32));
        let ended = run(live(files, self.instance, self.known.clone()));
        let steps = *hook.count.lock();
        (ended, steps)
    }

    fn healthy_life(&mut self) {
        let (ended, _) = self.life(0..0, StepOutcome::Proceed);
        assert!(ended);
    }
}

fn each_step(outcome: StepOutcome, width: usize, mut then: impl FnMut(&mut World, usize)) {
    let (ended, steps) = World::new().life(0..0, StepOutcome::Proceed);
    assert!(ended);
    assert!(steps > 40, "{steps}");
    // In the first life of a volume, and in one that finds files.
    for lives_before in 0..2 {
        for step in 0..steps {
            let mut world = World::new();
            for _ in 0..lives_before {
                world.healthy_life();
            }
            let (ended, done) = world.life(step..step + width, outcome);
            let stops = matches!(outcome, StepOutcome::Stop | StepOutcome::StopAfter);
            // The second life is a little shorter.
            assert_eq!(ended, !stops || done <= step, "step {step}");
            then(&mut world, step);
        }
    }
}

#[test]
fn a_kill_at_any_step_loses_nothing_acknowledged() {
    for outcome in [StepOutcome::Stop, StepOutcome::StopAfter] {
        each_step(outcome, 1, |world, _| {
            world.healthy_life();
            world.healthy_life();
        });
    }
}

#[test]
fn an_error_at_any_step_is_answered_truly() {
    let outcomes = [
        StepOutcome::Fail(StepFault::Io),
        StepOutcome::Fail(StepFault::NoSpace),
        StepOutcome::FailAfter(StepFault::Io),
        StepOutcome::FailPartly {
            bytes: 1,
            fault: StepFault::NoSpace,
        },
    ];
    for outcome in outcomes {
        // One error, and some in a row: the clean-up fails too.
        for width in [1, 2, 5] {
            each_step(outcome, width, |world, _| world.healthy_life());
        }
    }
}

#[test]
fn a_rename_that_a_server_executes_late_harms_nobody() {
    each_step(StepOutcome::Late(StepFault::Io), 1, |world, step| {
        if step.is_multiple_of(2) {
            world.healthy_life();
        }
        for step in world.volume.late() {
            let executed = world.volume.run_late(0);
            if step.op == StepOp::Rename {
                // It must not find its source.
                assert!(executed.unwrap_err().is_not_found());
            }
        }
        world.healthy_life();
    });
}

fn power_cuts(seeds: Range<u64>) {
    each_step(StepOutcome::StopAfter, 1, |world, step| {
        // A kill, a restart from the page cache, work, and then the power.
        if step.is_multiple_of(2) {
            let step = step / 2 + 10;
            world.life(step..step + 1, StepOutcome::Stop);
        }
        for seed in seeds.clone() {
            world.volume.power_cut(seed);
            world.life(step..step + 1, StepOutcome::StopAfter);
        }
        world.volume.power_cut(seeds.end);
        world.healthy_life();
    });
}

#[test]
fn a_power_cut_at_any_step_loses_nothing_acknowledged() {
    power_cuts(0..12);
}

#[test]
fn a_power_cut_finds_a_directory_that_is_not_synced() {
    plant(Some(Fault::DirectoryNotSynced));
    let found = std::panic::catch_unwind(|| power_cuts(0..12));
    plant(None);
    let panicked = found.expect_err("nothing was lost");
    let why = panicked.downcast_ref::<String>().unwrap();
    assert!(why.contains(" in Known"), "{why}");
}
