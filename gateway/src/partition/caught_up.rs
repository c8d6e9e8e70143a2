//! Reads of a store of which a replica may answer that is behind: asks again where it had nothing
//! yet of what is committed.

use store_adapter::ids::LogId;
use store_adapter::store::{LogStore, Passed, StoreError, StoreFuture, StoredBatch, Wanted};

/// Batches to be looked into; the first whatever its size.
pub(super) async fn read(
    store: &dyn LogStore,
    id: LogId,
    from: i64,
    max_bytes: usize,
    upto: i64,
) -> Result<Vec<StoredBatch>, StoreError> {
    let ask = || store.read(id, from, max_bytes, upto);
    ask_twice(store, from < upto, ask).await
}

/// Batches for a client.
pub(super) async fn pass_on(
    store: &dyn LogStore,
    id: LogId,
    wanted: Wanted,
) -> Result<Vec<Passed>, StoreError> {
    let ask = || store.pass_on(id, wanted);
    ask_twice(store, wanted.from < wanted.upto, ask).await
}

async fn ask_twice<'a, T>(
    store: &dyn LogStore,
    some: bool,
    ask: impl Fn() -> StoreFuture<'a, Vec<T>>,
) -> Result<Vec<T>, StoreError> {
    let batches = ask().await?;
    if batches.is_empty() && some && store.caps().reads_lag {
        return ask().await;
    }
    Ok(batches)
}
