//! What a group's offsets are at one moment, and how each change alters them.

use std::collections::BTreeMap;
use std::sync::Arc;

use store_adapter::ids::{ProducerEpoch, ProducerId};
use uuid::Uuid;

use super::size;
use super::txn::TxnNumber;

/// A committed offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The offset, as the client gave it.
    pub offset: i64,
    /// Leader epoch of the record before it; `None` when the client gave none.
    pub leader_epoch: Option<i32>,
    /// The client's metadata.
    pub metadata: Arc<str>,
    /// When it was committed, ms since the Unix epoch; `None` on older volumes.
    pub commit_ms: Option<i64>,
    /// When it expires, where the client said so (OffsetCommit v2-4), ms since the Unix epoch.
    pub expire_ms: Option<i64>,
    /// Number of its commit within the group; `None` on older volumes, and lower than any.
    pub seq: Option<u64>,
}

/// An offset that waits for the end of its transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedOffset {
    /// The offset, as the client gave it.
    pub offset: i64,
    /// Leader epoch of the record before it.
    pub leader_epoch: Option<i32>,
    /// The client's metadata.
    pub metadata: Arc<str>,
    /// Number of its commit within the group.
    pub seq: u64,
}

/// The offsets of one open transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedTxn {
    /// Epoch of the producer that staged last.
    pub producer_epoch: ProducerEpoch,
    /// Its transactional id.
    pub transactional_id: String,
    /// Number of the transaction within its transactional id.
    pub txn_seq: u64,
    /// The offsets.
    pub offsets: BTreeMap<Arc<str>, BTreeMap<i32, StagedOffset>>,
}

impl StagedTxn {
    pub(super) fn number(&self) -> TxnNumber {
        TxnNumber {
            epoch: self.producer_epoch,
            txn_seq: self.txn_seq,
        }
    }
}

/// The last decided transaction of a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// Epoch of its records; `None` on older volumes, where its number alone says what is decided.
    pub epoch: Option<ProducerEpoch>,
    /// Number of the transaction.
    pub txn_seq: u64,
    /// When it was decided or, after a restart, read: ms since the Unix epoch.
    pub touched_ms: i64,
}

impl Applied {
    /// Whether a transaction is decided: it is this one, or an earlier one.
    pub fn covers(&self, number: TxnNumber) -> bool {
        let txn_seq = self.txn_seq;
        let of = |epoch| TxnNumber { epoch, txn_seq } >= number;
        self.epoch.map_or(txn_seq >= number.txn_seq, of)
    }
}

/// One offset to be committed or staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewOffset {
    /// Topic name.
    pub topic: Arc<str>,
    /// The id of the topic that has this name now.
    pub topic_id: Uuid,
    /// Partition number.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// Leader epoch of the record before it; `None` when the client gave none.
    pub leader_epoch: Option<i32>,
    /// The client's metadata.
    pub metadata: Arc<str>,
}

/// The offsets of a group at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffsetTable {
    pub(super) committed: BTreeMap<Arc<str>, BTreeMap<i32, Committed>>,
    /// At most one open transaction of a producer.
    pub(super) staged: BTreeMap<ProducerId, StagedTxn>,
    pub(super) applied: BTreeMap<ProducerId, Applied>,
    pub(super) topic_ids: BTreeMap<Arc<str>, Uuid>,
    pub(super) next_seq: u64,
    pub(super) protocol_type: Option<Arc<str>>,
    pub(super) empty_since_ms: Option<i64>,
    /// The group was deleted: there is nothing else.
    pub(super) deleted: bool,
    /// Upper bound of the file's length, bytes.
    pub(super) bytes: usize,
}

