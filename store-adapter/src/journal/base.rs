//! From where the catalogue of a shard is replayed: the newest file that begins with a whole
//! checkpoint, or what the local index says of a later one whose checkpoint is damaged.

use super::file::FileId;
use super::files::path;
use super::index::Hint;
use super::sources::Source;
use crate::store::StoreError;

/// Where the replay begins.
#[derive(Debug)]
pub(crate) struct Base {
    /// The file; `None` when none begins with a whole checkpoint: then it is the first one.
    pub(crate) file: Option<FileId>,
    /// What the local index says of that file.
    hint: Option<Hint>,
    /// Whether the file's checkpoint is damaged, and the hint stands for it.
    mends: bool,
}

impl Base {
    /// The hint for the replay of `source`. Of one whose rounds were not synced a power cut may
    /// have taken something before the round of the hint: it is read from its beginning.
    pub(crate) fn hint(&self, source: &Source) -> Option<&Hint> {
        let unsynced = source.header.is_some_and(|header| header.unsynced);
        let hint = self.hint.as_ref().filter(|hint| hint.file == source.id);
        hint.filter(|_| self.mends || !unsynced)
    }

    /// Whether the checkpoint of `source` is damaged, and nothing is missing for all that.
    pub(crate) fn mends(&self, source: &Source) -> bool {
        self.mends && self.file == Some(source.id)
    }

    /// Whether the file has an owner's epoch behind that of `source`.
    pub(crate) fn outdates(&self, source: &Source) -> bool {
        self.file.is_some_and(|base| source.id.epoch < base.epoch)
    }

    /// Whether the catalogue is replayed from `source`, too.
    pub(crate) fn replays(&self, source: &Source) -> bool {
        self.file.is_none_or(|base| source.id >= base)
    }
}

/// Finds it; `hint` is what the local index has, of whatever file.
pub(crate) async fn find(sources: &[Source], hint: Option<Hint>) -> Result<Base, StoreError> {
    let whole = newest_checkpoint(sources).await?;
    let hinted = hint
        .as_ref()
        .and_then(|hint| sources.iter().find(|source| source.id == hint.file));
    let (Some(hint), Some(source)) = (hint, hinted) else {
        return Ok(Base {
            file: whole,
            hint: None,
            mends: false,
        });
    };
    let later = whole.is_none_or(|whole| hint.file > whole);
    let mends = later && holds(source, &hint).await?;
    // Births in the hint are by the lsns of the header, and a header that was made up has others.
    let fits = mends || Some(hint.file) == whole && !source.is_mended();
    Ok(Base {
        file: if mends { Some(hint.file) } else { whole },
        hint: fits.then_some(hint),
        mends,
    })
}

/// Whether `source`, which does not begin with a whole checkpoint, has the round of `hint`.
async fn holds(source: &Source, hint: &Hint) -> Result<bool, StoreError> {
    if source.header.is_none() || source.is_rewritten() {
        return Ok(false);
    }
    match source.holds(hint.anchor).await {
        Err(_) if source.has_vanished().await => Ok(false),
        holds => holds,
    }
}

/// The newest file that begins with a whole checkpoint.
async fn newest_checkpoint(sources: &[Source]) -> Result<Option<FileId>, StoreError> {
    for source in sources.iter().rev() {
        match source.has_checkpoint().await {
            Ok(true) => return Ok(Some(source.id)),
            Ok(false) => {}
            Err(_) if source.has_vanished().await => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// The catalogue can't be replayed from a file that was written anew: what was trimmed and deleted
/// is not in it. A file goes that way only when a later one has a durable checkpoint, so without
/// one that checkpoint is damaged: that of the newest file, if its `witness` tells which that is.
pub(crate) fn refuse_rewritten(
    sources: &[Source],
    base: &Base,
    witness: Option<FileId>,
) -> Result<(), StoreError> {
    let mut behind = sources
        .iter()
        .filter(|source| base.file.is_none_or(|base| source.id > base));
    let Some(rewritten) = behind.find(|source| source.is_rewritten()) else {
        return Ok(());
    };
    let mut begun = behind.filter(|source| source.header.is_some() && !source.is_rewritten());
    let first = begun.clone().next();
    let damaged = begun.find(|source| Some(source.id) == witness).or(first);
    let (id, why) = match damaged {
        Some(source) => (
            source.id,
            "the checkpoint with which this journal file begins is damaged, and the files before \
             it were written anew",
        ),
        None => (
            rewritten.id,
            "no file behind it begins with a checkpoint that is whole",
        ),
    };
    Err(StoreError::Corrupt {
        path: path(id).to_string(),
        why: format!("{why}; nothing was changed"),
    })
}
