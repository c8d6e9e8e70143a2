//! The files of groups, as the service of their offsets needs them.

use std::fmt::Debug;

use store_adapter::ids::OwnerEpoch;
use store_adapter::runtime::BoxFuture;

use crate::slot_hash::fnv1a32;
use crate::volume::format::GroupOffsetsFile;

/// Why a file of a group was not read or replaced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupFileError {
    /// Another process owns the slot.
    #[error("another broker process owns the group slot")]
    Stale,
    /// The file can't be what was written. It was reported and is left as it is.
    #[error("damaged: {0}")]
    Damaged(String),
    /// It did not happen; may be tried again.
    #[error("{0}")]
    NotApplied(String),
    /// It may have happened: read the file again.
    #[error("the outcome is not known: {0}")]
    MaybeApplied(String),
}

/// A file that was found, or that must be there because it was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum FoundGroup {
    /// Of this group.
    Named(String),
    /// Of a group whose name is inside.
    Hashed {
        /// The hash that chooses its slot.
        hash: u32,
        /// The name of the file.
        name: String,
    },
}

impl FoundGroup {
    /// The slot of the group among `slots`; 0 if there are none.
    pub fn slot(&self, slots: u32) -> u32 {
        let hash = match self {
            Self::Named(group) => fnv1a32(group.as_bytes()),
            Self::Hashed { hash, .. } => *hash,
        };
        hash.checked_rem(slots).unwrap_or(0)
    }
}

/// The files of groups on the volume. Its futures are awaited in io tasks only. Files of different
/// groups may be read and replaced at the same time, one group's not.
pub trait GroupFiles: Send + Sync + Debug + 'static {
    /// Takes a slot over by `epoch`, so that its files may be read and replaced, and tells which
    /// were written.
    fn claim(
        &self,
        slot: u32,
        epoch: OwnerEpoch,
    ) -> BoxFuture<'_, Result<Vec<FoundGroup>, GroupFileError>>;
    /// The files of every slot. Those of a slot that was claimed before are all there.
    fn list(&self) -> BoxFuture<'_, Result<Vec<FoundGroup>, GroupFileError>>;
    /// The group that a hashed name stands for; `None` if there is no such file.
    fn identify<'a>(
        &'a self,
        slot: u32,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, GroupFileError>>;
    /// Reads the file of a group; `None` if it was never written.
    fn read<'a>(
        &'a self,
        slot: u32,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<GroupOffsetsFile>, GroupFileError>>;
    /// Removes the file of a group, of which nothing is left: it was never written then. After an
    /// error the file may still be there, and the group may be written again all the same.
    fn remove<'a>(&'a self, slot: u32, group: &'a str)
    -> BoxFuture<'a, Result<(), GroupFileError>>;
    /// Replaces the file of a group; durable when it returns `Ok`.
    fn replace<'a>(
        &'a self,
        slot: u32,
        group: &'a str,
        file: GroupOffsetsFile,
    ) -> BoxFuture<'a, Result<(), GroupFileError>>;
}
