//! The offsets of one group.
//!
//! [`OffsetBook`] has two tables: the *durable* one, which OffsetFetch sees, and the one *ahead* of
//! it, to which every prepared change has been applied. A write takes the table ahead as its image;
//! when it is known to be durable, that image becomes the durable table. So any number of changes
//! share one write, and nothing is visible before it is durable.
//!
//! A write that certainly did not happen drops every change that was prepared meanwhile. After one
//! that may have happened nothing is decided until the file was read again and, because a sync that
//! failed once proves nothing later, written again with what was read.

mod retention;
mod size;
mod table;
mod txn;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod table_tests;

use std::sync::Arc;

use uuid::Uuid;

pub use retention::{Membership, Retention};
pub use size::BYTES_MAX;
pub use table::{Applied, Committed, NewOffset, OffsetTable, StagedOffset, StagedTxn, TableParts};
pub use txn::{Decided, NewTxn, StageError, TxnEnd, TxnNumber};

/// Number of a prepared change within a book, from 1. It is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Change(pub u64);

/// Why a change was not prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PrepareError {
    /// The outcome of an earlier write is not known yet; retriable.
    #[error("the outcome of an earlier write is not known yet")]
    Unsettled,
    /// The group's file would become too long.
    #[error("the group has more offsets and metadata than one file can take")]
    TooLarge,
}

/// What is known of the group's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It was not read yet.
    Unread,
    /// It holds the durable table.
    Settled,
    /// A write may have happened: it must be read.
    MustRead,
    /// It was read, and is to be written again before anything is decided or shown.
    MustWrite,
}

/// What a commit says besides its offsets.
#[derive(Debug, Clone, Default)]
pub struct CommitFacts {
    /// The time, ms since the Unix epoch.
    pub now_ms: i64,
    /// How long the client wants the offsets kept (OffsetCommit v2-4).
    pub retention_ms: Option<i64>,
    /// The group's members, where it has or had any.
    pub membership: Membership,
}

/// What one partition of a group has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetched<'a> {
    /// A committed offset.
    Committed(&'a Committed),
    /// None.
    None,
    /// An open transaction has an offset of it, and the client wants stable ones.
    Unstable,
}

/// The content of a write.
#[derive(Debug, Clone)]
pub struct Image {
    /// What is to be written.
    pub table: Arc<OffsetTable>,
    /// The last change that is in it.
    pub change: Change,
}

/// The offsets of one group.
#[derive(Debug, Clone)]
pub struct OffsetBook {
    durable: Arc<OffsetTable>,
    ahead: Arc<OffsetTable>,
    /// The last prepared change, and the last that is durable or dropped.
    prepared: Change,
    concluded: Change,
    standing: Standing,
}

impl Default for OffsetBook {
    fn default() -> Self {
        Self::restore(OffsetTable::default())
    }
}

impl OffsetBook {
    /// The book of a group whose file has `table`.
    pub fn restore(table: OffsetTable) -> Self {
        let table = Arc::new(table);
        Self {
            durable: table.clone(),
            ahead: table,
            prepared: Change(0),
            concluded: Change(0),
            standing: Standing::Settled,
        }
    }

    /// The book of a group whose file is still to be read.
    pub fn unread() -> Self {
        Self {
            standing: Standing::Unread,
            ..Self::default()
        }
    }

    /// What is durable.
    pub fn durable(&self) -> &OffsetTable {
        &self.durable
    }

    /// What is durable, to be kept: later changes make another table.
    pub fn durable_table(&self) -> Arc<OffsetTable> {
        Arc::clone(&self.durable)
    }

    /// What will be durable if every prepared change is.
    pub fn ahead(&self) -> &OffsetTable {
        &self.ahead
    }

    /// What the group takes, bytes, at most: what is durable or what is ahead, whichever is more.
    pub fn bytes(&self) -> usize {
        self.durable.bytes.max(self.ahead.bytes)
    }

    /// How many bytes more the group takes with these offsets, at most.
    pub fn growth(&self, offsets: &[NewOffset]) -> usize {
        size::growth(offsets, |new| {
            let known = self.ahead.get(&new.topic, new.partition)?;
            Some(&known.metadata)
        })
    }

    /// Whether the book can be decided on and shown.
    pub fn is_settled(&self) -> bool {
        self.standing == Standing::Settled
    }

    /// Whether nothing is known of the group yet.
    pub fn is_unread(&self) -> bool {
        self.standing == Standing::Unread
    }

