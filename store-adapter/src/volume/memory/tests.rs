//! What a memory volume does beyond what every volume does.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::{MemoryVolume, Staleness, Step, StepAnswer, StepFault, StepHook, StepOp, StepOutcome};
use crate::runtime::{BoxFuture, Clock};
use crate::volume::{Volume, VolumeError, VolumePath, block_on};

/// Answers steps in order, and proceeds when it has no more answers. Keeps what it saw.
#[derive(Debug, Default)]
struct Script {
    outcomes: Mutex<VecDeque<StepOutcome>>,
    seen: Mutex<Vec<String>>,
}

impl StepHook for Script {
    fn before(&self, _: &Step) -> BoxFuture<'static, StepOutcome> {
        let next = self.outcomes.lock().pop_front();
        Box::pin(std::future::ready(next.unwrap_or(StepOutcome::Proceed)))
    }

    fn after(&self, step: &Step, answer: StepAnswer<'_>) {
        let line = format!("{:?} {} {answer:?}", step.op, step.path);
        self.seen.lock().push(line);
    }
}

fn script(outcomes: impl IntoIterator<Item = StepOutcome>) -> Arc<Script> {
    Arc::new(Script {
        outcomes: Mutex::new(outcomes.into_iter().collect()),
        seen: Mutex::default(),
    })
}

#[derive(Debug, Default)]
struct Hand(Mutex<Duration>);

impl Clock for Hand {
    fn wall_ms(&self) -> i64 {
        0
    }
    fn monotonic(&self) -> Duration {
        *self.0.lock()
    }
    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        unreachable!("nothing here sleeps")
    }
}

fn name(text: &str) -> VolumePath {
    VolumePath::root().join(text)
}

fn text(text: &str) -> [Bytes; 1] {
    [Bytes::copy_from_slice(text.as_bytes())]
}

fn never<T>(future: impl Future<Output = T>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    matches!(pin!(future).poll(&mut context), Poll::Pending)
}

