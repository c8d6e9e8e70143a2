//! Upper bounds of what parts of a table take in the group's file, so that a change that would
//! make the file too long to be read again is refused before it is prepared.

use std::sync::Arc;

use super::table::{NewOffset, OffsetTable, StagedTxn};

/// Longest file that a table may become, bytes.
pub const BYTES_MAX: usize = 64 << 20;
/// Longest file that a decision may make, bytes: one of a transaction that has nothing staged adds
/// its record, also to a table that takes no more offsets.
pub(super) const DECIDED_BYTES_MAX: usize = BYTES_MAX + BYTES_MAX / 4;

/// Digits, quotes, separators and field names of one entry, in all maps together.
const ENTRY: usize = 192;
/// The braces and field names of a file without entries.
pub(super) const EMPTY: usize = 512;
/// One entry of `appliedTxn`, and one of `appliedEpoch`.
pub(super) const APPLIED: usize = 80;

/// Bytes of a JSON string without its quotes, as it is written.
fn text(text: &str) -> usize {
    let one = |c: char| match c {
        '"' | '\\' => 2,
        c if (c as u32) < 0x20 => 6,
        c => c.len_utf8(),
    };
    text.chars().map(one).sum()
}

/// Key in up to six maps, and the metadata.
pub(super) fn of_committed(topic: &str, metadata: &str) -> usize {
    ENTRY + 6 * (text(topic) + 16) + text(metadata)
}

/// Of offsets that are committed or staged, with the ids of their topics.
pub(super) fn of_new(offsets: &[NewOffset]) -> usize {
    let one = |new: &NewOffset| of_committed(&new.topic, &new.metadata) + of_topic_id(&new.topic);
    offsets.iter().map(one).sum()
}

/// How many bytes more offsets take, committed or staged, than those whose place they take, which
/// have the metadata `before`.
pub(super) fn growth<'a>(
    offsets: &[NewOffset],
    before: impl Fn(&NewOffset) -> Option<&'a Arc<str>>,
) -> usize {
    let one = |new: &NewOffset| {
        let takes = of_committed(&new.topic, &new.metadata);
        before(new).map_or_else(
            || takes + of_topic_id(&new.topic),
            |before| takes.saturating_sub(of_committed(&new.topic, before)),
        )
    };
    offsets.iter().map(one).sum()
}

/// As it will be when it is committed: the end of a transaction must fit into the file.
pub(super) fn of_staged(topic: &str, metadata: &str) -> usize {
    of_committed(topic, metadata)
}

pub(super) fn of_topic_id(topic: &str) -> usize {
    text(topic) + 48
}

pub(super) fn of_protocol_type(protocol_type: Option<&str>) -> usize {
    protocol_type.map_or(0, text)
}

/// Of an open transaction without its offsets, with the record of its decision.
pub(super) fn of_txn_alone(transactional_id: &str) -> usize {
    ENTRY + APPLIED + text(transactional_id)
}

/// With the record of its decision.
pub(super) fn of_txn(txn: &StagedTxn) -> usize {
    let offsets = txn.offsets.iter().flat_map(|(topic, partitions)| {
        partitions
            .values()
            .map(move |staged| of_staged(topic, &staged.metadata))
    });
    of_txn_alone(&txn.transactional_id) + offsets.sum::<usize>()
}

/// The bound of a whole table, by looking at all of it.
pub(super) fn of_table(table: &OffsetTable) -> usize {
    let committed = table.committed.iter().flat_map(|(topic, partitions)| {
        partitions
            .values()
            .map(move |committed| of_committed(topic, &committed.metadata))
    });
    EMPTY
        + committed.sum::<usize>()
        + table.staged.values().map(of_txn).sum::<usize>()
        + table.applied.len() * APPLIED
        + table
            .topic_ids
            .keys()
            .map(|topic| of_topic_id(topic))
            .sum::<usize>()
        + of_protocol_type(table.protocol_type.as_deref())
}
