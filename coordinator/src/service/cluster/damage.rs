//! Files that can't be what was written: copied aside, reported, never overwritten by a guess.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
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

/// Copies damaged bytes into quarantine. Equal bytes of one path have one copy.
pub(super) async fn quarantine(
    volume: &Arc<dyn Volume>,
    path: &VolumePath,
    bytes: Bytes,
) -> Result<VolumePath, VolumeError> {
    let dir = layout::quarantine_dir();
    volume.create_dir_all(&dir).await?;
    let copy = dir.join(&layout::quarantine_name(path, fnv1a64(&bytes)));
    if volume.list(&dir).await?.len() >= KEPT_MAX {
        let path = copy.to_string();
        return Err(VolumeError::NoSpace { path });
    }
    match volume.create_new(&copy).await {
        Ok(file) => {
            file.write_at(0, &[bytes]).await?;
            file.sync_data().await?;
            volume.sync_dir(&dir).await?;
        }
        Err(VolumeError::AlreadyExists { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(copy)
}

/// FNV-1a, 64 bits: tells contents apart in file names; nothing depends on its strength.
fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv_has_its_published_values() {
        assert_eq!(fnv1a64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a64(b"a"), 0xaf63_dc4c_8601_ec8c);
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
