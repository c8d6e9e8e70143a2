//! Which broker owns what: the controller's rule, as a pure function from the assignment before.
//!
//! Slot n belongs to `sorted_brokers[n % N]`, counting dead brokers too, or to the next alive one
//! behind it. Shards follow the same rule, and a partition is led by the owner of its shard. Every
//! change of an owner raises the epoch by one; no epoch is ever lowered.

use std::collections::BTreeMap;

use store_adapter::ids::{BrokerId, ShardId};

use super::view::TopicIndex;
use crate::volume::format::{
    AssignmentFile, BrokerEntry, Extra, Health, Listener, PartitionEntry, Role, SlotEntry, rfc3339,
};

/// Epoch of a slot or shard that never had an owner. 0 is the lowest coordinator epoch, which
/// markers of older volumes carry.
const FIRST_SLOT_EPOCH: u32 = 1;
/// Epoch of a new partition, as in Kafka.
const FIRST_LEADER_EPOCH: u32 = 0;

/// What the next assignment is made of.
#[derive(Debug)]
pub(super) struct Inputs<'a> {
    /// The controller, which is alone.
    pub(super) controller: BrokerId,
    /// Its health.
    pub(super) health: Health,
    /// What clients of it are told.
    pub(super) listeners: &'a [Listener],
    /// The controller's epoch; higher than every earlier one.
    pub(super) controller_epoch: u64,
    /// Wall-clock time, ms.
    pub(super) now_ms: i64,
    /// Transaction slots of the cluster.
    pub(super) txn_slots: u32,
    /// Group slots of the cluster.
    pub(super) group_slots: u32,
    /// The fewest shards.
    pub(super) shards_min: u32,
    /// Every topic.
    pub(super) topics: &'a TopicIndex,
}

/// The next assignment.
pub(super) fn next(old: Option<&AssignmentFile>, inputs: &Inputs<'_>) -> AssignmentFile {
    let at = rfc3339(inputs.now_ms);
    let brokers = brokers(old.map_or(&[], |old| &old.brokers), inputs, &at);
    let slots = |old: Option<&Vec<SlotEntry>>, count: u32| {
        next_slots(old.map_or(&[], Vec::as_slice), count, &brokers)
    };
    let shards = slots(old.map(|old| &old.shards), shard_count(inputs));
    AssignmentFile {
        controller_epoch: inputs.controller_epoch,
        assignment_version: old.map_or(0, |old| old.assignment_version) + 1,
        generated_at: at,
        controller: inputs.controller,
        partitions: partitions(old, &shards, inputs),
        txn_slots: slots(old.map(|old| &old.txn_slots), inputs.txn_slots),
        group_slots: slots(old.map(|old| &old.group_slots), inputs.group_slots),
        brokers,
        shards,
        extra: old.map(|old| old.extra.clone()).unwrap_or_default(),
    }
}

/// Shards that are needed: also those of topics that were created when there were more.
fn shard_count(inputs: &Inputs<'_>) -> u32 {
    let used = inputs.topics.iter().flat_map(|topic| &topic.shards);
    let used = used.map(|shard| shard.0.saturating_add(1)).max();
    inputs.shards_min.max(1).max(used.unwrap_or(0))
}

/// Every broker that was ever listed, and the controller; all others are dead, for it is alone.
fn brokers(old: &[BrokerEntry], inputs: &Inputs<'_>, at: &str) -> Vec<BrokerEntry> {
    let mut brokers: BTreeMap<BrokerId, BrokerEntry> = BTreeMap::new();
    for entry in old {
        let mut entry = entry.clone();
        entry.health = Health::Dead;
        brokers.insert(entry.id, entry);
    }
    let own = brokers.remove(&inputs.controller);
    let own = BrokerEntry {
        id: inputs.controller,
        health: inputs.health,
        last_seen: at.into(),
        listeners: inputs.listeners.to_vec(),
        extra: own.map(|own| own.extra).unwrap_or_default(),
    };
    brokers.insert(inputs.controller, own);
    brokers.into_values().collect()
}

