//! Compaction: the batches of a log pass a sieve, about a MiB of them at a time, and what is left
//! takes their place in one round.
//!
//! The entries of a log tile its offsets, also where batches are gone: the entry of the next batch
//! that is left begins where the first one of those began, and the bytes of a batch say where it
//! begins itself. Where none that was looked at follows, the last one stays as a batch of nobody,
//! without records. The last batch of a log stays as it is.
//!
//! A part is read beside the writer, which refuses what was read before it last changed the log.

use std::time::Duration;

use bytes::Bytes;

use super::db::Db;
use super::keys::Meta;
use super::reader::Reader;
use super::state::Replace;
use super::store::KvStore;
use crate::batch::BatchHeader;
use crate::journal::queue::Command;
use crate::rebuild::filler;
use crate::store::{Bounds, Left, LogStore, Op, Rewrite, Rewritten, StoreError};

/// Bytes of batches that are sifted at once, about.
const PART_BYTES: u64 = 1 << 20;
/// Pause behind each part: about 64 MiB/s at most.
const PAUSE: Duration = Duration::from_millis(15);

/// What became of a part of a log.
#[derive(Debug)]
struct Part {
    /// What has to change, if anything.
    replace: Option<Replace>,
    /// Behind the last batch that was looked at; where it began, if there was none.
    next: i64,
    bytes_before: u64,
    bytes_after: u64,
}

/// Batches in a row that are gone.
struct Gone {
    base: i64,
    before: u64,
    last: Meta,
    bytes: Bytes,
    count: usize,
}

impl KvStore {
    /// See [`crate::store::LogStore::rewrite`].
    pub(super) async fn sift(&self, rewrite: Rewrite) -> Result<Rewritten, StoreError> {
        let log = self.log(rewrite.log)?;
        let mut report = Rewritten {
            upto: log.bounds.borrow().start,
            ..Rewritten::default()
        };
        match self.sift_all(&rewrite, &mut report).await {
            Err(error) if report.bytes_before == 0 => Err(error),
            _ => Ok(report),
        }
    }

    async fn sift_all(&self, rewrite: &Rewrite, report: &mut Rewritten) -> Result<(), StoreError> {
        let (id, epoch) = (rewrite.log, rewrite.epoch);
        // Whether the epoch holds the log: a trim that moves nothing is refused otherwise.
        let trim = Op::Trim {
            log: id,
            epoch,
            start: 0,
        };
        self.submit(vec![trim]).await?;
        loop {
            let log = self.log(id)?;
            let Bounds { start, end } = *log.bounds.borrow();
            let from = report.upto.max(start);
            if from >= rewrite.upto.min(end) {
                return Ok(());
            }
            let asked = rewrite.clone();
            let part = self.read_with(id, move |reader| reader.sift(from, &asked));
            let part = match part.await {
                // It was trimmed meanwhile.
                Err(StoreError::OutOfRange { .. }) => continue,
                part => part?,
            };
            if part.next == from {
                report.upto = rewrite.upto.min(end);
                return Ok(());
            }
            if let Some(replace) = part.replace {
                let command = |reply| Command::Replace(Box::new(replace), reply);
                match Self::ask(&log.shard, command).await {
                    Err(StoreError::OutOfRange { .. }) => continue,
                    done => done?,
                }
            }
            report.bytes_before += part.bytes_before;
            report.bytes_after += part.bytes_after;
            report.upto = part.next.min(rewrite.upto);
            self.env.clock.sleep(PAUSE).await;
        }
    }
}

impl Reader {
    /// Reads some batches from the one that holds `from` on, and says what becomes of them.
    fn sift(&self, from: i64, rewrite: &Rewrite) -> Result<Part, StoreError> {
        let bounds = self.log.bounds_for(from)?;
        self.steady(from, |db| self.sift_part(db, (from, bounds.end), rewrite))
    }

    fn sift_part(
        &self,
        db: &Db,
        (from, end): (i64, i64),
        rewrite: &Rewrite,
    ) -> Result<Part, StoreError> {
        let seen = self.log.replaced();
        let (mut found, mut bytes) = (Vec::new(), 0);
        self.each(db, from, |base, meta| {
            let stays = meta.last >= rewrite.upto || meta.last.saturating_add(1) >= end;
            if stays || bytes >= PART_BYTES {
                return Ok(false);
            }
            bytes += u64::from(meta.len);
            found.push((base, *meta));
            Ok(true)
        })?;
        let mut sifting = Sifting::default();
        for (base, meta) in &found {
            let stored = self.batch(db, *base, meta)?;
            let left = rewrite.sieve.sift(&stored);
            sifting.take(*base, meta, stored.bytes, left);
        }
        sifting.end();
        let first_last = found.first().map_or(from, |(_, meta)| meta.last);
        let changed = !sifting.gone.is_empty();
        let replace = changed.then(|| Replace {
            log: rewrite.log,
            epoch: rewrite.epoch,
            birth: self.log.birth,
            seen,
            first_last,
            gone: sifting.gone,
            put: sifting.put,
        });
        Ok(Part {
            replace,
            next: found
                .last()
                .map_or(from, |(_, meta)| meta.last.saturating_add(1)),
            bytes_before: bytes,
            bytes_after: bytes
                .saturating_sub(sifting.bytes_gone)
                .saturating_add(sifting.bytes_put),
        })
    }
}

/// What goes, and what comes in its place.
#[derive(Default)]
struct Sifting {
    run: Option<Gone>,
    gone: Vec<(i64, u32)>,
    put: Vec<(i64, Meta, Bytes)>,
    bytes_gone: u64,
    bytes_put: u64,
}

impl Sifting {
    fn take(&mut self, base: i64, meta: &Meta, bytes: Bytes, left: Left) {
        let left = match left {
            Left::Nothing => {
                let (base_of_all, before, count) = match &self.run {
                    Some(run) => (run.base, run.before, run.count),
                    None => (base, meta.before, 0),
                };
                self.remove(base, meta);
                self.run = Some(Gone {
                    base: base_of_all,
                    before,
                    last: *meta,
                    bytes,
                    count: count + 1,
                });
                return;
            }
            Left::Whole if self.run.is_none() => return,
            Left::Whole => bytes,
            Left::Batch(left) => left,
        };
        self.remove(base, meta);
        let run = self.run.take();
        let (base, before) = run.map_or((base, meta.before), |run| (run.base, run.before));
        self.put(base, before, meta, left);
    }

    /// Nothing follows what is gone: its last batch stays, without records.
    fn end(&mut self) {
        let Some(run) = self.run.take() else {
            return;
        };
        let left = BatchHeader::read(&run.bytes).map_or_else(|_| run.bytes.clone(), |h| filler(&h));
        if run.count == 1 && left == run.bytes {
            // It is such a one already.
            self.gone.pop();
            self.bytes_gone -= u64::from(run.last.len);
            return;
        }
        self.put(run.base, run.before, &run.last, left);
    }

    fn remove(&mut self, base: i64, meta: &Meta) {
        self.gone.push((base, meta.len));
        self.bytes_gone += u64::from(meta.len);
    }

    fn put(&mut self, base: i64, before: u64, meta: &Meta, bytes: Bytes) {
        let time = BatchHeader::read(&bytes).map(|header| header.max_timestamp);
        let meta = Meta {
            max_timestamp: time.unwrap_or(meta.max_timestamp),
            len: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            before,
            crc: crc32c::crc32c(&bytes),
            ..*meta
        };
        self.bytes_put += u64::from(meta.len);
        self.put.push((base, meta, bytes));
    }
}
