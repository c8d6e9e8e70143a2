//! What the process shows and does, as traits that it implements.
//!
//! Methods that return a future may take their time; the others must not wait. Those that look at
//! many things are called by [`TxnViews::work`], beside the thread that answers.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use coordinator::machine::group::GroupError;
use coordinator::machine::group::offsets::OffsetTable;
use coordinator::machine::producer::ProducerStates;
use coordinator::machine::txn::{TxnEntry, TxnError};
use coordinator::service::cluster::{Found, QueuedMarkers};
use coordinator::service::txns::SlotGap;
use coordinator::volume::format::{FencesFile, HistoryLine, IdBlockFile};

use crate::Check;

/// A boxed future that may move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What the process shows of itself. Called on the thread of the admin surface: no method may wait.
pub trait Views: Send + Sync + 'static {
    /// Whether the process makes progress; the text says why not.
    ///
    /// # Errors
    /// If it does not.
    fn live(&self) -> Result<(), String>;
    /// What readiness depends on, each with its state; ready is when all hold.
    fn checks(&self) -> Vec<Check>;
    /// The OpenMetrics text.
    ///
    /// # Errors
    /// If it cannot be made.
    fn metrics(&self) -> Result<String, String>;
}

/// Says whether an id is like a pattern.
pub type IdPattern = Box<dyn Fn(&str) -> bool + Send>;

/// A code of Kafka's, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaCode {
    /// The number.
    pub code: i16,
    /// Its name in Kafka's table.
    pub name: String,
    /// Whether a client may try again.
    pub retriable: bool,
}

/// Why a partition can't be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPartition {
    /// There is no such topic, or its name is not one.
    UnknownTopic,
    /// The topic has no partition of that number.
    UnknownPartition,
    /// The topic's files are damaged.
    Damaged,
    /// Its storage does not serve it now.
    Unavailable(String),
}

/// A partition at one moment. All of it is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionView {
    /// The topic's id.
    pub topic_id: String,
    /// Epoch of its leader.
    pub leader_epoch: u32,
    /// First offset.
    pub log_start: i64,
    /// Behind the last durable record.
    pub high_watermark: i64,
    /// First offset of the earliest open transaction, or the high watermark.
    pub last_stable: i64,
    /// `producer.id.expiration.ms`.
    pub expiration_ms: i64,
}

/// Looks at the durable producers of a partition.
pub type Look<'a> = &'a mut dyn FnMut(&ProducerStates);

/// Bounds of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Behind the last durable record.
    pub high_watermark: i64,
    /// First offset of the earliest open transaction, or the high watermark.
    pub last_stable: i64,
}

/// What is kept of the past of an id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HistoryView {
    /// Transitions, oldest first.
    pub lines: Vec<HistoryLine>,
    /// Lines and files of its slot that can't be read.
    pub unreadable: usize,
    /// Transitions of any id that were not kept since the process began.
    pub lost: u64,
}

/// What a pass over transactional ids came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pass {
    /// Ids that it took care of.
    pub done: Vec<String>,
    /// Ids that are not finished yet, and why.
    pub failed: Vec<(String, String)>,
    /// Ids that were left for the next pass.
    pub remaining: usize,
}

/// Markers that are held on purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldView {
    /// Its number.
    pub number: u64,
    /// The transactional id; `None` for all.
    pub transactional_id: Option<String>,
    /// Since when, ms since the Unix epoch.
    pub since_ms: i64,
    /// Orders that were held.
    pub orders: u64,
}

impl HoldView {
    /// Whether the markers of an id are held; `None` for a transaction without one.
    pub(crate) fn holds(&self, id: Option<&str>) -> bool {
        let held = self.transactional_id.as_deref();
        held.is_none() || held == id
    }
}

/// Something that takes its time.
pub type Job = Box<dyn FnOnce() + Send>;

