//! Why a broker does not start, and why a topic or a file was not changed.

use store_adapter::ids::BrokerId;
use store_adapter::volume::VolumeError;
use store_adapter::volume::owned::OwnedError;
use uuid::Uuid;

use crate::volume::layout;

/// Why a broker did not start on a volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The data directory belongs to a cluster, and the volume to none: most likely it is not
    /// mounted.
    #[error(
        "this data directory belongs to cluster {remembered}, but the volume has no \
         __cluster/cluster.json; is it mounted? It is not initialised again"
    )]
    VolumeMissing {
        /// The cluster that was remembered.
        remembered: String,
    },
    /// The volume belongs to another cluster.
    #[error("this data directory belongs to cluster {remembered}, but the volume to {found}")]
    OtherCluster {
        /// The cluster that was remembered.
        remembered: String,
        /// The cluster of the volume.
        found: String,
    },
    /// The volume has no cluster yet something is on it.
    #[error(
        "the volume has no __cluster/cluster.json and is not empty: it holds {name:?}; \
         a new cluster starts on an empty volume only"
    )]
    NotEmpty {
        /// What was found first.
        name: String,
    },
    /// The volume was written by another version.
    #[error("the volume has layout version {found}; this software knows version 1 only")]
    UnsupportedVersion {
        /// The version.
        found: u32,
    },
    /// The same broker runs already.
    #[error(
        "broker {} runs already on host {host} as process {pid}: end that process first, or give \
         this one a directory of its own",
        .broker.0
    )]
    RunsAlready {
        /// The broker.
        broker: BrokerId,
        /// Its host.
        host: String,
        /// Its process id there.
        pid: u32,
    },
    /// Another broker uses the volume, and this one was started alone.
    #[error(
        "broker {} uses this volume on host {host} (process {pid}), but this broker was started \
         alone: end that process first, or give this one a directory of its own",
        .broker.0
    )]
    NotAlone {
        /// The other broker.
        broker: BrokerId,
        /// Its host.
        host: String,
        /// Its process id there.
        pid: u32,
    },
    /// Another process of this broker started at the same time.
    #[error("another process of this broker took over while this one was starting")]
    TakenOver,
    /// The cluster directory and the data directory are not one file system.
    #[error(
        "a file can't be renamed from __cluster into the data directory: both must be one \
         file system that renames atomically ({0})"
    )]
    NoRename(VolumeError),
    /// A file that nothing can go on without is damaged.
    #[error(
        "{path} is damaged: {why}. Restore it; what could be read of it is in __cluster/quarantine"
    )]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The volume did not do it.
    #[error("the volume can't be used: {0}")]
    Volume(#[from] VolumeError),
    /// The remembered cluster id can't be read or written.
    #[error("the cluster id in the local data directory can't be used: {0}")]
    Identity(String),
    /// The process is shutting down.
    #[error("stopped while starting")]
    Stopped,
}

impl From<OwnedError> for StartError {
    fn from(error: OwnedError) -> Self {
        match error {
            OwnedError::Stale => Self::TakenOver,
            OwnedError::Damaged { path, why } => Self::Damaged { path, why },
            OwnedError::NotApplied(error) | OwnedError::MaybeApplied(error) => Self::Volume(error),
        }
    }
}

/// Why a file of this broker was not read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// Another instance or controller owns the file: this process serves no longer.
    #[error("another broker process has taken over")]
    Fenced,
    /// Not led here, or no such partition.
    #[error("not led by this broker")]
    NotLeader,
    /// The file is damaged; others are not affected.
    #[error("{path} is damaged: {why}")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The volume did not do it, or its outcome is not known; may be tried again.
    #[error("the volume is unavailable: {0}")]
    Unavailable(String),
    /// The node has stopped.
    #[error("stopped")]
    Stopped,
}

impl From<OwnedError> for NodeError {
    fn from(error: OwnedError) -> Self {
        match error {
            OwnedError::Stale => Self::Fenced,
            OwnedError::Damaged { path, why } => Self::Damaged { path, why },
            OwnedError::NotApplied(error) | OwnedError::MaybeApplied(error) => {
                Self::Unavailable(error.to_string())
            }
        }
    }
}

/// Why a topic was not created, changed or deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// Not a legal name.
    #[error(transparent)]
    InvalidName(#[from] super::topic_name::NameError),
    /// A topic of that name exists.
    #[error("topic {name:?} exists already")]
    AlreadyExists {
        /// The name.
        name: String,
    },
    /// The name differs from an existing one in `.` and `_` only, which metric names can't tell
    /// apart. Kafka answers it like an illegal name.
    #[error("topic {name:?} collides with the existing topic {existing:?}")]
    Collides {
        /// The name.
        name: String,
        /// The existing topic.
        existing: String,
    },
    /// The number of partitions is out of range.
    #[error("{asked} partitions: a topic has 1 to {max}")]
    InvalidPartitions {
        /// What was asked for.
        asked: u32,
        /// The most.
        max: u32,
    },
    /// The cluster has as many partitions as it takes.
    #[error("the cluster can't take more than {max} partitions")]
    TooManyPartitions {
        /// The most.
        max: usize,
    },
    /// A topic does not shrink, and stays what it is only when nobody asks.
    #[error("the topic has {have} partitions already")]
    NotMorePartitions {
        /// How many it has.
        have: u32,
    },
    /// The configs are too large.
    #[error("the configs of a topic can't take more than {max} bytes")]
    ConfigsTooLarge {
        /// The most.
        max: usize,
    },
    /// No topic has that id.
    #[error("no topic has the id {id}")]
    UnknownId {
        /// The id.
        id: Uuid,
    },
    /// The files of the topic of that name are damaged.
    #[error("topic {name:?} exists, and a file in {} is damaged", layout::topic_dir(.name))]
    Damaged {
        /// The name.
        name: String,
    },
    /// Another broker is the controller.
    #[error("another broker is the controller")]
    NotController,
    /// The volume did not do it, or its outcome is not known; may be tried again.
    #[error("the volume is unavailable: {0}")]
    Unavailable(String),
    /// The node has stopped.
    #[error("stopped")]
    Stopped,
}
