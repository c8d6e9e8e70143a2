//! What a broker would find damaged on a volume: it is started over the volume, which is only read,
//! and then every file that it reads by and by is read at once.
//!
//! So there is one judgement of every file, the broker's own.

use std::io;
use std::sync::Arc;

use store_adapter::ids::{BrokerId, LogId, ShardId};
use store_adapter::local::{Host, LocalIdentity};
use store_adapter::runtime::Env;
use store_adapter::volume::owned::{Area, Claim, OwnedError, OwnedFiles, PresentOwner};
use store_adapter::volume::{Overlay, Volume, VolumeError};

use super::inspect::SharedFiles;
use super::{ClusterNode, Damage, Levels, NodeConfig, StartError};
use crate::service::fences::{FenceFileError, FenceFiles};
use crate::service::groups::{FoundGroup, GroupFileError, GroupFiles};
use crate::service::marker_queue::QueueFiles;
use crate::service::producer_ids::{BlockFile, BlockFileError};
use crate::service::txns::{SlotFileError, SlotFiles};
use crate::volume::layout::{self, Place};

/// Largest file beside the journals of a shard that is read, bytes.
const SHARD_FILE_MAX: u64 = 64 << 20;

/// Why an audit came to no end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// No broker would start.
    #[error("the broker does not start: {0}")]
    Start(#[from] StartError),
    /// A file or a directory could not be read.
    #[error("{0}")]
    Unread(String),
}

/// What came of an audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audit {
    /// The files that are damaged.
    pub damage: Vec<Damage>,
    /// Whatever kept it from looking at all there is.
    pub errors: Vec<AuditError>,
}

/// Nothing is remembered, and nothing is kept.
#[derive(Debug)]
struct AnyCluster;

impl LocalIdentity for AnyCluster {
    fn read(&self) -> io::Result<Option<String>> {
        Ok(None)
    }

    fn write(&self, _: &str) -> io::Result<()> {
        Ok(())
    }
}

/// Reads every file of `volume` that a broker would, as it would; changes nothing. `host` says
/// which other processes run: a volume that one of them has is not looked at.
///
/// Memory: what a broker would write at a start, mostly the transactional ids. Awaited in an io
/// task only.
pub async fn audit(env: &Env, volume: &Arc<dyn Volume>, host: Arc<dyn Host>) -> Audit {
    let mut errors = Vec::new();
    let over: Arc<dyn Volume> = Arc::new(Overlay::new(Arc::clone(volume)));
    let broker = match lowest_broker(volume).await {
        Ok(broker) => broker,
        Err(error) => {
            errors.push(AuditError::Unread(error.to_string()));
            BrokerId(0)
        }
    };
    let config = NodeConfig {
        broker_id: broker,
        listeners: Vec::new(),
        version: String::new(),
        shards: 1,
        features: Levels::new(),
        assigned: false,
    };
    let identity = Arc::new(AnyCluster);
    let started = ClusterNode::start(env.clone(), Arc::clone(&over), host, identity, config).await;
    let node = match started {
        Ok(node) => node,
        Err(error) => {
            errors.push(error.into());
            return Audit {
                damage: Vec::new(),
                errors,
            };
        }
    };
    let reader = Reader {
        owned: OwnedFiles::new(over, Arc::clone(&env.random)),
        node: &node,
        errors: &mut errors,
    };
    reader.read().await;
    Audit {
        damage: node.damage(),
        errors,
    }
}

/// Whose volume it is; of several brokers, the first one's.
async fn lowest_broker(volume: &Arc<dyn Volume>) -> Result<BrokerId, VolumeError> {
    let dir = layout::brokers_dir();
    let names = match volume.list(&dir).await {
        Err(VolumeError::NotFound { .. }) => Vec::new(),
        names => names?,
    };
    let places = names.iter().map(|entry| dir.join(&entry.name));
    let ids = places.filter_map(|path| match Place::parse(&path) {
        Some(Place::Broker(id)) => Some(id),
        _ => None,
    });
    Ok(ids.min().unwrap_or(BrokerId(0)))
}

