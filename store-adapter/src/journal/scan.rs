//! Reads a journal file round by round, and tells a torn tail from damage.
//!
//! A file whose data length is known (a seal, the next file of the epoch) holds nothing but whole
//! rounds: whatever is not right there is damage. At the end of a file whose length is not known,
//! frames that are not right are a torn tail, unless a commit frame of a *later* round lies behind
//! them: rounds are synced one after the other, so then everything before it was once durable. In a
//! file of which that is not so (`flush.policy=os`) it holds of the checkpoints that begin it:
//! a round behind them that is not right begins what a power cut has taken back.
//! In a damaged round every frame that can be found is still read; what a log lost shows as a hole.

use bytes::Bytes;

use super::extents::{TRAILER_LEN, footer_position};
use super::file::{FILE_HEADER_LEN, Seed};
use super::frame::{self, Check, FRAME_HEADER_LEN, Frame, Kind};
use super::index::Anchor;
use super::payload::Round;
use crate::ids::LogId;
use crate::volume::{VolumeError, VolumeFile};

/// How often a file says the catalogue where it begins. Those of earlier versions say it once.
pub(crate) const CHECKPOINTS: usize = 2;
/// Bytes read at once.
const WINDOW: usize = 1 << 20;
/// Bytes of the commit frame of a catalogue.
const CATALOGUE_END: u64 = FRAME_HEADER_LEN as u64 + 4;

/// A frame and where it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// Where it starts.
    pub(crate) position: u64,
    /// Its header.
    pub(crate) frame: Frame,
    /// Its payload; empty for a batch, unless the scanner keeps those.
    pub(crate) payload: Bytes,
}

/// A round as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundRound {
    /// Where it starts.
    pub(crate) start: u64,
    /// The frames that are right, in order.
    pub(crate) frames: Vec<Found>,
    /// Appends whose header is right and whose batch is not.
    pub(crate) bad_batches: Vec<Frame>,
    /// Ends of the round's logs; `None` when the commit frame is lost.
    pub(crate) ends: Option<Vec<(LogId, i64)>>,
    /// Where damage starts, if there is some.
    pub(crate) damaged_at: Option<u64>,
}

impl FoundRound {
    /// Whether it is a whole catalogue, and undamaged.
    pub(crate) fn is_checkpoint(&self) -> bool {
        self.has_catalogue() && self.damaged_at.is_none()
    }

    /// Whether its frames are those of a whole catalogue.
    fn has_catalogue(&self) -> bool {
        let frames = self.frames.iter().map(|found| &found.frame);
        let whole = frames
            .clone()
            .zip(0_i64..)
            .all(|(frame, index)| frame.kind == Kind::Checkpoint && frame.base == index);
        whole && frames.last().is_some_and(|frame| frame.last_delta == 0)
    }

    /// Whether nothing else can be found in it than what belongs to a catalogue.
    pub(crate) fn holds_checkpoints_only(&self) -> bool {
        let mut kinds = self.frames.iter().map(|found| found.frame.kind);
        self.bad_batches.is_empty() && kinds.all(|kind| kind == Kind::Checkpoint)
    }
}

/// How a file ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_field_names, reason = "where the data ends is its name")]
pub(crate) struct End {
    /// Behind the last round that counts.
    pub(crate) data_end: u64,
    /// Where the last round that counts starts; `data_end` when there is none.
    pub(crate) last_round: u64,
    /// Bytes of a torn tail.
    pub(crate) torn_bytes: u64,
    /// Whether whole rounds are in it: what was acknowledged without a sync is lost.
    pub(crate) lost: bool,
    /// The commit frame of the last round, unless that is lost.
    pub(crate) anchor: Option<Anchor>,
}

impl End {
    /// Says what is lost of the file at `path`.
    pub(crate) fn tell(&self, path: &str) {
        if self.lost {
            let (at, bytes) = (self.data_end, self.torn_bytes);
            let what = "acknowledged rounds are lost, which flush.policy=os did not sync";
            tracing::error!(path, at, bytes, "{what}");
        }
    }
}

/// One step of reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// A round.
    Round(FoundRound),
    /// Nothing more.
    End(End),
}

/// Reads one file.
#[derive(Debug)]
pub(crate) struct Scanner<'a> {
    file: &'a dyn VolumeFile,
    seed: Seed,
    /// Where reading stops.
    limit: u64,
    /// Whether `limit` is the file's data length, not just its size.
    exact: bool,
    /// Whether batches are kept: they are slices of what was read at once.
    keeps: bool,
    /// Whether rounds behind the checkpoints were not durable one before the other.
    unsynced: bool,
    /// Rounds that were read.
    rounds: usize,
    position: u64,
    last_round: u64,
    anchor: Option<Anchor>,
    window: Bytes,
    window_at: u64,
}