    /// Whether the file must be read before anything else.
    pub fn must_read(&self) -> bool {
        matches!(self.standing, Standing::MustRead | Standing::Unread)
    }

    /// Whether there is something to write.
    pub fn must_write(&self) -> bool {
        match self.standing {
            Standing::Settled => self.prepared > self.concluded,
            Standing::MustWrite => true,
            Standing::MustRead | Standing::Unread => false,
        }
    }

    /// Whether `change` is durable, or was dropped: a caller that waits hears which.
    pub fn is_concluded(&self, change: Change) -> bool {
        self.is_settled() && change <= self.concluded
    }

    /// A change that makes the file at most `grows` bytes longer. Where that fits there is nothing
    /// to be undone, and the table ahead is copied once a write: while the durable one shares it.
    fn change_by(
        &mut self,
        grows: usize,
        apply: impl FnOnce(&mut OffsetTable),
    ) -> Result<Change, PrepareError> {
        if self.ahead.bytes.saturating_add(grows) > BYTES_MAX {
            return self.change(|table| {
                apply(table);
                Ok(())
            });
        }
        if !self.is_settled() {
            return Err(PrepareError::Unsettled);
        }
        let table = Arc::make_mut(&mut self.ahead);
        let before = table.bytes;
        apply(table);
        debug_assert!(
            table.bytes <= before + grows,
            "it grew by more than {grows}"
        );
        self.prepared.0 += 1;
        Ok(self.prepared)
    }

    /// A change that may be too large: what was before is kept until that is known.
    fn change(
        &mut self,
        apply: impl FnOnce(&mut OffsetTable) -> Result<(), PrepareError>,
    ) -> Result<Change, PrepareError> {
        self.change_within(BYTES_MAX, apply)
    }

    fn change_within(
        &mut self,
        bytes_max: usize,
        apply: impl FnOnce(&mut OffsetTable) -> Result<(), PrepareError>,
    ) -> Result<Change, PrepareError> {
        if !self.is_settled() {
            return Err(PrepareError::Unsettled);
        }
        let before = self.ahead.clone();
        let table = Arc::make_mut(&mut self.ahead);
        let applied = apply(table).and_then(|()| {
            let fits = table.bytes <= bytes_max || table.bytes <= before.bytes;
            fits.then_some(()).ok_or(PrepareError::TooLarge)
        });
        if let Err(error) = applied {
            self.ahead = before;
            return Err(error);
        }
        self.prepared.0 += 1;
        Ok(self.prepared)
    }

    /// What a repeated or empty change waits for: everything that it was decided on.
    ///
    /// # Errors
    /// [`PrepareError::Unsettled`].
    pub fn unchanged(&self) -> Result<Change, PrepareError> {
        if self.is_settled() {
            Ok(self.prepared)
        } else {
            Err(PrepareError::Unsettled)
        }
    }

    /// Prepares a commit of offsets. A deleted group begins anew.
    pub fn commit(
        &mut self,
        offsets: Vec<NewOffset>,
        facts: &CommitFacts,
    ) -> Result<Change, PrepareError> {
        let grows = size::of_new(&offsets) + facts.membership.bytes();
        self.change_by(grows, |table| {
            table.deleted = false;
            facts.membership.note_in(table);
            let seq = table.take_seq();
            for new in offsets {
                table.bind(&new.topic, new.topic_id);
                let committed = Committed {
                    offset: new.offset,
                    leader_epoch: new.leader_epoch,
                    metadata: new.metadata,
                    commit_ms: Some(facts.now_ms),
                    expire_ms: facts.retention_ms.map(|ms| facts.now_ms.saturating_add(ms)),
                    seq: Some(seq),
                };
                table.put(&new.topic, new.partition, committed);
            }
        })
    }

    /// Prepares the removal of offsets, staged ones too.
    pub fn delete(&mut self, keys: &[(Arc<str>, i32)]) -> Result<Change, PrepareError> {
        let there = |(topic, partition): &&(Arc<str>, i32)| {
            self.ahead.get(topic, *partition).is_some() || self.ahead.is_staged(topic, *partition)
        };
        if !keys.iter().any(|key| there(&key)) {
            return self.unchanged();
        }
        self.change_by(0, |table| {
            for (topic, partition) in keys {
                table.remove(topic, *partition);
                table.unstage(topic, *partition);
            }
        })
    }