/// The owner of slot `n`. A draining broker keeps what it has until it is dead; when all are, the
/// last owner stays on record.
fn place(n: u32, brokers: &[BrokerEntry]) -> Option<BrokerId> {
    let count = brokers.len();
    let first = usize::try_from(n).unwrap_or(usize::MAX) % count.max(1);
    let order = brokers.iter().cycle().skip(first).take(count);
    order
        .filter(|broker| broker.health != Health::Dead)
        .map(|broker| broker.id)
        .next()
}

fn next_slots(old: &[SlotEntry], count: u32, brokers: &[BrokerEntry]) -> Vec<SlotEntry> {
    let count = count.max(u32::try_from(old.len()).unwrap_or(u32::MAX));
    let mut before = old.iter();
    let slot = |n: u32| -> Option<SlotEntry> {
        let before = before.next();
        let owner = place(n, brokers).or_else(|| before.map(|before| before.broker))?;
        let (broker, epoch) = raise(
            before.map(|before| (before.broker, before.epoch)),
            owner,
            FIRST_SLOT_EPOCH,
        );
        Some(SlotEntry {
            slot: n,
            broker,
            epoch,
            extra: before.map(|old| old.extra.clone()).unwrap_or_default(),
        })
    };
    (0..count).map_while(slot).collect()
}

/// The owner with its epoch: kept when the owner stays, raised when it changes.
fn raise(before: Option<(BrokerId, u32)>, owner: BrokerId, first: u32) -> (BrokerId, u32) {
    match before {
        None => (owner, first),
        Some((broker, epoch)) if broker == owner => (owner, epoch),
        Some((_, epoch)) => (owner, epoch.saturating_add(1)),
    }
}

