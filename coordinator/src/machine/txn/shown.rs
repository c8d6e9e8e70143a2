//! A transactional id as people and tools are shown it.

use store_adapter::fault::{Fault, planted};
use store_adapter::ids::{ProducerEpoch, ProducerId};

use super::{Groups, Owed, TopicPartitions, TxnEntry, TxnState};

/// What is shown in lists: nothing that has to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outline {
    /// The producer of the transaction.
    pub pid: ProducerId,
    /// Its epoch; in Prepare* that of the markers.
    pub epoch: ProducerEpoch,
    /// The state.
    pub state: TxnState,
    /// When the transaction began, ms since the Unix epoch.
    pub start_ms: Option<i64>,
}

/// The same as [`shown`] has it.
pub fn outline(entry: &TxnEntry) -> Outline {
    let (pid, epoch, state) = match owed(entry) {
        // Nothing new begins behind the gate: what the slot has besides is over.
        Some(owed) => (
            owed.producer_id,
            owed.marker_epoch,
            TxnState::prepare(owed.commit),
        ),
        None => (entry.pid, entry.epoch, entry.state),
    };
    Outline {
        pid,
        epoch,
        state,
        start_ms: entry.start_ms,
    }
}

/// What other brokers still have to do, unless the simulation wants to see it left out.
fn owed(entry: &TxnEntry) -> Option<&Owed> {
    let owed = entry.owed.first();
    owed.filter(|_| !planted(Fault::OwedNotShown))
}

/// What is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The producer of the transaction.
    pub pid: ProducerId,
    /// Its epoch; in Prepare* that of the markers.
    pub epoch: ProducerEpoch,
    /// The state.
    pub state: TxnState,
    /// When the transaction began, ms since the Unix epoch.
    pub start_ms: Option<i64>,
    /// Its timeout, ms.
    pub timeout_ms: i32,
    /// Partitions that are open, or whose marker is owed.
    pub partitions: TopicPartitions,
    /// Groups whose offsets are staged, or whose decision is owed.
    pub groups: Groups,
}

/// What is shown of an id. As long as another broker owes a marker or decision the transaction is
/// in Prepare* with what is owed, whatever the slot says: readers still wait for it.
pub fn shown(entry: &TxnEntry) -> Shown {
    let Outline {
        pid,
        epoch,
        state,
        start_ms,
    } = outline(entry);
    let (partitions, groups) = match owed(entry) {
        Some(owed) => left(owed),
        None => (entry.partitions.clone(), entry.groups.clone()),
    };
    Shown {
        pid,
        epoch,
        state,
        start_ms,
        timeout_ms: entry.timeout_ms,
        partitions,
        groups,
    }
}

/// Partitions of a producer's records on which a decision is still to be carried out.
pub fn undecided(entry: &TxnEntry, pid: ProducerId) -> TopicPartitions {
    let mut partitions = TopicPartitions::new();
    if entry.pid == pid && entry.state.prepared().is_some() {
        partitions.clone_from(&entry.partitions);
    }
    for owed in entry.owed.iter().filter(|owed| owed.producer_id == pid) {
        merge(&mut partitions, left(owed).0);
    }
    partitions
}

/// The producers of whose records something may be undecided.
pub fn producers(entry: &TxnEntry) -> impl Iterator<Item = ProducerId> {
    let owed = entry.owed.iter().map(|owed| owed.producer_id);
    owed.chain([entry.pid])
}

/// Adds partitions to others.
pub fn merge(partitions: &mut TopicPartitions, more: TopicPartitions) {
    for (topic, numbers) in more {
        partitions.entry(topic).or_default().extend(numbers);
    }
}

fn left(owed: &Owed) -> (TopicPartitions, Groups) {
    let (mut partitions, mut groups) = (TopicPartitions::new(), Groups::new());
    for one in owed.entries.values() {
        merge(&mut partitions, one.partitions.clone());
        groups.extend(one.groups.iter().cloned());
    }
    (partitions, groups)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use store_adapter::ids::BrokerId;

    use super::super::OwedEntry;
    use super::*;

    fn of(topic: &str, numbers: &[i32]) -> TopicPartitions {
        let numbers: BTreeSet<i32> = numbers.iter().copied().collect();
        BTreeMap::from([(Arc::from(topic), numbers)])
    }

    fn entry(state: TxnState) -> TxnEntry {
        TxnEntry {
            epoch: ProducerEpoch(4),
            state,
            start_ms: Some(10),
            partitions: of("t", &[0, 1]),
            groups: Groups::from([Arc::from("g")]),
            ..TxnEntry::new(ProducerId(7), 60_000, 0)
        }
    }

    fn owed() -> Owed {
        let one = |topic: &str, numbers: &[i32]| OwedEntry {
            partitions: of(topic, numbers),
            groups: Groups::from([Arc::from(topic)]),
            ..OwedEntry::default()
        };
        Owed {
            txn_seq: 3,
            producer_id: ProducerId(6),
            record_epoch: ProducerEpoch(8),
            marker_epoch: ProducerEpoch(9),
            commit: true,
            entries: BTreeMap::from([(BrokerId(1), one("u", &[2])), (BrokerId(2), one("u", &[5]))]),
        }
    }

    #[test]
    fn an_open_transaction_is_shown_as_it_is() {
        let shown = shown(&entry(TxnState::Ongoing));
        assert_eq!(shown.state, TxnState::Ongoing);
        assert_eq!(shown.partitions, of("t", &[0, 1]));
        assert_eq!((shown.pid, shown.epoch), (ProducerId(7), ProducerEpoch(4)));
    }

    #[test]
    fn what_others_owe_is_shown_as_prepared() {
        let mut complete = entry(TxnState::CompleteCommit);
        complete.partitions.clear();
        complete.groups.clear();
        complete.owed = vec![owed()];
        let shown = shown(&complete);
        assert_eq!(shown.state, TxnState::PrepareCommit);
        assert_eq!((shown.pid, shown.epoch), (ProducerId(6), ProducerEpoch(9)));
        assert_eq!(shown.partitions, of("u", &[2, 5]));
        assert_eq!(shown.groups, Groups::from([Arc::from("u")]));
    }

    #[test]
    fn a_decision_is_owed_until_it_is_confirmed() {
        let none = TopicPartitions::new();
        let (pid, other) = (ProducerId(7), ProducerId(8));
        assert_eq!(undecided(&entry(TxnState::Ongoing), pid), none);
        let prepared = entry(TxnState::PrepareAbort);
        assert_eq!(undecided(&prepared, pid), of("t", &[0, 1]));
        assert_eq!(undecided(&prepared, other), none);
        let mut complete = entry(TxnState::CompleteCommit);
        assert_eq!(undecided(&complete, pid), none);
        complete.owed = vec![owed()];
        assert_eq!(undecided(&complete, ProducerId(6)), of("u", &[2, 5]));
        assert_eq!(undecided(&complete, pid), none);
    }
}
