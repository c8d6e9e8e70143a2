//! What a mount of a network file system remembers too long: listings, and names that were not
//! there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::runtime::Clock;
use crate::volume::{DirEntry, VolumePath};

/// How many listings and how many missing names a mount remembers.
const REMEMBERED_MAX: usize = 1024;

/// A mount's memory.
#[derive(Debug)]
pub(super) struct StaleView {
    clock: Arc<dyn Clock>,
    age_max: Duration,
    rng: fastrand::Rng,
    listings: BTreeMap<VolumePath, (Duration, Vec<DirEntry>)>,
    missing: BTreeMap<VolumePath, Duration>,
}

impl StaleView {
    pub(super) fn new(clock: Arc<dyn Clock>, age_max: Duration, seed: u64) -> Self {
        Self {
            clock,
            age_max,
            rng: fastrand::Rng::with_seed(seed),
            listings: BTreeMap::new(),
            missing: BTreeMap::new(),
        }
    }

    /// Until when something that is seen now is believed.
    fn until(&mut self) -> Duration {
        let age_max = u64::try_from(self.age_max.as_millis()).unwrap_or(u64::MAX);
        self.clock.monotonic() + Duration::from_millis(self.rng.u64(0..=age_max))
    }

    /// Whether `path` is still believed missing.
    pub(super) fn is_missing(&self, path: &VolumePath) -> bool {
        let until = self.missing.get(path);
        until.is_some_and(|until| self.clock.monotonic() < *until)
    }

    /// A look-up of `path` failed.
    pub(super) fn missed(&mut self, path: &VolumePath) {
        if self.missing.len() >= REMEMBERED_MAX {
            self.missing.clear();
        }
        let until = self.until();
        self.missing.insert(path.clone(), until);
    }

    /// The names of `dir` that are still believed.
    pub(super) fn listing(&self, dir: &VolumePath) -> Option<Vec<DirEntry>> {
        let (until, names) = self.listings.get(dir)?;
        (self.clock.monotonic() < *until).then(|| names.clone())
    }

    /// `dir` was listed.
    pub(super) fn listed(&mut self, dir: &VolumePath, names: &[DirEntry]) {
        if self.listings.len() >= REMEMBERED_MAX {
            self.listings.clear();
        }
        let until = self.until();
        self.listings.insert(dir.clone(), (until, names.to_vec()));
    }

    /// This mount itself changed a name: it looks at that directory anew.
    pub(super) fn changed(&mut self, path: &VolumePath) {
        let dir = path.parent();
        self.listings.remove(&dir);
        self.missing.retain(|missing, _| missing.parent() != dir);
    }
}
