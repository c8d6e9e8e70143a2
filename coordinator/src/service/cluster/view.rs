//! What readers see: immutable snapshots of topics and assignment, published together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use store_adapter::ids::{BrokerId, LeaderEpoch, LogId, ShardId};
use uuid::Uuid;

use super::features::{BrokerConfigs, FinalizedFeatures};
use super::topic_name::folded;
use crate::slot_hash::fnv1a32;
use crate::volume::format::{AssignmentFile, BrokerEntry, SlotEntry};

/// A topic. Its identity is the id; a topic created under the same name later is another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// Topic id (KIP-516).
    pub id: Uuid,
    /// Its name.
    pub name: Arc<str>,
    /// The shard of each partition, chosen at creation.
    pub shards: Vec<ShardId>,
    /// Configs that were set, under their Kafka names.
    pub configs: BTreeMap<String, String>,
}

impl Topic {
    /// Number of partitions, at least 1.
    pub fn partitions(&self) -> u32 {
        u32::try_from(self.shards.len()).unwrap_or(u32::MAX)
    }

    /// The shard of a partition.
    pub fn shard(&self, partition: u32) -> Option<ShardId> {
        self.shards.get(usize::try_from(partition).ok()?).copied()
    }
}

/// Every topic, by name and by id.
#[derive(Debug, Clone, Default)]
pub struct TopicIndex {
    by_name: BTreeMap<Arc<str>, Arc<Topic>>,
    by_id: BTreeMap<Uuid, Arc<Topic>>,
    /// Names by what those that collide have in common. On an older volume several may.
    alike: BTreeMap<String, BTreeSet<Arc<str>>>,
    damaged: BTreeSet<String>,
    deleted: BTreeSet<Uuid>,
}

impl TopicIndex {
    /// The topic of a name.
    pub fn get(&self, name: &str) -> Option<&Arc<Topic>> {
        self.by_name.get(name)
    }

    /// The topic of an id.
    pub fn by_id(&self, id: Uuid) -> Option<&Arc<Topic>> {
        self.by_id.get(&id)
    }

    /// Every topic, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.by_name.values()
    }

    /// How many topics there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there are no topics.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Whether a topic has this name but can't be served, because its files are damaged. Requests
    /// for it are answered with a retriable error.
    pub fn is_damaged(&self, name: &str) -> bool {
        self.damaged.contains(name)
    }

    /// Names whose files are damaged.
    pub fn damaged(&self) -> impl Iterator<Item = &str> {
        self.damaged.iter().map(String::as_str)
    }

    /// Whether the topic of this id was deleted: only a tombstone proves it. An id that is neither
    /// here nor deleted belongs to a topic whose files are damaged.
    pub fn is_deleted(&self, id: Uuid) -> bool {
        self.deleted.contains(&id)
    }

    /// The topic of this name, otherwise one whose name collides with it.
    pub(super) fn alike(&self, name: &str) -> Option<&Arc<str>> {
        let names = self.alike.get(&folded(name))?;
        names.get(name).or_else(|| names.first())
    }

    pub(super) fn insert(&mut self, topic: Arc<Topic>) {
        let alike = self.alike.entry(folded(&topic.name)).or_default();
        alike.insert(topic.name.clone());
        self.by_id.insert(topic.id, topic.clone());
        self.by_name.insert(topic.name.clone(), topic);
    }

    pub(super) fn remove(&mut self, topic: &Topic) {
        self.by_id.remove(&topic.id);
        self.by_name.remove(&topic.name);
        let folded = folded(&topic.name);
        if let Some(alike) = self.alike.get_mut(&folded) {
            alike.remove(&topic.name);
            if alike.is_empty() {
                self.alike.remove(&folded);
            }
        }
    }

    pub(super) fn set_damaged(&mut self, name: &str, damaged: bool) {
        if damaged {
            self.damaged.insert(name.to_owned());
        } else {
            self.damaged.remove(name);
        }
    }

    pub(super) fn set_deleted(&mut self, id: Uuid) {
        self.deleted.insert(id);
    }

    pub(super) fn partitions(&self) -> usize {
        self.by_name.values().map(|topic| topic.shards.len()).sum()
    }
}

