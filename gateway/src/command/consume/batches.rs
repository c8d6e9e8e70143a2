//! What a reader sees of the batches in an answer to Fetch: pure.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use bytes::Bytes;
use store_adapter::batch::{Batch, BatchHeader, HEADER_LEN};
use store_adapter::compression::{UNPACKED_MAX, unpack};
use store_adapter::control::EndTxnMarker;
use store_adapter::records::{Record, Records};

/// What became of the transaction that a record is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is part of none.
    None,
    /// It was committed.
    Committed,
    /// It was aborted.
    Aborted,
    /// Readers of what is committed do not see it yet.
    Pending,
}

impl Fate {
    /// The word for it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Committed => "committed",
            Self::Aborted => "aborted",
            Self::Pending => "pending",
        }
    }
}

/// A record as it is printed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen<'a> {
    /// Its offset.
    pub(super) offset: i64,
    /// The record.
    pub(super) record: Record<'a>,
    /// Whether the log set its timestamp.
    pub(super) is_append_time: bool,
    /// Who wrote it; -1 for nobody in particular.
    pub(super) producer_id: i64,
    /// Epoch of the producer, or -1.
    pub(super) producer_epoch: i16,
    /// Its sequence number, or -1.
    pub(super) sequence: i32,
    /// What became of its transaction.
    pub(super) fate: Fate,
    /// For a marker, whether it commits.
    pub(super) marker: Option<bool>,
}

/// What is looked at, and how.
#[derive(Debug, Clone)]
pub(super) struct Look {
    /// First offset that is wanted.
    pub(super) position: i64,
    /// First offset that is not wanted any more.
    pub(super) stop: i64,
    /// The last stable offset.
    pub(super) stable: i64,
    /// Aborted transactions: producer id and first offset, in order of offsets.
    pub(super) aborted: Vec<(i64, i64)>,
    /// Whether markers and records of aborted transactions are shown too.
    pub(super) shows_all: bool,
}

/// Shows every wanted record until `show` breaks off. Returns the offset to go on from.
///
/// # Errors
/// What does not decode, with the offset of its batch.
pub(super) fn read(
    mut rest: Bytes,
    look: &Look,
    mut show: impl FnMut(&Seen<'_>) -> ControlFlow<()>,
) -> Result<i64, String> {
    let mut position = look.position;
    let mut aborted = look.aborted.iter().peekable();
    let mut aborting = BTreeSet::new();
    while position < look.stop {
        let Ok(header) = BatchHeader::read(&rest) else {
            break;
        };
        let offset = header.base_offset;
        if header.magic != 2 {
            let magic = header.magic;
            return Err(format!(
                "offset {offset}: message format v{magic} is not read"
            ));
        }
        // The last batch of an answer may be cut off.
        let len = header.total_len().filter(|len| *len >= HEADER_LEN);
        let len = len.ok_or_else(|| format!("offset {offset}: its length makes no sense"))?;
        if len > rest.len() {
            break;
        }
        let batch = Batch::parse(rest.split_to(len));
        let batch = batch.map_err(|error| format!("offset {offset}: {error}"))?;
        let last = header.last_offset();
        let begun = |(_, first): &&(i64, i64)| *first <= last;
        while let Some((producer, _)) = aborted.next_if(begun) {
            aborting.insert(*producer);
        }
        let marker = EndTxnMarker::read(batch.bytes()).map(|marker| marker.commit);
        let fate = fate(&header, marker, look, &aborting);
        if header.is_control() && marker == Some(false) {
            aborting.remove(&header.producer_id.0);
        }
        if last < position {
            continue;
        }
        let hidden = header.is_control() || fate == Fate::Aborted;
        if look.shows_all || !hidden {
            let shown = records(&batch, look, position, fate, marker, &mut show);
            let shown = shown.map_err(|error| format!("offset {offset}: {error}"))?;
            if let ControlFlow::Break(next) = shown {
                return Ok(next);
            }
        }
        position = last.saturating_add(1);
    }
    Ok(position)
}

/// A marker says itself what became of its transaction, which may have no record here.
fn fate(header: &BatchHeader, marker: Option<bool>, look: &Look, aborting: &BTreeSet<i64>) -> Fate {
    if !header.is_transactional() {
        Fate::None
    } else if marker == Some(false) || aborting.contains(&header.producer_id.0) {
        Fate::Aborted
    } else if header.last_offset() < look.stable {
        Fate::Committed
    } else {
        Fate::Pending
    }
}

/// Shows the records of a batch; breaks with the offset to go on from.
fn records(
    batch: &Batch,
    look: &Look,
    position: i64,
    fate: Fate,
    marker: Option<bool>,
    show: &mut impl FnMut(&Seen<'_>) -> ControlFlow<()>,
) -> Result<ControlFlow<i64>, String> {
    let header = batch.header();
    let packed = batch.bytes().slice(HEADER_LEN..);
    let plain = unpack(header, &packed, UNPACKED_MAX).map_err(|error| error.to_string())?;
    let records = Records::unpacked(header, &plain).map_err(|error| error.to_string())?;
    for record in records {
        let record = record.map_err(|error| error.to_string())?;
        let offset = header
            .base_offset
            .saturating_add(i64::from(record.offset_delta));
        if offset < position {
            continue;
        }
        if offset >= look.stop {
            return Ok(ControlFlow::Break(look.stop));
        }
        let sequence = match header.base_sequence.0 {
            none if none < 0 => none,
            _ => header.base_sequence.plus(record.offset_delta).0,
        };
        let seen = Seen {
            offset,
            record,
            is_append_time: header.is_log_append_time(),
            producer_id: header.producer_id.0,
            producer_epoch: header.producer_epoch.0,
            sequence,
            fate,
            marker,
        };
        if show(&seen).is_break() {
            return Ok(ControlFlow::Break(offset.saturating_add(1)));
        }
    }
    Ok(ControlFlow::Continue(()))
}

#[cfg(test)]
mod tests;
