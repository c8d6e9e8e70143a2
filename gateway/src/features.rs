//! The features that the cluster offers and has finalized: the one table of them.

/// One feature (KIP-584).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// Kafka's name, as `transaction.version`.
    pub name: &'static str,
    /// Lowest level this broker knows.
    pub min: i16,
    /// Highest level this broker knows.
    pub max: i16,
    /// Level in force in the cluster; 0 is off, and then clients are not told.
    pub finalized: i16,
}

/// What ApiVersions tells about features.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Features {
    /// The table, in order of names.
    pub table: Vec<Feature>,
    /// Grows with every change of a finalized level, from 0. Clients ignore the levels at -1.
    pub epoch: i64,
}

impl Features {
    /// The features of this version. None is finalized: clients use the dialects that need none.
    pub fn current() -> Self {
        Self::default()
    }
}
