//! The features that the cluster offers and has finalized: the one table of them.

use coordinator::service::cluster::FinalizedFeatures;

/// The transaction protocol: 2 has epochs that grow with every transaction (KIP-890).
pub const TRANSACTION_VERSION: &str = "transaction.version";
/// Its highest level.
pub const TRANSACTION_VERSION_MAX: i16 = 2;
/// The protocol of groups: from 1 on there are those of KIP-848, which are not here.
const GROUP_VERSION: &str = "group.version";

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
    /// The features of this version at the levels that the cluster has finalized.
    pub fn of(finalized: &FinalizedFeatures) -> Self {
        Self {
            table: vec![
                Feature {
                    name: GROUP_VERSION,
                    min: 0,
                    max: 0,
                    finalized: 0,
                },
                Feature {
                    name: TRANSACTION_VERSION,
                    min: 0,
                    max: TRANSACTION_VERSION_MAX,
                    finalized: transaction_version(finalized),
                },
            ],
            epoch: finalized.epoch,
        }
    }
}

/// The level of `transaction.version`, 0 to 2. A newer software may have left a higher one.
pub fn transaction_version(finalized: &FinalizedFeatures) -> i16 {
    let level = finalized.levels.get(TRANSACTION_VERSION);
    level.map_or(0, |level| (*level).clamp(0, TRANSACTION_VERSION_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_the_cluster_as_far_as_they_are_known() {
        for (level, known) in [(None, 0), (Some(0), 0), (Some(1), 1), (Some(9), 2)] {
            let level = level.map(|level| (TRANSACTION_VERSION.to_owned(), level));
            let finalized = FinalizedFeatures {
                levels: level.into_iter().collect(),
                epoch: 5,
            };
            let features = Features::of(&finalized);
            let levels = features.table.iter();
            let levels: Vec<_> = levels.map(|row| (row.name, row.finalized)).collect();
            let expected = [("group.version", 0), ("transaction.version", known)];
            assert_eq!((levels, features.epoch), (expected.to_vec(), 5));
        }
    }
}
