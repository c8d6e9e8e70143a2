//! The files that a shard's opening finds: which of them count, and how long each is.
//!
//! What is known of a file's length, best first: its seal, written by the owner that took over
//! from the one that wrote it; what this process remembers of a file whose sync failed; the header
//! of the next file of its epoch. The last file of an epoch that nobody sealed is read to its last
//! whole round. A file that was written anew was whole when it got its name: its length is its
//! size, whatever a seal of before says.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::extents::FileIndex;
use super::file::{FILE_HEADER_LEN, FileHeader, FileHeaderError, FileId};
use super::files::{Closed, path, read_footer};
use super::frame::Kind;
use super::index::{Anchor, Hint, IndexStore, kept_index};
use super::payload::CatalogueEntry;
use super::read::Read;
use super::scan::{CHECKPOINTS, Found, FoundRound, Scanner, Step};
use super::table::Replay;
use super::volume_error;
use crate::store::StoreError;
use crate::volume::{Volume, VolumeError, VolumeFile};

/// One file of the journal.
#[derive(Debug)]
pub(crate) struct Source {
    /// Which.
    pub(crate) id: FileId,
    volume: Arc<dyn Volume>,
    /// Its size, taken before anything of it is read: a writer that is fenced and does not know it
    /// may go on behind that.
    pub(crate) size: u64,
    /// Its header; `None` when there is none that is right.
    pub(crate) header: Option<FileHeader>,
    /// Its length as sealed, footer included.
    pub(crate) seal: Option<u64>,
    /// Its data length, when the process or the next file knows it.
    pub(crate) data_len: Option<u64>,
    /// Whether it is the last file of its epoch.
    pub(crate) last_of_epoch: bool,
    /// Lsn of position 0 of the file behind it, in whatever epoch, if its header is right.
    next_lsn: Option<u64>,
    /// Whether its header is damaged, and `header` is what it must have been.
    mended: bool,
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
            Err(error) => return Err(volume_error(&error)),
        };
        let mut source = open_source(volume, *id, &*file).await?;
        source.seal = seals.get(&id.name()).copied();
        source.data_len = known.get(id).copied();
        if let (Some(before), Some(header)) = (sources.last_mut(), source.header) {
            before.next_lsn = Some(header.first_lsn);
            if before.id.epoch == id.epoch {
                before.last_of_epoch = false;
                if before.id.seq.checked_add(1) == Some(id.seq) {
                    before.data_len.get_or_insert(header.previous_len);
                }
            }
        }
        sources.push(source);
    }
    for at in 0..sources.len() {
        let (before, rest) = sources.split_at_mut(at);
        let Some(source) = rest.first_mut() else {
            continue;
        };
        match mended_header(before, source).await {
            Ok(None) => {}
            Ok(header) => {
                source.header = header;
                source.mended = true;
            }
            Err(_) if source.has_vanished().await => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sources)
}

/// What the damaged header of the last file of an epoch must have been, if everything that it says
/// is known otherwise: the file begins with a checkpoint, whose frames are valid in this file only,
/// so it was written in rounds; and the end of the file before it needs no other witness. Lsns only
/// have to be behind those of the files and logs before.
async fn mended_header(
    before: &[Source],
    source: &Source,
) -> Result<Option<FileHeader>, StoreError> {
    let alone = source.last_of_epoch && source.seal.or(source.data_len).is_none();
    if source.header.is_some() || !alone || source.size <= FILE_HEADER_LEN as u64 {
        return Ok(None);
    }
    if let Some(previous) = before.last()
        && previous.id.epoch == source.id.epoch
        && !previous.end_is_known().await?
    {
        return Ok(None);
    }
    let file = source.open().await?;
    let Some(round) = source.checkpoint(&*file).await? else {
        return Ok(None);
    };
    let births = round.frames.iter().flat_map(|found| {
        let mut payload = &found.payload[..];
        std::iter::from_fn(move || CatalogueEntry::decode(&mut payload)).map(|entry| entry.birth)
    });
    let ends = before.iter().filter_map(|source| {
        let header = source.header?;
        Some(header.end_lsn(source.size))
    });
    Ok(Some(FileHeader {
        id: source.id,
        first_lsn: births.chain(ends).max().unwrap_or(0),
        previous_len: 0,
        rewritten: None,
        unsynced: false,
    }))
}

