//! One round of the writer: commands become frames, frames become bytes.
//!
//! Planning is pure. Within a round the groups of one log are put side by side, so that a log's
//! batches lie together in the file; the order of a log's own groups is kept, and a group of
//! several logs stays where it is, as a barrier.

use bytes::{BufMut, Bytes, BytesMut};
use smallvec::{SmallVec, smallvec};

use super::file::Seed;
use super::frame::{BATCH_PREFIX_LEN, CONTROL_PAYLOAD_MAX, FRAME_HEADER_LEN, Frame, Kind, NO_LOG};
use super::index::Anchor;
use super::payload::Round;
use super::queue::{Command, Queued, Reply, answer};
use super::table::{Entry, Staged, Table, to_catalogue};
use crate::batch::{HEADER_LEN, StampedBatch};
use crate::ids::{LeaderEpoch, LogId};
use crate::store::{Append, LogState, Op, StoreError};

/// Records up to this size are copied next to their header: below it a copy is cheaper than one
/// more buffer in the system call.
const COPY_MAX: usize = 2 << 10;
/// Bytes of catalogue after which a checkpoint starts a new part.
const CHECKPOINT_PART: usize = 1 << 20;

/// What stands behind a frame's header.
#[derive(Debug, Clone)]
enum Body {
    Bytes(Bytes),
    Batch(StampedBatch),
}

/// Frames that stay together.
#[derive(Debug)]
struct Unit {
    /// The log, if all frames are of one.
    log: Option<LogId>,
    frames: SmallVec<[(Frame, Body); 1]>,
}

/// An outcome that waits for the round to be durable.
#[derive(Debug)]
pub(crate) enum Pending {
    /// Of a group, a creation, a deletion.
    Done(Reply<()>),
    /// Of an acquisition.
    Acquired(LogId, Reply<LogState>),
}

impl Pending {
    /// Answers with a failure.
    pub(crate) fn fail(self, error: StoreError) {
        match self {
            Self::Done(reply) => answer(reply, Err(error)),
            Self::Acquired(_, reply) => answer(reply, Err(error)),
        }
    }
}

/// A planned round.
#[derive(Debug)]
pub(crate) struct Plan {
    units: Vec<Unit>,
    /// What becomes of the catalogue.
    pub(crate) staged: Staged,
    /// Whom to tell.
    pub(crate) pending: Vec<Pending>,
}

/// A round as bytes.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// The bytes, in order.
    pub(crate) parts: Vec<Bytes>,
    /// How many they are.
    pub(crate) len: u64,
    /// Append frames with their positions, in order.
    pub(crate) appends: Vec<(Frame, u64)>,
    /// The commit frame.
    pub(crate) anchor: Anchor,
}

impl Plan {
    /// Nothing planned yet of so many commands.
    pub(crate) fn of(commands: usize) -> Self {
        Self {
            units: Vec::with_capacity(commands),
            staged: Staged::default(),
            pending: Vec::with_capacity(commands),
        }
    }

    /// Whether there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Plans `queued` over `table`, or refuses it. `failed_until` is the number of the command up
    /// to which the log's commands fail because one before them failed.
    pub(crate) fn add(
        &mut self,
        table: &Table,
        queued: Queued,
        max_append: usize,
        failed_until: impl Fn(LogId) -> u64,
    ) {
        match queued.command {
            Command::Group(ops, reply) => {
                let failed = |op: &Op| failed_until(op.log()) >= queued.number;
                let outcome = if ops.iter().any(failed) {
                    Err(self.behind_a_failure(table, &ops))
                } else {
                    self.group(table, ops, max_append)
                };
                self.decide(outcome, reply);
            }
            Command::Create(log, name, reply) => {
                if self.staged.get(table, log).is_none() {
                    let entry = Entry::new(name.as_str().into(), 0);
                    self.staged.set(log, Some(entry));
                    let frame = Frame::new(Kind::Create, log);
                    self.one(frame, Bytes::from(name));
                }
                self.decide(Ok(()), reply);
            }
            Command::Delete(topic, reply) => {
                let range = LogId {
                    topic,
                    partition: 0,
                }..=LogId {
                    topic,
                    partition: u32::MAX,
                };
                let mut logs: Vec<LogId> = table.range(range).map(|(log, _)| *log).collect();
                logs.extend(self.staged.logs().filter(|log| log.topic == topic));
                logs.sort_unstable();
                logs.dedup();
                for log in logs {
                    if self.staged.get(table, log).is_some() {
                        self.staged.set(log, None);
                        self.one(Frame::new(Kind::Delete, log), Bytes::new());
                    }
                }
                self.decide(Ok(()), reply);
            }
            Command::Acquire(log, epoch, reply) => match self.acquire(table, log, epoch) {
                Ok(()) => {
                    self.staged.keep_group();
                    self.pending.push(Pending::Acquired(log, reply));
                }
                Err(error) => {
                    self.staged.undo_group();
                    answer(reply, Err(error));
                }
            },
            #[cfg(feature = "sled")]
            Command::Replace(_, reply) => {
                answer(
                    reply,
                    Err(StoreError::Unsupported("batches in place of others")),
                );
            }
            Command::Close(reply)
            | Command::Roll(reply)
            | Command::Keep(_, reply)
            | Command::Join(_, reply) => answer(reply, Ok(())),
        }
    }

