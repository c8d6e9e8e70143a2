//! The controller: the one writer of `assignment.json`, topics and tombstones.
//!
//! It decides from memory, which is what it read after its claim, and replaces files one by one;
//! what a failed replace leaves unknown is read again (*settled*) before the next decision on that
//! name. Topics become visible to readers with the assignment that lists them, not before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use store_adapter::ids::{BrokerId, ShardId};
use store_adapter::runtime::Env;
use store_adapter::volume::VolumeError;
use store_adapter::volume::owned::{Claim, OwnedError};
use uuid::Uuid;

use super::error::{StartError, TopicError};
use super::features::FinalizedFeatures;
use super::files::Files;
use super::placement::{self, Inputs};
use super::topic_files::{Found, Known, TopicFiles};
use super::topic_name;
use super::view::{Assignment, ClusterView, Topic, TopicIndex};
use super::{CONFIGS_LEN_MAX, NewTopic, NodeConfig, PARTITIONS_MAX, TOPIC_PARTITIONS_MAX};
use crate::volume::format::{AssignmentFile, ClusterFile, Health, Listener};
use crate::volume::layout::Place;

/// The controller's state.
#[derive(Debug)]
pub(super) struct Controller {
    env: Env,
    pub(super) files: TopicFiles,
    broker: BrokerId,
    listeners: Vec<Listener>,
    shards_min: u32,
    /// The assignment is written elsewhere.
    assigned: bool,
    pub(super) cluster: ClusterFile,
    /// `cluster.json` must be read again before it is changed.
    pub(super) cluster_unsettled: bool,
    epoch: u64,
    health: Health,
    /// The assignment as last written; what was uncertain counts as written.
    written: Option<AssignmentFile>,
    topics: TopicIndex,
    /// Names whose files must be read again before they are decided on.
    unsettled: BTreeSet<String>,
    /// Whether the assignment on the volume is behind.
    pub(super) dirty: bool,
}

impl Controller {
    /// Reads what earlier controllers left, finishes what they left half done, and writes the
    /// first assignment of this one.
    pub(super) async fn load(
        env: &Env,
        files: &Files,
        claim: Claim,
        config: &NodeConfig,
        cluster: &ClusterFile,
    ) -> Result<Self, StartError> {
        let path = Place::Assignment.path();
        let written: Option<AssignmentFile> = files.read(&claim, &path).await?;
        // The claim number, unless an older volume has had more controllers than claims.
        let above = written.as_ref().map_or(0, |old| old.controller_epoch) + 1;
        let mut controller = Self {
            env: env.clone(),
            broker: config.broker_id,
            listeners: config.listeners.clone(),
            shards_min: config.shards,
            assigned: config.assigned && written.is_some(),
            cluster: cluster.clone(),
            cluster_unsettled: false,
            epoch: claim.epoch().instance.max(above),
            health: Health::Alive,
            written,
            topics: TopicIndex::default(),
            unsettled: BTreeSet::new(),
            dirty: true,
            files: TopicFiles::new(files.clone(), claim),
        };
        controller.load_topics().await?;
        if controller.assigned {
            controller.dirty = false;
        } else {
            controller.write_assignment().await?;
        }
        Ok(controller)
    }

    async fn load_topics(&mut self) -> Result<(), StartError> {
        let now_ms = self.env.clock.wall_ms();
        for id in self.files.tombstones(now_ms).await? {
            self.topics.set_deleted(id);
        }
        for name in self.files.names().await? {
            self.settle(&name, true).await?;
        }
        Ok(())
    }

    /// Reads the files of one name, and makes memory what they say.
    async fn settle(&mut self, name: &str, every_tombstone: bool) -> Result<(), OwnedError> {
        let known = Known {
            topics: &self.topics,
            every_tombstone,
            assignment: self.written.as_ref(),
        };
        let found = self.files.load(name, &known).await?;
        if let Some(old) = self.topics.get(name).cloned() {
            self.topics.remove(&old);
        }
        self.topics.set_damaged(name, false);
        match found {
            Found::Absent => {}
            Found::Deleted(id) => self.topics.set_deleted(id),
            Found::Damaged => self.topics.set_damaged(name, true),
            Found::Topic(topic) => self.topics.insert(Arc::new(topic)),
        }
        self.unsettled.remove(name);
        self.dirty = true;
        Ok(())
    }

