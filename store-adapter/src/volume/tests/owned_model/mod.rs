//! Exhaustive search over the owned-file primitive, every interleaving of the steps that others
//! can see: of the real code on a memory volume with two owners, and of a pure model of its steps
//! with three. Both run the same schedules, and each step of the code must be the model's.
//!
//! Each owner takes one area over and makes writes that add to what it read. At every moment the
//! target must hold every write that was acknowledged. An owner that is paused before its rename
//! is also a file server that executes the rename late; an owner that is told of an error while
//! its rename still waits on the server is a choice of its own. A stopped owner needs no choice:
//! it is one that the schedule never comes back to.

mod model;

use std::collections::{BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{counter, path};
use crate::fault::{Fault, plant};
use crate::ids::{BrokerId, OwnerEpoch};
use crate::runtime::BoxFuture;
use crate::volume::memory::{
    MemoryVolume, Step, StepAnswer, StepFault, StepHook, StepOp, StepOutcome,
};
use crate::volume::owned::{Area, Claim, OwnedError, OwnedFiles, PresentOwner};
use crate::volume::{Volume, VolumePath, block_on};

use model::{Bounds, Choice, Model};

const AREA: Area = Area::TxnSlot(0);

fn target() -> VolumePath {
    path("state/slot-0.json")
}

/// Holds an owner before each step that another owner could see, until the schedule lets it go.
#[derive(Debug, Clone, Default)]
struct Gate(Arc<Mutex<GateState>>);

#[derive(Debug, Default)]
struct GateState {
    waiting: Option<Step>,
    go: Option<StepOutcome>,
    /// A hash of all that the owner was answered: with the schedule of no one else known to it,
    /// this is its whole state.
    seen: u64,
}

/// Whether an owner could learn from another whether this step was done yet. Syncs decide nothing
/// without a crash; a ticket's bytes are seen after its rename only, and a file's never change
/// after that; the target's mark and all directories are there from the beginning.
fn is_seen_by_others(step: &Step) -> bool {
    match step.op {
        StepOp::CreateNew => !step.path.file_name().starts_with("w-"),
        StepOp::Rename | StepOp::Remove | StepOp::List | StepOp::Read | StepOp::Open => true,
        _ => false,
    }
}

impl StepHook for Gate {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        if !is_seen_by_others(step) {
            return Box::pin(std::future::ready(StepOutcome::Proceed));
        }
        self.0.lock().waiting = Some(step.clone());
        let gate = self.0.clone();
        Box::pin(std::future::poll_fn(move |_| {
            let mut gate = gate.lock();
            match gate.go.take() {
                Some(outcome) => {
                    gate.waiting = None;
                    Poll::Ready(outcome)
                }
                None => Poll::Pending,
            }
        }))
    }

    fn after(&self, step: &Step, answer: StepAnswer<'_>) {
        let mut gate = self.0.lock();
        let mut hasher = DefaultHasher::new();
        gate.seen.hash(&mut hasher);
        step.op.hash(&mut hasher);
        match answer {
            StepAnswer::Done => 0.hash(&mut hasher),
            StepAnswer::Number(n) => n.hash(&mut hasher),
            StepAnswer::Bytes(bytes) => bytes.hash(&mut hasher),
            StepAnswer::Names(names) => {
                for entry in names {
                    entry.name.hash(&mut hasher);
                }
            }
            StepAnswer::Failed(error) => error.to_string().hash(&mut hasher),
        }
        gate.seen = hasher.finish();
    }
}

/// The writes in a target, one byte each.
type Writes = BTreeSet<u8>;

fn encode(writes: &Writes) -> Bytes {
    // Never empty: an empty target is one that was never written.
    let mut bytes = vec![b'!'];
    bytes.extend(writes);
    Bytes::from(bytes)
}

fn decode(bytes: &[u8]) -> Writes {
    bytes[1..].iter().copied().collect()
}

async fn read(claim: &Claim) -> Result<Writes, OwnedError> {
    let bytes = claim.read(&target(), 1000).await?;
    Ok(decode(&bytes.unwrap()))
}