async fn open_source(
    volume: &Arc<dyn Volume>,
    id: FileId,
    file: &dyn VolumeFile,
) -> Result<Source, StoreError> {
    let failed = |error: VolumeError| volume_error(&error);
    let size = file.size().await.map_err(failed)?;
    let bytes = file.read_at(0, FILE_HEADER_LEN).await.map_err(failed)?;
    let header = match FileHeader::decode(id, &bytes) {
        Ok(header) => Some(header),
        Err(FileHeaderError::Bad) => None,
        Err(FileHeaderError::Newer(version)) => return Err(newer(id, version)),
    };
    Ok(Source {
        id,
        volume: Arc::clone(volume),
        size,
        header,
        seal: None,
        data_len: None,
        last_of_epoch: true,
        next_lsn: None,
        mended: false,
    })
}

/// The refusal of a file that a newer version wrote.
pub(crate) fn newer(id: FileId, version: u32) -> StoreError {
    let ours = super::file::FORMAT_VERSION;
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

    /// Whether the file is gone by now. The process before this one may still be removing files
    /// that nothing needs.
    pub(crate) async fn has_vanished(&self) -> bool {
        let opened = self.volume.open(&path(self.id)).await;
        opened.is_err_and(|error| error.is_not_found())
    }

    /// Refuses a file whose header is damaged though it was used. A header and the checkpoints
    /// behind it are durable before anything else is written, so a round behind the checkpoints
    /// proves that there was a header. Which logs lie in it is not known: the shard stays closed
    /// and the file as it is.
    pub(crate) async fn refuse_damaged_header(&self) -> Result<(), StoreError> {
        if self.header.is_some() || self.size <= FILE_HEADER_LEN as u64 {
            return Ok(());
        }
        let file = self.open().await?;
        let mut scanner = self.scanner(&*file);
        for _ in 0..=CHECKPOINTS {
            let step = scanner.next().await;
            match step.map_err(|error| volume_error(&error))? {
                Step::Round(round) if round.holds_checkpoints_only() => {}
                Step::Round(_) => break,
                Step::End(_) => return Ok(()),
            }
        }
        Err(StoreError::Corrupt {
            path: path(self.id).to_string(),
            why: "the header of a journal file that holds batches is damaged; nothing was changed"
                .to_owned(),
        })
    }

    /// Where reading stops, and whether the data ends just there.
    fn limit(&self) -> (u64, bool) {
        match self.exact_len() {
            Some(len) => (len, true),
            None => (self.size, false),
        }
    }

    /// Opens it. Not kept open: there may be more files than handles.
    async fn open(&self) -> Result<Arc<dyn VolumeFile>, StoreError> {
        let file = self.volume.open(&path(self.id)).await;
        file.map_err(|error| volume_error(&error))
    }

    /// A scanner of `file`, which is this one, from the first frame.
    fn scanner<'a>(&self, file: &'a dyn VolumeFile) -> Scanner<'a> {
        let (limit, exact) = self.limit();
        let unsynced = self.header.is_some_and(|header| header.unsynced);
        Scanner::new(file, self.id.seed(), limit, exact).unsynced(unsynced)
    }

    /// Its length, if that is known without reading on. The seal comes first: the header of a next
    /// file may be of a writer that was fenced when it wrote it.
    fn exact_len(&self) -> Option<u64> {
        if self.is_rewritten() {
            return Some(self.size);
        }
        self.seal.or(self.data_len)
    }

    /// Whether it was written anew without what nobody needs.
    pub(crate) fn is_rewritten(&self) -> bool {
        self.header.is_some_and(|header| header.rewritten.is_some())
    }

    /// Whether its header is damaged, and [`Source::header`] is what it must have been.
    pub(crate) fn is_mended(&self) -> bool {
        self.mended
    }

    /// Whether it has the round that ends with `anchor`.
    pub(crate) async fn holds(&self, anchor: Anchor) -> Result<bool, StoreError> {
        self.holds_in(&*self.open().await?, anchor).await
    }

    async fn holds_in(&self, file: &dyn VolumeFile, anchor: Anchor) -> Result<bool, StoreError> {
        if anchor.end > self.exact_len().unwrap_or(self.size) {
            return Ok(false);
        }
        anchor.holds(file).await.map_err(|e| volume_error(&e))
    }

    /// Whether its end is known without the header of the file behind it.
    async fn end_is_known(&self) -> Result<bool, StoreError> {
        if self.exact_len().is_some() {
            return Ok(true);
        }
        let file = self.open().await?;
        Ok(self.header.is_some() && self.footer(&*file).await?.is_some())
    }

    /// Where the file ends, footer included, as far as that is known.
    fn file_end(&self) -> u64 {
        self.seal
            .filter(|_| !self.is_rewritten())
            .unwrap_or(self.size)
    }

    /// Its data length, where the process or the next file knows it and nothing else does.
    fn data_len_only(&self) -> Option<u64> {
        self.data_len
            .filter(|_| self.seal.is_none() && !self.is_rewritten())
    }

    /// Whether the file begins with a whole checkpoint: its owner had finished opening.
    pub(crate) async fn has_checkpoint(&self) -> Result<bool, StoreError> {
        if self.header.is_none() {
            return Ok(false);
        }
        let file = self.open().await?;
        Ok(self.checkpoint(&*file).await?.is_some())
    }

    /// The first whole one of the checkpoints with which `file`, which is this one, begins.
    async fn checkpoint(&self, file: &dyn VolumeFile) -> Result<Option<FoundRound>, StoreError> {
        let mut scanner = self.scanner(file);
        for _ in 0..CHECKPOINTS {
            let step = scanner.next().await;
            match step.map_err(|error| volume_error(&error))? {
                Step::Round(round) if round.is_checkpoint() => return Ok(Some(round)),
                Step::Round(_) => {}
                Step::End(_) => break,
            }
        }
        Ok(None)
    }

    /// Whether `file`, which is this one, begins with batches and not with a checkpoint: it was
    /// written anew.
    async fn begins_with_batches(&self, file: &dyn VolumeFile) -> Result<bool, StoreError> {
        let mut scanner = Scanner::new(file, self.id.seed(), self.size, false);
        let step = scanner.next().await;
        let Step::Round(round) = step.map_err(|error| volume_error(&error))? else {
            return Ok(false);
        };
        let first = round.frames.first();
        let begins = |first: &Found| {
            first.frame.kind == Kind::Append && first.position == FILE_HEADER_LEN as u64
        };
        Ok(round.damaged_at.is_none() && first.is_some_and(begins))
    }

    /// What its footer says, if it has one that is right and agrees with what is known.
    async fn footer(
        &self,
        file: &dyn VolumeFile,
    ) -> Result<Option<(Closed, FileIndex, u64)>, StoreError> {
        let end = self.file_end();
        let data_len = self.data_len_only();
        let footer = read_footer(file, self.id, end)
            .await
            .map_err(|error| volume_error(&error))?;
        Ok(footer
            .filter(|footer| data_len.is_none_or(|len| len == footer.position))
            .map(|footer| {
                let closed = Closed {
                    len: end,
                    footer: true,
                };
                (closed, footer.index, footer.position)
            }))
    }
}