    /// Settles every name that a failure left unknown; those that fail again stay unknown.
    pub(super) async fn settle_all(&mut self) {
        self.settle_cluster().await;
        for name in self.unsettled.clone() {
            if let Err(error) = self.settle(&name, false).await {
                tracing::debug!(%error, topic = name, "still not known");
            }
        }
    }

    /// Creates a topic. It is not visible before [`Controller::commit`].
    pub(super) async fn create(&mut self, new: NewTopic) -> Result<Arc<Topic>, TopicError> {
        self.check_new(&new)?;
        let topic = Topic {
            id: self.new_topic_id(),
            name: new.name.as_str().into(),
            shards: Vec::new(),
            configs: new.configs,
        };
        let topic = Topic {
            shards: self.choose_shards(topic.id, new.partitions),
            ..topic
        };
        match self.files.create(&topic).await {
            Ok(()) => {
                let topic = Arc::new(topic);
                self.topics.insert(topic.clone());
                self.dirty = true;
                Ok(topic)
            }
            Err(error) => {
                self.unsettled.insert(new.name.clone());
                Err(topic_error(error, &new.name))
            }
        }
    }

    fn check_new(&self, new: &NewTopic) -> Result<(), TopicError> {
        self.may_change()?;
        topic_name::validate(&new.name)?;
        if self.unsettled.contains(&new.name) {
            let why = "the outcome of an earlier change is not known yet".to_owned();
            return Err(TopicError::Unavailable(why));
        }
        check_new(&self.topics, &new.name, new.partitions)?;
        check_configs(&new.configs)
    }

    /// Whoever writes the assignment changes topics too.
    fn may_change(&self) -> Result<(), TopicError> {
        if self.assigned {
            let why = "another controller changes topics".to_owned();
            return Err(TopicError::Unavailable(why));
        }
        Ok(())
    }

    /// A topic whose files are known, to be changed.
    fn settled(&self, id: Uuid) -> Result<Arc<Topic>, TopicError> {
        self.may_change()?;
        let topic = self.topics.by_id(id).ok_or(TopicError::UnknownId { id })?;
        if self.unsettled.contains(&*topic.name) {
            let why = "the outcome of an earlier change is not known yet".to_owned();
            return Err(TopicError::Unavailable(why));
        }
        Ok(topic.clone())
    }

    /// Replaces a topic's configs. They are not visible before [`Controller::commit`].
    pub(super) async fn alter_configs(
        &mut self,
        id: Uuid,
        configs: BTreeMap<String, String>,
    ) -> Result<Arc<Topic>, TopicError> {
        let old = self.settled(id)?;
        check_configs(&configs)?;
        let outcome = self.files.replace_configs(&old.name, &configs).await;
        let topic = Topic {
            configs,
            ..(*old).clone()
        };
        self.changed(topic, outcome)
    }

    /// Gives a topic more partitions. They are not visible before [`Controller::commit`].
    pub(super) async fn add_partitions(
        &mut self,
        id: Uuid,
        total: u32,
    ) -> Result<Arc<Topic>, TopicError> {
        let old = self.settled(id)?;
        let have = check_more(&self.topics, id, total)?;
        let mut shards = old.shards.clone();
        shards.extend(self.choose_shards(id, total).into_iter().skip(have));
        let outcome = self.files.replace_shards(&old.name, &shards).await;
        let topic = Topic {
            shards,
            ..(*old).clone()
        };
        self.changed(topic, outcome)
    }

