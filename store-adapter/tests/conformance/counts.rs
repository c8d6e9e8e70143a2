//! How often the suite cut, killed and damaged something.

use std::sync::atomic::{AtomicU64, Ordering};

/// One number that is printed at the end.
pub(crate) struct Count(AtomicU64);

impl Count {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Power cuts of a volume in memory.
pub(crate) static CUTS: Count = Count::new();
/// Brokers that were stopped in the middle without their process.
pub(crate) static STOPS: Count = Count::new();
/// Processes that were killed.
pub(crate) static KILLS: Count = Count::new();
/// Bits that were flipped, and files that were cut, one at a time.
pub(crate) static FLIPS: Count = Count::new();
/// Steps of a volume that failed, one at a time.
pub(crate) static FAULTS: Count = Count::new();
