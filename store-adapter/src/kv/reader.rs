//! Reading: entries of batches by their keys, then the pieces of those that are asked for.

use std::sync::Arc;

use bytes::BytesMut;
use tokio::sync::{mpsc, oneshot};

use super::db::Db;
use super::keys::{self, Meta, PIECE_BYTES};
use super::shard::{Log, Registry};
use super::state::Floor;
use crate::store::{Bounds, Piece, StoreError, StoredBatch};

/// Jobs that may wait for a reading task.
pub(super) const JOBS_MAX: usize = 1024;
/// Bytes of batches that one piece of a log is told for.
const STRETCH_BYTES: u64 = 64 << 10;

/// Something to read.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Does jobs until nobody can send any more.
pub(super) async fn run(mut jobs: mpsc::Receiver<Job>) {
    while let Some(job) = jobs.recv().await {
        job();
    }
}

/// Has `read` done by a reading task.
pub(super) async fn ask<T: Send + 'static>(
    reader: &mpsc::Sender<Job>,
    read: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let (reply, outcome) = oneshot::channel();
    let job: Job = Box::new(move || {
        // Who asked may have gone.
        drop(reply.send(read()));
    });
    let ended = || StoreError::Offline("the store is closed".to_owned());
    reader.send(job).await.map_err(|_| ended())?;
    outcome.await.map_err(|_| ended())?
}

/// What a read wants.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    /// First offset.
    pub(super) from: i64,
    /// Bytes.
    pub(super) max_bytes: usize,
    /// The offset behind.
    pub(super) upto: i64,
    /// Whether the limit holds for the first batch too.
    pub(super) within: bool,
}

/// A log that is read. What is damaged closes the shard.
#[derive(Debug)]
pub(super) struct Reader {
    /// The log.
    pub(super) log: Arc<Log>,
    /// Where it is looked for again when it has gone meanwhile.
    pub(super) registry: Arc<Registry>,
}

impl Reader {
    /// See [`crate::store::LogStore::read`].
    pub(super) fn read(&self, range: Range) -> Result<Vec<StoredBatch>, StoreError> {
        let bounds = self.log.bounds_for(range.from)?;
        let upto = range.upto.min(bounds.end);
        if range.from >= upto {
            return Ok(Vec::new());
        }
        self.steady(range.from, |db| {
            let mut taken = Vec::new();
            let mut bytes = 0_usize;
            self.each(db, range.from, |base, meta| {
                bytes = bytes.saturating_add(meta.len as usize);
                let full = bytes > range.max_bytes && (range.within || !taken.is_empty());
                if base >= upto || full {
                    return Ok(false);
                }
                taken.push((base, *meta));
                Ok(true)
            })?;
            let mut batches = Vec::with_capacity(taken.len());
            for (base, meta) in &taken {
                let batch = self.batch(db, *base, meta)?;
                // Its entry begins with the gap before it.
                if batch.base_offset >= upto {
                    break;
                }
                batches.push(batch);
            }
            Ok(batches)
        })
    }

    /// See [`crate::store::LogStore::find_time`].
    pub(super) fn find(
        &self,
        from: i64,
        timestamp_ms: i64,
    ) -> Result<Option<StoredBatch>, StoreError> {
        loop {
            match self.find_once(from, timestamp_ms) {
                // It was trimmed meanwhile.
                Err(StoreError::OutOfRange { .. }) => {}
                found => return found,
            }
        }
    }

    fn find_once(&self, from: i64, timestamp_ms: i64) -> Result<Option<StoredBatch>, StoreError> {
        let Bounds { start, end } = *self.log.bounds.borrow();
        let from = from.max(start);
        if from >= end {
            return self.log.shard.check().map(|()| None);
        }
        self.steady(start, |db| {
            let mut first = None;
            self.each(db, from, |base, meta| {
                if base < end && meta.max_timestamp >= timestamp_ms {
                    first = Some((base, *meta));
                }
                Ok(base < end && first.is_none())
            })?;
            let first = first.as_ref();
            first
                .map(|(base, meta)| self.batch(db, *base, meta))
                .transpose()
        })
    }