    /// Takes over what was written, or forgets what is not known any more.
    fn changed(
        &mut self,
        topic: Topic,
        outcome: Result<(), OwnedError>,
    ) -> Result<Arc<Topic>, TopicError> {
        if let Err(error) = outcome {
            self.unsettled.insert(topic.name.to_string());
            return Err(topic_error(error, &topic.name));
        }
        let topic = Arc::new(topic);
        self.topics.insert(topic.clone());
        self.dirty = true;
        Ok(topic)
    }

    /// An id that no topic has or had. Kafka's ids don't begin with `-` in base64url, whose first
    /// digit is the first six bits.
    fn new_topic_id(&self) -> Uuid {
        loop {
            let id = self.env.uuid();
            let dash = id.as_bytes()[0] >> 2 == 62;
            let taken = self.topics.by_id(id).is_some() || self.topics.is_deleted(id);
            if !dash && !taken {
                return id;
            }
        }
    }

    /// Partitions in turn over the shards, from one that the id chooses.
    fn choose_shards(&self, id: Uuid, partitions: u32) -> Vec<ShardId> {
        let count = self.written.as_ref().map_or(1, |file| file.shards.len());
        let count = u32::try_from(count).unwrap_or(u32::MAX).max(1);
        let (first, ..) = id.as_fields();
        let shard = |n: u32| ShardId((first % count + n % count) % count);
        (0..partitions).map(shard).collect()
    }

    /// Deletes a topic. It stays visible until [`Controller::commit`].
    pub(super) async fn delete(&mut self, id: Uuid) -> Result<(), TopicError> {
        let topic = self.settled(id)?;
        let name = topic.name.to_string();
        let now_ms = self.env.clock.wall_ms();
        if let Err(error) = self.files.commit_deletion(&topic, now_ms).await {
            self.unsettled.insert(name.clone());
            return Err(topic_error(error, &name));
        }
        self.topics.set_deleted(id);
        self.topics.remove(&topic);
        self.dirty = true;
        if let Err(error) = self.files.bury(&name, id).await {
            // It is gone all the same; the body follows when the name is settled.
            tracing::debug!(%error, topic = name, "no tombstone in its directory yet");
            self.unsettled.insert(name);
        }
        Ok(())
    }

    /// Whether another controller has claimed.
    pub(super) async fn check(&self) -> Result<(), OwnedError> {
        self.files.check().await
    }

    /// Changes this broker's health with the next commit.
    pub(super) fn set_health(&mut self, health: Health) {
        self.dirty |= self.health != health;
        self.health = health;
    }

    /// Takes the assignment that another controller has written, if it is newer: whether it is.
    /// Of a broker that is not assigned, its own is the newest.
    pub(super) async fn follow(&mut self) -> Result<bool, VolumeError> {
        if !self.assigned {
            return Ok(false);
        }
        let Some(found) = self.files.read_assignment().await? else {
            return Ok(false);
        };
        let age = |file: &AssignmentFile| (file.controller_epoch, file.assignment_version);
        let newer = self
            .written
            .as_ref()
            .is_none_or(|old| age(&found) > age(old));
        if newer {
            self.written = Some(found);
        }
        Ok(newer)
    }

    /// Writes the assignment if it is behind. `Ok(true)`: there is something new to publish. Of a
    /// broker that is assigned nothing of it is its own to write.
    pub(super) async fn commit(&mut self) -> Result<bool, OwnedError> {
        if !self.dirty || self.assigned {
            return Ok(false);
        }
        self.write_assignment().await.map(|()| true)
    }

    async fn write_assignment(&mut self) -> Result<(), OwnedError> {
        let inputs = Inputs {
            controller: self.broker,
            health: self.health,
            listeners: &self.listeners,
            controller_epoch: self.epoch,
            now_ms: self.env.clock.wall_ms(),
            txn_slots: self.cluster.txn_slots,
            group_slots: self.cluster.group_slots,
            shards_min: self.shards_min,
            topics: &self.topics,
        };
        let next = placement::next(self.written.as_ref(), &inputs);
        let outcome = self.files.write_assignment(&next).await;
        match &outcome {
            Ok(()) => {
                self.written = Some(next);
                self.dirty = false;
            }
            // Someone may have read it: its version is used up, and its epochs count.
            Err(OwnedError::MaybeApplied(_)) => self.written = Some(next),
            Err(_) => {}
        }
        outcome
    }

