//! Files of every kind damaged at seeded places under a broker that starts: it serves what was
//! written, or says which file is damaged, and takes no other for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use store_adapter::ids::{BrokerId, LogId, ProducerEpoch, ProducerId};
use store_adapter::volume::{MemoryVolume, Volume, VolumePath};
use uuid::Uuid;

use super::super::{Audit, AuditError, ClusterNode, Damage, PartitionFile, StartError, audit};
use super::world::{Interrupt, Site, World, host};
use super::{create, delete};
use crate::service::fences::FenceFiles as _;
use crate::service::groups::GroupFiles as _;
use crate::service::marker_queue::{QueueFiles as _, QueueName};
use crate::service::producer_ids::BlockFile as _;
use crate::service::txns::SlotFiles as _;
use crate::slot_hash::fnv1a32;
use crate::volume::format::{
    Extra, GroupOffsetsFile, LastBatch, Manifest, MarkerQueueFile, ProducerSnapshot,
    SNAPSHOT_VERSION, SlotText, TxnIndexSnapshot, decode,
};

const GROUP: &str = "harmed-group";
const ID: &str = "tx-commit";

/// Everything that the files say, by a name for people.
type Said = BTreeMap<&'static str, String>;

fn group_slot() -> u32 {
    fnv1a32(GROUP.as_bytes()) % 50
}

fn txn_slot() -> u32 {
    fnv1a32(ID.as_bytes()) % 50
}

fn log(topic: Uuid) -> LogId {
    LogId {
        topic,
        partition: 1,
    }
}

async fn claim(node: &ClusterNode) -> (Result<String, String>, Result<(), String>) {
    let epoch = |slots: Vec<(u32, _)>, slot| {
        let found = slots.into_iter().find(|(number, _)| *number == slot);
        found.unwrap().1
    };
    let slot = txn_slot();
    let owner = epoch(node.txn_slots(), slot);
    let txns = node.txn_files().claim(slot, owner).await;
    let slot = group_slot();
    let owner = epoch(node.group_slots(), slot);
    let groups = node.group_files().claim(slot, owner).await;
    (
        txns.map(|file| format!("{file:?}"))
            .map_err(|e| e.to_string()),
        groups.map(drop).map_err(|e| e.to_string()),
    )
}

