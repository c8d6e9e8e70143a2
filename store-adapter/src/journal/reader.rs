//! Reads batches: an extent is one read of the file, sliced per batch, checked again by `walk`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::{mpsc, oneshot};

use super::extents::{Extent, FileIndex, Place, SPAN_MAX, from_offset};
use super::failing::read_error;
use super::file::FileId;
use super::files::{Files, path};
use super::opened::Opened;
use super::pieces::pieces;
use super::queue::{Reply, answer};
use super::shard::Log;
use super::walk::{Taken, Walk};
use crate::store::{Bounds, Passed, Piece, StoreError, StoredBatch};

/// Jobs that may wait for one reader; more wait where they are asked.
pub(crate) const JOBS_MAX: usize = 256;
/// Most bytes of one read, unless one extent is larger.
const READ_MAX: u64 = 4 << 20;
/// Least bytes worth a read.
const READ_MIN: u64 = 64 << 10;
/// Bytes of other logs between two extents that are read along with them.
const GAP_MAX: u64 = 64 << 10;
/// Most extents that are looked at for one read.
const EXTENTS_MAX: usize = 256;
/// How often a read follows a place that moves.
pub(crate) const RETRIES_MAX: u32 = 8;

/// A range to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    /// First offset wanted.
    pub(crate) from: i64,
    /// Bytes after which no batch is added.
    pub(crate) max_bytes: usize,
    /// Offset that is not wanted any more.
    pub(crate) upto: i64,
    /// Whether a first batch of more than `max_bytes` is not wanted either.
    pub(crate) within: bool,
    /// When it is, if the batches are only passed on: large ones that were right lately are not
    /// read.
    pub(crate) passes: Option<Duration>,
}

/// Something to read.
#[derive(Debug)]
pub(crate) enum Job {
    /// Batches of a range.
    Read(Arc<Log>, Range, Reply<Vec<Passed>>),
    /// The first batch from an offset on with a timestamp.
    Find(Arc<Log>, i64, i64, Reply<Option<StoredBatch>>),
    /// Pieces from an offset on, and how many bytes of them.
    Pieces(Arc<Log>, i64, u64, Reply<Vec<Piece>>),
}

/// Reads until nobody can ask any more.
pub(crate) async fn run(files: Arc<Files>, mut jobs: mpsc::Receiver<Job>) {
    while let Some(job) = jobs.recv().await {
        match job {
            Job::Read(log, range, reply) => {
                if !reply.is_closed() {
                    answer(reply, read(&files, &log, range).await);
                }
            }
            Job::Find(log, from, time, reply) => {
                if !reply.is_closed() {
                    answer(reply, find(&files, &log, from, time).await);
                }
            }
            Job::Pieces(log, from, bytes, reply) => {
                if !reply.is_closed() {
                    answer(reply, pieces(&files, &log, from, bytes).await);
                }
            }
        }
    }
}

/// Sends a job and waits for its outcome.
pub(crate) async fn ask<T>(
    jobs: &mpsc::Sender<Job>,
    job: impl FnOnce(Reply<T>) -> Job,
) -> Result<T, StoreError> {
    let closed = || StoreError::Offline("the store is closed".to_owned());
    let (reply, outcome) = oneshot::channel();
    jobs.send(job(reply)).await.map_err(|_| closed())?;
    outcome.await.map_err(|_| closed())?
}

/// The bounds of `log`, if `from` lies in them.
pub(crate) fn bounds_for(log: &Log, from: i64) -> Result<Bounds, StoreError> {
    log.check()?;
    let bounds = *log.bounds.borrow();
    if from < bounds.start || from > bounds.end {
        return Err(StoreError::OutOfRange {
            start: bounds.start,
            end: bounds.end,
        });
    }
    Ok(bounds)
}

pub(crate) async fn read(
    files: &Files,
    log: &Log,
    range: Range,
) -> Result<Vec<Passed>, StoreError> {
    let mut taken = Taken::nothing(range, bounds_for(log, range.from)?);
    while !taken.is_full() {
        match read_more(files, log, &mut taken).await {
            Ok(()) => {}
            // What was found before is good.
            Err(_) if !taken.batches.is_empty() => break,
            Err(error) => {
                // The range may have been trimmed away meanwhile.
                bounds_for(log, range.from)?;
                return Err(error);
            }
        }
    }
    Ok(taken.batches)
}

