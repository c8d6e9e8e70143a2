//! The files of topics: what makes one, what ends one, and what a crash leaves in between.

use std::collections::{BTreeMap, BTreeSet};

use store_adapter::ids::ShardId;
use store_adapter::volume::owned::{Claim, OwnedError};
use store_adapter::volume::{VolumeError, VolumePath};
use uuid::Uuid;

use super::TOPIC_PARTITIONS_MAX;
use super::files::Files;
use super::topic_name;
use super::view::{Topic, TopicIndex};
use crate::volume::format::{
    self, AssignmentFile, Extra, Format, TopicConfigFile, TopicIdFile, TopicTombstone,
};
use crate::volume::layout::{self, Place};

/// How long the proof of a deletion is kept: a broker that was away longer has no claim on it.
const TOMBSTONE_KEPT_MS: i64 = 7 * 24 * 60 * 60 * 1000;

/// What the files of a name say.
#[derive(Debug)]
pub(super) enum Found {
    /// There is no such topic.
    Absent,
    /// It was deleted, and its directory says so.
    Deleted(Uuid),
    /// It exists.
    Topic(Topic),
    /// There is one that can't be served.
    Damaged,
}

/// What is known already when a name's files are read.
#[derive(Debug)]
pub(super) struct Known<'a> {
    /// Topics and tombstones.
    pub(super) topics: &'a TopicIndex,
    /// Whether every tombstone of the volume is among them.
    pub(super) every_tombstone: bool,
    /// The assignment before.
    pub(super) assignment: Option<&'a AssignmentFile>,
}

impl Known<'_> {
    /// Whether a topic of this name was once committed.
    fn is_assigned(&self, name: &str) -> bool {
        self.assignment
            .is_some_and(|file| file.partitions.iter().any(|entry| entry.topic == name))
    }
}

/// Reads and writes topics, as the controller.
#[derive(Debug)]
pub(super) struct TopicFiles {
    files: Files,
    claim: Claim,
}

impl TopicFiles {
    pub(super) fn new(files: Files, claim: Claim) -> Self {
        Self { files, claim }
    }

    /// Reads another file of the controller's area; `None` if it was never written.
    pub(super) async fn read<T: Format>(&self, path: &VolumePath) -> Result<Option<T>, OwnedError> {
        self.files.read(&self.claim, path).await
    }

    /// Replaces another file of the controller's area.
    pub(super) async fn replace<T: Format>(
        &self,
        path: &VolumePath,
        value: &T,
    ) -> Result<(), OwnedError> {
        self.files.replace(&self.claim, path, value).await
    }

    /// The ids that are proven to be gone. Proofs whose time is over are removed, and still hold
    /// for this process: it finishes what is decided, and aborts what is overdue, behind this.
    pub(super) async fn tombstones(&self, now_ms: i64) -> Result<BTreeSet<Uuid>, OwnedError> {
        let dir = layout::deleted_dir();
        let names = self.files.fresh_list(&dir).await;
        let mut deleted = BTreeSet::new();
        for entry in names.map_err(OwnedError::NotApplied)? {
            let path = dir.join(&entry.name);
            let Some(Place::TopicDeleted(id)) = Place::parse(&path) else {
                continue;
            };
            // The name alone is the proof; what is in it only tells when its time is over.
            deleted.insert(id);
            let tombstone: TopicTombstone = match self.files.read(&self.claim, &path).await {
                Ok(Some(tombstone)) => tombstone,
                Ok(None) | Err(OwnedError::Damaged { .. }) => continue,
                Err(error) => return Err(error),
            };
            let age_ms = now_ms.saturating_sub(tombstone.deleted_ms);
            if age_ms > TOMBSTONE_KEPT_MS && self.is_buried(&tombstone).await? {
                self.claim.forget(&path).await?;
            }
        }
        Ok(deleted)
    }

