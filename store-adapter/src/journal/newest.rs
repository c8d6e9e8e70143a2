//! The witness of a shard's newest file: `newest.json`.
//!
//! What older files held is in the checkpoint with which the next one begins, so a file of those
//! that is gone shows as a hole. The newest one has nothing behind it: without a witness its loss
//! would look like a log that ended earlier. Its name is durable before the first frame in it is
//! acknowledged; one replace for each file, none for a round.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::file::FileId;
use super::files::{path, shard_dir};
use super::sources::Source;
use super::{owned_error, volume_error};
use crate::ids::ShardId;
use crate::store::StoreError;
use crate::volume::owned::{Claim, OwnedError};
use crate::volume::sum::{check_sum, with_sum};
use crate::volume::{Volume, VolumePath};

/// Largest `newest.json` that is read, bytes.
const LEN_MAX: u64 = 4096;

#[derive(Debug, Serialize, Deserialize)]
struct Newest {
    /// The name of the file; empty for none.
    file: String,
}

fn newest_path(shard: ShardId) -> VolumePath {
    shard_dir(shard).join("newest.json")
}

/// Names `id` as the newest file, which is durable by now; durable itself when it returns.
pub(crate) async fn witness(claim: &Claim, id: FileId) -> Result<(), OwnedError> {
    let path = newest_path(id.shard);
    let file = id.name();
    let json = serde_json::to_vec(&Newest { file }).map_err(|error| OwnedError::Damaged {
        path: path.to_string(),
        why: error.to_string(),
    })?;
    claim.replace(&path, with_sum(&json)).await
}

/// Refuses the shard if its newest file is known to have been begun, and is not there any more or
/// holds nothing. Which logs had batches in it is not known. `base` is the newest file that begins
/// with a whole checkpoint: with one behind the file, holes show what is missing. Which file it is,
/// if that is known.
pub(crate) async fn refuse_missing(
    claim: &Claim,
    shard: ShardId,
    sources: &[Source],
    base: Option<FileId>,
) -> Result<Option<FileId>, StoreError> {
    let bytes = claim.read(&newest_path(shard), LEN_MAX).await;
    let bytes = bytes.map_err(|error| owned_error(&error))?;
    judge(bytes, shard, sources, base).await
}

/// The same for who only reads.
pub(crate) async fn refuse_missing_of(
    volume: &Arc<dyn Volume>,
    shard: ShardId,
    sources: &[Source],
    base: Option<FileId>,
) -> Result<Option<FileId>, StoreError> {
    let bytes = match volume.read(&newest_path(shard), LEN_MAX).await {
        Err(error) if error.is_not_found() => None,
        bytes => Some(bytes.map_err(|error| volume_error(&error))?),
    };
    judge(bytes, shard, sources, base).await
}

async fn judge(
    bytes: Option<Bytes>,
    shard: ShardId,
    sources: &[Source],
    base: Option<FileId>,
) -> Result<Option<FileId>, StoreError> {
    let target = newest_path(shard);
    let Some(bytes) = bytes else {
        // A shard of an older version.
        return Ok(None);
    };
    let corrupt = |why: String| StoreError::Corrupt {
        path: target.to_string(),
        why,
    };
    check_sum(&bytes).map_err(|error| corrupt(error.to_string()))?;
    let newest: Newest = serde_json::from_slice(&bytes).map_err(|e| corrupt(e.to_string()))?;
    if newest.file.is_empty() {
        return Ok(None);
    }
    let Some(id) = FileId::from_name(shard, &newest.file) else {
        return Err(corrupt(format!("{:?} is no journal file", newest.file)));
    };
    let found = sources.iter().find(|source| source.id == id);
    let there = found.is_some_and(|source| !source.is_unused());
    if there || base.is_some_and(|base| base > id) {
        return Ok(Some(id));
    }
    if let Some(source) = found {
        source.refuse_damaged_header().await?;
    }
    Err(StoreError::Corrupt {
        path: path(id).to_string(),
        why: format!(
            "this journal file is missing or empty, though batches may have been acknowledged in \
             it; nothing was changed. Restore the file, or make {{\"file\":\"\"}} all that is in \
             {target} to go on without them"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_its_documented_form() {
        let json = br#"{"file":"4.9-2.log"}"#;
        let newest: Newest = serde_json::from_slice(json).unwrap();
        assert_eq!(newest.file, "4.9-2.log");
        assert_eq!(serde_json::to_vec(&newest).unwrap(), json);
        let more: Newest = serde_json::from_slice(br#"{"file":"","later":1}"#).unwrap();
        assert_eq!(more.file, "");
    }
}
