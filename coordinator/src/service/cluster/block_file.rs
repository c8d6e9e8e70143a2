//! `producer_ids/kaas-<id>.json` on the volume, in the area of the broker.

use std::sync::Arc;

use store_adapter::runtime::BoxFuture;
use store_adapter::volume::owned::{Claim, OwnedError};

use super::files::Files;
use crate::service::producer_ids::{BlockFile, BlockFileError};
use crate::volume::format::IdBlockFile;
use crate::volume::layout::Place;

/// The producer-id blocks that this broker has reserved. Its futures are awaited in io tasks only.
#[derive(Debug, Clone)]
pub struct VolumeBlockFile {
    pub(super) files: Files,
    pub(super) claim: Arc<Claim>,
}

impl VolumeBlockFile {
    async fn load(&self) -> Result<IdBlockFile, OwnedError> {
        let path = Place::ProducerIds(self.files.broker).path();
        let found = self.files.read(&self.claim, &path).await?;
        Ok(found.unwrap_or_default())
    }

    async fn store(&self, next_block: i64) -> Result<(), OwnedError> {
        // Read again for the fields that are not ours, and to refuse a damaged file.
        let old = self.load().await?;
        let path = Place::ProducerIds(self.files.broker).path();
        if next_block < old.next_block {
            return Err(OwnedError::Damaged {
                path: path.to_string(),
                why: format!(
                    "nextBlock {} is beyond {next_block} already",
                    old.next_block
                ),
            });
        }
        let next = IdBlockFile {
            next_block,
            extra: old.extra,
        };
        self.files.replace(&self.claim, &path, &next).await
    }
}

impl BlockFile for VolumeBlockFile {
    fn read(&self) -> BoxFuture<'_, Result<i64, BlockFileError>> {
        Box::pin(async move {
            let file = self.load().await.map_err(block_error)?;
            Ok(file.next_block)
        })
    }

    fn reserve(&self, next_block: i64) -> BoxFuture<'_, Result<(), BlockFileError>> {
        Box::pin(async move { self.store(next_block).await.map_err(block_error) })
    }
}

fn block_error(error: OwnedError) -> BlockFileError {
    match error {
        OwnedError::Damaged { .. } => BlockFileError::Damaged(error.to_string()),
        error => BlockFileError::Unavailable(error.to_string()),
    }
}
