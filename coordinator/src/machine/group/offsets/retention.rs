//! When offsets expire.
//!
//! A group that had members and has none: after the period since it became empty. A group that
//! never had members: after the period since each commit. A stable group: offsets of topics that it
//! is not subscribed to, after the period since their commit. Never where a transaction is open.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::table::{Committed, OffsetTable};
use super::{Change, OffsetBook, PrepareError, size};

/// What the file keeps of a group's members.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Membership {
    /// Protocol type of the members; `None` when it is not known to have had any.
    pub protocol_type: Option<Arc<str>>,
    /// Since when there are none, ms since the Unix epoch; `None` while there are.
    pub empty_since_ms: Option<i64>,
}

impl Membership {
    /// Whether a table says the same. Nothing known changes nothing.
    pub(super) fn is_in(&self, table: &OffsetTable) -> bool {
        self.protocol_type.is_none()
            || (self.protocol_type == table.protocol_type
                && self.empty_since_ms == table.empty_since_ms)
    }

    /// How many bytes more a table takes with it, at most.
    pub(super) fn bytes(&self) -> usize {
        size::of_protocol_type(self.protocol_type.as_deref())
    }

    pub(super) fn note_in(&self, table: &mut OffsetTable) {
        if !self.is_in(table) {
            table.set_protocol_type(self.protocol_type.clone());
            table.empty_since_ms = self.empty_since_ms;
        }
    }
}

/// The group as retention sees it.
#[derive(Debug, Clone, Copy)]
pub enum Retention<'a> {
    /// It had members and has none since then, ms since the Unix epoch.
    EmptySince(i64),
    /// It never had members.
    Simple,
    /// It is stable; the topics that it is subscribed to, if they are known.
    Stable(Option<&'a BTreeSet<Arc<str>>>),
    /// Anything else: nothing expires.
    Changing,
}

impl OffsetBook {
    /// The keys that have expired, from what is ahead.
    pub fn expired(
        &self,
        now_ms: i64,
        period_ms: i64,
        group: Retention<'_>,
    ) -> Vec<(Arc<str>, i32)> {
        let mut keys = Vec::new();
        for (topic, partitions) in self.ahead.committed() {
            let base = |committed: &Committed| match group {
                Retention::EmptySince(since) => Some(since),
                Retention::Simple => committed.commit_ms,
                Retention::Stable(Some(subscribed)) if !subscribed.contains(topic) => {
                    committed.commit_ms
                }
                Retention::Stable(_) | Retention::Changing => None,
            };
            for (partition, committed) in partitions {
                let Some(base) = base(committed) else {
                    continue;
                };
                let at = committed
                    .expire_ms
                    .unwrap_or_else(|| base.saturating_add(period_ms));
                if at <= now_ms && !self.ahead.is_staged(topic, *partition) {
                    keys.push((topic.clone(), *partition));
                }
            }
        }
        keys
    }

    /// Prepares the removal of what has expired; a group without members and offsets goes. `None`:
    /// nothing has expired.
    pub fn expire(
        &mut self,
        now_ms: i64,
        period_ms: i64,
        group: Retention<'_>,
    ) -> Result<Option<Change>, PrepareError> {
        let memberless = matches!(group, Retention::EmptySince(_) | Retention::Simple);
        let keys = self.expired(now_ms, period_ms, group);
        if keys.is_empty() {
            let over = memberless && self.is_hollow();
            return over.then(|| self.delete_group()).transpose();
        }
        let change = self.delete(&keys)?;
        if memberless && self.ahead.has_no_offsets() {
            return self.delete_group().map(Some);
        }
        Ok(Some(change))
    }

    /// Whether a group that is there has nothing: no offset, and no transaction to remember.
    fn is_hollow(&self) -> bool {
        let table = self.ahead();
        let nothing = table.has_no_offsets() && table.applied().is_empty();
        let was_there = table.next_seq() > 0 || table.protocol_type().is_some();
        nothing && was_there && !table.is_deleted()
    }
}