    /// Prepares the removal of everything of topics that are `gone`: by name, and by the id that it
    /// had, where that is known.
    pub fn purge(
        &mut self,
        gone: impl Fn(&str, Option<Uuid>) -> bool,
    ) -> Result<Change, PrepareError> {
        let staged = self
            .ahead
            .staged
            .values()
            .flat_map(|txn| txn.offsets.keys());
        let mut topics: Vec<Arc<str>> =
            self.ahead.committed.keys().chain(staged).cloned().collect();
        topics.retain(|topic| gone(topic, self.ahead.topic_ids.get(topic).copied()));
        if topics.is_empty() {
            return self.unchanged();
        }
        self.change_by(0, |table| {
            for topic in &topics {
                table.drop_topic(topic);
            }
        })
    }

    /// Prepares the deletion of the whole group, staged offsets too. What is decided stays so: an
    /// offset of a transaction that has ended may still be under way.
    pub fn delete_group(&mut self) -> Result<Change, PrepareError> {
        if self.ahead.is_nothing() {
            return self.unchanged();
        }
        self.change(|table| {
            let applied = std::mem::take(&mut table.applied);
            *table = OffsetTable::from(TableParts {
                deleted: applied.is_empty(),
                applied,
                ..TableParts::default()
            });
            Ok(())
        })
    }

    /// Prepares that the group is there, also without offsets: its members must be known as
    /// strangers to it after a restart, not as members of no group. `None`: it is there, or it
    /// can't be noted now.
    pub fn begin(&mut self, membership: &Membership) -> Option<Change> {
        if !self.ahead.deleted && membership.is_in(&self.ahead) {
            return None;
        }
        let begun = self.change(|table| {
            table.deleted = false;
            membership.note_in(table);
            Ok(())
        });
        begun.ok()
    }

    /// Prepares that the time since when the group is empty outlives a restart. `None`: it has
    /// been noted, or there is nothing to note it for.
    pub fn note_membership(&mut self, membership: &Membership) -> Option<Change> {
        let nothing = self.ahead.deleted || self.ahead.has_no_offsets();
        if nothing || membership.is_in(&self.ahead) {
            return None;
        }
        let noted = self.change(|table| {
            membership.note_in(table);
            Ok(())
        });
        noted.ok()
    }

    /// What a partition has. `standing` says whether the topic of a name and id is still there.
    pub fn fetch(
        &self,
        topic: &str,
        partition: i32,
        require_stable: bool,
        standing: impl Fn(&str, Option<Uuid>) -> bool,
    ) -> Fetched<'_> {
        if !standing(topic, self.durable.topic_ids.get(topic).copied()) {
            return Fetched::None;
        }
        if require_stable && self.durable.is_staged(topic, partition) {
            return Fetched::Unstable;
        }
        self.durable
            .get(topic, partition)
            .map_or(Fetched::None, Fetched::Committed)
    }

    /// The image of the next write; `None` when there is nothing to write.
    pub fn image(&self) -> Option<Image> {
        self.must_write().then(|| Image {
            table: self.ahead.clone(),
            change: self.prepared,
        })
    }

    /// The image is durable.
    pub fn written(&mut self, image: &Image) {
        self.durable = image.table.clone();
        self.concluded = self.concluded.max(image.change);
        self.standing = Standing::Settled;
    }

    /// The write of an image certainly did not happen: what was prepared, also behind it, is
    /// dropped. Every change up to the returned one is concluded.
    pub fn not_written(&mut self) -> Change {
        if self.standing == Standing::Settled {
            self.drop_prepared();
        }
        self.concluded
    }

    /// The write of an image may have happened. Every change up to the returned one is concluded,
    /// in an unknown way.
    pub fn maybe_written(&mut self) -> Change {
        self.drop_prepared();
        self.standing = Standing::MustRead;
        self.concluded
    }

    fn drop_prepared(&mut self) {
        self.ahead = self.durable.clone();
        self.concluded = self.prepared;
    }

    /// The file was read.
    pub fn reloaded(&mut self, table: OffsetTable) {
        self.standing = match self.standing {
            Standing::Unread => Standing::Settled,
            Standing::MustRead => Standing::MustWrite,
            Standing::Settled | Standing::MustWrite => return,
        };
        self.durable = Arc::new(table);
        self.ahead = self.durable.clone();
    }

    /// Whether nothing shows that there is a group, and nothing is to be written.
    pub fn is_blank(&self) -> bool {
        self.durable.is_nothing() && self.is_settled() && !self.must_write()
    }

    /// Whether decided transactions are remembered: what comes late of them must be refused.
    pub fn remembers(&self) -> bool {
        !self.durable.applied.is_empty() || !self.ahead.applied.is_empty()
    }
}