/// The parts of a table, as a file has them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TableParts {
    /// Committed offsets by topic and partition.
    pub committed: BTreeMap<Arc<str>, BTreeMap<i32, Committed>>,
    /// Open transactions by producer.
    pub staged: BTreeMap<ProducerId, StagedTxn>,
    /// The last decided transaction of each producer.
    pub applied: BTreeMap<ProducerId, Applied>,
    /// The ids that topics had when offsets were committed to them.
    pub topic_ids: BTreeMap<Arc<str>, Uuid>,
    /// The next commit number.
    pub next_seq: u64,
    /// Protocol type of the group's last members; `None` for a group that never had members.
    pub protocol_type: Option<Arc<str>>,
    /// Since when the group has no members, ms since the Unix epoch.
    pub empty_since_ms: Option<i64>,
    /// The group was deleted.
    pub deleted: bool,
}

impl Default for OffsetTable {
    fn default() -> Self {
        Self::from(TableParts::default())
    }
}

impl From<TableParts> for OffsetTable {
    fn from(parts: TableParts) -> Self {
        let mut table = Self {
            committed: parts.committed,
            staged: parts.staged,
            applied: parts.applied,
            topic_ids: parts.topic_ids,
            next_seq: parts.next_seq,
            protocol_type: parts.protocol_type,
            empty_since_ms: parts.empty_since_ms,
            deleted: parts.deleted,
            bytes: 0,
        };
        table.bytes = size::of_table(&table);
        table
    }
}

impl OffsetTable {
    /// Committed offsets by topic and partition.
    pub fn committed(&self) -> &BTreeMap<Arc<str>, BTreeMap<i32, Committed>> {
        &self.committed
    }

    /// Open transactions by producer.
    pub fn staged(&self) -> &BTreeMap<ProducerId, StagedTxn> {
        &self.staged
    }

    /// The last decided transaction of each producer.
    pub fn applied(&self) -> &BTreeMap<ProducerId, Applied> {
        &self.applied
    }

    /// The ids that topics had when offsets were committed to them.
    pub fn topic_ids(&self) -> &BTreeMap<Arc<str>, Uuid> {
        &self.topic_ids
    }

    /// The next commit number.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Protocol type of the group's last members; `None` for a group that never had members.
    pub fn protocol_type(&self) -> Option<&Arc<str>> {
        self.protocol_type.as_ref()
    }

    /// Since when the group has no members, ms since the Unix epoch, as far as it was written.
    pub fn empty_since_ms(&self) -> Option<i64> {
        self.empty_since_ms
    }

    /// Whether the group was deleted.
    pub fn is_deleted(&self) -> bool {
        self.deleted
    }

    /// Whether there is no offset, committed or staged.
    pub fn has_no_offsets(&self) -> bool {
        self.committed.is_empty() && self.staged.is_empty()
    }

    /// Whether nothing shows that there is a group: it never had an offset or a member, or was
    /// deleted. Decided transactions may be remembered all the same.
    pub fn is_nothing(&self) -> bool {
        let never = self.next_seq == 0 && self.protocol_type.is_none();
        self.deleted || (self.has_no_offsets() && never)
    }

    /// Upper bound of the length of the group's file, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// One committed offset.
    pub fn get(&self, topic: &str, partition: i32) -> Option<&Committed> {
        self.committed.get(topic)?.get(&partition)
    }

    /// Whether an open transaction has an offset of this partition.
    pub fn is_staged(&self, topic: &str, partition: i32) -> bool {
        let has = |txn: &StagedTxn| {
            let partitions = txn.offsets.get(topic);
            partitions.is_some_and(|partitions| partitions.contains_key(&partition))
        };
        self.staged.values().any(has)
    }

