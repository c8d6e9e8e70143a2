//! Every path of the volume that this crate reads or writes, both directions: [`Place::path`]
//! formats it, [`Place::parse`] reads it back.
//!
//! A topic's directory is its Kafka name. Legal names hold only `[a-zA-Z0-9._-]`, so they need no
//! escaping; the few that this layout takes for itself are refused by [`is_reserved`].

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use store_adapter::ids::{BrokerId, OwnerEpoch, ProducerEpoch, ProducerId, ShardId};
use store_adapter::volume::VolumePath;
use uuid::Uuid;

use crate::slot_hash::fnv1a32;

/// The cluster directory below the volume's root.
pub const CLUSTER_DIR: &str = "__cluster";
/// The embedded store's directory below the volume's root.
pub const STORE_DIR: &str = "__store";
/// Where a default set-up keeps the local index, below the data directory.
pub const INDEX_DIR: &str = "index";
/// Claims, tickets and marks of the owned-file primitive, below the cluster directory.
pub const OWNERS_DIR: &str = "owners";

const BROKERS_DIR: &str = "brokers";
const PRODUCER_IDS_DIR: &str = "producer_ids";
const DELETED_DIR: &str = "topics_deleted";
const OFFSETS_DIR: &str = "__consumer_offsets";
const TXN_DIR: &str = "txn_state";
const FENCES_DIR: &str = "producer_fences";
const QUEUE_DIR: &str = "marker_queue";
const HISTORY_DIR: &str = "txn_history";
const QUARANTINE_DIR: &str = "quarantine";
const JSON: &str = ".json";

/// Directories that a volume without `cluster.json` may have and still count as empty, whatever is
/// in them: what an interrupted first start leaves.
pub const EMPTY_VOLUME_DIRS: [&str; 3] = [CLUSTER_DIR, OWNERS_DIR, QUARANTINE_DIR];
/// Directories that a start makes, and that are empty on a new volume.
pub const STATE_DIRS: [&str; 5] = [
    BROKERS_DIR,
    PRODUCER_IDS_DIR,
    DELETED_DIR,
    OFFSETS_DIR,
    TXN_DIR,
];

/// Longest file name that common file systems take, bytes.
const NAME_LEN_MAX: usize = 255;

/// One file of the volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// What cluster this volume is.
    Cluster,
    /// Who leads what.
    Assignment,
    /// Registration and heartbeat of a broker.
    Broker(BrokerId),
    /// The first producer id not yet reserved by a broker.
    ProducerIds(BrokerId),
    /// Proof that a topic is gone.
    TopicDeleted(Uuid),
    /// The offsets of a group, by the group.
    GroupOffsets(String),
    /// The transactional ids of a slot.
    TxnSlot(u32),
    /// What a slot was before its last take-over.
    TxnSlotPrevious(u32),
    /// The fences that a broker publishes.
    ProducerFences(BrokerId),
    /// Markers that a broker is to write: by the producer and the epoch of the records.
    MarkerQueue(BrokerId, ProducerId, ProducerEpoch),
    /// The same, when it has written those of the transaction of that number.
    MarkerDone(BrokerId, ProducerId, ProducerEpoch, u64),
    /// Transitions of a slot: by its owner's epoch and the number of the file.
    TxnHistory(u32, OwnerEpoch, u64),
    /// A topic's configs.
    TopicConfig(String),
    /// A topic's identity; its replace commits the creation.
    TopicId(String),
    /// A partition's epoch and bounds.
    Manifest(String, u32),
    /// A partition's dedupe windows.
    ProducerState(String, u32),
    /// A partition's open and aborted transactions.
    TxnIndex(String, u32),
}