#[test]
fn a_hook_decides_about_each_step() {
    let volume = MemoryVolume::new();
    let partly = StepOutcome::FailPartly {
        bytes: 3,
        fault: StepFault::NoSpace,
    };
    let script = script([
        StepOutcome::Fail(StepFault::ReadOnly),
        StepOutcome::FailAfter(StepFault::Io),
        StepOutcome::Fail(StepFault::TooManyOpenFiles),
        StepOutcome::Proceed,
        partly,
        StepOutcome::Late(StepFault::Io),
        StepOutcome::Late(StepFault::Io),
        StepOutcome::Stop,
    ]);
    let mount = volume.mount(script.clone(), None);
    let (a, b) = (name("a"), name("b"));
    block_on(async {
        let path = || "a".to_owned();
        let refused = mount.create_new(&a).await.unwrap_err();
        assert_eq!(refused, VolumeError::ReadOnly { path: path() });
        assert!(mount.create_new(&a).await.is_err());
        let refused = mount.open_write(&a).await.unwrap_err();
        assert_eq!(refused, VolumeError::TooManyOpenFiles { path: path() });
        let file = mount.open_write(&a).await.unwrap();
        let refused = file.write_at(0, &text("12345")).await.unwrap_err();
        assert_eq!(refused, VolumeError::NoSpace { path: path() });
        assert_eq!(&volume.read(&a, 9).await.unwrap()[..], b"123");
        assert!(mount.rename(&a, &b).await.is_err());
        assert!(mount.remove(&a).await.is_err());
        assert_eq!(volume.late().len(), 2);
        assert!(volume.open(&a).await.is_ok());
        volume.run_late(0).unwrap();
        assert!(volume.run_late(0).unwrap_err().is_not_found());
        assert!(volume.run_late(0).unwrap_err().is_not_found());
        assert_eq!(&volume.read(&b, 9).await.unwrap()[..], b"123");
        assert!(never(mount.remove(&b)));
        assert!(volume.open(&b).await.is_ok());
        mount.read(&b, 9).await.unwrap();
    });
    let seen = script.seen.lock();
    // Each step that answered.
    assert_eq!(seen.len(), 8);
    assert_eq!(seen[7], r#"Read b Bytes(b"123")"#);
}

#[test]
fn names_are_durable_with_their_directory() {
    let mut lost = 0;
    for seed in 0..60 {
        let volume = MemoryVolume::new();
        block_on(async {
            let dir = name("d");
            volume.create_dir_all(&dir).await.unwrap();
            for (file, synced) in [("old", true), ("new", true), ("other", false)] {
                let file = volume.create_new(&dir.join(file)).await.unwrap();
                file.write_at(0, &text("text")).await.unwrap();
                if synced {
                    file.sync_data().await.unwrap();
                }
            }
            volume.sync_dir(&dir).await.unwrap();
            volume.create_new(&dir.join("unsynced")).await.unwrap();
            volume
                .rename(&dir.join("new"), &dir.join("old"))
                .await
                .unwrap();
            volume.power_cut(seed);
            let names = volume.list(&dir).await.unwrap();
            let names: Vec<_> = names.iter().map(|entry| entry.name.as_str()).collect();
            // The rename is there or not, as a whole.
            let whole = names.contains(&"old") && names.contains(&"other");
            assert!(whole, "{names:?}");
            lost += usize::from(names.contains(&"new"))
                + 100 * usize::from(names.contains(&"unsynced"));
            let old = volume.read(&dir.join("old"), 9).await.unwrap();
            assert_eq!(&old[..], b"text");
        });
    }
    // Each happened, and each did not.
    assert!(
        (1..60).contains(&(lost % 100)) && (1..60).contains(&(lost / 100)),
        "{lost}"
    );
}

#[test]
fn a_directory_that_nobody_synced_takes_its_files_with_it() {
    let gone = (0..20).any(|seed| {
        let volume = MemoryVolume::new();
        block_on(async {
            // By hand: `create_dir_all` syncs.
            volume.create_dir_all(&name("d")).await.unwrap();
            let inner = name("d").join("a");
            let file = volume.create_new(&inner).await.unwrap();
            file.write_at(0, &text("1")).await.unwrap();
            file.sync_data().await.unwrap();
            volume.power_cut(seed);
            volume.open(&inner).await.is_err()
        })
    });
    assert!(gone);
}

#[test]
fn a_power_cut_ends_mounts_and_open_files() {
    let volume = MemoryVolume::new();
    let mount = volume.mount(script([]), None);
    block_on(async {
        let file = volume.create_new(&name("a")).await.unwrap();
        file.sync_data().await.unwrap();
        volume.sync_dir(&VolumePath::root()).await.unwrap();
        volume.power_cut(1);
        assert!(file.size().await.is_err());
        assert!(mount.open(&name("a")).await.is_err());
        assert_eq!(volume.open(&name("a")).await.unwrap().size().await, Ok(0));
        let again = volume.mount(script([]), None);
        assert!(again.open(&name("a")).await.is_ok());
    });
}

#[test]
fn a_mount_may_be_out_of_date_but_not_about_itself() {
    let clock = Arc::new(Hand::default());
    let mut stale_names = 0;
    let mut stale_look_ups = 0;
    for seed in 0..20 {
        let volume = MemoryVolume::new();
        let staleness = Staleness {
            clock: clock.clone(),
            age_max: Duration::from_mins(1),
            seed,
        };
        let mount = volume.mount(script([]), Some(staleness));
        block_on(async {
            let root = VolumePath::root();
            assert_eq!(mount.list(&root).await.unwrap().len(), 0);
            assert!(mount.open(&name("a")).await.is_err());
            let file = volume.create_new(&name("a")).await.unwrap();
            *clock.0.lock() += Duration::from_secs(10);
            stale_names += usize::from(mount.list(&root).await.unwrap().is_empty());
            stale_look_ups += usize::from(mount.open(&name("a")).await.is_err());
            // An own change in the directory, and all of it is seen.
            mount.create_new(&name("b")).await.unwrap();
            assert_eq!(mount.list(&root).await.unwrap().len(), 2);
            file.write_at(0, &text("new")).await.unwrap();
            assert_eq!(&mount.read(&name("a"), 9).await.unwrap()[..], b"new");
            volume.create_new(&name("c")).await.unwrap();
            *clock.0.lock() += Duration::from_mins(1);
            assert_eq!(mount.list(&root).await.unwrap().len(), 3);
        });
    }
    assert!((1..20).contains(&stale_names), "{stale_names}");
    assert!((1..20).contains(&stale_look_ups), "{stale_look_ups}");
}

#[test]
fn a_full_volume_takes_writes_again_when_space_returns() {
    let volume = MemoryVolume::new();
    volume.set_total(10);
    block_on(async {
        let file = volume.create_new(&name("a")).await.unwrap();
        file.write_at(0, &text("12345678")).await.unwrap();
        assert_eq!(volume.space().await.unwrap().free, 2);
        let full = Err(VolumeError::NoSpace { path: "a".into() });
        assert_eq!(file.write_at(8, &text("901")).await, full);
        assert_eq!(file.allocate(11).await, full);
        // Over what is there already.
        file.write_at(0, &text("abcdefgh")).await.unwrap();
        volume.remove(&name("a")).await.unwrap();
        let other = volume.create_new(&name("b")).await.unwrap();
        other.write_at(0, &text("1234567890")).await.unwrap();
        let step = Step::new(StepOp::Space, &VolumePath::root());
        assert!(!step.op.changes());
        assert_eq!(volume.space().await.unwrap().free, 0);
    });
}

#[test]
fn absurd_offsets_are_refused() {
    let volume = MemoryVolume::new();
    block_on(async {
        let file = volume.create_new(&name("a")).await.unwrap();
        for offset in [u64::MAX, 1 << 40] {
            assert!(file.write_at(offset, &text("x")).await.is_err());
        }
        assert_eq!(file.size().await, Ok(0));
    });
}

#[test]
fn equal_trees_have_equal_fingerprints() {
    let make = |content: &str| {
        let volume = MemoryVolume::new();
        block_on(async {
            volume.create_dir_all(&name("d").join("e")).await.unwrap();
            let file = volume.create_new(&name("d").join("a")).await.unwrap();
            file.write_at(0, &text(content)).await.unwrap();
        });
        volume.fingerprint()
    };
    assert_eq!(make("1"), make("1"));
    assert_ne!(make("1"), make("2"));
}
