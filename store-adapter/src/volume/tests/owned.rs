//! The owned-file primitive, one owner after the other, on both volumes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{counter, on_each_volume, path};
use crate::ids::{BrokerId, OwnerEpoch, ShardId};
use crate::runtime::{BoxFuture, Clock};
use crate::volume::memory::{Staleness, Step, StepHook, StepOutcome};
use crate::volume::owned::{Area, OwnedError, OwnedFiles, PresentOwner};
use crate::volume::sum::with_sum;
use crate::volume::{MemoryVolume, Volume, VolumePath, block_on};

const SLOT: Area = Area::TxnSlot(7);

fn owner(assignment: u32, instance: u64) -> PresentOwner {
    PresentOwner {
        epoch: OwnerEpoch {
            assignment,
            instance,
        },
        broker: BrokerId(1),
        instance,
    }
}

async fn names(volume: &Arc<dyn Volume>, dir: &VolumePath) -> Vec<String> {
    let entries = volume.list(dir).await.unwrap();
    entries.into_iter().map(|entry| entry.name).collect()
}

async fn with_target(volume: &Arc<dyn Volume>) -> (OwnedFiles, VolumePath) {
    let dir = path("__cluster/txn_state");
    volume.create_dir_all(&dir).await.unwrap();
    let files = OwnedFiles::new(volume.clone(), counter(0));
    (files, dir.join("slot-7.json"))
}

#[test]
fn the_owner_reads_what_it_wrote() {
    on_each_volume(async |volume| {
        let (files, target) = with_target(&volume).await;
        assert_eq!(files.present_owner(SLOT).await, Ok(None));
        let claim = files.take_over(SLOT, owner(1, 5)).await.unwrap();
        assert_eq!(files.present_owner(SLOT).await, Ok(Some(owner(1, 5))));
        assert_eq!(claim.read(&target, 100).await, Ok(None));
        claim
            .replace(&target, Bytes::from_static(b"{}"))
            .await
            .unwrap();
        claim
            .replace(&target, Bytes::from_static(b"{1}"))
            .await
            .unwrap();
        let text = claim.read(&target, 100).await.unwrap().unwrap();
        assert_eq!(&text[..], b"{1}");
        claim.check().await.unwrap();
        let mark = "w-__cluster%2Ftxn_state%2Fslot-7.json";
        let expected = ["current.json", "own-1.5", mark];
        assert_eq!(names(&volume, &SLOT.dir()).await, expected);
        assert_eq!(names(&volume, &target.parent()).await, ["slot-7.json"]);
    });
}

#[test]
fn a_higher_epoch_ends_the_lower_one() {
    on_each_volume(async |volume| {
        let (files, target) = with_target(&volume).await;
        let old = files.take_over(SLOT, owner(9, 10)).await.unwrap();
        old.replace(&target, Bytes::from_static(b"old"))
            .await
            .unwrap();
        // Compared as numbers: 10.2 is above 9.10.
        let new = files.take_over(SLOT, owner(10, 2)).await.unwrap();
        assert_eq!(old.check().await, Err(OwnedError::Stale));
        let late = old.replace(&target, Bytes::from_static(b"late")).await;
        assert_eq!(late, Err(OwnedError::Stale));
        let text = new.read(&target, 100).await.unwrap().unwrap();
        assert_eq!(&text[..], b"old");
        new.replace(&target, Bytes::from_static(b"new"))
            .await
            .unwrap();
        let back = files.take_over(SLOT, owner(9, 10)).await;
        assert_eq!(back.unwrap_err(), OwnedError::Stale);
        new.check().await.unwrap();
        let claims = names(&volume, &SLOT.dir()).await;
        assert!(claims.contains(&"own-10.2".to_owned()));
        assert!(
            !claims.iter().any(|name| name.starts_with("t-")),
            "{claims:?}"
        );
    });
}

#[test]
fn the_same_instance_may_take_over_again() {
    on_each_volume(async |volume| {
        let (files, target) = with_target(&volume).await;
        let shard = Area::Shard(ShardId(0));
        let first = files.take_over(shard, owner(1, 1)).await.unwrap();
        first
            .replace(&target, Bytes::from_static(b"1"))
            .await
            .unwrap();
        // What an attempt before may have left behind.
        let left = shard.dir().join("t-1.1-00000000000000ff");
        volume.create_new(&left).await.unwrap();
        let again = files.take_over(shard, owner(1, 1)).await.unwrap();
        assert!(volume.open(&left).await.unwrap_err().is_not_found());
        let text = again.read(&target, 100).await.unwrap().unwrap();
        assert_eq!(&text[..], b"1");
    });
}

