//! The history of transactional ids: a bounded journal on the volume, for people.
//!
//! One io task takes transitions from a bounded queue and appends them, a file an owner epoch and
//! slot, without a sync: nobody waits for it. What the queue or the volume does not take is counted
//! and lost. Reading goes through the same queue, so a reader sees what was recorded before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use coordinator::machine::txn::{Transition, TxnState};
use coordinator::service::txns::HistorySink;
use coordinator::volume::format::HistoryLine;
use coordinator::volume::layout::{Place, history_dir};
use store_adapter::ids::OwnerEpoch;
use store_adapter::runtime::Env;
use store_adapter::volume::{Volume, VolumeError, VolumeFile, VolumePath};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Transitions that wait for the io task; further ones are lost.
const QUEUE_MAX: usize = 4096;
/// Partitions and groups of the transitions that wait; further ones are lost.
const QUEUE_NAMES_MAX: usize = 1 << 18;
/// Transitions that are taken from the queue for one round of writes.
const ROUND_MAX: usize = 256;
/// Length at which a file is closed and the next one begun, bytes.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// Bytes of a slot's closed files that are kept; older files are removed.
const SLOT_BYTES_MAX: u64 = 1 << 20;
/// Files of a slot that are kept.
const SLOT_FILES_MAX: usize = 64;
/// Longest file that is read: a round may lengthen one by many partitions.
const READ_BYTES_MAX: u64 = 64 << 20;
/// How long nothing is tried after a failed write.
const PAUSE: Duration = Duration::from_secs(5);

/// What became of transitions that were not kept.
#[derive(Debug, Default)]
pub struct HistoryCounters {
    /// The queue was full.
    pub dropped: AtomicU64,
    /// The volume did not take them.
    pub failed: AtomicU64,
}

/// What is kept of one id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HistoryRead {
    /// Its transitions, oldest first.
    pub lines: Vec<HistoryLine>,
    /// Lines and files of its slot that could not be read.
    pub unreadable: usize,
}

/// A transition of an id of a slot.
#[derive(Debug)]
struct Record {
    slot: u32,
    id: Arc<str>,
    at: Box<Transition>,
    /// Given back when it is written.
    room: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Order {
    Record(Record),
    Read(u32, Arc<str>, oneshot::Sender<Result<HistoryRead, String>>),
}

/// The journal. When the last clone is dropped its io task ends.
#[derive(Debug)]
pub struct History {
    orders: mpsc::Sender<Order>,
    /// For partitions and groups.
    room: Arc<Semaphore>,
    counters: Arc<HistoryCounters>,
}

impl History {
    /// Starts the journal of the slots that this broker owns.
    pub fn start(env: &Env, volume: Arc<dyn Volume>, owned: Vec<(u32, OwnerEpoch)>) -> Arc<Self> {
        let (orders, queue) = mpsc::channel(QUEUE_MAX);
        let counters = Arc::new(HistoryCounters::default());
        let keeper = Keeper {
            env: env.clone(),
            volume,
            owned: owned.into_iter().collect(),
            open: BTreeMap::new(),
            paused: None,
            counters: Arc::clone(&counters),
        };
        let task = Box::pin(keeper.run(queue));
        drop(env.runtime.spawn_io("txn-history", task));
        Arc::new(Self {
            orders,
            room: Arc::new(Semaphore::new(QUEUE_NAMES_MAX)),
            counters,
        })
    }

    /// What was lost since the process began.
    pub fn counters(&self) -> &Arc<HistoryCounters> {
        &self.counters
    }