fn partitions(
    old: Option<&AssignmentFile>,
    shards: &[SlotEntry],
    inputs: &Inputs<'_>,
) -> Vec<PartitionEntry> {
    let old = old.map_or(&[][..], |old| &old.partitions);
    let before: BTreeMap<(&str, u32), &PartitionEntry> = old
        .iter()
        .map(|entry| ((entry.topic.as_str(), entry.partition), entry))
        .collect();
    let entry = |name: &str, partition: u32, shard: ShardId| {
        let before = before.get(&(name, partition));
        let owner = shards.get(usize::try_from(shard.0).ok()?)?.broker;
        let (broker, epoch) = raise(
            before.map(|before| (before.broker, before.epoch)),
            owner,
            FIRST_LEADER_EPOCH,
        );
        Some(PartitionEntry {
            topic: name.to_owned(),
            partition,
            broker,
            epoch,
            role: Role::Leader,
            extra: before.map_or_else(Extra::new, |old| old.extra.clone()),
        })
    };
    let mut entries: Vec<PartitionEntry> = Vec::with_capacity(inputs.topics.partitions());
    for topic in inputs.topics.iter() {
        let numbered = (0..).zip(&topic.shards);
        entries.extend(numbered.filter_map(|(n, shard)| entry(&topic.name, n, *shard)));
    }
    // Nothing is known of a damaged topic: what was assigned stays until it is repaired.
    let damaged = old
        .iter()
        .filter(|old| inputs.topics.is_damaged(&old.topic));
    entries.extend(damaged.cloned());
    entries.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
    entries
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uuid::Uuid;

    use super::super::view::Topic;
    use super::*;

    fn topics(list: &[(&str, &[u32])]) -> TopicIndex {
        let mut index = TopicIndex::default();
        for (n, (name, shards)) in (1..).zip(list) {
            index.insert(Arc::new(Topic {
                id: Uuid::from_u128(n),
                name: (*name).into(),
                shards: shards.iter().copied().map(ShardId).collect(),
                configs: BTreeMap::new(),
            }));
        }
        index
    }

    fn inputs(topics: &TopicIndex, controller: i32, epoch: u64) -> Inputs<'_> {
        Inputs {
            controller: BrokerId(controller),
            health: Health::Alive,
            listeners: &[],
            controller_epoch: epoch,
            now_ms: 0,
            txn_slots: 50,
            group_slots: 50,
            shards_min: 2,
            topics,
        }
    }

    fn owners(slots: &[SlotEntry]) -> Vec<(i32, u32)> {
        slots.iter().map(|s| (s.broker.0, s.epoch)).collect()
    }

    #[test]
    fn a_lone_broker_owns_everything_and_keeps_it_over_a_restart() {
        let topics = topics(&[("a", &[0, 1]), ("b", &[0])]);
        let first = next(None, &inputs(&topics, 3, 1));
        assert_eq!(first.assignment_version, 1);
        assert_eq!(owners(&first.shards), [(3, 1), (3, 1)]);
        assert_eq!((first.txn_slots.len(), first.group_slots.len()), (50, 50));
        let second = next(Some(&first), &inputs(&topics, 3, 2));
        assert_eq!((second.controller_epoch, second.assignment_version), (2, 2));
        assert_eq!(second.partitions, first.partitions);
        assert_eq!(second.shards, first.shards);
        let keys: Vec<_> = first
            .partitions
            .iter()
            .map(|p| (p.topic.as_str(), p.partition, p.broker.0, p.epoch))
            .collect();
        assert_eq!(keys, [("a", 0, 3, 0), ("a", 1, 3, 0), ("b", 0, 3, 0)]);
    }

    #[test]
    fn another_broker_takes_all_with_higher_epochs() {
        let topics = topics(&[("a", &[0])]);
        let first = next(None, &inputs(&topics, 0, 1));
        let second = next(Some(&first), &inputs(&topics, 1, 2));
        assert_eq!(owners(&second.shards), [(1, 2), (1, 2)]);
        assert_eq!(second.partitions[0].epoch, 1);
        let health: Vec<_> = second.brokers.iter().map(|b| (b.id.0, b.health)).collect();
        assert_eq!(health, [(0, Health::Dead), (1, Health::Alive)]);
    }

    #[test]
    fn a_stopped_broker_keeps_its_epochs_on_record() {
        let topics = topics(&[("a", &[0])]);
        let first = next(None, &inputs(&topics, 0, 1));
        let stopped = Inputs {
            health: Health::Dead,
            ..inputs(&topics, 0, 1)
        };
        let second = next(Some(&first), &stopped);
        assert_eq!(second.shards, first.shards);
        assert_eq!(second.partitions, first.partitions);
    }

    #[test]
    fn shards_never_shrink() {
        let none = topics(&[]);
        let with = topics(&[("a", &[4])]);
        let first = next(None, &inputs(&with, 0, 1));
        assert_eq!(first.shards.len(), 5);
        let second = next(Some(&first), &inputs(&none, 0, 2));
        assert_eq!(second.shards.len(), 5);
        assert!(second.partitions.is_empty());
    }

    #[test]
    fn a_damaged_topic_keeps_its_entries() {
        let whole = topics(&[("a", &[0]), ("b", &[0])]);
        let first = next(None, &inputs(&whole, 0, 1));
        let mut damaged = topics(&[("b", &[0])]);
        damaged.set_damaged("a", true);
        let second = next(Some(&first), &inputs(&damaged, 0, 2));
        assert_eq!(second.partitions, first.partitions);
    }

    #[test]
    fn slots_follow_the_sorted_brokers_and_skip_dead_ones() {
        let broker = |id, health| BrokerEntry {
            id: BrokerId(id),
            health,
            last_seen: serde_json::Value::Null,
            listeners: Vec::new(),
            extra: Extra::new(),
        };
        let brokers = [
            broker(1, Health::Alive),
            broker(4, Health::Dead),
            broker(7, Health::Draining),
        ];
        let placed: Vec<_> = (0..6).map(|n| place(n, &brokers).unwrap().0).collect();
        assert_eq!(placed, [1, 7, 7, 1, 7, 7]);
        assert_eq!(place(0, &[broker(1, Health::Dead)]), None);
    }
}