#[test]
fn broker_and_controller_areas_count() {
    on_each_volume(async |volume| {
        let files = OwnedFiles::new(volume.clone(), counter(0));
        let area = Area::Broker(BrokerId(3));
        let first = files.claim_next(area, BrokerId(3), None).await.unwrap();
        assert_eq!(first.owner().instance, 1);
        let second = files.claim_next(area, BrokerId(3), None).await.unwrap();
        assert_eq!(second.owner().instance, 2);
        assert_eq!(second.epoch(), OwnerEpoch::single(2));
        assert_eq!(first.check().await, Err(OwnedError::Stale));
        assert_eq!(names(&volume, &area.dir()).await, ["current.json", "own-2"]);
        let taken = files.take_over(area, second.owner()).await;
        assert_eq!(taken.unwrap_err(), OwnedError::Stale);
        // A claim that was made and never used is stepped over.
        volume
            .create_new(&Area::Controller.dir().join("own-9"))
            .await
            .unwrap_err();
        volume
            .create_dir_all(&Area::Controller.dir())
            .await
            .unwrap();
        volume
            .create_new(&Area::Controller.dir().join("own-9"))
            .await
            .unwrap();
        let claim = files
            .claim_next(Area::Controller, BrokerId(3), Some(2))
            .await;
        let claim = claim.unwrap();
        assert_eq!(claim.epoch(), OwnerEpoch::single(10));
        let bytes = volume
            .read(&Area::Controller.dir().join("current.json"), 100)
            .await;
        let expected: &[u8] = br#"{"epoch":"10","broker":"kaas-3","instance":2}"#;
        assert_eq!(bytes.unwrap(), with_sum(expected));
    });
}

#[test]
fn a_flipped_present_owner_is_damage_and_nobody_else() {
    on_each_volume(async |volume| {
        let (files, _) = with_target(&volume).await;
        let claim = files.take_over(SLOT, owner(1, 1)).await.unwrap();
        let current = SLOT.dir().join("current.json");
        let whole = volume.read(&current, 100).await.unwrap();
        let file = volume.open_write(&current).await.unwrap();
        let content = whole.trim_ascii_end().len();
        for bit in 0..content * 8 {
            let mut bytes = whole.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            file.write_at(0, &[Bytes::from(bytes)]).await.unwrap();
            let damaged = claim.check().await;
            let Err(OwnedError::Damaged { path, .. }) = damaged else {
                panic!("bit {bit}: {damaged:?}");
            };
            assert_eq!(path, current.to_string());
        }
        // Whoever takes it over writes it anew.
        let again = files.take_over(SLOT, owner(1, 1)).await.unwrap();
        assert_eq!(again.check().await, Ok(()));
    });
}

#[test]
fn what_was_written_and_is_gone_is_damaged() {
    on_each_volume(async |volume| {
        let (files, target) = with_target(&volume).await;
        let claim = files.take_over(SLOT, owner(1, 1)).await.unwrap();
        // Empty, and nobody wrote it: as good as missing.
        volume.create_new(&target).await.unwrap();
        assert_eq!(claim.read(&target, 100).await, Ok(None));
        claim
            .replace(&target, Bytes::from_static(b"12345"))
            .await
            .unwrap();
        let damage = async || match claim.read(&target, 4).await {
            Err(OwnedError::Damaged { path, why }) => {
                assert_eq!(path, target.as_str());
                why
            }
            other => panic!("{other:?}"),
        };
        assert!(damage().await.contains("5 bytes"));
        volume.remove(&target).await.unwrap();
        assert!(damage().await.contains("missing"));
        volume.create_new(&target).await.unwrap();
        assert!(damage().await.contains("empty"));
        // Another target of the area is none the worse, nor is one in a missing directory.
        let other = target.parent().join("slot-7.prev.json");
        assert_eq!(claim.read(&other, 100).await, Ok(None));
        assert_eq!(claim.read(&path("t/0/manifest.json"), 100).await, Ok(None));
    });
}