/// What is asked for, if all of it may be passed on unread and is found without a look at the disk:
/// then nobody has to be asked.
pub(crate) fn pass(files: &Files, log: &Log, range: Range) -> Option<Vec<Passed>> {
    range.passes?;
    let mut taken = Taken::nothing(range, bounds_for(log, range.from).ok()?);
    while !taken.is_full() {
        let place = log.index.read().locate(taken.next, EXTENTS_MAX)?;
        let index;
        let (file, extents) = match &place {
            Place::Active(file, extents) => (*file, &extents[..]),
            Place::Sealed(segment) => {
                index = files.index_already(segment.file)?;
                let extents = index.logs.get(&log.id).map_or(&[][..], Vec::as_slice);
                (segment.file, from_offset(extents, taken.next))
            }
        };
        let opened = files.open_already(file).ok()?;
        if !taken.pass(log.id, &opened, extents) {
            if !taken.leaves(extents.first()?) {
                return None;
            }
            break;
        }
    }
    Some(taken.batches)
}

async fn read_more(files: &Files, log: &Log, taken: &mut Taken) -> Result<(), StoreError> {
    let place = log.index.read().locate(taken.next, EXTENTS_MAX);
    let outcome = read_place(files, log, taken, place.as_ref()).await;
    if outcome.is_err() && taken.retries < RETRIES_MAX && has_gone(files, place.as_ref()) {
        // What was in it was trimmed away, or is in another file by now.
        bounds_for(log, taken.next)?;
        taken.retries += 1;
        return Ok(());
    }
    outcome
}

/// Whether it is in a closed file that nothing needs any more.
pub(crate) fn has_gone(files: &Files, place: Option<&Place>) -> bool {
    matches!(place, Some(Place::Sealed(segment)) if !files.has(segment.file))
}

async fn read_place(
    files: &Files,
    log: &Log,
    taken: &mut Taken,
    place: Option<&Place>,
) -> Result<(), StoreError> {
    let index;
    let (file, version, extents) = match place {
        Some(Place::Active(file, extents)) => (*file, 0, &extents[..]),
        Some(Place::Sealed(segment)) => {
            let (version, found) = index_of(files, segment.file).await?;
            index = found;
            let extents = index.logs.get(&log.id).map_or(&[][..], Vec::as_slice);
            (segment.file, version, from_offset(extents, taken.next))
        }
        None => return Err(missing(log, taken.next)),
    };
    let trusting = match taken.passes {
        Some(_) => Some(opened(files, file).await?),
        None => None,
    };
    if let Some(opened) = &trusting
        && taken.pass(log.id, opened, extents)
    {
        return Ok(());
    }
    let pays = |rest: &[Extent]| {
        let trusting = trusting.as_ref();
        trusting.is_some_and(|opened| taken.pays(log.id, opened, rest))
    };
    let (position, len) = match stretch(extents, taken, pays) {
        Stretch::Read(position, len) => (position, len),
        Stretch::TooMuch => {
            taken.upto = taken.next;
            return Ok(());
        }
        Stretch::Missing => return Err(missing(log, taken.next)),
    };
    let before = (taken.next, taken.batches.len());
    let opened = opened(files, file).await?;
    let bytes = read_at(files, (file, &opened), position, len).await?;
    Walk::new(log.id, file.seed(), position, &bytes).take(taken);
    opened.mark(taken.found.drain(..));
    let (before, count) = before;
    let new = taken.batches.get_mut(count..).unwrap_or_default();
    let_go(new, bytes.len());
    if taken.next == before && !taken.is_full() {
        // It may have been trimmed away meanwhile: what is not needed is not there.
        bounds_for(log, taken.next)?;
        if files.version(file) == (version, false) {
            return Err(damaged(files, file, position, taken.next));
        }
        // The file was written anew: the batch is there, elsewhere.
        taken.retries += 1;
        if taken.retries > RETRIES_MAX {
            return Err(if files.is_unsure(file) {
                damaged(files, file, position, taken.next)
            } else {
                moving(file)
            });
        }
    }
    Ok(())
}