impl<'a> Scanner<'a> {
    /// Reads `file` from its first frame up to `limit`; `exact` says that the data ends there.
    pub(crate) fn new(file: &'a dyn VolumeFile, seed: Seed, limit: u64, exact: bool) -> Self {
        Self::from(file, seed, FILE_HEADER_LEN as u64, limit, exact)
    }

    /// The same, with the batches.
    pub(crate) fn keeping_batches(self) -> Self {
        Self {
            keeps: true,
            ..self
        }
    }

    /// The same, going on behind the round that `anchor` closes.
    pub(crate) fn behind(self, anchor: Anchor) -> Self {
        Self {
            position: anchor.end,
            last_round: anchor.end,
            anchor: Some(anchor),
            rounds: CHECKPOINTS,
            ..self
        }
    }

    /// The same, where nobody waited for a round to be durable before the next was written, but for
    /// the checkpoints with which the file begins.
    pub(crate) fn unsynced(self, unsynced: bool) -> Self {
        Self { unsynced, ..self }
    }

    fn from(file: &'a dyn VolumeFile, seed: Seed, position: u64, limit: u64, exact: bool) -> Self {
        Self {
            file,
            seed,
            limit,
            exact,
            keeps: false,
            unsynced: false,
            rounds: 0,
            position,
            last_round: position,
            anchor: None,
            window: Bytes::new(),
            window_at: 0,
        }
    }

    /// The next round, or the end.
    pub(crate) async fn next(&mut self) -> Result<Step, VolumeError> {
        let start = self.position;
        let mut round = FoundRound {
            start,
            frames: Vec::new(),
            bad_batches: Vec::new(),
            ends: None,
            damaged_at: None,
        };
        let mut crc = 0;
        let mut at = start;
        while at < self.limit {
            let Check::Good(frame, frame_crc) = self.check(at).await? else {
                break;
            };
            match frame.kind {
                Kind::Commit => {
                    let found = self.found(at, frame).await?;
                    let Some(ends) = closes(&found, start, round.frames.len(), crc) else {
                        break;
                    };
                    round.ends = Some(ends);
                    self.position = at + frame.len();
                    self.last_round = start;
                    self.rounds += 1;
                    self.anchor = Some(Anchor {
                        position: at,
                        end: self.position,
                        crc: frame_crc,
                    });
                    return Ok(Step::Round(round));
                }
                Kind::Footer => break,
                _ => {
                    crc = crc32c::crc32c_append(crc, &frame_crc.to_be_bytes());
                    round.frames.push(self.found(at, frame).await?);
                    at += frame.len();
                }
            }
        }
        let ended = round.frames.is_empty() && (at >= self.limit || self.is_footer(at).await?);
        let in_order = !self.unsynced || self.rounds < CHECKPOINTS;
        let later = !ended && (self.exact || self.later_round(at).await?);
        if !later || !(self.exact || in_order) {
            return Ok(Step::End(self.end(ended, later)));
        }
        self.rounds += 1;
        round.damaged_at = Some(at);
        self.salvage(at, &mut round).await?;
        if round.has_catalogue() && self.position == at + CATALOGUE_END {
            // Nothing is lost but its commit frame, which named no logs.
            round.ends = Some(Vec::new());
        }
        self.last_round = start;
        Ok(Step::Round(round))
    }

    fn end(&self, in_order: bool, lost: bool) -> End {
        End {
            lost,
            data_end: self.position,
            last_round: self.last_round,
            anchor: self.anchor.filter(|anchor| anchor.end == self.position),
            torn_bytes: if in_order {
                0
            } else {
                self.limit.saturating_sub(self.position)
            },
        }
    }

    async fn is_footer(&mut self, at: u64) -> Result<bool, VolumeError> {
        let check = self.check(at).await?;
        if matches!(check, Check::Good(frame, _) if frame.kind == Kind::Footer) {
            return Ok(true);
        }
        // One that is damaged is no loss of data, and its end still says where it began.
        let trailer = self.limit.saturating_sub(TRAILER_LEN as u64);
        let bytes = self.file.read_at(trailer, TRAILER_LEN).await?;
        Ok(footer_position(&bytes) == Some(at))
    }

    /// Whether a round that began behind `at` was closed.
    async fn later_round(&mut self, mut at: u64) -> Result<bool, VolumeError> {
        while let Some(found) = self.find(at, true).await? {
            if u64::try_from(found.frame.base).is_ok_and(|start| start > at) {
                return Ok(true);
            }
            at = found.position + 1;
        }
        Ok(false)
    }

    /// Gathers what is left of the round behind the damage at `at`, and goes on behind it.
    async fn salvage(&mut self, mut at: u64, round: &mut FoundRound) -> Result<(), VolumeError> {
        loop {
            if at < self.limit
                && let Check::BadBatch(frame) = self.check(at).await?
                && at + frame.len() <= self.limit
            {
                round.bad_batches.push(frame);
                at += frame.len();
                continue;
            }
            let Some(found) = self.find(at, false).await? else {
                self.position = self.limit;
                return Ok(());
            };
            let end = found.position + found.frame.len();
            if found.frame.kind != Kind::Commit {
                round.frames.push(found);
                at = end;
                continue;
            }
            let begins = u64::try_from(found.frame.base).unwrap_or(0);
            if begins > round.start {
                // The commit frame of a later round: this round's own is lost.
                round.frames.retain(|found| found.position < begins);
                self.position = begins;
                return Ok(());
            }
            if begins == round.start {
                round.ends = Round::decode(&found.payload).map(|round| round.ends);
                self.position = end;
                return Ok(());
            }
            at = end;
        }
    }

