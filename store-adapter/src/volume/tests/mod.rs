//! One set of expectations for both volumes, and the primitive under crashes and interleavings.

mod conformance;
mod overlay;
mod owned;
mod owned_crash;
mod owned_harm;
mod owned_model;
mod owned_removal;
mod owned_removal_model;
mod owned_syncs;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{MemoryVolume, Overlay, PosixVolume, Volume, VolumePath};
use crate::runtime::Random;

/// Counts, so that tickets have names that are known and never repeat.
#[derive(Debug, Default)]
pub(super) struct Counter(pub(super) AtomicU64);

impl Random for Counter {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

pub(super) fn counter(from: u64) -> Arc<dyn Random> {
    Arc::new(Counter(AtomicU64::new(from)))
}

pub(super) fn path(text: &str) -> VolumePath {
    text.split('/')
        .fold(VolumePath::root(), |path, name| path.join(name))
}

/// Runs `test` on an empty volume of each kind.
fn on_each_volume(test: impl AsyncFn(Arc<dyn Volume>)) {
    super::block_on(test(Arc::new(MemoryVolume::new())));
    let dir = tempfile::tempdir().unwrap();
    let posix = PosixVolume::open(dir.path().join("made/by/open")).unwrap();
    super::block_on(test(Arc::new(posix)));
    super::block_on(test(Arc::new(Overlay::new(Arc::new(MemoryVolume::new())))));
}
