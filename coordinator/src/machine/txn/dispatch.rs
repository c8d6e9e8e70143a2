//! Where the markers and group decisions of a decided transaction go, and what is owed of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use store_adapter::ids::{BrokerId, ProducerEpoch, ProducerId};
use uuid::Uuid;

use super::{Change, Fence, Groups, Owed, OwedEntry, TopicIds, TopicPartitions, TxnEntry};
use crate::machine::group::offsets::{TxnEnd, TxnNumber};

/// What a decided transaction has to have written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dispatch {
    /// The producer of its markers.
    pub pid: ProducerId,
    /// The epoch of its markers.
    pub marker_epoch: ProducerEpoch,
    /// The epoch of its records.
    pub record_epoch: ProducerEpoch,
    /// COMMIT, or ABORT.
    pub commit: bool,
    /// Its number.
    pub txn_seq: u64,
    /// Where its records are.
    pub partitions: TopicPartitions,
    /// The ids of their topics.
    pub topic_ids: TopicIds,
    /// The groups whose offsets it has.
    pub groups: Groups,
}

/// Who has a partition or group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// This broker.
    Here,
    /// Another.
    Broker(BrokerId),
    /// The topic's tombstone proves that it is gone.
    Deleted,
    /// It was not found, which proves nothing.
    Unknown,
}

/// Who writes what.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// By this broker: tried before any entry is queued, whom a failure does not hold up.
    pub local: OwedEntry,
    /// By others, through their queues.
    pub remote: BTreeMap<BrokerId, OwedEntry>,
    /// By nobody any more.
    pub void: TopicPartitions,
    /// By nobody yet.
    pub homeless: OwedEntry,
}

/// What names a queue entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryName {
    /// In whose queue.
    pub broker: BrokerId,
    /// Producer that names it.
    pub pid: ProducerId,
    /// Epoch that names it.
    pub record_epoch: ProducerEpoch,
}

impl OwedEntry {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty() && self.groups.is_empty()
    }

    /// What both have. A topic of another id is another topic.
    pub fn shared_with(&self, other: &Self) -> Self {
        let mut shared = Self {
            groups: self.groups.intersection(&other.groups).cloned().collect(),
            ..Self::default()
        };
        for (topic, partitions) in &self.partitions {
            let id = self.topic_ids.get(topic);
            let same = other.partitions.get(topic);
            let Some(same) = same.filter(|_| other.topic_ids.get(topic) == id) else {
                continue;
            };
            for partition in partitions.intersection(same) {
                shared.add(topic, id.copied(), *partition);
            }
        }
        shared
    }

    fn remove(&mut self, done: &Self) {
        let done = self.shared_with(done);
        self.groups.retain(|group| !done.groups.contains(group));
        for (topic, gone) in &done.partitions {
            let Some(partitions) = self.partitions.get_mut(topic) else {
                continue;
            };
            partitions.retain(|partition| !gone.contains(partition));
            if partitions.is_empty() {
                self.partitions.remove(topic);
                self.topic_ids.remove(topic);
            }
        }
    }

    fn add(&mut self, topic: &Arc<str>, id: Option<Uuid>, partition: i32) {
        let known = self.partitions.entry(topic.clone()).or_default();
        known.insert(partition);
        if let Some(id) = id {
            self.topic_ids.insert(topic.clone(), id);
        }
    }
}

/// What an entry in Prepare* has to have written; `None` in other states. An abort of nothing has
/// nothing to write, and is finished like any.
pub fn owed_by(entry: &TxnEntry) -> Option<Dispatch> {
    let commit = entry.state.prepared()?;
    Some(Dispatch {
        pid: entry.pid,
        marker_epoch: entry.epoch,
        record_epoch: entry.record_epoch.unwrap_or(entry.epoch),
        commit,
        txn_seq: entry.txn_seq,
        partitions: entry.partitions.clone(),
        topic_ids: entry.topic_ids.clone(),
        groups: entry.groups.clone(),
    })
}

impl Dispatch {
    /// What groups are told of it.
    pub fn end(&self) -> TxnEnd {
        TxnEnd {
            producer_id: self.pid,
            number: TxnNumber {
                epoch: self.record_epoch,
                txn_seq: self.txn_seq,
            },
            commit: self.commit,
        }
    }

    /// What is owed of it, when this is queued.
    pub fn owed(&self, entries: BTreeMap<BrokerId, OwedEntry>) -> Owed {
        Owed {
            txn_seq: self.txn_seq,
            producer_id: self.pid,
            record_epoch: self.record_epoch,
            marker_epoch: self.marker_epoch,
            commit: self.commit,
            entries,
        }
    }

    /// What is fenced along with it, to be published again by whoever finishes it: an epoch that
    /// the markers pass over is stale everywhere.
    pub fn fence(&self) -> Option<Fence> {
        (self.marker_epoch > self.record_epoch).then_some(Fence {
            pid: self.pid,
            epoch: self.marker_epoch,
        })
    }
}

