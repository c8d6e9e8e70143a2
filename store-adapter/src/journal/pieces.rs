//! How a log's batches lie, for those who decide what is to be deleted.

use super::extents::{Extent, Place, from_offset};
use super::files::Files;
use super::reader::{RETRIES_MAX, bounds_for, has_gone, index_of, missing};
use super::shard::Log;
use crate::store::{Piece, StoreError};

/// Most extents that are copied at once.
const EXTENTS_MAX: usize = 1024;

/// Pieces from the one that holds `from` on, until they have `min_bytes`.
pub(crate) async fn pieces(
    files: &Files,
    log: &Log,
    from: i64,
    min_bytes: u64,
) -> Result<Vec<Piece>, StoreError> {
    let bounds = bounds_for(log, from)?;
    let mut found = Found {
        pieces: Vec::new(),
        bytes: 0,
        next: from,
    };
    let mut retries = 0;
    while found.next < bounds.end && (found.pieces.is_empty() || found.bytes < min_bytes) {
        let before = found.next;
        let place = log.index.read().locate(found.next, EXTENTS_MAX);
        match &place {
            Some(Place::Active(_, extents)) => found.take(extents, min_bytes),
            Some(Place::Sealed(segment)) => {
                let index = match index_of(files, segment.file).await {
                    Err(_) if retries < RETRIES_MAX && has_gone(files, place.as_ref()) => {
                        bounds_for(log, from)?;
                        retries += 1;
                        continue;
                    }
                    index => index?.1,
                };
                let extents = index.logs.get(&log.id).map_or(&[][..], Vec::as_slice);
                found.take(from_offset(extents, found.next), min_bytes);
            }
            None => {}
        }
        if found.next == before {
            // What is looked for may have been trimmed away meanwhile.
            bounds_for(log, from)?;
            return Err(missing(log, found.next));
        }
    }
    Ok(found.pieces)
}

struct Found {
    pieces: Vec<Piece>,
    bytes: u64,
    next: i64,
}

impl Found {
    fn take(&mut self, extents: &[Extent], min_bytes: u64) {
        for extent in extents {
            if !self.pieces.is_empty() && self.bytes >= min_bytes {
                return;
            }
            self.pieces.push(Piece {
                base: extent.base.max(self.next),
                ..extent.piece()
            });
            self.bytes = self.bytes.saturating_add(u64::from(extent.bytes));
            self.next = extent.last.saturating_add(1);
        }
    }
}