/// One owner: takes over, then adds its writes one by one.
async fn owner(
    files: OwnedFiles,
    number: u8,
    writes: u8,
    acknowledged: Arc<Mutex<Writes>>,
) -> Result<(), OwnedError> {
    let instance = u64::from(number) + 1;
    let present = PresentOwner {
        epoch: OwnerEpoch {
            assignment: 1,
            instance,
        },
        broker: BrokerId(i32::from(number)),
        instance,
    };
    let claim = loop {
        match files.take_over(AREA, present).await {
            Err(OwnedError::NotApplied(_) | OwnedError::MaybeApplied(_)) => {}
            outcome => break outcome?,
        }
    };
    let mut known = read(&claim).await?;
    for write in 0..writes {
        let id = number * 2 + write;
        known.insert(id);
        match claim.replace(&target(), encode(&known)).await {
            Ok(()) => {
                acknowledged.lock().insert(id);
            }
            Err(OwnedError::Stale) => return Err(OwnedError::Stale),
            Err(_) => known = read(&claim).await?,
        }
    }
    Ok(())
}

type Task = Pin<Box<dyn Future<Output = Result<(), OwnedError>>>>;

struct Owner {
    gate: Gate,
    task: Option<Task>,
}

/// The real code, and the model beside it.
struct World {
    bounds: Bounds,
    volume: MemoryVolume,
    owners: Vec<Owner>,
    acknowledged: Arc<Mutex<Writes>>,
    model: Model,
}

impl World {
    fn new(bounds: Bounds) -> Self {
        let volume = MemoryVolume::new();
        block_on(prepare(&volume)).unwrap();
        let acknowledged = Arc::new(Mutex::new(Writes::new()));
        let owners = (0..bounds.owners).map(|index| {
            let number = u8::try_from(index).unwrap();
            let gate = Gate::default();
            let mount = Arc::new(volume.mount(Arc::new(gate.clone()), None));
            let files = OwnedFiles::new(mount, counter(u64::from(number) << 32));
            let task = owner(files, number, bounds.writes, acknowledged.clone());
            let task: Option<Task> = Some(Box::pin(task));
            Owner { gate, task }
        });
        let mut world = Self {
            owners: owners.collect(),
            volume,
            acknowledged,
            model: Model::new(&bounds),
            bounds,
        };
        for index in 0..world.owners.len() {
            world.poll(index);
        }
        world
    }

    fn poll(&mut self, index: usize) {
        let owner = &mut self.owners[index];
        let Some(task) = &mut owner.task else { return };
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(outcome) = task.as_mut().poll(&mut context) {
            assert!(
                matches!(outcome, Ok(()) | Err(OwnedError::Stale)),
                "{outcome:?}"
            );
            owner.task = None;
        }
    }

    /// Does `choice` in both, and compares what every owner is about to do.
    fn apply(&mut self, choice: Choice) {
        self.model.apply(&self.bounds, choice);
        let go = match choice {
            Choice::Execute => {
                // Without its source it does nothing, which is the point.
                drop(self.volume.run_late(0));
                None
            }
            Choice::Go(index) => Some((index, StepOutcome::Proceed)),
            Choice::Late(index) => Some((index, StepOutcome::Late(StepFault::Io))),
        };
        if let Some((index, outcome)) = go {
            self.owners[index].gate.0.lock().go = Some(outcome);
            self.poll(index);
        }
        for (index, owner) in self.owners.iter().enumerate() {
            let waiting = owner.gate.0.lock().waiting.clone();
            let waiting = waiting.map(|step| (step.op, step.path.file_name().to_owned()));
            assert_eq!(
                waiting,
                self.model.next(index),
                "owner {index} after {choice:?}"
            );
        }
        let mask = |writes: &Writes| writes.iter().fold(0, |mask, write| mask | (1 << write));
        assert_eq!(mask(&self.acknowledged.lock()), self.model.acknowledged);
        assert_eq!(mask(&self.target()), self.model.target);
    }

    fn target(&self) -> Writes {
        decode(&block_on(self.volume.read(&target(), 1000)).unwrap())
    }

    /// Every acknowledged write is in the target.
    fn nothing_is_lost(&self) -> bool {
        self.acknowledged.lock().is_subset(&self.target())
    }

    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.volume.fingerprint().hash(&mut hasher);
        self.acknowledged.lock().hash(&mut hasher);
        for owner in &self.owners {
            owner.gate.0.lock().seen.hash(&mut hasher);
        }
        hasher.finish()
    }
}

