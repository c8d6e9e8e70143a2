//! Why a topic was not created, changed or deleted.

/// Reasons, never numbers: `error_code` maps them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// The name is not one that Kafka allows.
    #[error("Topic name is invalid: {0}")]
    InvalidName(String),
    /// There is such a topic, or one that differs only in `.` and `_`.
    #[error("{0}")]
    Exists(String),
    /// There is no such topic.
    #[error("This server does not host this topic-partition.")]
    Unknown,
    /// Too many partitions in one topic.
    #[error("{asked} partitions; at most {max} are created at once")]
    TooManyPartitions {
        /// Asked for.
        asked: u32,
        /// Allowed.
        max: u32,
    },
    /// The files of the topic of that name are damaged.
    #[error("{0}")]
    Damaged(String),
    /// A topic can only grow.
    #[error("{0}")]
    NotMorePartitions(String),
    /// The cluster takes no more partitions.
    #[error("{0}")]
    NoRoom(String),
    /// A config that is not known, not valid, or without effect here.
    #[error("{0}")]
    InvalidConfig(String),
    /// A config that a broker does not take while it runs.
    #[error("{0}")]
    NotDynamic(String),
    /// Another broker is the controller.
    #[error("This is not the correct controller for this cluster.")]
    NotController,
    /// It did not happen, or may have; trying again finds out.
    #[error("the volume did not take it: {0}")]
    Unavailable(String),
}

/// Why there is no topic of a name to be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoTopic {
    /// There is none.
    Unknown,
    /// There is one, whose files are damaged: it may be there again when they were restored.
    Damaged,
}
