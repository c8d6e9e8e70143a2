//! Areas: what one owner epoch covers, and the names in an area's directory.

use std::fmt::Write as _;
use std::str::FromStr;

use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use crate::ids::{BrokerId, OwnerEpoch, ShardId};
use crate::volume::VolumePath;
use crate::volume::sum::{check_sum, with_sum};

/// The longest name of a mark, bytes. File systems take 255.
const MARK_NAME_MAX: usize = 200;

/// What stays as it is in a mark's name.
const MARK_ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-');

/// What one owner epoch covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Area {
    /// One of the transaction-state files, 0 to 49.
    TxnSlot(u32),
    /// One set of groups, 0 to 49.
    GroupSlot(u32),
    /// One journal directory and the snapshots and manifests of its partitions.
    Shard(ShardId),
    /// A broker's own files. Claimed by one growing number: the broker's instance.
    Broker(BrokerId),
    /// The controller's files. Claimed by one growing number.
    Controller,
}

impl Area {
    /// The name of its directory.
    pub fn name(self) -> String {
        match self {
            Self::TxnSlot(n) => format!("txn-slot-{n}"),
            Self::GroupSlot(n) => format!("group-slot-{n}"),
            Self::Shard(n) => format!("shard-{}", n.0),
            Self::Broker(id) => format!("broker-{}", id.0),
            Self::Controller => "controller".to_owned(),
        }
    }

    /// Its directory, `__cluster/owners/<area>`.
    pub fn dir(self) -> VolumePath {
        VolumePath::root()
            .join("__cluster")
            .join("owners")
            .join(&self.name())
    }

    /// Whether it is claimed by one growing number, made durable before it is used, instead of by
    /// an epoch of the assignment.
    pub fn counts_claims(self) -> bool {
        matches!(self, Self::Broker(_) | Self::Controller)
    }

    /// How names of this area write `epoch`.
    pub fn epoch_text(self, epoch: OwnerEpoch) -> String {
        if self.counts_claims() {
            epoch.single_name()
        } else {
            epoch.to_string()
        }
    }
}

/// The present owner of an area, as `current.json` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PresentOwner {
    /// The owner epoch.
    pub epoch: OwnerEpoch,
    /// The broker.
    pub broker: BrokerId,
    /// The broker's instance number.
    pub instance: u64,
}

/// `current.json`.
#[derive(Serialize, Deserialize)]
struct CurrentFile {
    epoch: String,
    broker: String,
    instance: u64,
}

impl PresentOwner {
    /// The bytes of `current.json`.
    pub(super) fn encode(&self, area: Area) -> Result<Bytes, serde_json::Error> {
        let json = serde_json::to_vec(&CurrentFile {
            epoch: area.epoch_text(self.epoch),
            broker: self.broker.name(),
            instance: self.instance,
        })?;
        Ok(with_sum(&json))
    }

    /// Reads the bytes of `current.json`, or says what is wrong with them.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        check_sum(bytes).map_err(|error| error.to_string())?;
        let file: CurrentFile = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        let epoch = OwnerEpoch::from_str(&file.epoch)
            .map_err(|()| format!("{:?} is not an owner epoch", file.epoch))?;
        let broker = BrokerId::from_name(&file.broker)
            .ok_or_else(|| format!("{:?} is not a broker", file.broker))?;
        Ok(Self {
            epoch,
            broker,
            instance: file.instance,
        })
    }
}

/// The epoch of a claim's name, `own-<epoch>`.
pub(super) fn claim_epoch(name: &str) -> Option<OwnerEpoch> {
    name.strip_prefix("own-")?.parse().ok()
}

/// The epoch of a ticket's name, `t-<epoch>-<nonce>`.
pub(super) fn ticket_epoch(name: &str) -> Option<OwnerEpoch> {
    let (epoch, _nonce) = name.strip_prefix("t-")?.rsplit_once('-')?;
    epoch.parse().ok()
}

/// The name of the mark that says that `target` was written: its whole path, percent-encoded, so
/// that targets of two directories never share one. A path that is too long for a file name keeps
/// its beginning and is told apart by a hash; such a mark has the path inside.
pub(super) fn mark_name(target: &VolumePath) -> MarkName {
    let mut name = String::from("w-");
    name.extend(utf8_percent_encode(target.as_str(), MARK_ESCAPED));
    let hashed = name.len() > MARK_NAME_MAX;
    if hashed {
        // 32 digits of hash and a separator that no percent-encoded name has. All is ASCII.
        name.truncate(MARK_NAME_MAX - 33);
        // Writing to a string can't fail.
        write!(name, "~{:032x}", fnv1a128(target.as_str().as_bytes())).unwrap_or_default();
    }
    MarkName { name, hashed }
}

/// The name of a mark.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MarkName {
    /// The file name.
    pub(super) name: String,
    /// Whether it holds a hash in place of the whole path.
    pub(super) hashed: bool,
}

/// What the name of a mark tells of its target.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MarkedTarget {
    /// The target.
    Named(VolumePath),
    /// The target is inside.
    Inside,
}

/// Reads the name of a mark.
pub(super) fn marked_target(name: &str) -> Option<MarkedTarget> {
    let escaped = name.strip_prefix("w-")?;
    if escaped.contains('~') {
        return Some(MarkedTarget::Inside);
    }
    let path = percent_decode_str(escaped).decode_utf8().ok()?;
    Some(MarkedTarget::Named(path_of(&path)))
}

/// The path of a text that a path gave.
pub(super) fn path_of(text: &str) -> VolumePath {
    let root = VolumePath::root();
    text.split('/').fold(root, |dir, name| dir.join(name))
}