impl Place {
    /// Where it lies.
    pub fn path(&self) -> VolumePath {
        let below = |dir: &str, name: String| cluster_dir().join(dir).join(&name);
        match self {
            Self::Cluster => cluster_dir().join("cluster.json"),
            Self::Assignment => cluster_dir().join("assignment.json"),
            Self::Broker(id) => below(BROKERS_DIR, id.name() + JSON),
            Self::ProducerIds(id) => below(PRODUCER_IDS_DIR, id.name() + JSON),
            Self::TopicDeleted(id) => below(DELETED_DIR, id.to_string() + JSON),
            Self::GroupOffsets(group) => offsets_path(group, 0),
            Self::TxnSlot(slot) => below(TXN_DIR, format!("slot-{slot}{JSON}")),
            Self::TxnSlotPrevious(slot) => below(TXN_DIR, format!("slot-{slot}{PREVIOUS}")),
            Self::ProducerFences(id) => below(FENCES_DIR, format!("from-{}{JSON}", id.name())),
            Self::MarkerQueue(to, pid, epoch) => {
                marker_queue_dir(*to).join(&format!("{}-{}{JSON}", pid.0, epoch.0))
            }
            Self::MarkerDone(to, pid, epoch, txn_seq) => {
                marker_queue_dir(*to).join(&format!("{}-{}.{txn_seq}{DONE}", pid.0, epoch.0))
            }
            Self::TxnHistory(slot, epoch, seq) => {
                history_dir(*slot).join(&format!("{epoch}-{seq}{JSONL}"))
            }
            Self::TopicConfig(topic) => topic_dir(topic).join(".config.json"),
            Self::TopicId(topic) => topic_dir(topic).join(".topic-id.json"),
            Self::Manifest(topic, p) => partition_dir(topic, *p).join("manifest.json"),
            Self::ProducerState(topic, p) => partition_dir(topic, *p).join(PRODUCER_STATE),
            Self::TxnIndex(topic, p) => partition_dir(topic, *p).join(TXN_INDEX),
        }
    }