async fn prepare(volume: &MemoryVolume) -> Result<(), crate::volume::VolumeError> {
    volume.create_dir_all(&AREA.dir()).await?;
    volume.create_dir_all(&target().parent()).await?;
    let file = volume.create_new(&target()).await?;
    file.write_at(0, &[encode(&Writes::new())]).await?;
    let mark = AREA.dir().join("w-state%2Fslot-0.json");
    volume.create_new(&mark).await?;
    Ok(())
}

/// Runs the code by every schedule, each from its beginning, or to the first that loses an
/// acknowledged write. Returns the most writes that one schedule acknowledged.
fn search_code(bounds: Bounds) -> Result<usize, Vec<Choice>> {
    let mut visited = HashSet::new();
    let mut most_acknowledged = 0;
    let mut prefixes: Vec<Vec<Choice>> = vec![Vec::new()];
    while let Some(mut schedule) = prefixes.pop() {
        let mut world = World::new(bounds);
        for choice in &schedule {
            world.apply(*choice);
        }
        loop {
            if !world.nothing_is_lost() {
                return Err(schedule);
            }
            if !visited.insert(world.key()) {
                break;
            }
            let choices = world.model.choices();
            let Some((first, others)) = choices.split_first() else {
                most_acknowledged = most_acknowledged.max(world.acknowledged.lock().len());
                break;
            };
            for other in others {
                let mut schedule = schedule.clone();
                schedule.push(*other);
                prefixes.push(schedule);
            }
            schedule.push(*first);
            world.apply(*first);
        }
    }
    Ok(most_acknowledged)
}

fn bounds(owners: usize, writes: u8, late: u8) -> Bounds {
    Bounds {
        owners,
        writes,
        late,
        second_sweep: true,
    }
}

#[test]
fn the_code_loses_nothing_with_two_owners() {
    let most = search_code(bounds(2, 1, 0)).unwrap_or_else(|lost| panic!("lost by {lost:?}"));
    // One owner after the other.
    assert_eq!(most, 2);
}

#[test]
fn the_code_without_the_second_sweep_loses_a_write() {
    plant(Some(Fault::NoSecondSweep));
    let bounds = Bounds {
        second_sweep: false,
        ..bounds(2, 1, 0)
    };
    let found = search_code(bounds);
    plant(None);
    assert!(found.is_err(), "the search is blind");
}

#[test]
fn the_code_does_the_steps_of_the_model() {
    let mut acknowledged = BTreeSet::new();
    for seed in 0..500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = World::new(bounds(3, 2, 2));
        // Often one owner for a while, or else nobody is left to acknowledge anything.
        let mut favourite = rng.usize(0..3);
        while let Some(any) = rng.choice(world.model.choices()) {
            let same = |choice: &Choice| *choice == Choice::Go(favourite);
            let keep = rng.u8(0..4) > 0;
            let preferred = world
                .model
                .choices()
                .into_iter()
                .find(same)
                .filter(|_| keep);
            if preferred.is_none() {
                favourite = rng.usize(0..3);
            }
            world.apply(preferred.unwrap_or(any));
            assert!(world.nothing_is_lost(), "seed {seed}");
        }
        acknowledged.insert(world.acknowledged.lock().len());
    }
    // From schedules that acknowledged nothing or little to those that acknowledged all.
    assert!(acknowledged.len() >= 5, "{acknowledged:?}");
}

fn model_loses_nothing(bounds: Bounds) {
    let searched = model::search(&bounds).unwrap_or_else(|lost| panic!("lost: {lost:?}"));
    println!("{bounds:?}: {searched:?}");
    let all = u32::from(bounds.writes) * u32::try_from(bounds.owners).unwrap();
    assert_eq!(searched.most_acknowledged, all);
}

#[test]
fn three_owners_with_two_writes_lose_nothing() {
    model_loses_nothing(bounds(3, 2, 0));
}

#[test]
fn renames_executed_late_lose_nothing() {
    model_loses_nothing(bounds(2, 2, 2));
    model_loses_nothing(bounds(3, 1, 1));
}

#[test]
fn the_model_without_the_second_sweep_loses_a_write() {
    let bounds = Bounds {
        second_sweep: false,
        ..bounds(2, 1, 0)
    };
    assert!(model::search(&bounds).is_err(), "the search is blind");
}