    /// Whether the topic's directory no longer has the id, so that its proof is not needed here.
    async fn is_buried(&self, tombstone: &TopicTombstone) -> Result<bool, OwnedError> {
        if topic_name::validate(&tombstone.name).is_err() {
            return Ok(false);
        }
        let path = Place::TopicId(tombstone.name.clone()).path();
        match self.files.read::<TopicIdFile>(&self.claim, &path).await {
            Ok(Some(found)) => Ok(found.deleted || found.topic_id != tombstone.topic_id),
            Ok(None) | Err(OwnedError::Damaged { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Names below the root that may be topics.
    pub(super) async fn names(&self) -> Result<Vec<String>, OwnedError> {
        let names = self.files.fresh_list(&VolumePath::root()).await;
        let names = names.map_err(OwnedError::NotApplied)?;
        let dirs = names.into_iter().filter(|entry| entry.is_dir);
        let dirs = dirs.map(|entry| entry.name);
        Ok(dirs
            .filter(|name| topic_name::validate(name).is_ok())
            .collect())
    }

    /// Reads a name's files, and finishes a deletion that a crash cut short. A creation that was
    /// cut short before its commit leaves configs without an identity: they mean nothing, and the
    /// next topic of that name replaces them.
    pub(super) async fn load(&self, name: &str, known: &Known<'_>) -> Result<Found, OwnedError> {
        let path = Place::TopicId(name.to_owned()).path();
        let file: TopicIdFile = match self.files.read(&self.claim, &path).await {
            Ok(Some(file)) => file,
            Ok(None) if known.is_assigned(name) => {
                let why = "it is missing, though the topic is assigned".to_owned();
                self.files.damaged(&path, why, None).await;
                return Ok(Found::Damaged);
            }
            Ok(None) => return Ok(Found::Absent),
            Err(OwnedError::Damaged { .. }) => return Ok(Found::Damaged),
            Err(error) => return Err(error),
        };
        if file.deleted {
            return Ok(Found::Deleted(file.topic_id));
        }
        let looked_up = !known.every_tombstone && self.has_tombstone(file.topic_id).await?;
        if looked_up || known.topics.is_deleted(file.topic_id) {
            self.bury(name, file.topic_id).await?;
            return Ok(Found::Deleted(file.topic_id));
        }
        let twin = known.topics.by_id(file.topic_id);
        let twin = twin.filter(|twin| *twin.name != *name);
        let why = match (&file.name, twin) {
            (Some(inside), _) if inside != name => format!("it is the file of topic {inside:?}"),
            (_, Some(twin)) => format!("topic {:?} has the same id", twin.name),
            _ => return self.complete(name, file).await,
        };
        self.files.damaged(&path, why, None).await;
        Ok(Found::Damaged)
    }

    async fn has_tombstone(&self, id: Uuid) -> Result<bool, OwnedError> {
        let path = Place::TopicDeleted(id).path();
        match self.files.read::<TopicTombstone>(&self.claim, &path).await {
            Ok(found) => Ok(found.is_some()),
            Err(OwnedError::Damaged { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The topic of an identity that is whole.
    async fn complete(&self, name: &str, file: TopicIdFile) -> Result<Found, OwnedError> {
        let path = Place::TopicConfig(name.to_owned()).path();
        let config = match self.files.read::<TopicConfigFile>(&self.claim, &path).await {
            Ok(config) => config.unwrap_or_default(),
            // Without its configs a topic is not served: a default could delete its records.
            Err(OwnedError::Damaged { .. }) => return Ok(Found::Damaged),
            Err(error) => return Err(error),
        };
        let partitions = match file.partitions {
            Some(partitions) => partitions,
            None => self.count_partitions(name).await?,
        };
        if !(1..=TOPIC_PARTITIONS_MAX).contains(&partitions) {
            let why = format!("{partitions} partitions: a topic has 1 to {TOPIC_PARTITIONS_MAX}");
            let path = Place::TopicId(name.to_owned()).path();
            self.files.damaged(&path, why, None).await;
            return Ok(Found::Damaged);
        }
        let shards = match file.shards {
            Some(shards) => shards.into_iter().map(ShardId).collect(),
            None => (0..partitions).map(|_| ShardId(0)).collect(),
        };
        Ok(Found::Topic(Topic {
            id: file.topic_id,
            name: name.into(),
            shards,
            configs: config.configs(),
        }))
    }

    /// How many partitions a topic of an older volume has: its directories are numbered from 0.
    async fn count_partitions(&self, name: &str) -> Result<u32, OwnedError> {
        let names = self.files.fresh_list(&layout::topic_dir(name)).await;
        let names = names.map_err(OwnedError::NotApplied)?;
        let numbers = names.iter().filter(|entry| entry.is_dir);
        let numbers = numbers.filter_map(|entry| layout::partition_of(&entry.name));
        Ok(numbers.max().map_or(0, |last| last.saturating_add(1)))
    }

    /// Makes a topic: its configs, then its identity, which commits it.
    pub(super) async fn create(&self, topic: &Topic) -> Result<(), OwnedError> {
        let name = topic.name.to_string();
        let made = self
            .files
            .volume
            .create_dir_all(&layout::topic_dir(&name))
            .await;
        made.map_err(OwnedError::NotApplied)?;
        let config = TopicConfigFile::from_configs(&topic.configs);
        let path = Place::TopicConfig(name.clone()).path();
        self.files.replace(&self.claim, &path, &config).await?;
        let file = TopicIdFile {
            topic_id: topic.id,
            name: Some(name.clone()),
            partitions: Some(topic.partitions()),
            shards: Some(topic.shards.iter().map(|shard| shard.0).collect()),
            deleted: false,
            extra: Extra::new(),
        };
        let path = Place::TopicId(name).path();
        self.files.replace(&self.claim, &path, &file).await
    }

    /// Replaces the configs of a topic, which commits them.
    pub(super) async fn replace_configs(
        &self,
        name: &str,
        configs: &BTreeMap<String, String>,
    ) -> Result<(), OwnedError> {
        let path = Place::TopicConfig(name.to_owned()).path();
        let config = TopicConfigFile::from_configs(configs);
        self.files.replace(&self.claim, &path, &config).await
    }

    /// Replaces the shards of a topic's partitions in its identity, which commits them.
    pub(super) async fn replace_shards(
        &self,
        name: &str,
        shards: &[ShardId],
    ) -> Result<(), OwnedError> {
        let path = Place::TopicId(name.to_owned()).path();
        let Some(mut file) = self.files.read::<TopicIdFile>(&self.claim, &path).await? else {
            let why = "it is missing, though the topic is served".to_owned();
            return Err(self.files.damaged(&path, why, None).await);
        };
        file.partitions = Some(u32::try_from(shards.len()).unwrap_or(u32::MAX));
        file.shards = Some(shards.iter().map(|shard| shard.0).collect());
        self.files.replace(&self.claim, &path, &file).await
    }

    /// Makes the proof that a topic is gone: the commit of its deletion.
    pub(super) async fn commit_deletion(
        &self,
        topic: &Topic,
        now_ms: i64,
    ) -> Result<(), OwnedError> {
        let tombstone = TopicTombstone {
            topic_id: topic.id,
            name: topic.name.to_string(),
            deleted_ms: now_ms,
            extra: Extra::new(),
        };
        let path = Place::TopicDeleted(topic.id).path();
        self.files.replace(&self.claim, &path, &tombstone).await
    }

    /// Leaves a tombstone in the place of a topic's identity.
    pub(super) async fn bury(&self, name: &str, id: Uuid) -> Result<(), OwnedError> {
        let path = Place::TopicId(name.to_owned()).path();
        let tombstone = TopicIdFile::tombstone(id);
        self.files.replace(&self.claim, &path, &tombstone).await
    }

    /// Whether the controller's area is still ours.
    pub(super) async fn check(&self) -> Result<(), OwnedError> {
        self.claim.check().await
    }

    /// The assignment as anybody finds it; `None` where there is none that can be understood.
    pub(super) async fn read_assignment(&self) -> Result<Option<AssignmentFile>, VolumeError> {
        let path = Place::Assignment.path();
        let read = self.files.volume.read(&path, AssignmentFile::LEN_MAX);
        let bytes = match read.await {
            Ok(bytes) => bytes,
            Err(VolumeError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        match format::decode(&bytes) {
            Ok(file) => Ok(Some(file)),
            Err(error) => {
                self.files
                    .damaged(&path, error.to_string(), Some(bytes))
                    .await;
                Ok(None)
            }
        }
    }

    /// Replaces the assignment.
    pub(super) async fn write_assignment(&self, file: &AssignmentFile) -> Result<(), OwnedError> {
        let path = Place::Assignment.path();
        self.files.replace(&self.claim, &path, file).await
    }
}