/// Reads what one file holds, into `replay` if the catalogue comes from it.
pub(crate) async fn read_source(
    source: &Source,
    replay: Option<&mut Replay>,
    hint: Option<&Hint>,
    local: &Arc<dyn IndexStore>,
) -> Result<Read, StoreError> {
    let mut read = Read {
        id: source.id,
        closed: Closed {
            len: source.file_end(),
            footer: false,
        },
        data_end: source.size,
        end_lsn: source.size,
        first_lsn: source.header.map_or(0, |header| header.first_lsn),
        unsynced: None,
        index: FileIndex::default(),
        torn_bytes: 0,
        keep: None,
        damaged: false,
    };
    if source.header.is_none() {
        read.found_damaged("the header");
        if replay.is_none() {
            read_without_header(source, &mut read).await?;
        }
        return Ok(read);
    }
    if source.mended {
        read.found_damaged("the header");
    }
    let file = source.open().await?;
    let footer = source.footer(&*file).await?;
    let closed = footer
        .as_ref()
        .map(|(closed, _, position)| (*closed, *position));
    let unsealed = source.seal.is_none() && !source.is_rewritten();
    let kept = match (source.exact_len(), &footer, &replay) {
        (Some(len), None, None) => kept_index(local, &*file, source.id, len)
            .await
            .map_err(|error| volume_error(&error))?,
        _ => None,
    };
    if let (Some((_, index, position)), None) = (footer, &replay) {
        read.data_end = position;
        read.index = index;
    } else if let Some((index, anchor)) = kept {
        read.data_end = anchor.end;
        read.closed.len = anchor.end;
        read.index = index;
    } else {
        scan_source(source, &*file, &mut read, replay, hint).await?;
    }
    if let Some((closed, position)) = closed
        && position == read.data_end
    {
        // The data was synced before the footer was written; the footer may not have been.
        read.closed = closed;
        read.keep = None;
        read.unsynced = unsealed.then_some((position, closed.len));
    }
    if let Some(header) = source.header {
        read.end_lsn = header.end_lsn(read.data_end);
    }
    Ok(read)
}