    fn decide(&mut self, outcome: Result<(), StoreError>, reply: Reply<()>) {
        match outcome {
            Ok(()) => {
                self.staged.keep_group();
                self.pending.push(Pending::Done(reply));
            }
            Err(error) => {
                self.staged.undo_group();
                answer(reply, Err(error));
            }
        }
    }

    /// Why a group fails that was queued behind one that failed.
    fn behind_a_failure(&self, table: &Table, ops: &[Op]) -> StoreError {
        for op in ops {
            if let (Op::Append(append), Some(entry)) = (op, self.staged.get(table, op.log()))
                && append.expect_end != entry.bounds.end
            {
                let end = entry.bounds.end;
                return StoreError::EndMismatch { end };
            }
        }
        StoreError::Unavailable("a group of this log that was queued before failed".to_owned())
    }

    fn group(&mut self, table: &Table, ops: Vec<Op>, max: usize) -> Result<(), StoreError> {
        let mut frames = SmallVec::new();
        let first = ops.first().map(Op::log);
        let same = ops.iter().all(|op| Some(op.log()) == first);
        for op in ops {
            let entry = self.staged.change(table, op.log())?;
            match op {
                Op::Append(append) => {
                    entry.append(&append, max)?;
                    frames.push(append_frame(append));
                }
                Op::Trim { log, epoch, start } => {
                    let before = entry.bounds.start;
                    entry.trim(epoch, start)?;
                    if entry.bounds.start > before {
                        let frame = Frame {
                            epoch,
                            base: start,
                            ..Frame::new(Kind::Trim, log)
                        };
                        frames.push((frame, Body::Bytes(Bytes::new())));
                    }
                }
            }
        }
        if !frames.is_empty() {
            let log = first.filter(|_| same);
            self.units.push(Unit { log, frames });
        }
        Ok(())
    }

    fn acquire(&mut self, table: &Table, log: LogId, epoch: LeaderEpoch) -> Result<(), StoreError> {
        let entry = self.staged.change(table, log)?;
        if let Some(error) = &entry.damaged {
            return Err(error.clone());
        }
        if entry.epoch > Some(epoch) {
            return Err(StoreError::Fenced);
        }
        if entry.epoch == Some(epoch) {
            return Ok(());
        }
        entry.epoch = Some(epoch);
        let frame = Frame {
            epoch,
            base: entry.bounds.end,
            ..Frame::new(Kind::Fence, log)
        };
        self.one(frame, Bytes::new());
        Ok(())
    }

    fn one(&mut self, mut frame: Frame, payload: Bytes) {
        frame.payload_len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        self.units.push(Unit {
            log: Some(frame.log),
            frames: smallvec![(frame, Body::Bytes(payload))],
        });
    }

    /// The round's bytes for `start` in a file with `seed` whose position 0 has `first_lsn`.
    pub(crate) fn encode(&mut self, seed: Seed, start: u64, first_lsn: u64) -> Encoded {
        self.gather();
        let mut out = Encoder::new(seed, start, &self.units);
        for (frame, body) in self.units.iter().flat_map(|unit| &unit.frames) {
            if frame.kind == Kind::Create {
                let lsn = first_lsn.saturating_add(out.position);
                self.staged.set_birth(frame.log, lsn);
            }
            out.frame(frame, body);
        }
        out.finish(self.staged.ends())
    }

    /// Sorts by log between the groups of several logs.
    fn gather(&mut self) {
        for run in self
            .units
            .chunk_by_mut(|a, b| a.log.is_some() && b.log.is_some())
        {
            // Stable, so that the order of each log's groups stays; by keys beside the units, which
            // are large.
            run.sort_by_cached_key(|unit| unit.log);
        }
    }
}

fn append_frame(append: Append) -> (Frame, Body) {
    let header = append.batch.header();
    let frame = Frame {
        kind: Kind::Append,
        payload_len: u32::try_from(append.batch.total_len()).unwrap_or(u32::MAX),
        epoch: append.epoch,
        log: append.log,
        base: header.base_offset,
        last_delta: u32::try_from(header.last_offset_delta).unwrap_or(0),
        max_timestamp: header.max_timestamp,
        append_ms: append.append_ms,
    };
    (frame, Body::Batch(append.batch))
}

