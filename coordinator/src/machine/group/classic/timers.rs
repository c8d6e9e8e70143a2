//! The deadlines of a group, each under a key; setting a key again replaces it.

use std::collections::{BTreeMap, BTreeSet};

use super::MemberId;

/// What a deadline is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimerKey {
    /// The join phase ends.
    Join,
    /// Members that have not synced are removed.
    Sync,
    /// The member, or pending member, is removed.
    Session(MemberId),
}

/// One entry a member and two more, at most.
#[derive(Debug, Clone, Default)]
pub(super) struct Timers {
    by_key: BTreeMap<TimerKey, u64>,
    queue: BTreeSet<(u64, TimerKey)>,
}

impl Timers {
    /// Sets `key` to fire `after_ms` from `now_ms`, at least one millisecond: a timer that is set
    /// again while it fires must not fire for ever.
    pub(super) fn set(&mut self, key: TimerKey, now_ms: u64, after_ms: u32) {
        let at = now_ms.saturating_add(u64::from(after_ms.max(1)));
        if let Some(old) = self.by_key.insert(key.clone(), at) {
            self.queue.remove(&(old, key.clone()));
        }
        self.queue.insert((at, key));
    }

    pub(super) fn cancel(&mut self, key: TimerKey) {
        if let Some(old) = self.by_key.remove(&key) {
            self.queue.remove(&(old, key));
        }
    }

    pub(super) fn clear(&mut self) {
        self.by_key.clear();
        self.queue.clear();
    }

    /// The earliest deadline, in monotonic milliseconds.
    pub(super) fn next(&self) -> Option<u64> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Takes the earliest key whose time has come.
    pub(super) fn pop_due(&mut self, now_ms: u64) -> Option<TimerKey> {
        if self.next()? > now_ms {
            return None;
        }
        let (_, key) = self.queue.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }
}
