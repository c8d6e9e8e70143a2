//! Files that can't be what was written: copied aside, reported, never overwritten by a guess.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use store_adapter::ids::BrokerId;
use store_adapter::volume::{Volume, VolumeError, VolumePath};

use crate::volume::layout;

/// Reports and copies that are kept. Further damage is logged and counted only.
const KEPT_MAX: usize = 1000;

/// One damaged file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub path: String,
    /// What is wrong with it.
    pub why: String,
    /// Where its bytes were copied; `None` when there were none to copy, or that failed.
    pub copy: Option<String>,
    /// When it was found, ms since the Unix epoch.
    pub found_ms: i64,
}

/// What was found damaged since this process started, by path.
#[derive(Debug, Default)]
pub struct DamageLog {
    found: Mutex<BTreeMap<String, Damage>>,
    /// Copies are made one after the other.
    copying: tokio::sync::Mutex<()>,
}

impl DamageLog {
    /// Every damaged file, by path.
    pub fn list(&self) -> Vec<Damage> {
        self.found.lock().values().cloned().collect()
    }

    /// How many files are damaged.
    pub fn len(&self) -> usize {
        self.found.lock().len()
    }

    /// Whether nothing was found damaged.
    pub fn is_empty(&self) -> bool {
        self.found.lock().is_empty()
    }

    /// Reports one file: one log line the first time.
    pub(super) fn report(&self, damage: Damage) {
        let mut found = self.found.lock();
        let known = found.get(&damage.path).map(|known| &known.why);
        if known == Some(&damage.why) {
            return;
        }
        tracing::error!(
            path = %damage.path,
            why = %damage.why,
            copy = damage.copy.as_deref().unwrap_or("none"),
            "a file of the volume is damaged"
        );
        if known.is_some() || found.len() < KEPT_MAX {
            found.insert(damage.path.clone(), damage);
        }
    }
}

/// Why damaged bytes were not copied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoCopy {
    /// There are as many copies as are kept.
    #[error("{dir} holds {KEPT_MAX} copies, and no more are kept: remove those of no use")]
    TooMany {
        /// The directory of the copies.
        dir: String,
    },
    /// The volume did not do it.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

/// Damaged bytes on their way into quarantine.
#[derive(Debug)]
pub(super) struct Quarantine<'a> {
    pub(super) volume: &'a Arc<dyn Volume>,
    pub(super) broker: BrokerId,
    /// Tells the temporary names of this broker's processes apart.
    pub(super) now_ms: i64,
}