/// Transactions, as the process knows them.
pub trait TxnViews: Send + Sync + 'static {
    /// The time, ms since the Unix epoch.
    fn now_ms(&self) -> i64;
    /// Completes after `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
    /// Does a job beside the thread that answers, behind those that were taken before; `false` if
    /// too many wait, or the process stops.
    fn work(&self, job: Job) -> bool;
    /// Runs a task to its end, whoever it is that asked for it and goes away.
    fn spawn(&self, task: BoxFuture<'static, ()>);
    /// This broker's number.
    fn broker(&self) -> i32;
    /// HOST:PORT at which Kafka clients are told to reach this broker.
    fn kafka_address(&self) -> String;
    /// What a client is told for `error`.
    fn kafka_code(&self, error: TxnError) -> KafkaCode;

    /// A regular expression that whole ids match, as ListTransactions has it.
    ///
    /// # Errors
    /// If it is none.
    fn id_pattern(&self, pattern: &str) -> Result<IdPattern, String>;
    /// The slot of a transactional id.
    fn slot_of(&self, id: &str) -> u32;
    /// Shows every id that this broker coordinates, and says of which slots it can't.
    fn visit(&self, look: &mut dyn FnMut(&Arc<str>, &TxnEntry)) -> Vec<SlotGap>;
    /// What is known of an id.
    ///
    /// # Errors
    /// Where its slot can't be answered for.
    fn transaction(&self, id: &str) -> Result<Option<TxnEntry>, TxnError>;
    /// Why what is decided of an id could not be carried out, when that was tried last.
    fn why_stuck(&self, id: &str) -> Option<Arc<str>>;
    /// What became of an id.
    fn history<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<HistoryView, String>>;

    /// A partition; `look` sees its producers at the same moment, under a lock: it must be short.
    ///
    /// # Errors
    /// See [`NoPartition`].
    fn partition(
        &self,
        topic: &str,
        partition: i32,
        look: Look<'_>,
    ) -> Result<PartitionView, NoPartition>;
    /// The bounds of a partition; `None` where it can't be shown.
    fn bounds(&self, topic: &str, partition: i32) -> Option<Bounds>;
    /// Partitions of which a reader of committed records does not see the end, in order: at most
    /// `max`, and how many there are.
    fn held_back(&self, max: usize) -> (Vec<(String, i32)>, usize);

    /// The offsets of a group; `None` if there is no such group.
    ///
    /// # Errors
    /// Where they can't be read.
    fn group(&self, group: &str) -> Result<Option<Arc<OffsetTable>>, GroupError>;

    /// The fences that brokers have published.
    fn fences(&self) -> BoxFuture<'_, Result<Vec<Found<FencesFile>>, String>>;
    /// The markers that are queued for brokers, and how many more there are.
    fn marker_queue(&self) -> BoxFuture<'_, Result<(Vec<QueuedMarkers>, usize), String>>;
    /// The producer ids that brokers have reserved.
    fn id_blocks(&self) -> BoxFuture<'_, Result<Vec<Found<IdBlockFile>>, String>>;

    /// Aborts the open transaction of the number `txn_seq` of the session (producer id, epoch), as
    /// the reaper would.
    fn abort<'a>(
        &'a self,
        id: &'a str,
        session: (i64, i16),
        txn_seq: u64,
    ) -> BoxFuture<'a, Result<(), TxnError>>;
    /// Aborts what is past its timeout.
    fn reap(&self) -> BoxFuture<'_, Pass>;
    /// Carries out what is decided.
    fn reconcile(&self) -> BoxFuture<'_, Pass>;

    /// Holds the markers of an id, or of all; `None` if there are too many holds.
    fn hold(&self, transactional_id: Option<&str>) -> Option<HoldView>;
    /// Releases a hold, and has carried out what it held; whether there was one.
    fn release(&self, number: u64) -> bool;
    /// Every hold.
    fn holds(&self) -> Vec<HoldView>;
}
