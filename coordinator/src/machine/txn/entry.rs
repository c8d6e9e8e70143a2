//! What a coordinator keeps of one transactional id.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use store_adapter::fault::{Fault, planted};
use store_adapter::ids::{BrokerId, ProducerEpoch, ProducerId};
use uuid::Uuid;

/// Partitions by topic.
pub type TopicPartitions = BTreeMap<Arc<str>, BTreeSet<i32>>;
/// The ids that topics had when they were named.
pub type TopicIds = BTreeMap<Arc<str>, Uuid>;
/// Group ids.
pub type Groups = BTreeSet<Arc<str>>;

/// The highest epoch that is handed out; the next is that of a last fence.
pub const EPOCH_LAST: i16 = i16::MAX - 1;
/// What an entry without a usable timeout counts as, ms (`transaction.timeout.ms`).
pub const TIMEOUT_DEFAULT_MS: i32 = 60_000;

/// The state of a transactional id, as Kafka names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum TxnState {
    /// No transaction since the last InitProducerId.
    #[default]
    Empty,
    /// A transaction is open.
    Ongoing,
    /// It is decided to commit; markers are owed.
    PrepareCommit,
    /// It is decided to abort; markers are owed.
    PrepareAbort,
    /// The last one has committed.
    CompleteCommit,
    /// The last one has aborted.
    CompleteAbort,
}

impl TxnState {
    /// Every state.
    pub const ALL: [Self; 6] = [
        Self::Empty,
        Self::Ongoing,
        Self::PrepareCommit,
        Self::PrepareAbort,
        Self::CompleteCommit,
        Self::CompleteAbort,
    ];

    /// Kafka's name of it, as on the wire and in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::Ongoing => "Ongoing",
            Self::PrepareCommit => "PrepareCommit",
            Self::PrepareAbort => "PrepareAbort",
            Self::CompleteCommit => "CompleteCommit",
            Self::CompleteAbort => "CompleteAbort",
        }
    }

    /// The state of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// The direction in which a decided transaction goes; `None` if its markers are not owed.
    pub fn prepared(self) -> Option<bool> {
        match self {
            Self::PrepareCommit => Some(true),
            Self::PrepareAbort => Some(false),
            _ => None,
        }
    }

    /// The direction in which the last transaction went; `None` in other states.
    pub fn completed(self) -> Option<bool> {
        match self {
            Self::CompleteCommit => Some(true),
            Self::CompleteAbort => Some(false),
            _ => None,
        }
    }

    pub(super) fn prepare(commit: bool) -> Self {
        if commit {
            Self::PrepareCommit
        } else {
            Self::PrepareAbort
        }
    }

    pub(super) fn complete(commit: bool) -> Self {
        if commit {
            Self::CompleteCommit
        } else {
            Self::CompleteAbort
        }
    }
}

/// Who asks, for people who look at a transaction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Client {
    /// `client.id`.
    pub id: Arc<str>,
    /// Address of its connection.
    pub address: Arc<str>,
    /// Name and version of its software; may be empty.
    pub software: Arc<str>,
}

/// What one broker still has to confirm of a decided transaction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwedEntry {
    /// Partitions whose marker is queued.
    pub partitions: TopicPartitions,
    /// The ids of their topics.
    pub topic_ids: TopicIds,
    /// Groups whose decision is queued.
    pub groups: Groups,
}

/// Markers and group decisions that are queued at other brokers and not yet confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owed {
    /// Number of the transaction.
    pub txn_seq: u64,
    /// Its producer.
    pub producer_id: ProducerId,
    /// The epoch that its records carry; it names the queue entries.
    pub record_epoch: ProducerEpoch,
    /// The epoch that its markers carry.
    pub marker_epoch: ProducerEpoch,
    /// The decision.
    pub commit: bool,
    /// What each broker owes.
    pub entries: BTreeMap<BrokerId, OwedEntry>,
}

/// The state of one transactional id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxnEntry {
    /// Its producer id.
    pub pid: ProducerId,
    /// The epoch of its current session, or of the markers in Prepare*.
    pub epoch: ProducerEpoch,
    /// The epoch before, where a request that carries it is a retry.
    pub last_epoch: Option<ProducerEpoch>,
    /// In Prepare* the epoch that the records carry, where the markers carry a higher one.
    pub record_epoch: Option<ProducerEpoch>,
    /// The producer id before the last rotation.
    pub prev_pid: Option<ProducerId>,
    /// The producer id that Complete* takes over: the epoch is exhausted.
    pub next_pid: Option<ProducerId>,
    /// The state.
    pub state: TxnState,
    /// Partitions of the open or decided transaction.
    pub partitions: TopicPartitions,
    /// The ids of their topics, where they are known.
    pub topic_ids: TopicIds,
    /// Groups of it.
    pub groups: Groups,
    /// When it began, ms since the Unix epoch; kept in Complete*.
    pub start_ms: Option<i64>,
    /// Its timeout, ms.
    pub timeout_ms: i32,
    /// Number of the last transaction that began; 0 before the first.
    pub txn_seq: u64,
    /// The last change, ms since the Unix epoch.
    pub last_update_ms: i64,
    /// Who asked for the last change.
    pub client: Option<Client>,
    /// The slot's epoch under which the last decision was made.
    pub coordinator_epoch: Option<i32>,
    /// Transaction protocol of the last request: 2 if the epoch grows with every transaction.
    pub txn_version: i8,
    /// What other brokers still have to confirm.
    pub owed: Vec<Owed>,
}

impl TxnEntry {
    /// An id that nothing is known of.
    pub fn new(pid: ProducerId, timeout_ms: i32, now_ms: i64) -> Self {
        Self {
            pid,
            epoch: ProducerEpoch(0),
            last_epoch: None,
            record_epoch: None,
            prev_pid: None,
            next_pid: None,
            state: TxnState::Empty,
            partitions: TopicPartitions::new(),
            topic_ids: TopicIds::new(),
            groups: Groups::new(),
            start_ms: None,
            timeout_ms,
            txn_seq: 0,
            last_update_ms: now_ms,
            client: None,
            coordinator_epoch: None,
            txn_version: 0,
            owed: Vec::new(),
        }
    }

    /// Whether other brokers still have to confirm a decision.
    pub fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Whether a decision waits for other brokers: nothing new may begin.
    pub fn is_gated(&self) -> bool {
        self.owes() && !planted(Fault::GateLeftOut)
    }

    pub(super) fn clear_transaction(&mut self) {
        self.partitions.clear();
        self.topic_ids.clear();
        self.groups.clear();
    }
}
