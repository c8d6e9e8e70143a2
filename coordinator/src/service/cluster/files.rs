//! Typed reads and replaces of owned files, and fresh listings.

use std::sync::Arc;

use store_adapter::ids::BrokerId;
use store_adapter::runtime::Clock;
use store_adapter::volume::owned::{Claim, OwnedError};
use store_adapter::volume::sum::with_sum;
use store_adapter::volume::{DirEntry, Volume, VolumeError, VolumePath};

use super::damage::{Damage, DamageLog, NoCopy, Quarantine};
use crate::volume::format::{self, Format};

/// Probes that are tried when others make and remove the same one.
const PROBE_TRIES: u32 = 8;

/// Bytes of a JSON file of the store that are copied into quarantine.
const STORE_JSON_MAX: u64 = 8 << 20;

/// The volume as the cluster service uses it.
#[derive(Debug, Clone)]
pub(super) struct Files {
    pub(super) volume: Arc<dyn Volume>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) damage: Arc<DamageLog>,
    pub(super) broker: BrokerId,
}

impl Files {
    /// Reads an owned file; `None` if it was never written. What does not parse is copied to
    /// quarantine, reported and `Damaged`.
    pub(super) async fn read<T: Format>(
        &self,
        claim: &Claim,
        path: &VolumePath,
    ) -> Result<Option<T>, OwnedError> {
        let bytes = match claim.read(path, T::LEN_MAX).await {
            Ok(None) => return Ok(None),
            Ok(Some(bytes)) => bytes,
            Err(OwnedError::Damaged { path: at, why }) => {
                self.report(at.clone(), why.clone(), None);
                return Err(OwnedError::Damaged { path: at, why });
            }
            Err(error) => return Err(error),
        };
        match format::decode(&bytes) {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(self.damaged(path, error.to_string(), Some(bytes)).await),
        }
    }

    /// Reports a file whose content is wrong, with a copy of `bytes` in quarantine.
    pub(super) async fn damaged(
        &self,
        path: &VolumePath,
        why: String,
        bytes: Option<bytes::Bytes>,
    ) -> OwnedError {
        let copy = match bytes {
            None => None,
            Some(bytes) => match self.quarantine(path, bytes).await {
                Ok(copy) => Some(copy.to_string()),
                Err(error) => {
                    tracing::warn!(%error, %path, "a damaged file could not be copied");
                    None
                }
            },
        };
        self.report(path.to_string(), why.clone(), copy);
        let path = path.to_string();
        OwnedError::Damaged { path, why }
    }

    /// Reports a damaged file of the store, which is not of this crate. Its journals are large and
    /// stay where they are: of its JSON files there is a copy in quarantine.
    pub(super) async fn damaged_in_store(&self, path: &str, why: String) {
        let root = VolumePath::root();
        let path = path.split('/').fold(root, |dir, name| dir.join(name));
        let bytes = if path.file_name().strip_suffix(".json").is_some() {
            match self.volume.read(&path, STORE_JSON_MAX).await {
                Ok(bytes) => Some(bytes).filter(|bytes| !bytes.is_empty()),
                Err(error) => {
                    tracing::warn!(%error, "a damaged file could not be copied");
                    None
                }
            }
        } else {
            None
        };
        // The error is what the store said.
        let _reported: OwnedError = self.damaged(&path, why, bytes).await;
    }

    async fn quarantine(
        &self,
        path: &VolumePath,
        bytes: bytes::Bytes,
    ) -> Result<VolumePath, NoCopy> {
        let quarantine = Quarantine {
            volume: &self.volume,
            broker: self.broker,
            now_ms: self.clock.wall_ms(),
        };
        quarantine.copy(&self.damage, path, bytes).await
    }

    fn report(&self, path: String, why: String, copy: Option<String>) {
        self.damage.report(Damage {
            path,
            why,
            copy,
            found_ms: self.clock.wall_ms(),
        });
    }

    /// Replaces an owned file. Its directory must exist.
    pub(super) async fn replace<T: Format>(
        &self,
        claim: &Claim,
        path: &VolumePath,
        value: &T,
    ) -> Result<(), OwnedError> {
        let bytes = format::encode(value).map_err(|error| OwnedError::Damaged {
            path: path.to_string(),
            why: error.to_string(),
        })?;
        claim.replace(path, with_sum(&bytes)).await
    }

    /// The names in `dir`, believed also for what is not there: the listing follows an own create.
    pub(super) async fn fresh_list(&self, dir: &VolumePath) -> Result<Vec<DirEntry>, VolumeError> {
        // One name a broker: what a crash leaves is found and removed by the next probe.
        let name = format!("~probe-{}", self.broker.name());
        let probe = dir.join(&name);
        let mut tries = 0;
        while let Err(error) = self.volume.create_new(&probe).await {
            if !matches!(error, VolumeError::AlreadyExists { .. }) || tries == PROBE_TRIES {
                return Err(error);
            }
            tries += 1;
            self.remove_if_there(&probe).await?;
        }
        let mut names = self.volume.list(dir).await?;
        self.remove_if_there(&probe).await?;
        names.retain(|entry| !entry.name.starts_with('~'));
        Ok(names)
    }

    /// Unlinks a file that is not owned; one that is gone already is as good.
    pub(super) async fn remove_if_there(&self, path: &VolumePath) -> Result<(), VolumeError> {
        match self.volume.remove(path).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}