    pub(super) fn take_seq(&mut self) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        seq
    }

    /// Binds a name to the topic that has it now. What another topic of that name left is gone:
    /// a name is not an identity.
    pub(super) fn bind(&mut self, topic: &Arc<str>, id: Uuid) {
        match self.topic_ids.get(topic) {
            Some(known) if *known == id => return,
            Some(_) => {
                self.drop_topic(topic);
            }
            None => {}
        }
        self.topic_ids.insert(topic.clone(), id);
        self.bytes += size::of_topic_id(topic);
    }

    pub(super) fn put(&mut self, topic: &Arc<str>, partition: i32, committed: Committed) {
        self.bytes += size::of_committed(topic, &committed.metadata);
        let partitions = self.committed.entry(topic.clone()).or_default();
        if let Some(old) = partitions.insert(partition, committed) {
            self.bytes -= size::of_committed(topic, &old.metadata);
        }
    }

    /// Removes a committed offset; the topic's id goes with the last.
    pub(super) fn remove(&mut self, topic: &str, partition: i32) -> bool {
        let Some(partitions) = self.committed.get_mut(topic) else {
            return false;
        };
        let removed = partitions.remove(&partition);
        if partitions.is_empty() {
            self.committed.remove(topic);
        }
        if let Some(old) = &removed {
            self.bytes -= size::of_committed(topic, &old.metadata);
            self.forget_unused(topic);
        }
        removed.is_some()
    }

    /// Removes an offset from every open transaction.
    pub(super) fn unstage(&mut self, topic: &str, partition: i32) -> bool {
        let mut found = false;
        for txn in self.staged.values_mut() {
            let Some(partitions) = txn.offsets.get_mut(topic) else {
                continue;
            };
            if let Some(old) = partitions.remove(&partition) {
                self.bytes -= size::of_staged(topic, &old.metadata);
                found = true;
            }
            if partitions.is_empty() {
                txn.offsets.remove(topic);
            }
        }
        if found {
            self.drop_hollow_txns();
            self.forget_unused(topic);
        }
        found
    }

    fn drop_hollow_txns(&mut self) {
        let hollow = |txn: &StagedTxn| txn.offsets.is_empty();
        let staged = self.staged.iter().filter(|(_, txn)| hollow(txn));
        let ids: Vec<ProducerId> = staged.map(|(id, _)| *id).collect();
        for id in ids {
            self.take_staged(id);
        }
    }

    /// Removes an open transaction with its offsets.
    pub(super) fn take_staged(&mut self, id: ProducerId) -> Option<StagedTxn> {
        let txn = self.staged.remove(&id)?;
        self.bytes -= size::of_txn(&txn);
        Some(txn)
    }

    pub(super) fn put_staged(&mut self, id: ProducerId, txn: StagedTxn) {
        self.take_staged(id);
        self.bytes += size::of_txn(&txn);
        self.staged.insert(id, txn);
    }

    pub(super) fn set_applied(&mut self, id: ProducerId, applied: Applied) {
        if self.applied.insert(id, applied).is_none() {
            self.bytes += size::APPLIED;
        }
    }

    pub(super) fn remove_applied(&mut self, id: ProducerId) {
        if self.applied.remove(&id).is_some() {
            self.bytes -= size::APPLIED;
        }
    }

    pub(super) fn set_protocol_type(&mut self, protocol_type: Option<Arc<str>>) {
        self.bytes -= size::of_protocol_type(self.protocol_type.as_deref());
        self.bytes += size::of_protocol_type(protocol_type.as_deref());
        self.protocol_type = protocol_type;
    }

    /// Drops everything of a topic, committed and staged. Whether there was anything.
    pub(super) fn drop_topic(&mut self, topic: &str) -> bool {
        let mut found = false;
        for (_, old) in self.committed.remove(topic).into_iter().flatten() {
            self.bytes -= size::of_committed(topic, &old.metadata);
            found = true;
        }
        for txn in self.staged.values_mut() {
            for (_, old) in txn.offsets.remove(topic).into_iter().flatten() {
                self.bytes -= size::of_staged(topic, &old.metadata);
                found = true;
            }
        }
        self.drop_hollow_txns();
        self.forget_unused(topic);
        found
    }

    /// An id without offsets protects nothing.
    pub(super) fn forget_unused(&mut self, topic: &str) {
        let staged = |txn: &StagedTxn| txn.offsets.contains_key(topic);
        let used = self.committed.contains_key(topic) || self.staged.values().any(staged);
        if !used && self.topic_ids.remove(topic).is_some() {
            self.bytes -= size::of_topic_id(topic);
        }
    }
}