/// What the names of everything about `target` end with. Another target has another one, so it
/// says which target is meant, whatever is inside.
pub(super) fn target_name(target: &VolumePath) -> String {
    let mark = mark_name(target).name;
    mark.strip_prefix("w-").unwrap_or(&mark).to_owned()
}

/// The name of the intent of an owner epoch to unlink the target of this name. It has the path
/// inside, for people.
pub(super) fn intent_name(epoch: &str, target: &str) -> String {
    format!("x-{epoch}-{target}")
}

/// The target's name in that of an intent.
pub(super) fn intended(name: &str) -> Option<&str> {
    let (_epoch, target) = name.strip_prefix("x-")?.split_once('-')?;
    Some(target)
}

/// The name of the record that condemns the target of this name. It has the path inside, for
/// people.
pub(super) fn condemned_name(target: &str) -> String {
    format!("c-{target}")
}

/// The target's name in that of a record that condemns.
pub(super) fn condemned(name: &str) -> Option<&str> {
    name.strip_prefix("c-")
}

/// FNV-1a, 128 bits.
fn fnv1a128(bytes: &[u8]) -> u128 {
    bytes
        .iter()
        .fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
            (hash ^ u128::from(*byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_have_the_documented_names() {
        assert_eq!(
            Area::TxnSlot(7).dir().as_str(),
            "__cluster/owners/txn-slot-7"
        );
        assert_eq!(Area::GroupSlot(0).name(), "group-slot-0");
        assert_eq!(Area::Shard(ShardId(3)).name(), "shard-3");
        assert_eq!(Area::Broker(BrokerId(2)).name(), "broker-2");
        assert_eq!(Area::Controller.name(), "controller");
        let epoch = OwnerEpoch {
            assignment: 4,
            instance: 9,
        };
        assert_eq!(Area::TxnSlot(1).epoch_text(epoch), "4.9");
        assert_eq!(Area::Controller.epoch_text(OwnerEpoch::single(9)), "9");
    }

    #[test]
    fn names_give_their_epoch_back() {
        assert_eq!(claim_epoch("own-12"), Some(OwnerEpoch::single(12)));
        assert_eq!(ticket_epoch("t-3.4-00ff").unwrap().to_string(), "3.4");
        assert_eq!(ticket_epoch("t-3-00ff"), Some(OwnerEpoch::single(3)));
        for name in ["own-", "own-x", "w-1", "current.json", "t-1", "t--1"] {
            assert_eq!(claim_epoch(name), None, "{name}");
            assert_eq!(ticket_epoch(name), None, "{name}");
        }
    }

    #[test]
    fn the_present_owner_round_trips() {
        let owner = PresentOwner {
            epoch: "3.4".parse().unwrap(),
            broker: BrokerId(2),
            instance: 4,
        };
        let bytes = owner.encode(Area::TxnSlot(0)).unwrap();
        let json = br#"{"epoch":"3.4","broker":"kaas-2","instance":4}"#;
        assert_eq!(bytes, with_sum(json));
        // As an earlier version wrote it.
        assert_eq!(PresentOwner::decode(json), Ok(owner));
        assert_eq!(PresentOwner::decode(&bytes), Ok(owner));
        for bad in ["", "{}", r#"{"epoch":"x","broker":"kaas-2","instance":4}"#] {
            assert!(PresentOwner::decode(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn marks_of_different_targets_differ() {
        let root = VolumePath::root();
        let a = mark_name(&root.join("t").join("0").join("manifest.json"));
        assert_eq!(a.name, "w-t%2F0%2Fmanifest.json");
        assert!(!a.hashed);
        assert_ne!(a, mark_name(&root.join("t%2F0").join("manifest.json")));
        let long = |last: char| {
            let name: String = "g".repeat(230);
            mark_name(
                &root
                    .join("__consumer_offsets")
                    .join(&format!("{name}{last}")),
            )
        };
        assert!(long('a').hashed);
        assert_ne!(long('a').name, long('b').name);
        assert!(long('a').name.len() <= MARK_NAME_MAX);
        let target = root.join("t%2F0").join("manifest.json");
        let name = mark_name(&target).name;
        assert_eq!(marked_target(&name), Some(MarkedTarget::Named(target)));
        assert_eq!(marked_target(&long('a').name), Some(MarkedTarget::Inside));
        assert_eq!(marked_target("own-1"), None);
        let target = root.join("a-b").join("c.json");
        let name = target_name(&target);
        assert_eq!(name, "a-b%2Fc.json");
        let intent = intent_name("1.5", &name);
        assert_eq!(intent, "x-1.5-a-b%2Fc.json");
        assert_eq!(intended(&intent), Some(&*name));
        assert_eq!(condemned_name(&name), "c-a-b%2Fc.json");
        assert_eq!(condemned("c-a-b%2Fc.json"), Some(&*name));
        let name = target_name(&root.join("d").join(&"g".repeat(240)));
        let intent = intent_name("4294967295.18446744073709551615", &name);
        assert!(intent.len() <= 255, "{}", intent.len());
        assert_eq!(intended(&intent), Some(&*name));
        assert_eq!(condemned(&condemned_name(&name)), Some(&*name));
        for name in ["w-a", "x-1", "t-1.5-0a", "current.json"] {
            assert_eq!(intended(name), None, "{name}");
            assert_eq!(condemned(name), None, "{name}");
        }
    }

    #[test]
    fn fnv_has_its_published_values() {
        assert_eq!(fnv1a128(b""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(fnv1a128(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }
}