/// Reads, one kind of file after the other, what the node reports where it is damaged.
struct Reader<'a> {
    owned: OwnedFiles,
    node: &'a ClusterNode,
    errors: &'a mut Vec<AuditError>,
}

impl Reader<'_> {
    async fn read(mut self) {
        self.shards().await;
        self.partitions().await;
        self.txn_slots().await;
        self.groups().await;
        self.shared().await;
    }

    fn unread(&mut self, error: &dyn std::fmt::Display) {
        self.errors.push(AuditError::Unread(error.to_string()));
    }

    /// The files of the shards themselves that must be there because they were.
    async fn shards(&mut self) {
        for (shard, epoch) in self.node.shards() {
            let owner = PresentOwner {
                epoch,
                broker: self.node.broker(),
                instance: self.node.instance(),
            };
            let claim = self.owned.take_over(Area::Shard(shard), owner).await;
            let outcome = match claim {
                Ok(claim) => self.shard(shard, &claim).await,
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                self.unread(&error);
            }
        }
    }

    async fn shard(&self, shard: ShardId, claim: &Claim) -> Result<(), OwnedError> {
        let dir = layout::shard_dir(shard);
        for path in claim.written().await? {
            if path.parent() != dir {
                continue;
            }
            match claim.read(&path, SHARD_FILE_MAX).await {
                Ok(_) => {}
                Err(OwnedError::Damaged { path, why }) => {
                    self.node.report_damage(&path, &why).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn partitions(&mut self) {
        let view = self.node.view();
        for topic in view.topics.iter() {
            let partitions = u32::try_from(topic.shards.len()).unwrap_or(u32::MAX);
            for partition in 0..partitions {
                let topic = topic.id;
                let log = LogId { topic, partition };
                if let Err(error) = self.node.read_partition(log).await {
                    self.unread(&error);
                }
            }
        }
    }

    async fn txn_slots(&mut self) {
        let files = self.node.txn_files();
        for (slot, epoch) in self.node.txn_slots() {
            // What is damaged was reported.
            match files.claim(slot, epoch).await {
                Ok(_) | Err(SlotFileError::Damaged(_)) => {}
                Err(error) => self.unread(&error),
            }
        }
    }

    async fn groups(&mut self) {
        let files = self.node.group_files();
        let slots = self.node.view().assignment.group_slots.len();
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        let mut found = Vec::new();
        for (slot, epoch) in self.node.group_slots() {
            match files.claim(slot, epoch).await {
                Ok(written) => found.extend(written),
                Err(error) => self.unread(&error),
            }
        }
        match files.list().await {
            Ok(listed) => found.extend(listed),
            Err(error) => self.unread(&error),
        }
        found.sort();
        found.dedup();
        for group in found {
            let slot = group.slot(slots);
            let named = match &group {
                FoundGroup::Named(group) => Ok(Some(group.clone())),
                FoundGroup::Hashed { name, .. } => files.identify(slot, name).await,
            };
            let read = match named {
                Ok(Some(group)) => files.read(slot, &group).await.map(|_| ()),
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            match read {
                Ok(()) | Err(GroupFileError::Damaged(_)) => {}
                Err(error) => self.unread(&error),
            }
        }
    }

    /// What every broker reads, and what each has for itself.
    async fn shared(&mut self) {
        if let Err(error) = self.node.queue_files().all().await {
            self.unread(&error);
        }
        let fences = self.node.fence_files();
        match fences.own().await {
            Ok(_) | Err(FenceFileError::Damaged(_)) => {}
            Err(error) => self.unread(&error),
        }
        drop(fences.others().await);
        match self.node.block_file().read().await {
            Ok(_) | Err(BlockFileError::Damaged(_)) => {}
            Err(error) => self.unread(&error),
        }
        match SharedFiles(self.node.volume()).id_blocks().await {
            Ok(blocks) => {
                for block in blocks.iter().filter(|one| one.broker != self.node.broker()) {
                    if let Err(why) = &block.content {
                        let path = Place::ProducerIds(block.broker).path();
                        self.node.report_damage(path.as_str(), why).await;
                    }
                }
            }
            Err(error) => self.unread(&error),
        }
    }
}