/// The index of a closed file, and which content of the file it is of.
pub(crate) async fn index_of(
    files: &Files,
    file: FileId,
) -> Result<(u32, Arc<FileIndex>), StoreError> {
    for _ in 0..RETRIES_MAX {
        let (version, _) = files.version(file);
        let index = files.index(file).await;
        let index = match index {
            Ok(index) => index,
            Err(error) => return Err(read_error(files, file, &error).await),
        };
        if files.version(file).0 == version {
            return Ok((version, index));
        }
    }
    Err(moving(file))
}

fn moving(file: FileId) -> StoreError {
    StoreError::Unavailable(format!("{}: it is being written anew", path(file)))
}

/// Copies batches that are less than half of the `len` bytes that were read with them: as slices
/// they would keep all of it, and whoever holds them counts their own bytes only.
fn let_go(batches: &mut [Passed], len: usize) {
    fn read(passed: &mut Passed) -> Option<&mut Bytes> {
        match passed {
            Passed::Read(batch) => Some(&mut batch.bytes),
            Passed::File { .. } => None,
        }
    }
    let used = batches.iter_mut().filter_map(read).map(|bytes| bytes.len());
    let used: usize = used.sum();
    if used >= len / 2 {
        return;
    }
    let mut copy = BytesMut::with_capacity(used);
    for bytes in batches.iter_mut().filter_map(read) {
        copy.extend_from_slice(bytes);
    }
    let mut copy = copy.freeze();
    for bytes in batches.iter_mut().filter_map(read) {
        *bytes = copy.split_to(bytes.len());
    }
}

/// The part of a file to read.
enum Stretch {
    /// From a position, so many bytes.
    Read(u64, usize),
    /// Nothing: the next batch is one too many.
    TooMuch,
    /// There is no such part.
    Missing,
}

/// The part of the file to read for what is wanted, up to what is better not read.
fn stretch(extents: &[Extent], taken: &Taken, pays: impl Fn(&[Extent]) -> bool) -> Stretch {
    let Some(first) = extents.first() else {
        return Stretch::Missing;
    };
    if taken.leaves(first) {
        return Stretch::TooMuch;
    }
    let wanted = taken.max_bytes.saturating_sub(taken.bytes) as u64;
    let wanted = wanted.clamp(READ_MIN, READ_MAX);
    let mut end = first.end();
    let mut own = u64::from(first.bytes);
    for (at, extent) in extents.iter().enumerate().skip(1) {
        let far = extent.position.saturating_sub(end) > GAP_MAX;
        let own_with = own.saturating_add(extent.bytes.into());
        // Of one large batch nothing is of use unless all of it fits.
        let useless = u64::from(extent.span) > SPAN_MAX && own_with > wanted;
        let enough = end - first.position >= wanted;
        if far || useless || enough || extent.base >= taken.upto || pays(&extents[at..]) {
            break;
        }
        end = extent.end();
        own = own_with;
    }
    match usize::try_from(end.saturating_sub(first.position)) {
        Ok(len) => Stretch::Read(first.position, len),
        Err(_) => Stretch::Missing,
    }
}

async fn opened(files: &Files, file: FileId) -> Result<Arc<Opened>, StoreError> {
    match files.opened(file).await {
        Ok(opened) => Ok(opened),
        Err(error) => Err(read_error(files, file, &error).await),
    }
}

async fn read_at(
    files: &Files,
    (file, opened): (FileId, &Opened),
    position: u64,
    len: usize,
) -> Result<Bytes, StoreError> {
    let read = opened.file.read_at(position, len);
    files
        .counters()
        .read_bytes
        .fetch_add(len as u64, Ordering::Relaxed);
    match read.await {
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(read_error(files, file, &error).await),
    }
}

