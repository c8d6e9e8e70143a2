//! Removes what trims and deletions left, a little at a time, between rounds.

use std::collections::BTreeSet;

use super::db::{Changes, Db};
use super::keys::{self, Meta};
use super::state::Table;
use crate::ids::LogId;
use crate::store::StoreError;

/// Keys that are removed at once, about.
const STEP_KEYS: usize = 512;

/// What is left to be removed.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Births of deleted logs.
    pub(super) deleted: BTreeSet<u64>,
    /// Logs with batches below their start.
    pub(super) trimmed: BTreeSet<LogId>,
}

impl Sweep {
    /// Whether nothing is left.
    pub(super) fn is_done(&self) -> bool {
        self.deleted.is_empty() && self.trimmed.is_empty()
    }

    /// Removes a little. A crash behind it is as good as one before: what is left is found again.
    pub(super) fn step(&mut self, db: &Db, table: &Table) -> Result<(), StoreError> {
        let mut changes = Changes::default();
        if let Some(log) = self.trimmed.first().copied() {
            let done = match table.get(&log) {
                Some(entry) => remove(db, entry.birth, entry.bounds.start, &mut changes)?,
                None => true,
            };
            if done {
                self.trimmed.remove(&log);
            }
        } else if let Some(birth) = self.deleted.first().copied()
            && remove(db, birth, i64::MAX, &mut changes)?
        {
            changes.remove(keys::deleted_key(birth));
            self.deleted.remove(&birth);
        }
        if changes.len() > 0 {
            db.apply(changes)?;
        }
        if self.is_done() {
            // Only what is on its way to the disk makes room for what follows.
            db.flush()?;
        }
        Ok(())
    }
}

/// Removes batches that end before `start`; whether these were all.
fn remove(db: &Db, birth: u64, start: i64, changes: &mut Changes) -> Result<bool, StoreError> {
    let mut done = true;
    let range = keys::batch_prefix(birth)..keys::batch_prefix(birth.saturating_add(1));
    db.each(range, |key, value| {
        let batch = keys::batch_of(key).zip(Meta::decode(key, value));
        let ((_, base), meta) =
            batch.ok_or_else(|| db.damaged("the entry of a batch".to_owned()))?;
        if meta.last >= start {
            return Ok(false);
        }
        if changes.len() >= STEP_KEYS {
            done = false;
            return Ok(false);
        }
        changes.remove(key.to_vec());
        for piece in 0..meta.pieces() {
            changes.remove(keys::piece_key(birth, base, piece));
        }
        Ok(true)
    })?;
    Ok(done)
}
