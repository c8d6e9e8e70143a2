//! Databases as earlier versions wrote them.

#![allow(clippy::disallowed_methods, reason = "tests have tasks of their own")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use uuid::Uuid;

use super::db::{Changes, Db};
use super::{KvConfig, KvStore, keys, sled_dir};
use crate::conformance::batch_of;
use crate::ids::{LeaderEpoch, LogId, OwnerEpoch, ShardId};
use crate::runtime::Env;
use crate::store::{Append, LogStore, Op};
use crate::volume::PosixVolume;

const SHARD: ShardId = ShardId(0);
const EPOCH: LeaderEpoch = LeaderEpoch(1);
const LOG: LogId = LogId {
    topic: Uuid::from_u128(1),
    partition: 0,
};
/// Bytes of a batch.
const BATCH: usize = 150_000;
/// Bytes of a piece of earlier versions.
const OLD_PIECE: usize = 64 << 10;

async fn open(dir: &Path, instance: u64) -> KvStore {
    let volume = Arc::new(PosixVolume::open(dir).unwrap());
    let store = KvStore::new(Env::real(), volume, dir, KvConfig::default());
    let owner = OwnerEpoch {
        assignment: 1,
        instance,
    };
    store.open_shard(SHARD, owner).await.unwrap();
    store
}

fn append(end: i64) -> Op {
    Op::Append(Append {
        log: LOG,
        epoch: EPOCH,
        expect_end: end,
        append_ms: 7,
        batch: batch_of(1, BATCH, 3, 5).stamp(end, EPOCH),
    })
}

/// Does something to the database of a store that is closed.
async fn alone<T: Send + 'static>(dir: &Path, work: impl FnOnce(&Db) -> T + Send + 'static) -> T {
    let path = dir.join(sled_dir(SHARD).as_str());
    let work = move || work(&Db::open(path, "the test's".to_owned(), 1 << 20).unwrap());
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// The pieces of all batches, by their keys.
fn pieces(db: &Db) -> BTreeMap<Vec<u8>, Bytes> {
    let mut found = BTreeMap::new();
    db.each(vec![b'd']..vec![b'e'], |key, piece| {
        found.insert(key.to_vec(), Bytes::copy_from_slice(piece));
        Ok(true)
    })
    .unwrap();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_in_larger_pieces_are_read_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 1).await;
    store.create(LOG, "orders", SHARD).await.unwrap();
    store.acquire(LOG, EPOCH).await.unwrap();
    for end in 0..2 {
        store.submit(vec![append(end)]).await.unwrap();
    }
    let sent = store.read(LOG, 0, usize::MAX, i64::MAX).await.unwrap();
    assert_eq!(sent.len(), 2);
    store.close().await.unwrap();
    let counts = alone(dir.path(), |db| {
        let now = pieces(db);
        let mut batches: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut changes = Changes::default();
        for (key, piece) in &now {
            let batch = batches.entry(key[..17].to_vec()).or_default();
            batch.extend_from_slice(piece);
            changes.remove(key.clone());
        }
        // Birth and base offset are those of the keys.
        for (batch, bytes) in &batches {
            let birth = u64::from_be_bytes(batch[1..9].try_into().unwrap());
            let base = i64::from_be_bytes(batch[9..].try_into().unwrap());
            for (number, piece) in (0..).zip(bytes.chunks(OLD_PIECE)) {
                changes.put(keys::piece_key(birth, base, number), piece.to_vec());
            }
        }
        db.apply(changes).unwrap();
        db.flush().unwrap();
        (now.len(), pieces(db).len())
    });
    assert_eq!(counts.await, (2 * BATCH.div_ceil(keys::PIECE_BYTES), 6));
    let store = open(dir.path(), 2).await;
    let read = store.read(LOG, 0, usize::MAX, i64::MAX).await.unwrap();
    assert_eq!(read, sent);
    let trim = Op::Trim {
        log: LOG,
        epoch: EPOCH,
        start: 2,
    };
    store.submit(vec![trim]).await.unwrap();
    // What a trim leaves is removed between rounds.
    store.submit(vec![append(2)]).await.unwrap();
    store.submit(vec![append(3)]).await.unwrap();
    store.close().await.unwrap();
    let left = alone(dir.path(), |db| pieces(db).len()).await;
    assert_eq!(left, 2 * BATCH.div_ceil(keys::PIECE_BYTES));
}
