//! The files that a shard's opening finds: which of them count, and how long each is.
//!
//! What is known of a file's length, best first: its seal, written by the owner that took over
//! from the one that wrote it; what this process remembers of a file whose sync failed; the header
//! of the next file of its epoch. The last file of an epoch that nobody sealed is read to its last
//! whole round.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::files::{Closed, path, read_footer};
use super::frame::{FILE_HEADER_LEN, FileHeader, FileHeaderError, FileId, Kind};
use super::scan::{FoundRound, Scanner, Step};
use crate::store::StoreError;
use crate::volume::{Volume, VolumeError, VolumeFile};

/// One file of the journal.
#[derive(Debug)]
pub(crate) struct Source {
    /// Which.
    pub(crate) id: FileId,
    /// Open for reading.
    pub(crate) file: Arc<dyn VolumeFile>,
    /// Its size now.
    pub(crate) size: u64,
    /// Its header; `None` when there is none that is right.
    pub(crate) header: Option<FileHeader>,
    /// Its length as sealed, footer included.
    pub(crate) seal: Option<u64>,
    /// Its data length, when the process or the next file knows it.
    pub(crate) data_len: Option<u64>,
    /// Whether it is the last file of its epoch.
    pub(crate) last_of_epoch: bool,
}

/// Opens `ids` (in order), reads their headers and works out what is known of their lengths.
/// Files that vanish meanwhile are left out: only dead ones are removed.
pub(crate) async fn open_sources(
    volume: &Arc<dyn Volume>,
    ids: &[FileId],
    seals: &BTreeMap<String, u64>,
    known: &BTreeMap<FileId, u64>,
) -> Result<Vec<Source>, StoreError> {
    let mut sources: Vec<Source> = Vec::with_capacity(ids.len());
    for id in ids {
        let file = match volume.open(&path(*id)).await {
            Ok(file) => file,
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(super::volume_error(&error)),
        };
        let mut source = open_source(*id, file).await?;
        source.seal = seals.get(&id.name()).copied();
        source.data_len = known.get(id).copied();
        if let (Some(before), Some(header)) = (sources.last_mut(), source.header)
            && before.id.epoch == id.epoch
        {
            before.last_of_epoch = false;
            if before.id.seq.checked_add(1) == Some(id.seq) {
                before.data_len.get_or_insert(header.previous_len);
            }
        }
        sources.push(source);
    }
    Ok(sources)
}

async fn open_source(id: FileId, file: Arc<dyn VolumeFile>) -> Result<Source, StoreError> {
    let failed = |error: VolumeError| super::volume_error(&error);
    let size = file.size().await.map_err(failed)?;
    let bytes = file.read_at(0, FILE_HEADER_LEN).await.map_err(failed)?;
    let header = match FileHeader::decode(id, &bytes) {
        Ok(header) => Some(header),
        Err(FileHeaderError::Bad) => None,
        Err(FileHeaderError::Newer(version)) => return Err(newer(id, version)),
    };
    Ok(Source {
        id,
        file,
        size,
        header,
        seal: None,
        data_len: None,
        last_of_epoch: true,
    })
}

/// The refusal of a file that a newer version wrote.
pub(crate) fn newer(id: FileId, version: u32) -> StoreError {
    let ours = super::frame::FORMAT_VERSION;
    StoreError::Offline(format!(
        "{}: journal format {version}, and this version reads up to {ours}; nothing was changed",
        path(id)
    ))
}

impl Source {
    /// Whether nothing was ever durable in it: it was made, and not used.
    pub(crate) fn is_unused(&self) -> bool {
        let bare = self.header.is_none() && self.seal.unwrap_or(0) == 0;
        bare && (self.last_of_epoch || self.data_len == Some(0) || self.size == 0)
    }

    /// Where reading stops, and whether the data ends just there.
    fn limit(&self) -> (u64, bool) {
        match self.data_len.or(self.seal) {
            Some(len) => (len, true),
            None => (self.size, false),
        }
    }

    /// A scanner from the first frame.
    pub(crate) fn scanner(&self) -> Scanner<'_> {
        let (limit, exact) = self.limit();
        Scanner::new(&*self.file, self.id.seed(), limit, exact)
    }

    /// Whether the file begins with a whole checkpoint: its owner had finished opening.
    pub(crate) async fn has_checkpoint(&self) -> Result<bool, StoreError> {
        if self.header.is_none() {
            return Ok(false);
        }
        let step = self.scanner().next().await;
        Ok(matches!(
            step.map_err(|error| super::volume_error(&error))?,
            Step::Round(round) if is_checkpoint(&round)
        ))
    }

    /// What its footer says, if it has one that is right and agrees with what is known.
    pub(crate) async fn footer(
        &self,
    ) -> Result<Option<(Closed, super::extents::FileIndex, u64)>, StoreError> {
        let end = self.seal.unwrap_or(self.size);
        if self.header.is_none() {
            return Ok(None);
        }
        let footer = read_footer(&*self.file, self.id, end)
            .await
            .map_err(|error| super::volume_error(&error))?;
        Ok(footer
            .filter(|footer| self.data_len.is_none_or(|len| len == footer.position))
            .map(|footer| {
                let closed = Closed {
                    len: end,
                    footer: true,
                };
                (closed, footer.index, footer.position)
            }))
    }
}

fn is_checkpoint(round: &FoundRound) -> bool {
    let frames = round.frames.iter().map(|found| &found.frame);
    let whole = frames
        .clone()
        .zip(0_i64..)
        .all(|(frame, index)| frame.kind == Kind::Checkpoint && frame.base == index);
    whole && round.damaged_at.is_none() && frames.last().is_some_and(|frame| frame.last_delta == 0)
}
