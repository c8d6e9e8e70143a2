//! Pieces of an answer, in the order in which they go out.

use bytes::Bytes;
use store_adapter::store::Passed;
use store_adapter::volume::FileRange;

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// In memory.
    Bytes(Bytes),
    /// In a file.
    File(FileRange),
}

impl Segment {
    /// Bytes of it.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::File(range) => range.len(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is in memory.
    pub fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::File(_) => None,
        }
    }
}

impl From<Bytes> for Segment {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Passed> for Segment {
    fn from(passed: Passed) -> Self {
        match passed {
            Passed::Read(batch) => Self::Bytes(batch.bytes),
            Passed::File { range, .. } => Self::File(range),
        }
    }
}
