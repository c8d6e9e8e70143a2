//! The files that a partition's leader writes: manifest, producer snapshot, transaction snapshot.
//!
//! They belong to the area of the partition's shard, which the store claims when it opens the
//! shard; where the store has no files, it is claimed here. A damaged file is copied to quarantine,
//! reported and counts as none: the log holds all that is in it, so a new one is no guess.

use std::collections::BTreeMap;

use store_adapter::ids::{BrokerId, LogId, OwnerEpoch, ShardId};
use store_adapter::volume::owned::{Area, Claim, OwnedError, OwnedFiles, PresentOwner};
use store_adapter::volume::{VolumeError, VolumePath};
use uuid::Uuid;

use super::error::NodeError;
use super::files::Files;
use super::view::ClusterView;
use crate::volume::format::{Format, Manifest, ProducerSnapshot, TxnIndexSnapshot};
use crate::volume::layout::{self, Place};

/// What a partition's leader left. `None`: never written, damaged, or of an earlier topic of the
/// same name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PartitionContent {
    /// Epoch and bounds; the log wins over them.
    pub manifest: Option<Manifest>,
    /// Dedupe windows.
    pub producer_state: Option<ProducerSnapshot>,
    /// Open and aborted transactions.
    pub txn_index: Option<TxnIndexSnapshot>,
}

/// One file to be written. Its topic id is filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartitionFile {
    /// Skipped when nothing changed; a lower epoch than the file's is raised to it.
    Manifest(Manifest),
    /// Dedupe windows.
    ProducerState(ProducerSnapshot),
    /// Open and aborted transactions.
    TxnIndex(TxnIndexSnapshot),
}

/// Reads and writes the files of the partitions that this broker leads.
#[derive(Debug)]
pub(super) struct PartitionStore {
    owned: OwnedFiles,
    broker: BrokerId,
    instance: u64,
    /// At most one a shard.
    claims: BTreeMap<ShardId, Claim>,
}

/// A partition that this broker leads.
#[derive(Debug)]
struct Led {
    topic: String,
    id: Uuid,
    partition: u32,
    shard: ShardId,
    epoch: OwnerEpoch,
}

impl PartitionStore {
    pub(super) fn new(owned: OwnedFiles, broker: BrokerId, instance: u64) -> Self {
        Self {
            owned,
            broker,
            instance,
            claims: BTreeMap::new(),
        }
    }

    fn led(&self, view: &ClusterView, log: LogId) -> Result<Led, NodeError> {
        let topic = view.topics.by_id(log.topic).ok_or(NodeError::NotLeader)?;
        let shard = topic.shard(log.partition).ok_or(NodeError::NotLeader)?;
        let owner = view.assignment.shard(shard).ok_or(NodeError::NotLeader)?;
        if owner.broker != self.broker {
            return Err(NodeError::NotLeader);
        }
        Ok(Led {
            topic: topic.name.to_string(),
            id: topic.id,
            partition: log.partition,
            shard,
            epoch: OwnerEpoch {
                assignment: owner.epoch,
                instance: self.instance,
            },
        })
    }

    /// The claim of a shard's area: the one that the store has made, or an own one.
    async fn claim(&mut self, shard: ShardId, epoch: OwnerEpoch) -> Result<&Claim, OwnedError> {
        let known = self.claims.get(&shard).map(Claim::epoch);
        if known != Some(epoch) {
            let area = Area::Shard(shard);
            let owner = PresentOwner {
                epoch,
                broker: self.broker,
                instance: self.instance,
            };
            let claim = match self.owned.present_owner(area).await {
                Ok(Some(present)) if present == owner => self.owned.attach(area, owner).await?,
                // Owner files of shards are not synced: a power cut may have torn that of an
                // owner before. Taking over asks the claims only.
                Ok(_) | Err(OwnedError::Damaged { .. }) => {
                    self.owned.take_over(area, owner).await?
                }
                Err(error) => return Err(error),
            };
            self.claims.insert(shard, claim);
        }
        self.claims.get(&shard).ok_or(OwnedError::Stale)
    }

