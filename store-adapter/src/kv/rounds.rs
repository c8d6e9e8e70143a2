//! The file that counts acknowledged rounds: `rounds`, beside the database.
//!
//! sled takes what it cannot read at the end of its log for never written. This file is written
//! and synced behind the database and before a round is acknowledged, so that a database which
//! has lost rounds is known by it.
//!
//! Bytes 0-511: `FPKV`, format version (u32), CRC-32C of both. Then two slots of 512 bytes, which
//! odd and even rounds take in turn: round (u64), its CRC-32C behind the slot's number. A slot
//! that was torn is the older round's loss, never the newer one's.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::kv_dir;
use crate::ids::ShardId;
use crate::journal::volume_error;
use crate::store::StoreError;
use crate::volume::{Volume, VolumeError, VolumeFile, VolumePath};

/// The version that this code writes, and the highest that it reads.
pub(super) const FORMAT_VERSION: u32 = 1;
const MAGIC: &[u8; 4] = b"FPKV";
const SECTOR: usize = 512;
const FILE_LEN: usize = 3 * SECTOR;

/// The open file.
#[derive(Debug)]
pub(super) struct Rounds {
    file: Arc<dyn VolumeFile>,
    /// The last round that it counts.
    acknowledged: u64,
}

/// Where it lies.
pub(super) fn rounds_path(shard: ShardId) -> VolumePath {
    kv_dir(shard).join("rounds")
}

/// Refuses a shard that a newer version wrote; touches nothing.
pub(super) async fn refuse_newer(
    volume: &Arc<dyn Volume>,
    shard: ShardId,
) -> Result<(), StoreError> {
    let path = rounds_path(shard);
    let head = match volume.open(&path).await {
        Ok(file) => file.read_at(0, SECTOR).await,
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => Err(error),
    };
    match version(&head.map_err(|error| volume_error(&error))?) {
        Some(found) if found > FORMAT_VERSION => Err(StoreError::Offline(format!(
            "{path}: kv format {found}, and this version reads up to {FORMAT_VERSION}; nothing \
             was changed"
        ))),
        _ => Ok(()),
    }
}

impl Rounds {
    /// Opens the file, or begins one where there is no database yet.
    pub(super) async fn open(
        volume: &Arc<dyn Volume>,
        shard: ShardId,
        is_new: bool,
    ) -> Result<Self, StoreError> {
        let path = rounds_path(shard);
        let opened = match volume.open_write(&path).await {
            Ok(file) => read(&file).await.map(|found| (file, found)),
            Err(error) if error.is_not_found() && is_new => {
                let created = volume.create_new(&path).await;
                created.map(|file| (file, Some(None)))
            }
            Err(error) if error.is_not_found() => return Err(gone(&path)),
            Err(error) => Err(error),
        };
        let (file, found) = opened.map_err(|error| volume_error(&error))?;
        let acknowledged = match found {
            Some(Some(round)) => round,
            // A crash may have come between its creation and its content, before any round, or in
            // the middle of its content.
            Some(None) if is_new => {
                begin(volume, &file, &path).await?;
                0
            }
            _ => return Err(damaged(&path, "it is damaged")),
        };
        Ok(Self { file, acknowledged })
    }

    /// What is wrong with a database whose last round is `found`.
    pub(super) fn check(&self, shard: ShardId, found: u64) -> Result<(), StoreError> {
        reaches(shard, found, self.acknowledged)
    }

    /// Counts `round`, durably: the database has it, and it may be acknowledged.
    pub(super) async fn acknowledge(&mut self, round: u64) -> Result<(), VolumeError> {
        if round <= self.acknowledged {
            return Ok(());
        }
        self.write(round).await
    }

    /// Counts `round`, the last one of the database, also where the file seems to count it: what
    /// a failed sync did not write, the page cache holds as clean. So does the head.
    pub(super) async fn count(&mut self, round: u64) -> Result<(), VolumeError> {
        self.file.write_at(0, &[head().freeze()]).await?;
        self.write(round).await
    }

    async fn write(&mut self, round: u64) -> Result<(), VolumeError> {
        let slot = slot_of(round);
        let offset = (SECTOR * (1 + slot)) as u64;
        let bytes = encode(slot, round);
        self.file.write_at(offset, &[bytes]).await?;
        self.file.sync_data().await?;
        self.acknowledged = round;
        Ok(())
    }
}