/// Who owns a partition, a slot or a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownership {
    /// The owner.
    pub broker: BrokerId,
    /// Grows with every change of the owner.
    pub epoch: u32,
}

impl Ownership {
    /// The epoch as a leader epoch.
    pub fn leader_epoch(self) -> LeaderEpoch {
        LeaderEpoch(self.epoch)
    }
}

/// Who owns what. Readers take the highest (controller epoch, version) and never go back.
#[derive(Debug, Clone)]
pub struct Assignment {
    /// Grows with every controller.
    pub controller_epoch: u64,
    /// Grows with every write.
    pub version: u64,
    /// Who wrote it.
    pub controller: BrokerId,
    /// Every broker, dead ones too, by number.
    pub brokers: Vec<BrokerEntry>,
    /// Transaction slots.
    pub txn_slots: Vec<Ownership>,
    /// Group slots.
    pub group_slots: Vec<Ownership>,
    /// Shards.
    pub shards: Vec<Ownership>,
    leaders: BTreeMap<Arc<str>, BTreeMap<u32, Ownership>>,
}

impl Assignment {
    pub(super) fn new(file: &AssignmentFile, topics: &TopicIndex) -> Self {
        let mut leaders: BTreeMap<Arc<str>, BTreeMap<u32, Ownership>> = BTreeMap::new();
        for entry in &file.partitions {
            let owner = Ownership {
                broker: entry.broker,
                epoch: entry.epoch,
            };
            if let Some(partitions) = leaders.get_mut(entry.topic.as_str()) {
                partitions.insert(entry.partition, owner);
            } else {
                let known = topics.get(&entry.topic).map(|topic| topic.name.clone());
                let name = known.unwrap_or_else(|| entry.topic.as_str().into());
                leaders.insert(name, BTreeMap::from([(entry.partition, owner)]));
            }
        }
        Self {
            controller_epoch: file.controller_epoch,
            version: file.assignment_version,
            controller: file.controller,
            brokers: file.brokers.clone(),
            txn_slots: ownerships(&file.txn_slots),
            group_slots: ownerships(&file.group_slots),
            shards: ownerships(&file.shards),
            leaders,
        }
    }

    /// Who leads a partition, by name.
    pub fn leader(&self, topic: &str, partition: u32) -> Option<Ownership> {
        self.leaders.get(topic)?.get(&partition).copied()
    }

    /// The group slot that a group is in, and who owns it.
    pub fn group_slot(&self, group: &str) -> Option<(u32, Ownership)> {
        let slots = u32::try_from(self.group_slots.len()).ok()?;
        let slot = fnv1a32(group.as_bytes()).checked_rem(slots)?;
        let owner = self.group_slots.get(usize::try_from(slot).ok()?)?;
        Some((slot, *owner))
    }

    /// Who owns a shard.
    pub fn shard(&self, shard: ShardId) -> Option<Ownership> {
        self.shards.get(usize::try_from(shard.0).ok()?).copied()
    }
}

fn ownerships(slots: &[SlotEntry]) -> Vec<Ownership> {
    let owner = |entry: &SlotEntry| Ownership {
        broker: entry.broker,
        epoch: entry.epoch,
    };
    slots.iter().map(owner).collect()
}

/// Topics and assignment of one moment.
#[derive(Debug, Clone)]
pub struct ClusterView {
    /// The cluster's id.
    pub cluster_id: Arc<str>,
    /// The features that are finalized.
    pub features: Arc<FinalizedFeatures>,
    /// What was set of brokers while they ran.
    pub broker_configs: Arc<BrokerConfigs>,
    /// The topics.
    pub topics: Arc<TopicIndex>,
    /// Who owns what.
    pub assignment: Arc<Assignment>,
}

impl ClusterView {
    /// Who leads a log; `None` when its topic does not exist.
    pub fn leader(&self, log: LogId) -> Option<Ownership> {
        let topic = self.topics.by_id(log.topic)?;
        self.assignment.leader(&topic.name, log.partition)
    }
}