/// Finds the batches of a closed file whose header is damaged. Frames are valid at one position of
/// one file by its name, so none is taken for another; what the header says of the file's length
/// and place, the files around it know. A batch that is not found shows as a hole in its log.
async fn read_without_header(source: &Source, read: &mut Read) -> Result<(), StoreError> {
    let Some(end_lsn) = source.next_lsn else {
        return Ok(());
    };
    let file = source.open().await?;
    // What is known of its length is from before then.
    let anew = source.begins_with_batches(&*file).await?;
    let end = source.seal.filter(|seal| !anew && *seal <= source.size);
    let end = end.unwrap_or(source.size);
    let footer = read_footer(&*file, source.id, end).await;
    let footer = footer.map_err(|error| volume_error(&error))?;
    let fits = |position| source.data_len.is_none_or(|len| position <= len);
    let known = |position| anew || source.seal.is_some() || fits(position);
    if let Some(footer) = footer.filter(|footer| known(footer.position)) {
        read.data_end = footer.position;
        read.closed = Closed {
            len: end,
            footer: true,
        };
        read.index = footer.index;
    } else if source.exact_len().is_some_and(|len| len <= source.size) {
        scan_source(source, &*file, read, None, None).await?;
    } else {
        return Ok(());
    }
    read.end_lsn = end_lsn;
    Ok(())
}

async fn scan_source(
    source: &Source,
    file: &dyn VolumeFile,
    read: &mut Read,
    mut replay: Option<&mut Replay>,
    hint: Option<&Hint>,
) -> Result<(), StoreError> {
    let path = path(source.id).to_string();
    let mut scanner = source.scanner(file);
    if let (Some(hint), Some(replay)) = (hint, &mut replay)
        && source.holds_in(file, hint.anchor).await?
    {
        scanner = scanner.behind(hint.anchor);
        replay.table = hint.table.clone();
        read.index = hint.index.clone();
    }
    loop {
        match scanner.next().await.map_err(|error| volume_error(&error))? {
            Step::Round(round) => {
                if let Some(at) = round.damaged_at {
                    tracing::error!(path, at, "a journal file is damaged");
                    read.damaged = true;
                }
                read.index.add_round(&round);
                if let Some(replay) = &mut replay {
                    replay.round(&round, &path, read.first_lsn);
                }
            }
            Step::End(end) => {
                end.tell(&path);
                read.data_end = end.data_end;
                read.closed.len = end.data_end;
                read.torn_bytes = end.torn_bytes;
                read.keep = end.anchor.filter(|_| !read.damaged);
                let durable = source.exact_len().is_some();
                read.unsynced = (!durable).then_some((end.last_round, end.data_end));
                return Ok(());
            }
        }
    }
}