/// The round that the file of a shard counts which nobody opens; `is_new` without a database.
/// Changes nothing.
pub(super) async fn counted(
    volume: &Arc<dyn Volume>,
    shard: ShardId,
    is_new: bool,
) -> Result<u64, StoreError> {
    let path = rounds_path(shard);
    let found = match volume.open(&path).await {
        Ok(file) => read(&file).await,
        Err(error) if error.is_not_found() && is_new => Ok(Some(None)),
        Err(error) if error.is_not_found() => return Err(gone(&path)),
        Err(error) => Err(error),
    };
    match found.map_err(|error| volume_error(&error))? {
        Some(Some(round)) => Ok(round),
        Some(None) if is_new => Ok(0),
        _ => Err(damaged(&path, "it is damaged")),
    }
}

/// Refuses a database whose last round is `found` where `acknowledged` was.
pub(super) fn reaches(shard: ShardId, found: u64, acknowledged: u64) -> Result<(), StoreError> {
    if found >= acknowledged {
        return Ok(());
    }
    let why = format!(
        "the database ends with round {found}, and {} says that round {acknowledged} was \
         acknowledged",
        rounds_path(shard)
    );
    Err(damaged(&kv_dir(shard), &why))
}

fn gone(path: &VolumePath) -> StoreError {
    damaged(path, "it is gone, and the database is not")
}

fn slot_of(round: u64) -> usize {
    usize::from(round % 2 == 1)
}

/// An error that refuses the shard.
pub(super) fn damaged(path: &VolumePath, why: &str) -> StoreError {
    StoreError::Corrupt {
        path: path.to_string(),
        why: why.to_owned(),
    }
}

/// The round in the file: `None` where it is damaged, `Some(None)` where it has no content, or but
/// a part of its first one.
async fn read(file: &Arc<dyn VolumeFile>) -> Result<Option<Option<u64>>, VolumeError> {
    let bytes = file.read_at(0, FILE_LEN).await?;
    if let Some(round) = decode(&bytes) {
        return Ok(Some(Some(round)));
    }
    let slots = bytes.get(SECTOR..).unwrap_or_default();
    let bare = slots.iter().all(|byte| *byte == 0);
    let mut begun = bytes.iter().zip(fresh());
    let torn = begun.all(|(byte, first)| *byte == 0 || *byte == first);
    Ok((bare || torn).then_some(None))
}

async fn begin(
    volume: &Arc<dyn Volume>,
    file: &Arc<dyn VolumeFile>,
    path: &VolumePath,
) -> Result<(), StoreError> {
    let written = async {
        file.write_at(0, &[fresh()]).await?;
        file.sync_data().await?;
        volume.sync_dir(&path.parent()).await
    };
    written.await.map_err(|error| volume_error(&error))
}

fn head() -> BytesMut {
    let mut out = BytesMut::with_capacity(FILE_LEN);
    out.put_slice(MAGIC);
    out.put_u32(FORMAT_VERSION);
    let crc = crc32c::crc32c(&out);
    out.put_u32(crc);
    out.resize(SECTOR, 0);
    out
}

/// The content of a file that counts no round.
fn fresh() -> Bytes {
    let mut out = head();
    out.put_slice(&encode(0, 0));
    out.put_slice(&encode(1, 0));
    out.freeze()
}

fn encode(slot: usize, round: u64) -> Bytes {
    let mut out = BytesMut::with_capacity(SECTOR);
    out.put_u64(round);
    out.put_u32(crc(slot, round));
    out.resize(SECTOR, 0);
    out.freeze()
}

fn crc(slot: usize, round: u64) -> u32 {
    let slot = crc32c::crc32c(&[u8::from(slot == 1)]);
    crc32c::crc32c_append(slot, &round.to_be_bytes())
}

fn version(bytes: &[u8]) -> Option<u32> {
    let (head, mut rest) = bytes.split_at_checked(8)?;
    let version = u32::from_be_bytes(head.strip_prefix(MAGIC)?.try_into().ok()?);
    (rest.try_get_u32().ok()? == crc32c::crc32c(head)).then_some(version)
}

