//! Groups: membership by the classic protocol, and why a request of a group is refused.
//!
//! A group has a type (KIP-848): today only classic groups exist.

pub mod classic;
pub mod error;
pub mod offsets;

pub use error::GroupError;

/// What kind of group it is (KIP-848).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupType {
    /// The leader among the members assigns.
    Classic,
}

impl GroupType {
    /// Kafka's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
        }
    }
}

/// One moment, by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Monotonic, milliseconds since an arbitrary origin: deadlines.
    pub mono_ms: u64,
    /// Milliseconds since the Unix epoch: what is shown and kept.
    pub wall_ms: i64,
}