impl Quarantine<'_> {
    /// Copies damaged bytes of `path`. Equal bytes of one path have one copy, which is durable and
    /// whole when it has its name.
    pub(super) async fn copy(
        &self,
        log: &DamageLog,
        path: &VolumePath,
        bytes: Bytes,
    ) -> Result<VolumePath, NoCopy> {
        // What another copy of this process has begun would look like what a crash left.
        let _one_at_a_time = log.copying.lock().await;
        let dir = layout::quarantine_dir();
        self.volume.create_dir_all(&dir).await?;
        let copy = dir.join(&layout::quarantine_name(path, fnv1a64(&bytes)));
        let mut names = self.volume.list(&dir).await?;
        let begun = format!("~copy-{}-", self.broker.name());
        for left in names.iter().filter(|entry| entry.name.starts_with(&begun)) {
            remove_if_there(self.volume, &dir.join(&left.name)).await?;
        }
        names.retain(|entry| !entry.name.starts_with('~'));
        if self.is_whole(&copy, &bytes).await? {
            return Ok(copy);
        }
        if names.len() >= KEPT_MAX {
            let dir = dir.to_string();
            return Err(NoCopy::TooMany { dir });
        }
        let temporary = dir.join(&format!("{begun}{}", self.now_ms));
        let moved = match self.write(&temporary, bytes).await {
            Ok(()) => self.volume.rename(&temporary, &copy).await,
            Err(error) => Err(error),
        };
        if let Err(error) = moved {
            if let Err(error) = remove_if_there(self.volume, &temporary).await {
                tracing::debug!(%error, "the next copy removes what this one left");
            }
            return Err(error.into());
        }
        self.volume.sync_dir(&dir).await?;
        Ok(copy)
    }

    /// Whether a copy is there; one that is not whole is of an older version.
    async fn is_whole(&self, copy: &VolumePath, bytes: &Bytes) -> Result<bool, VolumeError> {
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        match self.volume.read(copy, len).await {
            Ok(found) => Ok(found == *bytes),
            Err(VolumeError::NotFound { .. } | VolumeError::TooLarge { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn write(&self, path: &VolumePath, bytes: Bytes) -> Result<(), VolumeError> {
        let file = self.volume.create_new(path).await?;
        file.write_at(0, &[bytes]).await?;
        file.sync_data().await
    }
}

async fn remove_if_there(volume: &Arc<dyn Volume>, path: &VolumePath) -> Result<(), VolumeError> {
    match volume.remove(path).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// FNV-1a, 64 bits: tells contents apart in file names; nothing depends on its strength.
fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use store_adapter::volume::MemoryVolume;

    use super::*;

    #[test]
    fn fnv_has_its_published_values() {
        assert_eq!(fnv1a64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a64(b"a"), 0xaf63_dc4c_8601_ec8c);
    }

    async fn copied(
        volume: &Arc<dyn Volume>,
        now_ms: i64,
        path: &VolumePath,
    ) -> Result<VolumePath, NoCopy> {
        let quarantine = Quarantine {
            volume,
            broker: BrokerId(0),
            now_ms,
        };
        let bytes = Bytes::from_static(b"{\"damaged\": ");
        quarantine.copy(&DamageLog::default(), path, bytes).await
    }

    /// Everything in the quarantine, with its bytes.
    async fn kept(volume: &Arc<dyn Volume>) -> Vec<(String, Bytes)> {
        let dir = layout::quarantine_dir();
        let mut kept = Vec::new();
        for entry in volume.list(&dir).await.unwrap() {
            let bytes = volume.read(&dir.join(&entry.name), 100).await.unwrap();
            kept.push((entry.name, bytes));
        }
        kept
    }

    #[tokio::test]
    async fn a_copy_has_its_name_only_when_it_is_whole() {
        let memory = MemoryVolume::new();
        let volume: Arc<dyn Volume> = Arc::new(memory.clone());
        let path = VolumePath::root().join("t").join("f");
        volume
            .create_dir_all(&layout::quarantine_dir())
            .await
            .unwrap();
        // There is room for the name, and none for the bytes.
        memory.set_total(0);
        let full = copied(&volume, 1, &path).await.unwrap_err();
        assert!(matches!(full, NoCopy::Volume(VolumeError::NoSpace { .. })));
        assert!(kept(&volume).await.is_empty());
        memory.set_total(1 << 20);
        // What a process left that died while it copied.
        let left = layout::quarantine_dir().join("~copy-kaas-0-1");
        volume.create_new(&left).await.unwrap();
        let copy = copied(&volume, 2, &path).await.unwrap();
        let whole = [(
            copy.file_name().to_owned(),
            Bytes::from_static(b"{\"damaged\": "),
        )];
        assert_eq!(kept(&volume).await, whole);
        assert_eq!(copied(&volume, 3, &path).await.unwrap(), copy);
        // A copy that an older version left half done takes nobody in.
        volume.remove(&copy).await.unwrap();
        volume.create_new(&copy).await.unwrap();
        assert_eq!(copied(&volume, 4, &path).await.unwrap(), copy);
        assert_eq!(kept(&volume).await, whole);
    }

    #[tokio::test]
    async fn too_many_copies_are_no_full_disk() {
        let memory = MemoryVolume::new();
        let volume: Arc<dyn Volume> = Arc::new(memory.clone());
        let path = |n: usize| VolumePath::root().join(&format!("f{n}"));
        for n in 0..KEPT_MAX {
            copied(&volume, 1, &path(n)).await.unwrap();
        }
        let refused = copied(&volume, 1, &path(KEPT_MAX)).await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "__cluster/quarantine holds 1000 copies, and no more are kept: remove those of no use"
        );
        // What has its copy needs no other.
        copied(&volume, 1, &path(0)).await.unwrap();
    }

    #[test]
    fn reports_are_bounded_and_told_once() {
        let log = DamageLog::default();
        let damage = |n: usize, why: &str| Damage {
            path: format!("p{n}"),
            why: why.into(),
            copy: None,
            found_ms: 0,
        };
        for n in 0..KEPT_MAX + 5 {
            log.report(damage(n, "x"));
        }
        assert_eq!(log.len(), KEPT_MAX);
        log.report(damage(1, "y"));
        assert_eq!(log.len(), KEPT_MAX);
        assert!(log.list().iter().any(|d| d.why == "y"));
    }
}
