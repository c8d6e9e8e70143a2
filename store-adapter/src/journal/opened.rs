//! An open journal file, and what is known to be right in it since a moment ago.
//!
//! A batch that is only passed on need not be read while it is marked: it was written whole, or
//! read and checked, and can't change under the open file, for a place is written once, and another
//! content of the file's name is another file. What the disk makes of it is looked at when the mark
//! is old (docs/decisions/0015).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::extents::Extent;
use super::frame::{FRAME_HEADER_BYTES, FRAME_HEADER_LEN, Frame, Kind};
use crate::ids::LogId;
use crate::volume::{FileRange, VolumeFile};

/// Least bytes of a batch that is passed on by its place: to read and copy fewer costs no more than
/// the call that sends them.
pub(crate) const PASSED_MIN: usize = 32 * 1024;
/// Least bytes of batches one behind the other that are passed on by their places: fewer are read
/// in less time than it takes to have a thread send them.
pub(crate) const RUN_MIN: usize = 256 * 1024;
/// How long a batch is not looked at again.
const TRUSTED: Duration = Duration::from_mins(1);
/// Marks of one file, some 80 bytes each; with one more all are forgotten.
const MARKS_MAX: usize = 4096;

/// An open file. The marks go when it is closed.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: Arc<dyn VolumeFile>,
    /// By position of the frame.
    marks: Mutex<BTreeMap<u64, Mark>>,
}

/// That a frame is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) log: LogId,
    pub(crate) base: i64,
    pub(crate) last: i64,
    /// Bytes of the frame.
    pub(crate) len: u32,
    /// Since when, at the latest.
    pub(crate) at: Duration,
}

impl Mark {
    /// Of a frame that is right at `at`; `None` if its batch is too small to be passed on by place.
    pub(crate) fn of(frame: &Frame, at: Duration) -> Option<Self> {
        let large = frame.kind == Kind::Append && frame.payload_len as usize >= PASSED_MIN;
        large.then(|| Self {
            log: frame.log,
            base: frame.base,
            last: frame.last(),
            len: FRAME_HEADER_BYTES.saturating_add(frame.payload_len),
            at,
        })
    }
}

impl Opened {
    pub(crate) fn new(file: Arc<dyn VolumeFile>) -> Self {
        let marks = Mutex::default();
        Self { file, marks }
    }

    /// Notes frames that are right, with their positions.
    pub(crate) fn mark(&self, right: impl IntoIterator<Item = (u64, Mark)>) {
        let mut right = right.into_iter().peekable();
        if right.peek().is_none() || self.file.range(0, 0).is_none() {
            return;
        }
        let mut marks = self.marks.lock();
        for (position, mark) in right {
            if marks.len() >= MARKS_MAX {
                marks.clear();
            }
            marks.insert(position, mark);
        }
    }

    /// Forgets all marks: what was written may not be as it was written.
    pub(crate) fn distrust(&self) {
        self.marks.lock().clear();
    }

    /// The batch of `log` that is all of an extent, if it was right lately before `now`.
    pub(crate) fn trusted(&self, log: LogId, extent: &Extent, now: Duration) -> Option<FileRange> {
        if (extent.span as usize) < PASSED_MIN {
            return None;
        }
        let mark = *self.marks.lock().get(&extent.position)?;
        let wanted = Mark {
            log,
            base: extent.base,
            last: extent.last,
            len: extent.span,
            at: mark.at,
        };
        if mark != wanted || now.saturating_sub(mark.at) > TRUSTED {
            return None;
        }
        let header = FRAME_HEADER_LEN as u64;
        let len = u64::from(extent.span).checked_sub(header)?;
        self.file
            .range(extent.position + header, usize::try_from(len).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::volume::{PosixVolume, Volume, VolumePath, block_on};

    const LOG: LogId = LogId {
        topic: Uuid::from_u128(7),
        partition: 3,
    };
    const EXTENT: Extent = Extent {
        position: 128,
        span: 40_064,
        bytes: 40_064,
        base: 5,
        last: 9,
        max_timestamp: 0,
    };

    fn mark() -> Mark {
        Mark {
            log: LOG,
            base: 5,
            last: 9,
            len: 40_064,
            at: Duration::from_secs(100),
        }
    }

    fn opened(dir: &std::path::Path, name: &str) -> Opened {
        let volume = PosixVolume::open(dir).unwrap();
        let path = VolumePath::root().join(name);
        Opened::new(block_on(volume.create_new(&path)).unwrap())
    }

    #[test]
    fn a_mark_is_of_one_frame_and_for_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        let opened = opened(dir.path(), "a");
        let at = Duration::from_secs;
        assert_eq!(opened.trusted(LOG, &EXTENT, at(100)), None);
        opened.mark([(128, mark())]);
        let range = opened.trusted(LOG, &EXTENT, at(160)).unwrap();
        assert_eq!(Some(range), opened.file.range(192, 40_000));
        assert_eq!(opened.trusted(LOG, &EXTENT, at(161)), None);
        let other = LogId {
            partition: 4,
            ..LOG
        };
        assert_eq!(opened.trusted(other, &EXTENT, at(101)), None);
        for extent in [
            Extent {
                position: 129,
                ..EXTENT
            },
            Extent { base: 4, ..EXTENT },
            Extent { last: 10, ..EXTENT },
            Extent {
                span: 40_128,
                ..EXTENT
            },
        ] {
            assert_eq!(opened.trusted(LOG, &extent, at(101)), None, "{extent:?}");
        }
    }

    #[test]
    fn marks_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let opened = opened(dir.path(), "a");
        let all = 0..3 * MARKS_MAX as u64;
        for position in all.clone() {
            opened.mark([(position, mark())]);
            assert!(opened.marks.lock().len() <= MARKS_MAX);
        }
        opened.mark(all.map(|position| (position, mark())));
        assert!(opened.marks.lock().len() <= MARKS_MAX);
        opened.distrust();
        assert_eq!(opened.marks.lock().len(), 0);
    }
}
