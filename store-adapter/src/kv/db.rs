//! sled behind a guard: the only calls of it in this store. They block, so they come from io tasks.

use std::fmt;
use std::ops::RangeBounds;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::keys::{self, Meta};
use super::state::Floor;
use crate::guard::dropped;
use crate::store::StoreError;

/// Bytes of a segment. Part of the format: sled takes it from whoever opens a database whose
/// configuration a power cut has emptied.
const SEGMENT_BYTES: usize = 16 << 20;
/// How often sled looks for segments to give back.
const UPKEEP_MS: u64 = 200;

/// What becomes of a tree, all or nothing.
#[derive(Debug, Default)]
pub(super) struct Changes {
    batch: sled::Batch,
    len: usize,
}

impl Changes {
    /// Sets a key.
    pub(super) fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.batch.insert(key, value);
        self.len += 1;
    }

    /// Removes a key.
    pub(super) fn remove(&mut self, key: Vec<u8>) {
        self.batch.remove(key);
        self.len += 1;
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

/// Why there is no database.
#[derive(Debug)]
pub(super) enum Unopened {
    /// Another process has it, or has not let it go yet.
    Busy,
    /// It can't be opened.
    Refused(StoreError),
}

/// An open database.
pub(super) struct Db {
    /// `None` only while it is dropped.
    tree: Option<sled::Db>,
    /// What errors name.
    path: String,
    /// It panicked: nothing is asked of it any more, not even to close.
    broken: AtomicBool,
}

impl fmt::Debug for Db {
    // sled would show everything in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Db")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Db {
    /// Opens the database in `dir`, and makes one if there is none.
    pub(super) fn open(dir: PathBuf, path: String, cache_bytes: u64) -> Result<Self, Unopened> {
        let config = sled::Config::new()
            .path(dir)
            .segment_size(SEGMENT_BYTES)
            .cache_capacity(cache_bytes)
            .flush_every_ms(Some(UPKEEP_MS));
        let opened = catch_unwind(AssertUnwindSafe(|| config.open()));
        match opened {
            Ok(Ok(db)) => Ok(Self {
                tree: Some(db),
                path,
                broken: AtomicBool::new(false),
            }),
            Ok(Err(sled::Error::Io(error))) if is_busy(&error) => Err(Unopened::Busy),
            Ok(Err(error)) => Err(Unopened::Refused(refusal(&path, &error))),
            Err(_) => Err(Unopened::Refused(panicked(&path))),
        }
    }

    fn guarded<T>(
        &self,
        call: impl FnOnce(&sled::Db) -> Result<T, sled::Error>,
    ) -> Result<T, StoreError> {
        let Some(db) = self.tree.as_ref().filter(|_| !self.is_broken()) else {
            return Err(panicked(&self.path));
        };
        match catch_unwind(AssertUnwindSafe(|| call(db))) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(refusal(&self.path, &error)),
            Err(_) => {
                self.broken.store(true, Ordering::SeqCst);
                Err(panicked(&self.path))
            }
        }
    }

    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    /// Makes changes; they are seen at once, and durable by nothing that this does.
    pub(super) fn apply(&self, changes: Changes) -> Result<(), StoreError> {
        self.guarded(|db| db.apply_batch(changes.batch))
    }

    /// Hands what was applied to the operating system.
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        self.guarded(|db| db.flush().map(drop))
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let value = self.guarded(|db| db.get(key))?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    /// Shows `take` the entries of a range of keys, in order, until it says that it has enough.
    pub(super) fn each(
        &self,
        range: impl RangeBounds<Vec<u8>>,
        mut take: impl FnMut(&[u8], &[u8]) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let mut refused = Ok(());
        self.guarded(|db| {
            for entry in db.range::<Vec<u8>, _>(range) {
                let (key, value) = entry?;
                match take(&key, &value) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        refused = Err(error);
                        break;
                    }
                }
            }
            Ok(())
        })?;
        refused
    }

    /// What there is to say of a value that is not what was written.
    pub(super) fn damaged(&self, why: String) -> StoreError {
        StoreError::Corrupt {
            path: self.path.clone(),
            why,
        }
    }
}

impl Floor for Db {
    fn floor(&self, birth: u64, offset: i64) -> Result<Option<(i64, Meta)>, StoreError> {
        let range = keys::batch_prefix(birth)..=keys::batch_key(birth, offset);
        let found = self.guarded(|db| db.range::<Vec<u8>, _>(range).next_back().transpose())?;
        let Some((key, value)) = found else {
            return Ok(None);
        };
        match (keys::batch_of(&key), Meta::decode(&key, &value)) {
            (Some((_, base)), Some(meta)) => Ok(Some((base, meta))),
            _ => Err(self.damaged(format!("the entry of the batch at {offset}"))),
        }
    }

    fn bytes(&self, birth: u64, from: i64, upto: i64) -> Result<u64, StoreError> {
        let mut sum = 0_u64;
        let range = keys::batch_key(birth, from)..keys::batch_key(birth, upto);
        self.each(range, |key, value| {
            let meta = Meta::decode(key, value);
            let meta = meta.ok_or_else(|| self.damaged("the entry of a batch".to_owned()))?;
            sum = sum.saturating_add(u64::from(meta.len));
            Ok(true)
        })?;
        Ok(sum)
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        let db = self.tree.take();
        if self.is_broken() {
            // Closing waits for a thread that may be gone. The lock stays until the process ends.
            tracing::warn!(path = self.path, "a database that panicked is left open");
            std::mem::forget(db);
        } else if !dropped(db) {
            tracing::warn!(
                path = self.path,
                "the database can't be written while it is closed"
            );
        }
    }
}

fn panicked(path: &str) -> StoreError {
    StoreError::Corrupt {
        path: path.to_owned(),
        why: "sled panicked".to_owned(),
    }
}

fn refusal(path: &str, error: &sled::Error) -> StoreError {
    let text = format!("{path}: {error}");
    match error {
        sled::Error::Io(error) if error.kind() == std::io::ErrorKind::StorageFull => {
            StoreError::Full {
                path: path.to_owned(),
            }
        }
        sled::Error::Io(_) => StoreError::Offline(text),
        error => StoreError::Corrupt {
            path: path.to_owned(),
            why: error.to_string(),
        },
    }
}

/// Whether sled found its lock taken; it only says so in words.
fn is_busy(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::WouldBlock || error.to_string().contains("WouldBlock")
}