    /// What is kept of an id of `slot`, of earlier owners too.
    ///
    /// # Errors
    /// If the directory can't be read, or the broker stops.
    pub async fn read(&self, slot: u32, id: &str) -> Result<HistoryRead, String> {
        let (reply, answer) = oneshot::channel();
        let order = Order::Read(slot, id.into(), reply);
        let stopped = || "the broker stops".to_owned();
        self.orders.send(order).await.map_err(|_| stopped())?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }
}

impl HistorySink for History {
    fn record(&self, slot: u32, transactional_id: &str, transition: &Transition) {
        if (transition.from, transition.to) == (TxnState::Ongoing, TxnState::Ongoing) {
            // A line for each partition that is added, with all that were, would push out those of
            // every other id: what ends the transaction has them.
            return;
        }
        let names = u32::try_from(names(transition).min(QUEUE_NAMES_MAX)).unwrap_or(u32::MAX);
        let sent = match Arc::clone(&self.room).try_acquire_many_owned(names) {
            Ok(room) => {
                let (id, at) = (transactional_id.into(), Box::new(transition.clone()));
                let record = Record { slot, id, at, room };
                self.orders.try_send(Order::Record(record)).is_ok()
            }
            Err(_) => false,
        };
        if !sent {
            self.counters.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Partitions and groups of a transition.
fn names(transition: &Transition) -> usize {
    let partitions = transition.partitions.values().map(BTreeSet::len);
    partitions.sum::<usize>() + transition.groups.len()
}

/// The file of a slot that is written.
#[derive(Debug)]
struct Open {
    file: Arc<dyn VolumeFile>,
    seq: u64,
    len: u64,
}

/// The io task.
#[derive(Debug)]
struct Keeper {
    env: Env,
    volume: Arc<dyn Volume>,
    owned: BTreeMap<u32, OwnerEpoch>,
    /// At most one a slot.
    open: BTreeMap<u32, Open>,
    /// Until when nothing is tried, by the monotonic clock.
    paused: Option<Duration>,
    counters: Arc<HistoryCounters>,
}

impl Keeper {
    async fn run(mut self, mut queue: mpsc::Receiver<Order>) {
        let mut next = None;
        loop {
            let first = match next.take() {
                Some(order) => Some(order),
                None => queue.recv().await,
            };
            match first {
                None => return,
                Some(Order::Read(slot, id, reply)) => {
                    let read = self.read(slot, &id).await;
                    if reply.send(read.map_err(|error| error.to_string())).is_err() {
                        tracing::trace!("nobody waits for this history any more");
                    }
                }
                Some(Order::Record(first)) => next = self.round(first, &mut queue).await,
            }
        }
    }

    /// Writes what is queued. The order that ended the round.
    async fn round(&mut self, first: Record, queue: &mut mpsc::Receiver<Order>) -> Option<Order> {
        let mut lines: BTreeMap<u32, Vec<Bytes>> = BTreeMap::new();
        let mut taken = Some(first);
        let mut next = None;
        let mut rooms = Vec::new();
        while let Some(Record { slot, id, at, room }) = taken.take() {
            match HistoryLine::of(&id, &at).encode() {
                Ok(line) => lines.entry(slot).or_default().push(line.into()),
                Err(error) => {
                    tracing::warn!(%error, %id, "a transition can't be written as a line");
                    self.counters.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
            rooms.push(room);
            if rooms.len() < ROUND_MAX {
                match queue.try_recv() {
                    Ok(Order::Record(record)) => taken = Some(record),
                    Ok(other) => next = Some(other),
                    Err(_) => {}
                }
            }
        }
        for (slot, lines) in lines {
            let lost = u64::try_from(lines.len()).unwrap_or(u64::MAX);
            if self.is_paused() {
                self.counters.failed.fetch_add(lost, Ordering::Relaxed);
            } else if let Err(error) = self.append(slot, &lines).await {
                self.counters.failed.fetch_add(lost, Ordering::Relaxed);
                self.pause(slot, &error);
            }
        }
        next
    }

    fn is_paused(&self) -> bool {
        let now = self.env.clock.monotonic();
        self.paused.is_some_and(|until| now < until)
    }

    fn pause(&mut self, slot: u32, error: &VolumeError) {
        self.paused = Some(self.env.clock.monotonic() + PAUSE);
        if let VolumeError::NoSpace { .. } = error {
            // A full disk is said once, by who watches it. The next write overwrites this one.
            tracing::debug!(slot, %error, "transitions are not kept");
            return;
        }
        tracing::warn!(slot, %error, "transitions are not kept");
        if let Some(open) = self.open.get_mut(&slot) {
            // The next write begins another file.
            open.len = FILE_BYTES_MAX;
        }
    }

    async fn append(&mut self, slot: u32, lines: &[Bytes]) -> Result<(), VolumeError> {
        let full = |open: &Open| open.len >= FILE_BYTES_MAX;
        if self.open.get(&slot).is_none_or(full) {
            self.begin(slot).await?;
        }
        let Some(open) = self.open.get_mut(&slot) else {
            return Ok(());
        };
        open.file.write_at(open.len, lines).await?;
        let bytes: usize = lines.iter().map(Bytes::len).sum();
        open.len += u64::try_from(bytes).unwrap_or(u64::MAX);
        Ok(())
    }

    /// Begins the next file of a slot, and removes the oldest ones.
    async fn begin(&mut self, slot: u32) -> Result<(), VolumeError> {
        let Some(epoch) = self.owned.get(&slot).copied() else {
            return Ok(());
        };
        self.volume.create_dir_all(&history_dir(slot)).await?;
        let mut seq = self.open.get(&slot).map_or(0, |open| open.seq + 1);
        let file = loop {
            let path = Place::TxnHistory(slot, epoch, seq).path();
            match self.volume.create_new(&path).await {
                Ok(file) => break file,
                // An attempt whose answer was an error may have made it.
                Err(VolumeError::AlreadyExists { .. }) => seq += 1,
                Err(error) => return Err(error),
            }
        };
        self.open.insert(slot, Open { file, seq, len: 0 });
        if let Err(error) = self.prune(slot).await {
            tracing::debug!(slot, %error, "old history is not removed yet");
        }
        Ok(())
    }

    async fn prune(&self, slot: u32) -> Result<(), VolumeError> {
        let mut files = self.files(slot).await?;
        let mut bytes = 0;
        // The newest, which is being written, stays.
        files.pop();
        for (index, path) in files.iter().rev().enumerate() {
            bytes += self.volume.open(path).await?.size().await?;
            if bytes > SLOT_BYTES_MAX || index + 1 >= SLOT_FILES_MAX {
                self.volume.remove(path).await?;
            }
        }
        Ok(())
    }

    /// The files of a slot, oldest first.
    async fn files(&self, slot: u32) -> Result<Vec<VolumePath>, VolumeError> {
        let dir = history_dir(slot);
        let names = match self.volume.list(&dir).await {
            Err(error) if error.is_not_found() => return Ok(Vec::new()),
            names => names?,
        };
        let mut files: Vec<_> = names
            .iter()
            .filter_map(|entry| match Place::parse(&dir.join(&entry.name)) {
                Some(Place::TxnHistory(_, epoch, seq)) => Some((epoch, seq)),
                _ => None,
            })
            .collect();
        files.sort_unstable();
        let path = |(epoch, seq): &(OwnerEpoch, u64)| Place::TxnHistory(slot, *epoch, *seq).path();
        Ok(files.iter().map(path).collect())
    }

    async fn read(&self, slot: u32, id: &str) -> Result<HistoryRead, VolumeError> {
        let mut found = HistoryRead::default();
        for path in self.files(slot).await? {
            match self.volume.read(&path, READ_BYTES_MAX).await {
                Ok(bytes) => {
                    let (lines, unreadable) = HistoryLine::read(&bytes);
                    let wanted = lines.into_iter().filter(|line| line.transactional_id == id);
                    found.lines.extend(wanted);
                    found.unreadable += unreadable;
                }
                // Its owner has removed it since.
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    tracing::debug!(%error, "a file of the history is not read");
                    found.unreadable += 1;
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
