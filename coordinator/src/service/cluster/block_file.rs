//! `producer_ids/kaas-<id>.json` on the volume, in the area of the broker.

use std::sync::Arc;

use store_adapter::volume::owned::{Claim, OwnedError};

use super::files::Files;
use crate::volume::format::IdBlockFile;
use crate::volume::layout::Place;

/// The producer-id blocks that this broker has reserved. Its futures are awaited in io tasks only.
#[derive(Debug, Clone)]
pub struct VolumeBlockFile {
    pub(super) files: Files,
    pub(super) claim: Arc<Claim>,
}

impl VolumeBlockFile {
    /// The first local value not yet reserved; 0 if the file was never written.
    async fn load(&self) -> Result<IdBlockFile, OwnedError> {
        let path = Place::ProducerIds(self.files.broker).path();
        let found = self.files.read(&self.claim, &path).await?;
        Ok(found.unwrap_or_default())
    }
}