    /// Reads the three files of a partition.
    pub(super) async fn read(
        &mut self,
        files: &Files,
        view: &ClusterView,
        log: LogId,
    ) -> Result<PartitionContent, NodeError> {
        let led = self.led(view, log)?;
        let claim = self.claim(led.shard, led.epoch).await?;
        let places = Places::of(&led);
        Ok(PartitionContent {
            manifest: read(files, claim, &places.manifest, |found: &Manifest| {
                found.topic_id.is_none_or(|id| id == led.id)
            })
            .await?,
            producer_state: read(
                files,
                claim,
                &places.producer_state,
                |found: &ProducerSnapshot| found.topic_id.is_none_or(|id| id == led.id),
            )
            .await?,
            txn_index: read(
                files,
                claim,
                &places.txn_index,
                |found: &TxnIndexSnapshot| found.topic_id.is_none_or(|id| id == led.id),
            )
            .await?,
        })
    }

    /// Writes one file of a partition; durable when it returns.
    pub(super) async fn write(
        &mut self,
        files: &Files,
        view: &ClusterView,
        log: LogId,
        file: PartitionFile,
    ) -> Result<(), NodeError> {
        let led = self.led(view, log)?;
        let claim = self.claim(led.shard, led.epoch).await?;
        let places = Places::of(&led);
        let dir = layout::partition_dir(&led.topic, led.partition);
        let made = files.volume.create_dir_all(&dir).await;
        made.map_err(OwnedError::NotApplied)?;
        match file {
            PartitionFile::Manifest(mut next) => {
                next.topic_id = Some(led.id);
                let old: Option<Manifest> =
                    read(files, claim, &places.manifest, |found: &Manifest| {
                        found.topic_id.is_none_or(|id| id == led.id)
                    })
                    .await?;
                if let Some(old) = old {
                    next.epoch = next.epoch.max(old.epoch);
                    next.extra.clone_from(&old.extra);
                    if next == old {
                        return Ok(());
                    }
                }
                files.replace(claim, &places.manifest, &next).await?;
            }
            PartitionFile::ProducerState(mut snapshot) => {
                snapshot.topic_id = Some(led.id);
                let path = &places.producer_state;
                files.replace(claim, path, &snapshot).await?;
            }
            PartitionFile::TxnIndex(mut snapshot) => {
                snapshot.topic_id = Some(led.id);
                files.replace(claim, &places.txn_index, &snapshot).await?;
            }
        }
        Ok(())
    }
}

struct Places {
    manifest: VolumePath,
    producer_state: VolumePath,
    txn_index: VolumePath,
}

impl Places {
    fn of(led: &Led) -> Self {
        let topic = || led.topic.clone();
        Self {
            manifest: Place::Manifest(topic(), led.partition).path(),
            producer_state: Place::ProducerState(topic(), led.partition).path(),
            txn_index: Place::TxnIndex(topic(), led.partition).path(),
        }
    }
}

/// Reads one file. Damage is reported and counts as none, as do a file of 0 bytes, which other
/// writers leave for "no snapshot", and one that is not `current`.
async fn read<T: Format>(
    files: &Files,
    claim: &Claim,
    path: &VolumePath,
    current: impl Fn(&T) -> bool,
) -> Result<Option<T>, OwnedError> {
    match files.volume.open(path).await {
        Ok(file) if file.size().await.map_err(OwnedError::NotApplied)? == 0 => return Ok(None),
        Ok(_) | Err(VolumeError::NotFound { .. }) => {}
        Err(error) => return Err(OwnedError::NotApplied(error)),
    }
    match files.read(claim, path).await {
        Ok(found) => Ok(found.filter(current)),
        Err(OwnedError::Damaged { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
