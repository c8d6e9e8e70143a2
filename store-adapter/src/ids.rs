//! Identifiers, in Kafka's own terms. No bare integer crosses a function boundary for these.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

/// A broker's number (`node.id`): 0 to 8190, so that producer ids stay below 2^53.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BrokerId(pub i32);

impl BrokerId {
    /// The name used in paths and JSON: `kaas-<id>`.
    pub fn name(self) -> String {
        format!("kaas-{}", self.0)
    }

    /// Reads a name of the form `kaas-<id>`.
    pub fn from_name(name: &str) -> Option<Self> {
        name.strip_prefix("kaas-")?
            .parse()
            .ok()
            .filter(|id| *id >= 0)
            .map(Self)
    }
}

/// A log's identity: topic id and partition. Never the name: a name is not an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogId {
    /// Topic id (KIP-516).
    pub topic: Uuid,
    /// Partition number, from 0.
    pub partition: u32,
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// The epoch of a partition's leadership, as in the assignment. Only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaderEpoch(pub u32);

/// A shard of the embedded store: one journal directory, owned by one broker at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(pub u32);

/// A producer id (KIP-98). -1 means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProducerId(pub i64);

/// A producer's epoch: 0 to 32767, -1 means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProducerEpoch(pub i16);

/// A batch sequence number: 0 to 2^31-1, then 0 again. -1 means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sequence(pub i32);

impl Sequence {
    /// The sequence `n` records later, wrapping to 0 after 2^31-1
    /// (`DefaultRecordBatch.incrementSequence`). `n` must not be negative.
    pub fn plus(self, n: i32) -> Self {
        let sum = (i64::from(self.0) + i64::from(n)) & i64::from(i32::MAX);
        Self(i32::try_from(sum).unwrap_or(0))
    }
}

/// The epoch by which an area of the volume is owned; totally ordered, written
/// `<assignment>.<instance>` in file names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct OwnerEpoch {
    /// The epoch that the assignment gives; 0 in broker and controller areas.
    pub assignment: u32,
    /// The instance number of the owner; in broker and controller areas the claim number itself.
    pub instance: u64,
}

impl OwnerEpoch {
    /// An epoch of an area that is claimed by one growing number: broker and controller areas.
    pub fn single(number: u64) -> Self {
        Self {
            assignment: 0,
            instance: number,
        }
    }

    /// How file names of broker and controller areas write it.
    pub fn single_name(self) -> String {
        self.instance.to_string()
    }
}

impl fmt::Display for OwnerEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.assignment, self.instance)
    }
}

impl FromStr for OwnerEpoch {
    type Err = ();

    fn from_str(s: &str) -> Result<Self, ()> {
        let number = |s: &str| -> Result<u64, ()> {
            let canonical = !s.is_empty() && (s == "0" || !s.starts_with('0'));
            if !canonical || !s.bytes().all(|b| b.is_ascii_digit()) {
                return Err(());
            }
            s.parse().map_err(|_| ())
        };
        match s.split_once('.') {
            Some((a, i)) => Ok(Self {
                assignment: u32::try_from(number(a)?).map_err(|_| ())?,
                instance: number(i)?,
            }),
            None => Ok(Self::single(number(s)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_wraps_to_zero_after_the_maximum() {
        assert_eq!(Sequence(i32::MAX).plus(1), Sequence(0));
        assert_eq!(Sequence(2_147_483_646).plus(3), Sequence(1));
        assert_eq!(Sequence(4).plus(0), Sequence(4));
    }

    #[test]
    fn owner_epochs_compare_as_two_numbers() {
        let a: OwnerEpoch = "9.10".parse().unwrap();
        let b: OwnerEpoch = "10.2".parse().unwrap();
        assert!(a < b);
        assert!("9.9".parse::<OwnerEpoch>().unwrap() < a);
        assert_eq!(a.to_string(), "9.10");
        assert_eq!("7".parse::<OwnerEpoch>(), Ok(OwnerEpoch::single(7)));
        for bad in ["", "1.", ".1", "01.2", "1.2.3", "-1", "x", "+1"] {
            assert!(bad.parse::<OwnerEpoch>().is_err(), "{bad}");
        }
    }

    #[test]
    fn broker_names_round_trip() {
        assert_eq!(BrokerId(3).name(), "kaas-3");
        assert_eq!(BrokerId::from_name("kaas-3"), Some(BrokerId(3)));
        assert_eq!(BrokerId::from_name("kaas--1"), None);
        assert_eq!(BrokerId::from_name("3"), None);
    }
}
