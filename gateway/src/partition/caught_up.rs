//! Reads of a store of which a replica may answer that is behind.

use store_adapter::ids::LogId;
use store_adapter::store::{LogStore, StoreError, StoredBatch};

/// What is read of a log; see [`LogStore::read`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    /// The log.
    pub(super) id: LogId,
    /// First offset.
    pub(super) from: i64,
    /// Bytes.
    pub(super) max_bytes: usize,
    /// The offset behind; committed.
    pub(super) upto: i64,
    /// Whether the limit holds for the first batch too.
    pub(super) within: bool,
}

/// Reads; asks again where a replica had nothing yet of what is committed.
pub(super) async fn read(
    store: &dyn LogStore,
    range: Range,
) -> Result<Vec<StoredBatch>, StoreError> {
    let batches = once(store, range).await?;
    if batches.is_empty() && range.from < range.upto && store.caps().reads_lag {
        return once(store, range).await;
    }
    Ok(batches)
}

async fn once(store: &dyn LogStore, range: Range) -> Result<Vec<StoredBatch>, StoreError> {
    let Range {
        id,
        from,
        max_bytes,
        upto,
        within,
    } = range;
    if within {
        store.read_within(id, from, max_bytes, upto).await
    } else {
        store.read(id, from, max_bytes, upto).await
    }
}