#[test]
fn a_target_of_another_system_is_read_and_protected() {
    on_each_volume(async |volume| {
        let (files, target) = with_target(&volume).await;
        let file = volume.create_new(&target).await.unwrap();
        file.write_at(0, &[Bytes::from_static(b"{}")])
            .await
            .unwrap();
        let claim = files.take_over(SLOT, owner(1, 1)).await.unwrap();
        assert!(claim.read(&target, 100).await.unwrap().is_some());
        volume.remove(&target).await.unwrap();
        let gone = claim.read(&target, 100).await;
        assert!(matches!(gone, Err(OwnedError::Damaged { .. })), "{gone:?}");
    });
}

#[test]
fn a_damaged_present_owner_is_no_licence() {
    on_each_volume(async |volume| {
        let (files, target) = with_target(&volume).await;
        let claim = files.take_over(SLOT, owner(1, 1)).await.unwrap();
        let current = SLOT.dir().join("current.json");
        let file = volume.open_write(&current).await.unwrap();
        file.write_at(0, &[Bytes::from_static(b"garbage")])
            .await
            .unwrap();
        for outcome in [
            claim.check().await,
            claim.replace(&target, Bytes::from_static(b"x")).await,
        ] {
            assert!(
                matches!(outcome, Err(OwnedError::Damaged { .. })),
                "{outcome:?}"
            );
        }
        volume.remove(&current).await.unwrap();
        let outcome = claim.replace(&target, Bytes::from_static(b"x")).await;
        assert!(
            matches!(outcome, Err(OwnedError::Damaged { .. })),
            "{outcome:?}"
        );
        assert!(volume.open(&target).await.unwrap_err().is_not_found());
        // Nothing is left of the refused tickets.
        assert_eq!(names(&volume, &SLOT.dir()).await, ["own-1.1"]);
    });
}

#[test]
fn a_replace_into_a_missing_directory_leaves_nothing() {
    on_each_volume(async |volume| {
        let (files, _) = with_target(&volume).await;
        let claim = files.take_over(SLOT, owner(1, 1)).await.unwrap();
        let outcome = claim
            .replace(&path("no/where"), Bytes::from_static(b"x"))
            .await;
        assert!(
            matches!(outcome, Err(OwnedError::NotApplied(_))),
            "{outcome:?}"
        );
        assert_eq!(
            names(&volume, &SLOT.dir()).await,
            ["current.json", "own-1.1"]
        );
    });
}

/// Proceeds always.
#[derive(Debug)]
struct Free;

impl StepHook for Free {
    fn before(&self, _: &Step) -> BoxFuture<'static, StepOutcome> {
        Box::pin(std::future::ready(StepOutcome::Proceed))
    }
}

/// Stands still: nothing that a mount remembers ever ages.
#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn wall_ms(&self) -> i64 {
        0
    }
    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        unreachable!("nothing here sleeps")
    }
}

#[test]
fn a_mount_that_is_out_of_date_takes_over_what_is_there() {
    for seed in 0..30 {
        let tree = MemoryVolume::new();
        let mount = |seed| {
            let staleness = Staleness {
                clock: Arc::new(Still),
                age_max: Duration::from_mins(1),
                seed,
            };
            let volume: Arc<dyn Volume> = Arc::new(tree.mount(Arc::new(Free), Some(staleness)));
            volume
        };
        let (here, there) = (mount(seed), mount(seed + 100));
        block_on(async {
            let (files, target) = with_target(&here).await;
            let other = OwnedFiles::new(there.clone(), counter(1 << 32));
            // The other mount looks before there is anything.
            assert!(there.open(&target).await.unwrap_err().is_not_found());
            assert!(there.list(&target.parent()).await.unwrap().is_empty());
            there.list(&SLOT.dir()).await.unwrap_err();
            let claim = files.take_over(SLOT, owner(1, 1)).await.unwrap();
            claim
                .replace(&target, Bytes::from_static(b"1"))
                .await
                .unwrap();
            let taker = other.take_over(SLOT, owner(2, 2)).await.unwrap();
            let text = taker.read(&target, 100).await.unwrap().unwrap();
            assert_eq!(&text[..], b"1");
            taker
                .replace(&target, Bytes::from_static(b"2"))
                .await
                .unwrap();
            let stale = claim.replace(&target, Bytes::from_static(b"3")).await;
            assert_eq!(stale, Err(OwnedError::Stale));
            // And a broker's number is never handed out twice.
            let area = Area::Broker(BrokerId(0));
            let mut numbers = Vec::new();
            for files in [&files, &other, &other, &files, &other, &files] {
                let claim = files.claim_next(area, BrokerId(0), None).await.unwrap();
                numbers.push(claim.owner().instance);
            }
            assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
        });
    }
}
