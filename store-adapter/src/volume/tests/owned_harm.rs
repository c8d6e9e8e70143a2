//! What intents, records and marks have inside is damaged, at every bit and every byte: their
//! names say the same.

use std::sync::Arc;

use bytes::Bytes;

use super::{counter, path};
use crate::ids::{BrokerId, OwnerEpoch};
use crate::runtime::BoxFuture;
use crate::volume::memory::{MemoryVolume, Step, StepFault, StepHook, StepOp, StepOutcome};
use crate::volume::owned::{Area, Claim, OwnedError, OwnedFiles, PresentOwner};
use crate::volume::{Volume, VolumePath, block_on};

const AREA: Area = Area::GroupSlot(3);

/// A target whose name is inside the names of its files, and one of which they have a hash.
fn targets() -> [VolumePath; 2] {
    let long = path("g").join(&"l".repeat(240));
    [path("g/short.json"), long]
}

/// Every bit of `content` flipped, and every cut of it.
fn harms(content: &[u8]) -> Vec<Vec<u8>> {
    let flips = (0..content.len() * 8).map(|bit| {
        let mut bytes = content.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    });
    let cuts = (0..content.len()).map(|len| content[..len].to_vec());
    flips.chain(cuts).collect()
}

/// Refuses to unlink a target.
#[derive(Debug)]
struct Refuse(VolumePath);

impl StepHook for Refuse {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let refused = step.op == StepOp::Remove && step.path == self.0;
        let outcome = if refused {
            StepOutcome::Fail(StepFault::Io)
        } else {
            StepOutcome::Proceed
        };
        Box::pin(std::future::ready(outcome))
    }
}

async fn take(volume: MemoryVolume, instance: u64) -> Claim {
    let epoch = OwnerEpoch {
        assignment: 1,
        instance,
    };
    let owner = PresentOwner {
        epoch,
        broker: BrokerId(0),
        instance,
    };
    let files = OwnedFiles::new(Arc::new(volume), counter(instance << 32));
    files.take_over(AREA, owner).await.unwrap()
}

/// A volume on which the unlinking of `target` was announced, and nobody knows how it ended.
async fn announced(target: &VolumePath) -> MemoryVolume {
    let volume = MemoryVolume::new();
    volume.create_dir_all(&path("g")).await.unwrap();
    let mount = volume.mount(Arc::new(Refuse(target.clone())), None);
    let claim = take(mount, 1).await;
    claim.replace(target, Bytes::from("gone")).await.unwrap();
    let removed = claim.remove(target).await;
    assert!(matches!(removed, Err(OwnedError::MaybeApplied(_))));
    volume
}

/// The one file of the area whose name begins so.
async fn file_of(volume: &MemoryVolume, prefix: &str) -> VolumePath {
    let mut names = volume.list(&AREA.dir()).await.unwrap();
    names.retain(|entry| entry.name.starts_with(prefix));
    assert_eq!(names.len(), 1, "{prefix}");
    AREA.dir().join(&names[0].name)
}

async fn overwrite(volume: &MemoryVolume, file: &VolumePath, bytes: Vec<u8>) {
    volume.remove(file).await.unwrap();
    let file = volume.create_new(file).await.unwrap();
    file.write_at(0, &[Bytes::from(bytes)]).await.unwrap();
}

async fn assert_condemned(claim: &Claim, target: &VolumePath) {
    assert_eq!(claim.is_condemned(target).await, Ok(true), "{target}");
    for other in ["g/other.json", "g", ""] {
        assert_eq!(claim.is_condemned(&path(other)).await, Ok(false), "{other}");
    }
}

#[test]
fn damage_in_an_intent_or_a_record_frees_nothing_and_condemns_nothing_else() {
    block_on(async {
        let mut count = 0;
        for target in targets() {
            let inside = target.as_str().as_bytes();
            for harmed in harms(inside) {
                count += 1;
                let volume = announced(&target).await;
                let intent = file_of(&volume, "x-").await;
                let written = volume.read(&intent, 1000).await.unwrap();
                assert_eq!(written, inside);
                overwrite(&volume, &intent, harmed.clone()).await;
                assert_condemned(&take(volume.clone(), 2).await, &target).await;
                // The record alone.
                volume.remove(&intent).await.unwrap();
                let record = file_of(&volume, "c-").await;
                overwrite(&volume, &record, harmed).await;
                assert_condemned(&take(volume, 3).await, &target).await;
            }
        }
        assert!(count > 2_000, "{count}");
    });
}

#[test]
fn damage_in_a_mark_makes_no_other_target_known() {
    block_on(async {
        let [_, target] = targets();
        for harmed in harms(target.as_str().as_bytes()) {
            let volume = MemoryVolume::new();
            volume.create_dir_all(&path("g")).await.unwrap();
            let claim = take(volume.clone(), 1).await;
            claim.replace(&target, Bytes::from("text")).await.unwrap();
            assert_eq!(claim.written().await, Ok(vec![target.clone()]));
            let mark = file_of(&volume, "w-").await;
            overwrite(&volume, &mark, harmed).await;
            let claim = take(volume.clone(), 2).await;
            assert_eq!(claim.written().await, Ok(Vec::new()));
            volume.remove(&target).await.unwrap();
            let missing = claim.read(&target, 9).await;
            assert!(matches!(missing, Err(OwnedError::Damaged { .. })));
        }
    });
}
