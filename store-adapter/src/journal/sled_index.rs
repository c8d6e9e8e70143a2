//! The index in sled: one database, one tree, small values only.
//!
//! sled 0.34 does not survive power loss and panics on what it can't read, so every call is
//! guarded: whatever goes wrong, the directory is set aside as `index.bad-<n>`, an empty one takes
//! its place, and the journal is read instead. The only code that touches the index directory,
//! which is local and no part of the volume. Calls block; open from a task, use from io tasks.

use std::fs::{File, TryLockError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::index::{IndexChange, IndexError, IndexStore};
use crate::guard::dropped;
use crate::runtime::{BoxFuture, Env};

/// How long the lock of a process that is dying is waited for.
const LOCK_WAIT: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Bytes that sled may cache.
const CACHE_BYTES: u64 = 16 << 20;
/// Directories that are set aside at most; the name of the last is used again.
const ASIDE_MAX: u32 = 8;

/// Why there is no database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unopened {
    /// Another process has it.
    Busy,
    /// Not even an empty one opens.
    Broken,
}

/// An index in a local directory.
#[derive(Debug)]
pub struct SledIndex {
    env: Env,
    dir: PathBuf,
    open: Mutex<Option<Open>>,
}

/// What an open index holds.
#[derive(Debug)]
struct Open {
    /// `None` when not even an empty database opens.
    db: Option<sled::Db>,
    /// Holds the lock of the directory.
    _lock: File,
}

impl Drop for Open {
    fn drop(&mut self) {
        close(self.db.take());
    }
}

/// Closes a database, which writes: where that can't be done sled panics.
fn close(db: Option<sled::Db>) {
    if !dropped(db) {
        tracing::warn!("the index can't be written; if it is damaged the journal is read instead");
    }
}

impl SledIndex {
    /// The index in `dir`, which is made if it is missing. Opened with the first shard: see
    /// [`IndexStore::open`].
    pub fn new(env: Env, dir: impl Into<PathBuf>) -> Self {
        Self {
            env,
            dir: dir.into(),
            open: Mutex::new(None),
        }
    }

    /// Opens it, waiting a few seconds for a lock that a dying process still has. A database that
    /// sled can't open is set aside.
    async fn open_once(&self) -> Result<(), IndexError> {
        if self.open.lock().is_some() {
            return Ok(());
        }
        let until = self.env.clock.monotonic() + LOCK_WAIT;
        let lock = lock(&self.env, &self.dir, until).await?;
        let mut opened = open_on_thread(&self.env, &self.dir).await;
        // A dying process may lose its two locks one after the other.
        while matches!(opened, Err(Unopened::Busy)) && self.env.clock.monotonic() < until {
            self.env.clock.sleep(LOCK_PAUSE).await;
            opened = open_on_thread(&self.env, &self.dir).await;
        }
        if matches!(opened, Err(Unopened::Busy)) {
            return Err(locked(&self.dir));
        }
        *self.open.lock() = Some(Open {
            db: opened.ok(),
            _lock: lock,
        });
        Ok(())
    }

    /// Runs `call`; on an error or a panic the database is set aside.
    fn guarded<T>(
        &self,
        call: impl FnOnce(&sled::Db) -> Result<T, sled::Error>,
    ) -> Result<T, IndexError> {
        let mut open = self.open.lock();
        let held = open.as_mut().map(|open| &mut open.db);
        let Some(held) = held else {
            return Err(IndexError("it is not open".to_owned()));
        };
        let Some(db) = held.as_ref() else {
            return Err(IndexError("it could not be opened".to_owned()));
        };
        let error = match catch_unwind(AssertUnwindSafe(|| call(db))) {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it panicked".to_owned(),
        };
        close(held.take());
        set_aside(&self.dir, &error);
        *held = open_or_set_aside(&self.dir).ok();
        Err(IndexError(error))
    }
}

impl IndexStore for SledIndex {
    fn open(&self) -> BoxFuture<'_, Result<(), IndexError>> {
        Box::pin(self.open_once())
    }

    fn scan(&self, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>, IndexError> {
        self.guarded(|db| {
            let entries = db.scan_prefix(prefix);
            let copied = entries.map(|entry| {
                let (key, value) = entry?;
                Ok((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value)))
            });
            copied.collect()
        })
    }

    fn apply(&self, changes: &[IndexChange]) -> Result<(), IndexError> {
        let mut batch = sled::Batch::default();
        for change in changes {
            match change {
                IndexChange::Put(key, value) => batch.insert(key.as_slice(), value.as_slice()),
                IndexChange::Remove(key) => batch.remove(key.as_slice()),
            }
        }
        self.guarded(|db| db.apply_batch(batch))
    }
}

fn locked(dir: &Path) -> IndexError {
    IndexError(format!("{}: in use by another process", dir.display()))
}

/// Opens the database on a thread of its own: that may block for long, and may panic.
async fn open_on_thread(env: &Env, dir: &Path) -> Result<sled::Db, Unopened> {
    let (opened, outcome) = oneshot::channel();
    let path = dir.to_owned();
    let task = Box::pin(async move {
        if opened.send(open_or_set_aside(&path)).is_err() {
            tracing::debug!("nobody waits for the index");
        }
    });
    env.runtime.spawn_io("index-open", task).await;
    outcome.await.unwrap_or(Err(Unopened::Broken))
}

async fn lock(env: &Env, dir: &Path, until: Duration) -> Result<File, IndexError> {
    let failed = |error| IndexError(format!("{}: {error}", dir.display()));
    std::fs::create_dir_all(dir).map_err(failed)?;
    let path = dir.join("index.lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path);
    let file = file.map_err(failed)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) if env.clock.monotonic() >= until => {
                return Err(locked(dir));
            }
            Err(TryLockError::WouldBlock) => env.clock.sleep(LOCK_PAUSE).await,
        }
    }
}

/// Opens the database; sets one aside that does not open, and tries once more.
fn open_or_set_aside(dir: &Path) -> Result<sled::Db, Unopened> {
    for _ in 0..2 {
        let path = dir.join("index");
        let config = sled::Config::new().path(path).cache_capacity(CACHE_BYTES);
        let error = match catch_unwind(AssertUnwindSafe(|| config.open())) {
            Ok(Ok(db)) => return Ok(db),
            Ok(Err(sled::Error::Io(error))) if is_busy(&error) => return Err(Unopened::Busy),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it panicked".to_owned(),
        };
        set_aside(dir, &error);
    }
    Err(Unopened::Broken)
}

/// Whether sled found its own lock taken; it only says so in words.
fn is_busy(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::WouldBlock || error.to_string().contains("WouldBlock")
}

#[allow(
    clippy::disallowed_methods,
    reason = "the index is no part of the volume"
)]
fn set_aside(dir: &Path, why: &str) {
    let name = |n: u32| dir.join(format!("index.bad-{n}"));
    let free = (1..ASIDE_MAX).find(|n| !name(*n).exists());
    let target = name(free.unwrap_or(ASIDE_MAX));
    let moved = if free.is_none() && target.exists() {
        std::fs::remove_dir_all(&target)
    } else {
        Ok(())
    };
    let moved = moved.and_then(|()| std::fs::rename(dir.join("index"), &target));
    // Not `target`, which every line of a JSON log has.
    let aside = target.display();
    match moved {
        Ok(()) => tracing::error!(why, %aside, "the index is set aside; the journal is read"),
        Err(error) => tracing::error!(why, %aside, %error, "the index can't be set aside"),
    }
}