/// Writes a file of every kind, and says what they say.
fn written(site: &Site) -> (Said, Uuid) {
    let world = &site.world;
    let node = site.start(0);
    let topic = create(world, &node, "kept").unwrap().id;
    let gone = create(world, &node, "gone").unwrap().id;
    delete(world, &node, gone).unwrap();
    let work = async move {
        let (txns, groups) = claim(&node).await;
        txns.unwrap();
        groups.unwrap();
        node.block_file().reserve(3000).await.unwrap();
        let fences = decode(br#"{"+seenMs":{"7":1790000000000},"7":5}"#).unwrap();
        // Reading makes the directory.
        node.fence_files().own().await.unwrap();
        node.fence_files().replace(&fences).await.unwrap();
        let none = SlotText::default();
        let mut slot = none.edit(0);
        slot.add(br#","tx-commit":{"pid":7,"epoch":4,"state":"Ongoing","txnSeq":3}"#);
        let txns = node.txn_files();
        txns.replace(txn_slot(), slot.finish()).await.unwrap();
        let offsets = r#"{"offsets":{"kept/0":42},"group":"harmed-group","seq":1}"#;
        let offsets: GroupOffsetsFile = decode(offsets.as_bytes()).unwrap();
        let groups = node.group_files();
        groups.replace(group_slot(), GROUP, offsets).await.unwrap();
        let entry = concat!(
            r#"{"transactionalId":"tx-commit","producerId":7,"producerEpoch":4,"commit":true,"#,
            r#""coordinatorEpoch":1,"partitions":[{"topic":"kept","partitions":[0]}],"txnSeq":2}"#
        );
        let entry: MarkerQueueFile = decode(entry.as_bytes()).unwrap();
        node.queue_files().put(queue_name(), &entry).await.unwrap();
        for file in partition_files() {
            node.write_partition(log(topic), file).await.unwrap();
        }
    };
    world.run(work).unwrap();
    world.kill(0);
    // Taking over leaves a generation before; what it says is said again from here on.
    let node = site.start(1);
    let said = look(site, node, topic);
    world.kill(1);
    let said = said.into_iter().map(|(name, what)| (name, what.unwrap()));
    (said.collect(), topic)
}

fn queue_name() -> QueueName {
    QueueName {
        to: BrokerId(0),
        pid: ProducerId(7),
        record_epoch: ProducerEpoch(4),
    }
}

fn partition_files() -> [PartitionFile; 3] {
    let last_batch = Some(LastBatch {
        base_offset: 9,
        crc: 77,
    });
    [
        PartitionFile::Manifest(Manifest {
            epoch: 3,
            high_watermark: 10,
            log_start_offset: 0,
            topic_id: None,
            extra: Extra::new(),
        }),
        PartitionFile::ProducerState(ProducerSnapshot {
            version: SNAPSHOT_VERSION,
            entries: Vec::new(),
            log_end_offset: Some(10),
            leader_epoch: Some(0),
            last_batch,
            topic_id: None,
        }),
        PartitionFile::TxnIndex(TxnIndexSnapshot {
            version: SNAPSHOT_VERSION,
            open: Vec::new(),
            aborted: Vec::new(),
            log_end_offset: Some(10),
            leader_epoch: Some(0),
            last_batch,
            topic_id: None,
        }),
    ]
}

/// What each kind of file says, or why it says nothing.
fn look(
    site: &Site,
    node: ClusterNode,
    topic: Uuid,
) -> BTreeMap<&'static str, Result<String, String>> {
    let work = async move {
        let mut said = BTreeMap::new();
        let view = node.view();
        let topics: Vec<String> = view.topics.iter().map(|t| format!("{t:?}")).collect();
        said.insert("topics", Ok(topics.join(";")));
        said.insert(
            "cluster",
            Ok(format!("{} {:?}", view.cluster_id, view.features)),
        );
        let partitions = node.read_partition(log(topic)).await;
        let partitions = partitions.map_err(|e| e.to_string());
        let one = |what: fn(&super::super::PartitionContent) -> Option<String>| {
            let content = partitions.clone();
            content.and_then(|content| what(&content).ok_or("none".to_owned()))
        };
        let manifest = one(|c| c.manifest.as_ref().map(|f| format!("{f:?}")));
        said.insert("manifest", manifest);
        let producers = one(|c| c.producer_state.as_ref().map(|f| format!("{f:?}")));
        said.insert("producer-state", producers);
        said.insert(
            "txn-index",
            one(|c| c.txn_index.as_ref().map(|f| format!("{f:?}"))),
        );
        let block = node.block_file().read().await;
        said.insert(
            "producer-ids",
            block.map(|n| n.to_string()).map_err(|e| e.to_string()),
        );
        let fences = node.fence_files().own().await;
        let fences = fences.map(|f| format!("{:?}", f.fences));
        said.insert("fences", fences.map_err(|e| e.to_string()));
        let (txns, groups) = claim(&node).await;
        said.insert("txn-slot", txns);
        let offsets = match groups {
            Err(error) => Err(error),
            Ok(()) => match node.group_files().read(group_slot(), GROUP).await {
                Ok(Some(file)) => Ok(format!("{file:?}")),
                Ok(None) => Err("none".to_owned()),
                Err(error) => Err(error.to_string()),
            },
        };
        said.insert("group", offsets);
        let queued = node.queue_files().received().await;
        let queued = queued.map(|all| format!("{all:?}"));
        said.insert("queue", queued.map_err(|e| e.to_string()));
        said
    };
    site.world.run(work).unwrap()
}

/// Every file of a volume, claims and marks too.
fn all_files(site: &Site) -> Vec<(VolumePath, Bytes)> {
    let volume = site.volume.clone();
    let work = async move {
        let mut files = Vec::new();
        let mut dirs = vec![VolumePath::root()];
        while let Some(dir) = dirs.pop() {
            for entry in volume.list(&dir).await.unwrap() {
                let path = dir.join(&entry.name);
                if entry.is_dir {
                    dirs.push(path);
                } else {
                    let bytes = volume.read(&path, u64::MAX).await.unwrap();
                    files.push((path, bytes));
                }
            }
        }
        files.sort();
        files
    };
    site.world.run(work).unwrap()
}

/// The same broker on a volume in which `bytes` are those of the file at `at`; without it, if there
/// are none.
fn harmed(site: &Site, files: &[(VolumePath, Bytes)], at: usize, bytes: Option<&[u8]>) -> Site {
    let world = World::new(7);
    let mut site = Site {
        world,
        volume: MemoryVolume::new(),
        ..site.clone()
    };
    site.host = host("a", 3);
    for (number, (path, content)) in files.iter().enumerate() {
        match bytes {
            Some(bytes) if number == at => site.put(path, bytes),
            None if number == at => {}
            _ => site.put(path, content),
        }
    }
    site
}

/// What an audit finds, which changes nothing.
fn audited(site: &Site) -> Audit {
    let before = all_files(site);
    let (env, host) = (site.world.env(4), Arc::new(site.host.clone()));
    let volume: Arc<dyn Volume> = Arc::new(site.volume.clone());
    let work = async move { audit(&env, &volume, host).await };
    let audit = site.world.run(work).unwrap();
    assert_eq!(all_files(site), before);
    audit
}

fn paths(damage: &[Damage]) -> Vec<String> {
    damage.iter().map(|one| one.path.clone()).collect()
}

/// What is found of a file with other bytes: whether it was noticed.
fn judge(site: &Site, said: &Said, topic: Uuid, path: &VolumePath, what: &str) -> bool {
    let audit = audited(site);
    let node = match site.try_start(2, Interrupt::none()).unwrap() {
        Ok(node) => node,
        Err(refusal) => {
            let refused = match &refusal {
                // An audit remembers no cluster.
                StartError::VolumeMissing { .. } => StartError::NotEmpty {
                    name: "gone".to_owned(),
                },
                refusal => refusal.clone(),
            };
            let errors = [AuditError::Start(refused)];
            assert_eq!(audit.errors, errors, "{path}, {what}");
            let refusal = refusal.to_string();
            assert!(refusal.contains(path.as_str()), "{path}, {what}: {refusal}");
            return true;
        }
    };
    let found = look(site, node.clone(), topic);
    let damage = node.damage();
    assert_eq!(audit.errors, [], "{path}, {what}");
    assert_eq!(paths(&audit.damage), paths(&damage), "{path}, {what}");
    let named = damage.iter().any(|damage| damage.path == path.as_str());
    assert!(damage.is_empty() || named, "{path}, {what}: {damage:?}");
    for (name, said) in said {
        let found = &found[name];
        if found.as_ref() != Ok(said) {
            // The log has all that is in the files of a partition: an empty one is none.
            // Who receives markers unlinks them, so nothing says that there were any.
            let none = match what {
                "empty" => path.as_str().starts_with("kept/1/"),
                "missing" => path.as_str().starts_with("__cluster/marker_queue/"),
                _ => false,
            };
            assert!(
                named || none,
                "{path}, {what}: {name} is {found:?}, not {said:?}"
            );
        }
    }
    named
}

/// Seeded numbers (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) >> 1).unwrap() % end
    }
}