    /// What lies at `path`; `None` for names that this layout does not know.
    pub fn parse(path: &VolumePath) -> Option<Self> {
        let parts: Vec<&str> = path.as_str().split('/').collect();
        match parts.as_slice() {
            [CLUSTER_DIR, "cluster.json"] => Some(Self::Cluster),
            [CLUSTER_DIR, "assignment.json"] => Some(Self::Assignment),
            [CLUSTER_DIR, BROKERS_DIR, name] => broker_of(name).map(Self::Broker),
            [CLUSTER_DIR, PRODUCER_IDS_DIR, name] => broker_of(name).map(Self::ProducerIds),
            [CLUSTER_DIR, DELETED_DIR, name] => deleted_of(name).map(Self::TopicDeleted),
            [CLUSTER_DIR, OFFSETS_DIR, name] => match offsets_group(name)? {
                OffsetsName::Group(group) => Some(Self::GroupOffsets(group)),
                OffsetsName::Hashed(_) => None,
            },
            [CLUSTER_DIR, dir, ..] if TXN_DIRS.contains(dir) => txn_place(&parts[1..]),
            [CLUSTER_DIR | STORE_DIR, ..] => None,
            [topic, ".config.json"] => Some(Self::TopicConfig((*topic).to_owned())),
            [topic, ".topic-id.json"] => Some(Self::TopicId((*topic).to_owned())),
            [topic, partition, name] => {
                let (topic, partition) = ((*topic).to_owned(), partition_of(partition)?);
                match *name {
                    "manifest.json" => Some(Self::Manifest(topic, partition)),
                    PRODUCER_STATE => Some(Self::ProducerState(topic, partition)),
                    TXN_INDEX => Some(Self::TxnIndex(topic, partition)),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

const PREVIOUS: &str = ".prev.json";
const DONE: &str = ".done";
const JSONL: &str = ".jsonl";
const TXN_DIRS: [&str; 4] = [TXN_DIR, FENCES_DIR, QUEUE_DIR, HISTORY_DIR];

/// Reads what lies in the directories of transactions, below the cluster directory. A name that
/// would not be written is none.
fn txn_place(parts: &[&str]) -> Option<Place> {
    let place = match *parts {
        [TXN_DIR, name] => {
            let slot = name.strip_prefix("slot-")?;
            match slot.strip_suffix(PREVIOUS) {
                Some(slot) => Place::TxnSlotPrevious(slot.parse().ok()?),
                None => Place::TxnSlot(slot.strip_suffix(JSON)?.parse().ok()?),
            }
        }
        [FENCES_DIR, name] => Place::ProducerFences(broker_of(name.strip_prefix("from-")?)?),
        [QUEUE_DIR, to, name] => {
            let to = BrokerId::from_name(to.strip_prefix("to-")?)?;
            let (producer, done) = match name.strip_suffix(DONE) {
                Some(stem) => {
                    let (producer, txn_seq) = stem.rsplit_once('.')?;
                    (producer, Some(txn_seq.parse().ok()?))
                }
                None => (name.strip_suffix(JSON)?, None),
            };
            let (pid, epoch) = producer.split_once('-')?;
            let pid = ProducerId(pid.parse().ok()?);
            let epoch = ProducerEpoch(epoch.parse().ok().filter(|epoch| *epoch >= 0)?);
            match done {
                Some(txn_seq) => Place::MarkerDone(to, pid, epoch, txn_seq),
                None => Place::MarkerQueue(to, pid, epoch),
            }
        }
        [HISTORY_DIR, slot, name] => {
            let slot = slot.strip_prefix("slot-")?.parse().ok()?;
            let (epoch, seq) = name.strip_suffix(JSONL)?.rsplit_once('-')?;
            Place::TxnHistory(slot, epoch.parse().ok()?, seq.parse().ok()?)
        }
        _ => return None,
    };
    let written = place.path();
    let name = written
        .as_str()
        .strip_prefix(CLUSTER_DIR)?
        .strip_prefix('/')?;
    (name == parts.join("/")).then_some(place)
}

/// Where the slots of transactional ids lie.
pub fn txn_dir() -> VolumePath {
    cluster_dir().join(TXN_DIR)
}

/// Where fences lie.
pub fn fences_dir() -> VolumePath {
    cluster_dir().join(FENCES_DIR)
}

/// Where the blocks of producer ids lie.
pub fn producer_ids_dir() -> VolumePath {
    cluster_dir().join(PRODUCER_IDS_DIR)
}

/// Where the queues of markers lie, a directory a broker.
pub fn marker_queues_dir() -> VolumePath {
    cluster_dir().join(QUEUE_DIR)
}

/// The broker whose queue of markers a directory is; `None` for other names.
pub fn marker_queue_owner(dir: &VolumePath) -> Option<BrokerId> {
    let owner = BrokerId::from_name(dir.file_name().strip_prefix("to-")?)?;
    (marker_queue_dir(owner) == *dir).then_some(owner)
}

/// Where the markers lie that a broker is to write.
pub fn marker_queue_dir(to: BrokerId) -> VolumePath {
    let name = format!("to-{}", to.name());
    cluster_dir().join(QUEUE_DIR).join(&name)
}

/// Where the history of a slot lies.
pub fn history_dir(slot: u32) -> VolumePath {
    let name = format!("slot-{slot}");
    cluster_dir().join(HISTORY_DIR).join(&name)
}

const PRODUCER_STATE: &str = "producer-state.snapshot";
const TXN_INDEX: &str = "txn-index.snapshot";

/// The cluster directory.
pub fn cluster_dir() -> VolumePath {
    VolumePath::root().join(CLUSTER_DIR)
}

/// Where claims lie.
pub fn owners_dir() -> VolumePath {
    cluster_dir().join(OWNERS_DIR)
}

/// Where registrations lie.
pub fn brokers_dir() -> VolumePath {
    cluster_dir().join(BROKERS_DIR)
}

/// Where topic tombstones lie.
pub fn deleted_dir() -> VolumePath {
    cluster_dir().join(DELETED_DIR)
}

/// Where the offsets of groups lie.
pub fn offsets_dir() -> VolumePath {
    cluster_dir().join(OFFSETS_DIR)
}

/// What stays as it is in the name of a group's file.
const OFFSETS_PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-');
/// Longest name of a group's file, bytes: its mark in the area, which escapes it again, and a
/// quarantine copy still have room for what tells them apart.
const OFFSETS_NAME_MAX: usize = 200;

/// Names that the file of a group may have. It has the first one; a further one only where a crash
/// fell into the removal of the file under the names before.
pub const OFFSETS_NAMES: u32 = 16;

/// Where the file of a group lies under its name of this number.
pub fn offsets_path(group: &str, number: u32) -> VolumePath {
    offsets_dir().join(&offsets_name(group, number))
}

/// The name of the file of a group: percent-encoded; one that is too long, or not the first, keeps
/// its beginning and ends in the hash that chooses its slot and one that tells it apart.
fn offsets_name(group: &str, number: u32) -> String {
    let mut name: String = utf8_percent_encode(group, OFFSETS_PLAIN).collect();
    // Tickets and probes of the owned-file primitive begin so, and are removed.
    if name.starts_with("t-") {
        name.replace_range(..1, "%74");
    }
    if number > 0 || name.len() + JSON.len() > OFFSETS_NAME_MAX {
        let mut bytes = group.as_bytes().to_vec();
        let slot = fnv1a32(&bytes);
        if number > 0 {
            // No group has this byte.
            bytes.push(0xff);
            bytes.extend(number.to_be_bytes());
        }
        let hashes = format!("~{slot:08x}{:032x}", fnv1a128(&bytes));
        name.truncate(OFFSETS_NAME_MAX - JSON.len() - hashes.len());
        name += &hashes;
    }
    name + JSON
}

/// What the name of a group's file tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OffsetsName {
    /// The group.
    Group(String),
    /// The hash that chooses its slot; the group is in the file.
    Hashed(u32),
}

/// Reads the name of a group's file; `None` for other names.
pub fn offsets_group(name: &str) -> Option<OffsetsName> {
    let stem = name.strip_suffix(JSON)?;
    if let Some((_, hashes)) = stem.rsplit_once('~') {
        let slot = hashes.get(..8).filter(|_| hashes.len() == 40)?;
        return u32::from_str_radix(slot, 16).ok().map(OffsetsName::Hashed);
    }
    let group = percent_decode_str(stem).decode_utf8().ok()?;
    (offsets_name(&group, 0) == name).then(|| OffsetsName::Group(group.into_owned()))
}

/// FNV-1a, 128 bits.
fn fnv1a128(bytes: &[u8]) -> u128 {
    bytes
        .iter()
        .fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
            (hash ^ u128::from(*byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b)
        })
}

/// Where copies of damaged files go.
pub fn quarantine_dir() -> VolumePath {
    cluster_dir().join(QUARANTINE_DIR)
}

/// The name of the quarantine copy of `path` whose bytes have the given hash: equal damage has
/// one copy, however often it is met.
pub fn quarantine_name(path: &VolumePath, content_hash: u64) -> String {
    let escaped = path.as_str().replace('%', "%25").replace('/', "%2F");
    let suffix = format!(".{content_hash:016x}");
    if escaped.len() + suffix.len() <= NAME_LEN_MAX {
        return escaped + &suffix;
    }
    // Paths are ASCII wherever they come from names that were checked; others are cut at a
    // character boundary.
    let mut cut = NAME_LEN_MAX - suffix.len();
    while !escaped.is_char_boundary(cut) {
        cut -= 1;
    }
    format!("{}{suffix}", &escaped[..cut])
}

/// The file that holds room for what a broker is to delete on a full volume.
pub fn held_room(broker: BrokerId) -> VolumePath {
    cluster_dir().join(&format!("room-{}", broker.name()))
}

/// A topic's directory.
pub fn topic_dir(topic: &str) -> VolumePath {
    VolumePath::root().join(topic)
}

/// A partition's directory.
pub fn partition_dir(topic: &str, partition: u32) -> VolumePath {
    topic_dir(topic).join(&partition.to_string())
}

/// The directory of a shard of the embedded store.
pub fn shard_dir(shard: ShardId) -> VolumePath {
    VolumePath::root()
        .join(STORE_DIR)
        .join(&format!("shard-{}", shard.0))
}

/// The source and target of the trial rename that proves, at start, that the cluster directory and
/// the data directory are one file system. `~` is not legal in a topic's name.
pub fn trial_rename(broker: BrokerId) -> (VolumePath, VolumePath) {
    let name = format!("~trial-{}", broker.name());
    (cluster_dir().join(&name), VolumePath::root().join(&name))
}

/// Whether a name below the root is taken by this layout, so that no topic can have it.
pub fn is_reserved(name: &str) -> bool {
    matches!(name, CLUSTER_DIR | STORE_DIR | INDEX_DIR)
}

/// Whether a name below the root is not data of a cluster: the local index, what file systems put
/// there themselves, and leftovers of a trial rename.
pub fn is_foreign(name: &str) -> bool {
    name == INDEX_DIR || name == "lost+found" || name == ".snapshot" || name.starts_with('~')
}

/// Whether a file is one that a look at a directory leaves when it is cut short by a crash: those
/// of this crate, and those of the owned-file primitive, named like its tickets.
pub fn is_probe(name: &str) -> bool {
    name.starts_with('~') || name.starts_with("t-")
}

/// Reads the number of a partition directory: decimal, no padding.
pub fn partition_of(name: &str) -> Option<u32> {
    let number: u32 = name.parse().ok()?;
    (number.to_string() == name).then_some(number)
}

fn broker_of(name: &str) -> Option<BrokerId> {
    let id = BrokerId::from_name(name.strip_suffix(JSON)?)?;
    (id.name() + JSON == name).then_some(id)
}

/// Reads the name of a topic tombstone.
fn deleted_of(name: &str) -> Option<Uuid> {
    let id = Uuid::try_parse(name.strip_suffix(JSON)?).ok()?;
    (id.to_string() + JSON == name).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_reads_back() {
        let id = Uuid::from_u128(0x1234_5678_9abc_4def_8123_4567_89ab_cdef);
        let places = [
            (Place::Cluster, "__cluster/cluster.json"),
            (Place::Assignment, "__cluster/assignment.json"),
            (Place::Broker(BrokerId(7)), "__cluster/brokers/kaas-7.json"),
            (
                Place::ProducerIds(BrokerId(0)),
                "__cluster/producer_ids/kaas-0.json",
            ),
            (
                Place::TopicDeleted(id),
                "__cluster/topics_deleted/12345678-9abc-4def-8123-456789abcdef.json",
            ),
            (
                Place::GroupOffsets("my group/1".into()),
                "__cluster/__consumer_offsets/my%20group%2F1.json",
            ),
            (
                Place::GroupOffsets("t-1-0a".into()),
                "__cluster/__consumer_offsets/%74-1-0a.json",
            ),
            (
                Place::GroupOffsets(String::new()),
                "__cluster/__consumer_offsets/.json",
            ),
            (Place::TxnSlot(49), "__cluster/txn_state/slot-49.json"),
            (
                Place::TxnSlotPrevious(0),
                "__cluster/txn_state/slot-0.prev.json",
            ),
            (
                Place::ProducerFences(BrokerId(2)),
                "__cluster/producer_fences/from-kaas-2.json",
            ),
            (
                Place::MarkerQueue(BrokerId(1), ProducerId(7), ProducerEpoch(3)),
                "__cluster/marker_queue/to-kaas-1/7-3.json",
            ),
            (
                Place::MarkerDone(BrokerId(1), ProducerId(7), ProducerEpoch(3), 12),
                "__cluster/marker_queue/to-kaas-1/7-3.12.done",
            ),
            (
                Place::TxnHistory(4, "2.9".parse().unwrap(), 6),
                "__cluster/txn_history/slot-4/2.9-6.jsonl",
            ),
            (Place::TopicConfig("a.b".into()), "a.b/.config.json"),
            (Place::TopicId("a_b".into()), "a_b/.topic-id.json"),
            (Place::Manifest("t".into(), 12), "t/12/manifest.json"),
            (
                Place::ProducerState("t".into(), 0),
                "t/0/producer-state.snapshot",
            ),
            (Place::TxnIndex("t".into(), 3), "t/3/txn-index.snapshot"),
        ];
        for (place, text) in places {
            assert_eq!(place.path().as_str(), text);
            assert_eq!(Place::parse(&place.path()), Some(place));
        }
    }

    #[test]
    fn names_that_are_not_ours_are_not_read() {
        let path = |text: &str| {
            text.split('/')
                .fold(VolumePath::root(), |dir, name| dir.join(name))
        };
        for text in [
            "",
            "t",
            "t/00/manifest.json",
            "t/-1/manifest.json",
            "t/1/other",
            "__cluster/brokers/kaas-07.json",
            "__cluster/brokers/kaas-1",
            "__cluster/topics_deleted/x.json",
            "__cluster/topics_deleted/123456789ABC4DEF8123456789ABCDEF.json",
            "__cluster/.topic-id.json",
            "__store/.config.json",
            "__cluster/txn_state/slot-01.json",
            "__cluster/txn_state/slot-x.json",
            "__cluster/producer_fences/kaas-0.json",
            "__cluster/marker_queue/to-kaas-0/7.json",
            "__cluster/marker_queue/to-kaas-0/7--3.json",
            "__cluster/marker_queue/to-kaas-0/7-03.1.done",
            "__cluster/txn_history/slot-1/2.9-x.jsonl",
            "__store/0/manifest.json",
        ] {
            assert_eq!(Place::parse(&path(text)), None, "{text}");
        }
    }

    #[test]
    fn long_groups_are_hashed_and_told_apart() {
        let long = |last: char| offsets_name(&format!("{}{last}", "\u{e9}".repeat(300)), 0);
        assert_eq!(long('a').len(), 200);
        assert_ne!(long('a'), long('b'));
        let group = format!("{}a", "\u{e9}".repeat(300));
        let slot = OffsetsName::Hashed(fnv1a32(group.as_bytes()));
        assert_eq!(offsets_group(&long('a')), Some(slot));
        let further = offsets_name("g", 1);
        assert_eq!(
            further,
            format!("g~{:08x}", fnv1a32(b"g")) + &further[10..42] + ".json"
        );
        assert_ne!(further, offsets_name("g", 2));
        let slot = OffsetsName::Hashed(fnv1a32(b"g"));
        assert_eq!(offsets_group(&further), Some(slot));
        for name in [
            "a b.json",
            "%61.json",
            "%zz.json",
            "a",
            "~1.json",
            "t-1-0a.json",
        ] {
            assert_eq!(offsets_group(name), None, "{name}");
        }
    }

    #[test]
    fn quarantine_names_fit_a_file_name_and_tell_paths_apart() {
        let long = topic_dir(&"x".repeat(249)).join(".topic-id.json");
        assert_eq!(quarantine_name(&long, 1).len(), 255);
        let one = quarantine_name(&topic_dir("a").join("b"), 0xff);
        assert_eq!(one, "a%2Fb.00000000000000ff");
        assert_ne!(one, quarantine_name(&topic_dir("a%2Fb"), 0xff));
    }
}