fn decode(bytes: &[u8]) -> Option<u64> {
    if version(bytes)? != FORMAT_VERSION || bytes.len() != FILE_LEN {
        return None;
    }
    let slot = |slot: usize| {
        let mut bytes = bytes.get(SECTOR * (1 + slot)..)?;
        let round = bytes.try_get_u64().ok()?;
        (bytes.try_get_u32().ok()? == crc(slot, round)).then_some(round)
    };
    slot(0).max(slot(1))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::runtime::BoxFuture;
    use crate::volume::memory::{Step, StepFault, StepHook, StepOp, StepOutcome};
    use crate::volume::{MemoryVolume, block_on};

    #[test]
    fn rounds_are_counted_and_a_torn_slot_takes_only_the_newest() {
        block_on(async {
            let volume: Arc<dyn Volume> = Arc::new(MemoryVolume::new());
            let shard = ShardId(0);
            volume.create_dir_all(&kv_dir(shard)).await.unwrap();
            let missing = Rounds::open(&volume, shard, false).await;
            assert!(matches!(missing, Err(StoreError::Corrupt { .. })));
            let mut rounds = Rounds::open(&volume, shard, true).await.unwrap();
            for round in 1..=5 {
                rounds.acknowledge(round).await.unwrap();
                assert_eq!(rounds.acknowledged, round);
            }
            let again = Rounds::open(&volume, shard, false).await.unwrap();
            assert_eq!(again.acknowledged, 5);
            assert!(again.check(shard, 5).is_ok() && again.check(shard, 4).is_err());
            let file = volume.open_write(&rounds_path(shard)).await.unwrap();
            let wrong = [Bytes::from_static(b"?")];
            let torn = file.write_at(2 * SECTOR as u64 + 3, &wrong);
            torn.await.unwrap();
            let again = Rounds::open(&volume, shard, false).await.unwrap();
            assert_eq!(again.acknowledged, 4);
            let torn = file.write_at(SECTOR as u64 + 3, &wrong);
            torn.await.unwrap();
            assert!(Rounds::open(&volume, shard, false).await.is_err());
            assert!(Rounds::open(&volume, shard, true).await.is_err());
        });
    }

    #[test]
    fn a_file_torn_in_its_first_content_is_begun_anew() {
        block_on(async {
            let shard = ShardId(0);
            // The head, the slots, or one of them came to the disk.
            for sectors in [0..1, 0..2, 1..2, 1..3, 2..3] {
                let volume: Arc<dyn Volume> = Arc::new(MemoryVolume::new());
                volume.create_dir_all(&kv_dir(shard)).await.unwrap();
                let file = volume.create_new(&rounds_path(shard)).await.unwrap();
                let mut torn = vec![0; FILE_LEN];
                let there = SECTOR * sectors.start..SECTOR * sectors.end;
                torn[there.clone()].copy_from_slice(&fresh()[there]);
                file.write_at(0, &[Bytes::from(torn)]).await.unwrap();
                // With a database the file was whole once.
                let whole = decode(&file.read_at(0, FILE_LEN).await.unwrap()).is_some();
                let damaged = Rounds::open(&volume, shard, false).await.is_err();
                assert_eq!(damaged, !whole, "{sectors:?}");
                let mut rounds = Rounds::open(&volume, shard, true).await.unwrap();
                rounds.acknowledge(1).await.unwrap();
                let again = Rounds::open(&volume, shard, false).await.unwrap();
                assert_eq!(again.acknowledged, 1);
            }
        });
    }

    /// Lets one sync fail.
    #[derive(Debug)]
    struct FailSync(AtomicBool);

    impl StepHook for FailSync {
        fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
            let fails = step.op == StepOp::SyncData && self.0.swap(false, Ordering::SeqCst);
            let outcome = if fails {
                StepOutcome::Fail(StepFault::Io)
            } else {
                StepOutcome::Proceed
            };
            Box::pin(std::future::ready(outcome))
        }
    }

    /// A volume with the shard's directory, and what lets its syncs fail.
    async fn failing() -> (MemoryVolume, Arc<FailSync>, Arc<dyn Volume>) {
        let memory = MemoryVolume::new();
        let hook = Arc::new(FailSync(AtomicBool::new(false)));
        let mount = memory.mount(Arc::clone(&hook) as Arc<dyn StepHook>, None);
        let volume: Arc<dyn Volume> = Arc::new(mount);
        volume.create_dir_all(&kv_dir(ShardId(0))).await.unwrap();
        for dir in ["", "__store", "__store/shard-0"] {
            let names = dir.split('/').filter(|name| !name.is_empty());
            let dir = names.fold(VolumePath::root(), |dir, name| dir.join(name));
            volume.sync_dir(&dir).await.unwrap();
        }
        (memory, hook, volume)
    }

    /// Whatever a power cut leaves, round 1 is counted.
    async fn outlives_power_cuts(memory: &MemoryVolume, hook: &Arc<FailSync>) {
        for seed in 0..8 {
            memory.power_cut(seed);
            let hook = Arc::clone(hook) as Arc<dyn StepHook>;
            let volume: Arc<dyn Volume> = Arc::new(memory.mount(hook, None));
            let again = Rounds::open(&volume, ShardId(0), false).await.unwrap();
            assert_eq!(again.acknowledged, 1, "{seed}");
        }
    }

    #[test]
    fn a_round_whose_sync_failed_is_written_again_by_the_next_opening() {
        block_on(async {
            let (memory, hook, volume) = failing().await;
            let shard = ShardId(0);
            let mut rounds = Rounds::open(&volume, shard, true).await.unwrap();
            hook.0.store(true, Ordering::SeqCst);
            assert!(rounds.acknowledge(1).await.is_err());
            let mut rounds = Rounds::open(&volume, shard, false).await.unwrap();
            assert_eq!(rounds.acknowledged, 1);
            rounds.count(1).await.unwrap();
            outlives_power_cuts(&memory, &hook).await;
        });
    }

    #[test]
    fn a_head_whose_sync_failed_is_written_again_by_the_next_opening() {
        block_on(async {
            let (memory, hook, volume) = failing().await;
            let shard = ShardId(0);
            hook.0.store(true, Ordering::SeqCst);
            assert!(Rounds::open(&volume, shard, true).await.is_err());
            let mut rounds = Rounds::open(&volume, shard, true).await.unwrap();
            volume.sync_dir(&kv_dir(shard)).await.unwrap();
            rounds.count(1).await.unwrap();
            outlives_power_cuts(&memory, &hook).await;
        });
    }

    /// What the file of a shard is in which rounds 4 and 5 were acknowledged.
    async fn counted(volume: &Arc<dyn Volume>) -> Bytes {
        let shard = ShardId(0);
        volume.create_dir_all(&kv_dir(shard)).await.unwrap();
        let mut rounds = Rounds::open(volume, shard, true).await.unwrap();
        for round in 4..=5 {
            rounds.acknowledge(round).await.unwrap();
        }
        volume.read(&rounds_path(shard), 1 << 20).await.unwrap()
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_refused_or_forgets_one_round_at_most() {
        block_on(async {
            let shard = ShardId(0);
            let volume: Arc<dyn Volume> = Arc::new(MemoryVolume::new());
            let written = counted(&volume).await;
            assert_eq!((written.len(), decode(&written)), (FILE_LEN, Some(5)));
            for bit in 0..FILE_LEN * 8 {
                let mut bytes = written.to_vec();
                bytes[bit / 8] ^= 1 << (bit % 8);
                // In the head it is refused as damaged, never as of a newer version.
                let expected = match (bit / 8 / SECTOR, bit / 8 % SECTOR) {
                    (0, 0..12) => None,
                    (2, 0..12) => Some(4),
                    _ => Some(5),
                };
                assert_eq!(decode(&bytes), expected, "bit {bit}");
                let found = version(&bytes);
                assert!(found.is_none_or(|found| found == FORMAT_VERSION), "{bit}");
            }
            let path = rounds_path(shard);
            for len in 0..FILE_LEN {
                volume.remove(&path).await.unwrap();
                let file = volume.create_new(&path).await.unwrap();
                file.write_at(0, &[written.slice(..len)]).await.unwrap();
                let cut = Rounds::open(&volume, shard, false).await;
                assert!(
                    matches!(cut, Err(StoreError::Corrupt { .. })),
                    "{len} bytes"
                );
            }
        });
    }

    #[test]
    fn a_newer_version_is_known_as_such() {
        let mut head = BytesMut::from(&b"FPKV\0\0\0\x02"[..]);
        let crc = crc32c::crc32c(&head);
        head.put_u32(crc);
        assert_eq!(version(&head), Some(2));
        assert_eq!(version(&fresh()), Some(FORMAT_VERSION));
        assert_eq!(version(b"FPKV"), None);
        assert_eq!(decode(&head), None);
    }
}