    /// See [`crate::store::LogStore::pieces`].
    pub(super) fn pieces(&self, from: i64, min_bytes: u64) -> Result<Vec<Piece>, StoreError> {
        let bounds = self.log.bounds_for(from)?;
        if from >= bounds.end {
            return Ok(Vec::new());
        }
        self.steady(from, |db| {
            let mut pieces: Vec<Piece> = Vec::new();
            let mut bytes = 0;
            self.each(db, from, |base, meta| {
                if base >= bounds.end {
                    return Ok(false);
                }
                let time = if meta.max_timestamp >= 0 {
                    meta.max_timestamp
                } else {
                    meta.append_ms
                };
                let len = u64::from(meta.len);
                match pieces.last_mut().filter(|last| last.bytes < STRETCH_BYTES) {
                    Some(last) => {
                        last.last = meta.last;
                        last.bytes += len;
                        last.max_timestamp = last.max_timestamp.max(time);
                    }
                    None if bytes >= min_bytes => return Ok(false),
                    None => pieces.push(Piece {
                        base: base.max(from),
                        last: meta.last,
                        bytes: len,
                        max_timestamp: time,
                    }),
                }
                bytes += len;
                Ok(true)
            })?;
            Ok(pieces)
        })
    }

    /// Reads what `work` reads, again where batches were replaced meanwhile, so that it found some
    /// of the old ones and some of the new.
    pub(super) fn steady<T>(
        &self,
        from: i64,
        work: impl Fn(&Db) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        loop {
            let before = self.log.replaced();
            let db = self.log.shard.db()?;
            let done = work(&db);
            let moved = before % 2 == 1 || self.log.replaced() != before;
            if !(moved && matches!(done, Err(StoreError::Corrupt { .. }))) {
                return self.settle(from, done);
            }
            std::thread::yield_now();
        }
    }

    /// Shows `take` the batches from the one that holds `from` on, until it has enough; the first
    /// offset is the first that they answer for.
    pub(super) fn each(
        &self,
        db: &Db,
        from: i64,
        mut take: impl FnMut(i64, &Meta) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let birth = self.log.birth;
        let missing = |at| db.damaged(format!("log {}: no batch at offset {at}", self.log.id));
        let floor = db.floor(birth, from)?;
        let (base, meta) = floor
            .filter(|(_, meta)| meta.last >= from)
            .ok_or_else(|| missing(from))?;
        if !take(base, &meta)? {
            return Ok(());
        }
        let mut next = meta.last.saturating_add(1);
        let range = keys::batch_key(birth, next)..keys::batch_prefix(birth.saturating_add(1));
        db.each(range, |key, value| {
            let base = keys::batch_of(key).map(|(_, base)| base);
            let meta = Meta::decode(key, value);
            let (Some(base), Some(meta)) = (base, meta) else {
                return Err(db.damaged(format!("log {}: the entry of a batch", self.log.id)));
            };
            if base != next {
                return Err(missing(next));
            }
            next = meta.last.saturating_add(1);
            take(base, &meta)
        })
    }

    /// The batch of an entry.
    pub(super) fn batch(&self, db: &Db, base: i64, meta: &Meta) -> Result<StoredBatch, StoreError> {
        let damaged = || {
            let log = self.log.id;
            db.damaged(format!(
                "log {log}: the bytes of the batch at offset {base}"
            ))
        };
        let len = meta.len as usize;
        let piece_key = |piece| keys::piece_key(self.log.birth, base, piece);
        let bytes = if len <= PIECE_BYTES {
            db.get(&piece_key(0))?.ok_or_else(damaged)?
        } else {
            let mut bytes = BytesMut::with_capacity(len);
            db.each(piece_key(0)..piece_key(u32::MAX), |_, piece| {
                bytes.extend_from_slice(piece);
                Ok(bytes.len() < len)
            })?;
            bytes.freeze()
        };
        if bytes.len() != len || crc32c::crc32c(&bytes) != meta.crc {
            return Err(damaged());
        }
        // An entry also answers for offsets before its batch that are gone.
        let first = bytes.first_chunk::<8>().ok_or_else(damaged)?;
        Ok(StoredBatch {
            base_offset: i64::from_be_bytes(*first),
            bytes,
            last_offset: meta.last,
            append_ms: meta.append_ms,
        })
    }

    /// What was read, unless the log was trimmed or deleted meanwhile; damage closes the shard.
    fn settle<T>(&self, from: i64, read: Result<T, StoreError>) -> Result<T, StoreError> {
        let Err(error) = read else {
            return read;
        };
        let here = self.registry.get(self.log.id);
        if here.is_none_or(|log| log.birth != self.log.birth) {
            self.log.shard.check()?;
            return Err(StoreError::NotFound);
        }
        self.log.bounds_for(from)?;
        self.log.shard.refuse(&error);
        Err(error)
    }
}