/// The checkpoint round at the head of a file: the whole catalogue.
pub(crate) fn checkpoint(table: &Table, seed: Seed, start: u64) -> Encoded {
    let mut parts = vec![BytesMut::new()];
    for (log, entry) in table {
        if let Some(part) = parts.last_mut() {
            to_catalogue(*log, entry).encode(part);
            if part.len() >= CHECKPOINT_PART {
                parts.push(BytesMut::new());
            }
        }
    }
    let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    let frames = (0..count).zip(parts).map(|(index, part)| {
        debug_assert!(part.len() <= CONTROL_PAYLOAD_MAX);
        let frame = Frame {
            payload_len: u32::try_from(part.len()).unwrap_or(u32::MAX),
            base: i64::from(index),
            last_delta: count - index - 1,
            ..Frame::new(Kind::Checkpoint, NO_LOG)
        };
        (frame, Body::Bytes(part.freeze()))
    });
    let unit = Unit {
        log: None,
        frames: frames.collect(),
    };
    let mut out = Encoder::new(seed, start, std::slice::from_ref(&unit));
    for (frame, body) in &unit.frames {
        out.frame(frame, body);
    }
    out.finish(Vec::new())
}

/// One frame that is no part of a round: the footer.
pub(crate) fn footer(payload: Bytes, seed: Seed, position: u64) -> Vec<Bytes> {
    let frame = Frame {
        payload_len: u32::try_from(payload.len()).unwrap_or(u32::MAX),
        ..Frame::new(Kind::Footer, NO_LOG)
    };
    let mut head = BytesMut::with_capacity(FRAME_HEADER_LEN);
    frame.encode(seed, position, &payload, &mut head);
    vec![head.freeze(), payload]
}

/// Lays frames out: one buffer for headers and small bodies, larger records by reference.
struct Encoder {
    seed: Seed,
    start: u64,
    position: u64,
    arena: BytesMut,
    /// Records that follow the arena's bytes up to the length.
    cuts: Vec<(usize, Bytes)>,
    crc: u32,
    frames: u32,
    appends: Vec<(Frame, u64)>,
}

impl Encoder {
    fn new(seed: Seed, start: u64, units: &[Unit]) -> Self {
        let frames = units.iter().flat_map(|unit| &unit.frames);
        let bytes = frames
            .clone()
            .map(|(_, body)| FRAME_HEADER_LEN + copied(body));
        let count = frames.count();
        let commit = FRAME_HEADER_LEN + 4 + count * 28;
        Self {
            seed,
            start,
            position: start,
            arena: BytesMut::with_capacity(bytes.sum::<usize>() + commit),
            cuts: Vec::new(),
            crc: 0,
            frames: 0,
            appends: Vec::with_capacity(count),
        }
    }

    fn frame(&mut self, frame: &Frame, body: &Body) {
        let covered = match body {
            Body::Bytes(payload) => &payload[..],
            Body::Batch(batch) => &batch.head()[..BATCH_PREFIX_LEN],
        };
        let crc = frame.encode(self.seed, self.position, covered, &mut self.arena);
        match body {
            Body::Bytes(payload) => self.arena.put_slice(payload),
            Body::Batch(batch) => {
                self.arena.put_slice(batch.head());
                let records = batch.records();
                if records.len() <= COPY_MAX {
                    self.arena.put_slice(records);
                } else {
                    self.cuts.push((self.arena.len(), records.clone()));
                }
                self.appends.push((*frame, self.position));
            }
        }
        self.crc = crc32c::crc32c_append(self.crc, &crc.to_be_bytes());
        self.frames += 1;
        self.position += frame.len();
    }

    fn finish(mut self, ends: Vec<(LogId, i64)>) -> Encoded {
        let payload = Round {
            crc: self.crc,
            ends,
        }
        .encode();
        let commit = Frame {
            payload_len: u32::try_from(payload.len()).unwrap_or(u32::MAX),
            base: i64::try_from(self.start).unwrap_or(i64::MAX),
            last_delta: self.frames,
            ..Frame::new(Kind::Commit, NO_LOG)
        };
        let crc = commit.encode(self.seed, self.position, &payload, &mut self.arena);
        self.arena.put_slice(&payload);
        let arena = self.arena.freeze();
        let mut parts = Vec::with_capacity(2 * self.cuts.len() + 1);
        let mut from = 0;
        for (upto, records) in self.cuts {
            parts.push(arena.slice(from..upto));
            parts.push(records);
            from = upto;
        }
        parts.push(arena.slice(from..));
        Encoded {
            parts,
            len: self.position + commit.len() - self.start,
            appends: self.appends,
            anchor: Anchor {
                position: self.position,
                end: self.position + commit.len(),
                crc,
            },
        }
    }
}

/// Bytes of `body` that go into the arena.
fn copied(body: &Body) -> usize {
    match body {
        Body::Bytes(payload) => payload.len(),
        Body::Batch(batch) if batch.records().len() <= COPY_MAX => batch.total_len(),
        Body::Batch(_) => HEADER_LEN,
    }
}
