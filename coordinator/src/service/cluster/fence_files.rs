//! `producer_fences/*.json` on the volume: the own one in the area of the broker.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use store_adapter::ids::BrokerId;
use store_adapter::runtime::BoxFuture;
use store_adapter::volume::owned::{Claim, OwnedError};
use store_adapter::volume::{VolumeError, VolumePath};
use tokio::sync::watch;

use super::files::Files;
use super::view::ClusterView;
use crate::service::fences::{FenceFileError, FenceFiles};
use crate::volume::format::{self, FencesFile, Format};
use crate::volume::layout::{self, Place};

/// The fences on the volume. Its futures are awaited in an io task only.
#[derive(Debug)]
pub struct VolumeFenceFiles {
    files: Files,
    claim: Arc<Claim>,
    view: watch::Receiver<Arc<ClusterView>>,
    /// The bytes that were last found of another broker, and what last could be read of it.
    seen: Mutex<BTreeMap<BrokerId, (Bytes, Arc<FencesFile>)>>,
}

impl VolumeFenceFiles {
    pub(super) fn new(
        files: Files,
        claim: Arc<Claim>,
        view: watch::Receiver<Arc<ClusterView>>,
    ) -> Self {
        Self {
            files,
            claim,
            view,
            seen: Mutex::default(),
        }
    }

    fn own_path(&self) -> VolumePath {
        Place::ProducerFences(self.files.broker).path()
    }

    /// Who may have a file: a listing may be out of date, an open is not.
    async fn brokers(&self) -> BTreeSet<BrokerId> {
        let view = self.view.borrow().clone();
        let listed = view.assignment.brokers.iter().map(|broker| broker.id);
        let mut brokers: BTreeSet<BrokerId> = listed.collect();
        let dir = layout::fences_dir();
        match self.files.volume.list(&dir).await {
            Ok(names) => brokers.extend(names.iter().filter_map(|entry| {
                match Place::parse(&dir.join(&entry.name)) {
                    Some(Place::ProducerFences(broker)) => Some(broker),
                    _ => None,
                }
            })),
            Err(VolumeError::NotFound { .. }) => {}
            Err(error) => tracing::warn!(%error, "the fences of others are not listed"),
        }
        brokers.remove(&self.files.broker);
        brokers
    }

    async fn look(&self, broker: BrokerId) {
        let path = Place::ProducerFences(broker).path();
        let bytes = match self.files.volume.read(&path, FencesFile::LEN_MAX).await {
            Ok(bytes) => bytes,
            Err(VolumeError::NotFound { .. }) => return,
            Err(error) => {
                tracing::warn!(%error, "the fences of another broker are not read");
                return;
            }
        };
        let before = self.seen.lock().get(&broker).cloned();
        if before.as_ref().is_some_and(|(seen, _)| *seen == bytes) {
            return;
        }
        let file = match format::decode::<FencesFile>(&bytes) {
            Ok(file) => Arc::new(file),
            Err(error) => {
                let why = error.to_string();
                let reported = self.files.damaged(&path, why, Some(bytes.clone())).await;
                tracing::debug!(error = %reported, "its fences stay as they were");
                before.map(|(_, file)| file).unwrap_or_default()
            }
        };
        self.seen.lock().insert(broker, (bytes, file));
    }
}

impl FenceFiles for VolumeFenceFiles {
    fn own(&self) -> BoxFuture<'_, Result<FencesFile, FenceFileError>> {
        Box::pin(async move {
            let found = self.files.read(&self.claim, &self.own_path()).await;
            Ok(found.map_err(fence_error)?.unwrap_or_default())
        })
    }

    fn replace<'a>(&'a self, file: &'a FencesFile) -> BoxFuture<'a, Result<(), FenceFileError>> {
        Box::pin(async move {
            let replaced = self
                .files
                .replace(&self.claim, &self.own_path(), file)
                .await;
            replaced.map_err(fence_error)
        })
    }

    fn others(&self) -> BoxFuture<'_, Vec<(BrokerId, Arc<FencesFile>)>> {
        Box::pin(async move {
            for broker in self.brokers().await {
                self.look(broker).await;
            }
            let seen = self.seen.lock();
            let known = seen.iter();
            known
                .map(|(broker, (_, file))| (*broker, file.clone()))
                .collect()
        })
    }
}

fn fence_error(error: OwnedError) -> FenceFileError {
    match error {
        OwnedError::Damaged { .. } => FenceFileError::Damaged(error.to_string()),
        error => FenceFileError::Unavailable(error.to_string()),
    }
}