async fn find(
    files: &Files,
    log: &Log,
    from: i64,
    time: i64,
) -> Result<Option<StoredBatch>, StoreError> {
    log.check()?;
    let bounds = *log.bounds.borrow();
    let mut next = bounds.start.max(from);
    let mut retries = 0;
    while next < bounds.end {
        let Some(place) = log.index.read().locate_time(next, time) else {
            return Ok(None);
        };
        let patient = retries < RETRIES_MAX;
        let look = find_in(files, log, &place, (next..bounds.end, time), patient).await;
        match look {
            Ok(Look::Found(found)) => return Ok(found),
            Ok(Look::From(offset)) => next = offset,
            Ok(Look::Moved) => retries += 1,
            Err(_) if patient && has_gone(files, Some(&place)) => {
                retries += 1;
                next = next.max(log.bounds.borrow().start);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// What one place says of the first batch with a timestamp.
enum Look {
    /// This is what there is.
    Found(Option<StoredBatch>),
    /// It is none of those before this offset.
    From(i64),
    /// What was there is elsewhere by now.
    Moved,
}

/// Looks at one place; `patient`: one that moves may be looked at again.
async fn find_in(
    files: &Files,
    log: &Log,
    place: &Place,
    (wanted, time): (std::ops::Range<i64>, i64),
    patient: bool,
) -> Result<Look, StoreError> {
    let (file, version, extent) = match place {
        Place::Active(file, extents) => (*file, 0, extents.first().copied()),
        Place::Sealed(segment) => {
            let (version, index) = index_of(files, segment.file).await?;
            let extents = index.logs.get(&log.id).map_or(&[][..], Vec::as_slice);
            let mut later = from_offset(extents, wanted.start).iter();
            let found = later.find(|extent| extent.max_timestamp >= time).copied();
            if found.is_none() {
                return Ok(Look::From(segment.last.saturating_add(1)));
            }
            (segment.file, version, found)
        }
    };
    let Some(extent) = extent else {
        return Ok(Look::Found(None));
    };
    let len = usize::try_from(extent.span).unwrap_or(usize::MAX);
    let opened = opened(files, file).await?;
    let bytes = read_at(files, (file, &opened), extent.position, len).await?;
    let mut taken = Taken {
        batches: Vec::new(),
        bytes: 0,
        max_bytes: usize::MAX,
        next: wanted.start.max(extent.base),
        upto: wanted.end.min(extent.last.saturating_add(1)),
        within: false,
        retries: 0,
        passes: None,
        found: Vec::new(),
    };
    let walk = Walk::new(log.id, file.seed(), extent.position, &bytes);
    walk.take(&mut taken);
    if taken.next < taken.upto {
        if files.version(file) != (version, false) && patient {
            return Ok(Look::Moved);
        }
        let start = log.bounds.borrow().start;
        if taken.next < start {
            return Ok(Look::From(start));
        }
        return Err(damaged(files, file, extent.position, taken.next));
    }
    let mut read = taken.batches.into_iter().filter_map(Passed::read);
    let found = read.find(|batch| {
        let header = crate::batch::BatchHeader::read(&batch.bytes);
        header.is_ok_and(|header| header.reaches(time))
    });
    Ok(match found {
        None => Look::From(taken.next),
        found => Look::Found(found),
    })
}

/// The first offset of the first whole batch of a closed log that begins behind `offset`.
pub(crate) async fn behind(files: &Files, log: &Log, offset: i64) -> Option<i64> {
    let segments = log.index.read().sealed.clone();
    for segment in segments.iter().filter(|segment| segment.last > offset) {
        let Ok((_, index)) = index_of(files, segment.file).await else {
            continue;
        };
        let extents = index.logs.get(&log.id).map_or(&[][..], Vec::as_slice);
        for extent in extents.iter().filter(|extent| extent.last > offset) {
            let len = usize::try_from(extent.span).unwrap_or(usize::MAX);
            let read = async {
                let opened = opened(files, segment.file).await?;
                read_at(files, (segment.file, &opened), extent.position, len).await
            };
            let Ok(bytes) = read.await else {
                continue;
            };
            let walk = Walk::new(log.id, segment.file.seed(), extent.position, &bytes);
            if let Some(found) = walk.behind(offset) {
                return Some(found);
            }
        }
    }
    None
}

pub(crate) fn missing(log: &Log, offset: i64) -> StoreError {
    StoreError::Corrupt {
        path: super::files::journal_dir(log.shard.id).to_string(),
        why: format!("no place is known for offset {offset} of {}", log.id),
    }
}

fn damaged(files: &Files, file: FileId, position: u64, offset: i64) -> StoreError {
    // Every reader of the place comes here: said once.
    if files.damaged(file) {
        tracing::error!(path = %path(file), position, offset, "a stored batch is damaged");
    }
    StoreError::Corrupt {
        path: path(file).to_string(),
        why: format!("the batch that holds offset {offset} is damaged near byte {position}"),
    }
}
