//! One pass through the files in which many logs have something that is wanted. Asked log by log,
//! each batch would be a read of its own, and the index of each file be read once for each log.
//!
//! Nothing that fails is told: what is missing in the end is asked for log by log, which says why.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::mpsc;

use super::file::FileId;
use super::files::Files;
use super::frame::Kind;
use super::reader::bounds_for;
use super::scan::{Found, Scanner, Step};
use super::shard::Log;
use crate::ids::LogId;
use crate::runtime::Env;
use crate::store::{LogBatches, StoredBatch};
use crate::volume::VolumeError;

/// Rounds that may be read ahead of whoever takes them.
const AHEAD: usize = 4;
/// Logs that want something of a file for which it is read whole.
const LOGS_MIN: usize = 16;

/// What is wanted of one log.
#[derive(Debug)]
struct Wanted {
    /// The offset that the next batch holds.
    next: i64,
    /// Behind the last one.
    upto: i64,
}

/// What is wanted, and where.
#[derive(Debug)]
struct Plan {
    logs: BTreeMap<LogId, Wanted>,
    files: BTreeSet<FileId>,
}

impl Plan {
    /// What of `logs` is durable by now, from an offset on, up to the first file of which hardly
    /// anything else is wanted.
    fn new(logs: impl Iterator<Item = (Arc<Log>, i64)>) -> Self {
        let logs: Vec<_> = logs.map(|(log, next)| wanted(&log, next)).collect();
        let mut wanting: BTreeMap<FileId, usize> = BTreeMap::new();
        for file in logs.iter().flat_map(|(_, _, files)| files) {
            *wanting.entry(*file).or_default() += 1;
        }
        wanting.retain(|_, logs| *logs >= LOGS_MIN);
        let mut plan = Self {
            logs: BTreeMap::new(),
            files: BTreeSet::new(),
        };
        for (log, wanted, files) in logs {
            let files = files.into_iter();
            let files: Vec<_> = files
                .take_while(|file| wanting.contains_key(file))
                .collect();
            if !files.is_empty() {
                plan.files.extend(files);
                plan.logs.insert(log, wanted);
            }
        }
        plan
    }

    /// The batch of an append, if it is the next one of its log.
    fn take(&mut self, found: &Found) -> Option<(LogId, StoredBatch)> {
        let frame = found.frame;
        let wanted = self.logs.get_mut(&frame.log)?;
        let next = (frame.base..=frame.last()).contains(&wanted.next);
        if frame.kind != Kind::Append || !next || frame.last() >= wanted.upto {
            return None;
        }
        wanted.next = frame.last().saturating_add(1);
        Some((frame.log, batch(found)?))
    }
}

/// What is wanted of a log, and the files that have it.
fn wanted(log: &Log, next: i64) -> (LogId, Wanted, Vec<FileId>) {
    let upto = log.bounds.borrow().end;
    let index = log.index.read();
    let first = index.sealed.partition_point(|segment| segment.last < next);
    let sealed = index.sealed.range(first..).map(|segment| segment.file);
    let files = sealed.chain(index.active_file).collect();
    (log.id, Wanted { next, upto }, files)
}

/// The batch in an append frame, which also answers for offsets before it that are gone.
fn batch(found: &Found) -> Option<StoredBatch> {
    let bytes = found.payload.clone();
    if bytes.len() != found.frame.payload_len as usize {
        return None;
    }
    Some(StoredBatch {
        base_offset: i64::from_be_bytes(*bytes.first_chunk::<8>()?),
        last_offset: found.frame.last(),
        append_ms: found.frame.append_ms,
        bytes,
    })
}

/// Begins to read what of `logs` is durable by now, from an offset on. `None` where a read for each
/// log costs no more.
pub(crate) fn start(
    env: &Env,
    files: &Arc<Files>,
    logs: impl Iterator<Item = (Arc<Log>, i64)>,
) -> Option<mpsc::Receiver<LogBatches>> {
    let plan = Plan::new(logs.filter(|(log, from)| bounds_for(log, *from).is_ok()));
    if plan.files.is_empty() {
        return None;
    }
    let (batches, receiver) = mpsc::channel(AHEAD);
    let task = run(Arc::clone(files), plan, batches);
    // Ends with what is wanted, or with who wants it.
    drop(env.runtime.spawn_io("journal-through", Box::pin(task)));
    Some(receiver)
}

/// Sends what is wanted, in order of each log, until it is done or nobody takes it.
async fn run(files: Arc<Files>, mut plan: Plan, batches: mpsc::Sender<LogBatches>) {
    for file in plan.files.clone() {
        match read(&files, file, &mut plan, &batches).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => tracing::debug!(%error, "left to who reads log by log"),
        }
    }
}

/// Reads one file; false when nobody takes what it holds.
async fn read(
    files: &Files,
    id: FileId,
    plan: &mut Plan,
    batches: &mpsc::Sender<LogBatches>,
) -> Result<bool, VolumeError> {
    let closed = files.closed_file(id);
    let file = files.handle(id).await?;
    let (limit, exact) = match closed {
        Some(closed) => (closed.len, true),
        None => (file.size().await?, false),
    };
    let mut scanner = Scanner::new(&*file, id.seed(), limit, exact).keeping_batches();
    while let Step::Round(round) = scanner.next().await? {
        if round.damaged_at.is_some() {
            break;
        }
        let found = round.frames.iter();
        let some: LogBatches = found.filter_map(|found| plan.take(found)).collect();
        if !some.is_empty() && batches.send(some).await.is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}
