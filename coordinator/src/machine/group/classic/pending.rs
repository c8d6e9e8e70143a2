//! Members that were given an id and did not come back with it yet (KIP-394).
//!
//! They cost a client one request and nothing else, so of too many the oldest goes: who has just
//! been given an id comes back with it at once.

use std::collections::BTreeMap;

use super::MemberId;

/// Most of one group.
pub const PENDING_MAX: usize = 65_536;
/// Most bytes of one group's, about.
pub const PENDING_BYTES_MAX: usize = 16 << 20;
/// Bytes of one besides its id.
const ENTRY: usize = 256;

/// Pending members, by id and by age.
#[derive(Debug, Clone, Default)]
pub(super) struct Pending {
    by_id: BTreeMap<MemberId, u64>,
    by_age: BTreeMap<u64, MemberId>,
    next: u64,
    bytes: usize,
}

impl Pending {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn contains(&self, id: &MemberId) -> bool {
        self.by_id.contains_key(id)
    }

    /// Adds one, whose id nobody ever had.
    pub(super) fn insert(&mut self, id: MemberId) {
        self.bytes += ENTRY + id.as_str().len();
        self.by_age.insert(self.next, id.clone());
        self.by_id.insert(id, self.next);
        self.next += 1;
    }

    /// Removes the oldest where there are too many.
    pub(super) fn evict(&mut self) -> Option<MemberId> {
        if self.by_id.len() <= PENDING_MAX && self.bytes <= PENDING_BYTES_MAX {
            return None;
        }
        let (_, oldest) = self.by_age.first_key_value()?;
        let oldest = oldest.clone();
        self.remove(&oldest);
        Some(oldest)
    }

    pub(super) fn remove(&mut self, id: &MemberId) -> bool {
        let Some(age) = self.by_id.remove(id) else {
            return false;
        };
        self.by_age.remove(&age);
        self.bytes -= ENTRY + id.as_str().len();
        true
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