    /// What readers may see. Only after a commit without error.
    pub(super) fn view(&self) -> Option<ClusterView> {
        let file = self.written.as_ref()?;
        Some(ClusterView {
            cluster_id: self.cluster.cluster_id.as_str().into(),
            features: Arc::new(FinalizedFeatures::of(&self.cluster)),
            broker_configs: Arc::new(self.cluster.broker_configs.clone()),
            topics: Arc::new(self.topics.clone()),
            assignment: Arc::new(Assignment::new(file, &self.topics)),
        })
    }
}

/// Whether a topic of this name and size may join `topics`.
pub(super) fn check_new(
    topics: &TopicIndex,
    name: &str,
    partitions: u32,
) -> Result<(), TopicError> {
    topic_name::validate(name)?;
    if topics.is_damaged(name) {
        let name = name.to_owned();
        return Err(TopicError::Damaged { name });
    }
    match topics.alike(name) {
        Some(existing) if **existing == *name => {
            let name = name.to_owned();
            return Err(TopicError::AlreadyExists { name });
        }
        Some(existing) => {
            return Err(TopicError::Collides {
                name: name.to_owned(),
                existing: existing.to_string(),
            });
        }
        None => {}
    }
    check_partitions(topics.partitions(), partitions)
}

/// Whether a topic may have `total` partitions; how many it has.
pub(super) fn check_more(topics: &TopicIndex, id: Uuid, total: u32) -> Result<usize, TopicError> {
    let topic = topics.by_id(id).ok_or(TopicError::UnknownId { id })?;
    let have = topic.partitions();
    if total <= have {
        return Err(TopicError::NotMorePartitions { have });
    }
    let have = topic.shards.len();
    check_partitions(topics.partitions() - have, total)?;
    Ok(have)
}

fn check_configs(configs: &BTreeMap<String, String>) -> Result<(), TopicError> {
    let sizes = configs.iter().map(|(key, value)| key.len() + value.len());
    let max = CONFIGS_LEN_MAX;
    if sizes.sum::<usize>() > max {
        return Err(TopicError::ConfigsTooLarge { max });
    }
    Ok(())
}

/// Whether a cluster that has `have` partitions takes a topic of `asked` more.
fn check_partitions(have: usize, asked: u32) -> Result<(), TopicError> {
    if !(1..=TOPIC_PARTITIONS_MAX).contains(&asked) {
        let max = TOPIC_PARTITIONS_MAX;
        return Err(TopicError::InvalidPartitions { asked, max });
    }
    let more = usize::try_from(asked).unwrap_or(usize::MAX);
    if have.saturating_add(more) > PARTITIONS_MAX {
        let max = PARTITIONS_MAX;
        return Err(TopicError::TooManyPartitions { max });
    }
    Ok(())
}

/// A failed change of a topic's files, as an answer.
fn topic_error(error: OwnedError, name: &str) -> TopicError {
    match error {
        OwnedError::Stale => TopicError::NotController,
        OwnedError::Damaged { .. } => TopicError::Damaged {
            name: name.to_owned(),
        },
        OwnedError::NotApplied(error) | OwnedError::MaybeApplied(error) => {
            TopicError::Unavailable(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_takes_a_bounded_number_of_partitions() {
        let refused = Err(TopicError::TooManyPartitions { max: 200_000 });
        assert_eq!(check_partitions(199_999, 1), Ok(()));
        assert_eq!(check_partitions(199_999, 2), refused);
        assert_eq!(check_partitions(usize::MAX, 1), refused);
        assert!(check_partitions(0, 10_000).is_ok());
        for asked in [0, 10_001, u32::MAX] {
            let max = 10_000;
            let refused = Err(TopicError::InvalidPartitions { asked, max });
            assert_eq!(check_partitions(0, asked), refused);
        }
    }
}