/// Splits what is to be written by who writes it.
pub fn plan(
    dispatch: &Dispatch,
    partition_home: impl Fn(&str, Option<Uuid>, i32) -> Home,
    group_home: impl Fn(&str) -> Home,
) -> Plan {
    let mut plan = Plan::default();
    for (topic, partitions) in &dispatch.partitions {
        let id = dispatch.topic_ids.get(topic).copied();
        for partition in partitions {
            let entry = match partition_home(topic, id, *partition) {
                Home::Here => &mut plan.local,
                Home::Broker(broker) => plan.remote.entry(broker).or_default(),
                // Without an id there is nothing that a tombstone could prove.
                Home::Deleted if id.is_some() => {
                    plan.void
                        .entry(topic.clone())
                        .or_default()
                        .insert(*partition);
                    continue;
                }
                Home::Deleted | Home::Unknown => &mut plan.homeless,
            };
            entry.add(topic, id, *partition);
        }
    }
    for group in &dispatch.groups {
        let entry = match group_home(group) {
            Home::Here => &mut plan.local,
            Home::Broker(broker) => plan.remote.entry(broker).or_default(),
            Home::Deleted | Home::Unknown => &mut plan.homeless,
        };
        entry.groups.insert(group.clone());
    }
    plan
}

/// Drops what a broker has carried out, by a done file whose name and body both carry `txn_seq`,
/// and whose body has `what`: what was given to the broker since is still owed. `None`: nothing of
/// it is owed by that broker.
pub fn confirm(
    entry: &TxnEntry,
    done: &EntryName,
    txn_seq: u64,
    what: &OwedEntry,
) -> Option<Change> {
    let mut next = entry.clone();
    for owed in &mut next.owed {
        let same = owed.txn_seq == txn_seq
            && owed.producer_id == done.pid
            && owed.record_epoch == done.record_epoch;
        if let Some(one) = owed.entries.get_mut(&done.broker).filter(|_| same) {
            one.remove(what);
        }
    }
    next.drop_settled();
    (next != *entry).then(|| quiet(next))
}

/// Drops owed partitions whose topic's tombstone exists. `None`: there are none.
pub fn forget_deleted(entry: &TxnEntry, is_deleted: impl Fn(Uuid) -> bool) -> Option<Change> {
    let mut next = entry.clone();
    for one in next
        .owed
        .iter_mut()
        .flat_map(|owed| owed.entries.values_mut())
    {
        let gone: Vec<_> = {
            let ids = one.topic_ids.iter();
            ids.filter(|(_, id)| is_deleted(**id))
                .map(|(topic, _)| topic.clone())
                .collect()
        };
        for topic in gone {
            one.partitions.remove(&topic);
            one.topic_ids.remove(&topic);
        }
    }
    next.drop_settled();
    (next != *entry).then(|| quiet(next))
}

/// Gives what is owed to those who lead it now. The entries of the new ones are written, from what
/// is owed then, before the old ones are unlinked. `None`: nothing moves. What has no home stays
/// where it is.
pub fn reroute(
    entry: &TxnEntry,
    own: BrokerId,
    partition_home: impl Fn(&str, Option<Uuid>, i32) -> Home,
    group_home: impl Fn(&str) -> Home,
) -> Option<(Change, Vec<EntryName>)> {
    let mut next = entry.clone();
    let mut doomed = Vec::new();
    for owed in &mut next.owed {
        let before = std::mem::take(&mut owed.entries);
        for (broker, one) in &before {
            let home = |found: Home| match found {
                Home::Broker(new) => new,
                Home::Here => own,
                Home::Deleted | Home::Unknown => *broker,
            };
            for (topic, partitions) in &one.partitions {
                let id = one.topic_ids.get(topic).copied();
                for partition in partitions {
                    let to = home(partition_home(topic, id, *partition));
                    owed.entries
                        .entry(to)
                        .or_default()
                        .add(topic, id, *partition);
                }
            }
            for group in &one.groups {
                let to = owed.entries.entry(home(group_home(group))).or_default();
                to.groups.insert(group.clone());
            }
        }
        let gone = before
            .keys()
            .filter(|broker| !owed.entries.contains_key(broker));
        doomed.extend(gone.map(|broker| EntryName {
            broker: *broker,
            pid: owed.producer_id,
            record_epoch: owed.record_epoch,
        }));
    }
    (next != *entry).then(|| (quiet(next), doomed))
}

impl TxnEntry {
    fn drop_settled(&mut self) {
        for owed in &mut self.owed {
            owed.entries.retain(|_, one| !one.is_empty());
        }
        self.owed.retain(|owed| !owed.entries.is_empty());
    }
}

/// A change that is no transition: the idle time of the id does not begin anew.
fn quiet(next: TxnEntry) -> Change {
    Change {
        next: Some(next),
        fences: Vec::new(),
        transition: None,
    }
}