    /// The first frame at or behind `at` that is right; only commit frames if `commits`.
    async fn find(&mut self, mut at: u64, commits: bool) -> Result<Option<Found>, VolumeError> {
        while at + FRAME_HEADER_LEN as u64 <= self.limit {
            let bytes = self.bytes(at, FRAME_HEADER_LEN).await?;
            if bytes.len() < FRAME_HEADER_LEN {
                // The file is shorter than it should be.
                break;
            }
            let mut skip = 0;
            for candidate in bytes.windows(FRAME_HEADER_LEN) {
                if Frame::decode(candidate)
                    .is_some_and(|(frame, _)| !commits || frame.kind == Kind::Commit)
                {
                    break;
                }
                skip += 1;
            }
            at += skip;
            if at + FRAME_HEADER_LEN as u64 > self.limit {
                break;
            }
            if bytes.len() as u64 - skip < FRAME_HEADER_LEN as u64 {
                continue;
            }
            if let Check::Good(frame, _) = self.check(at).await? {
                return Ok(Some(self.found(at, frame).await?));
            }
            at += 1;
        }
        Ok(None)
    }

    async fn found(&mut self, position: u64, frame: Frame) -> Result<Found, VolumeError> {
        let payload = match frame.kind {
            Kind::Append if self.keeps => {
                let end = FRAME_HEADER_LEN + frame.payload_len as usize;
                let bytes = self.bytes(position, end).await?;
                bytes.slice(FRAME_HEADER_LEN.min(bytes.len())..end.min(bytes.len()))
            }
            Kind::Append | Kind::Footer => Bytes::new(),
            _ => {
                let len = frame.payload_len as usize;
                let bytes = self.bytes(position, FRAME_HEADER_LEN + len).await?;
                // A copy, so that a few bytes do not keep the window alive.
                Bytes::copy_from_slice(&bytes[FRAME_HEADER_LEN..FRAME_HEADER_LEN + len])
            }
        };
        Ok(Found {
            position,
            frame,
            payload,
        })
    }

    /// Checks the frame at `at`, reading no more of it than its header until that is right.
    async fn check(&mut self, at: u64) -> Result<Check, VolumeError> {
        let header = self.bytes(at, FRAME_HEADER_LEN).await?;
        let Some((frame, crc)) = Frame::decode(&header) else {
            return Ok(Check::Bad);
        };
        if at + frame.len() > self.limit {
            return Ok(Check::Bad);
        }
        let covered = FRAME_HEADER_LEN + frame.covered_len();
        let bytes = self.bytes(at, covered).await?;
        if bytes.len() < covered
            || frame::checksum(
                self.seed,
                at,
                &bytes[4..FRAME_HEADER_LEN],
                &bytes[FRAME_HEADER_LEN..covered],
            ) != crc
        {
            return Ok(Check::Bad);
        }
        if frame.kind != Kind::Append {
            return Ok(Check::Good(frame, crc));
        }
        let whole = FRAME_HEADER_LEN + frame.payload_len as usize;
        let bytes = self.bytes(at, whole).await?;
        Ok(frame::check(
            self.seed,
            at,
            &bytes[..bytes.len().min(whole)],
        ))
    }

    /// Bytes from `at`: at least `len` of them unless the limit is nearer.
    async fn bytes(&mut self, at: u64, len: usize) -> Result<Bytes, VolumeError> {
        let held = at
            .checked_sub(self.window_at)
            .and_then(|skip| usize::try_from(skip).ok())
            .filter(|skip| *skip < self.window.len());
        let left = usize::try_from(self.limit.saturating_sub(at)).unwrap_or(usize::MAX);
        if let Some(skip) = held
            && self.window.len() - skip >= len.min(left)
        {
            return Ok(self.window.slice(skip..));
        }
        let bytes = self.file.read_at(at, len.max(WINDOW).min(left)).await?;
        self.window = bytes.clone();
        self.window_at = at;
        Ok(bytes)
    }
}

/// The ends that `commit` names, if it closes a round of `frames` frames from `start`.
fn closes(commit: &Found, start: u64, frames: usize, crc: u32) -> Option<Vec<(LogId, i64)>> {
    let round = Round::decode(&commit.payload)?;
    let right = u64::try_from(commit.frame.base) == Ok(start)
        && usize::try_from(commit.frame.last_delta) == Ok(frames)
        && round.crc == crc;
    right.then_some(round.ends)
}