#[test]
fn damage_at_any_place_is_named_or_changes_nothing() {
    let site = Site::new(&World::new(1));
    let (said, topic) = written(&site);
    let files = all_files(&site);
    let nothing = audited(&site);
    assert_eq!((nothing.damage, nothing.errors), (Vec::new(), Vec::new()));
    let mut random = Numbers(11);
    let (mut harms, mut noticed) = (0, 0);
    for (at, (path, content)) in files.iter().enumerate() {
        // Names without content, and what is made anew whatever it says.
        if content.is_empty() || path.as_str().starts_with("__cluster/brokers/") {
            continue;
        }
        let mut cases = vec![
            ("missing".to_owned(), None),
            ("empty".to_owned(), Some(Vec::new())),
            ("no JSON".to_owned(), Some(b"{".to_vec())),
        ];
        for _ in 0..12 {
            let mut bytes = content.to_vec();
            let bit = random.below(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            cases.push((format!("bit {bit}"), Some(bytes)));
            let len = random.below(content.len());
            cases.push((format!("{len} bytes"), Some(content[..len].to_vec())));
        }
        for (what, bytes) in cases {
            let site = harmed(&site, &files, at, bytes.as_deref());
            harms += 1;
            noticed += u32::from(judge(&site, &said, topic, path, &what));
        }
    }
    println!("{harms} harms, {noticed} noticed");
    assert!(harms > 250 && noticed > 150, "{harms}, {noticed}");
}
