//! Real time, for suites that watch real processes.
//!
//! The only place of this kit where the machine's clock is read or a thread waits for it.
#![allow(clippy::disallowed_methods)]

use std::time::{Duration, Instant};

/// How long a watcher leaves between two looks at a process or a socket.
pub const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A point in time after which waiting is an error.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    started: Instant,
    limit: Duration,
}

impl Deadline {
    /// A deadline `limit` from now.
    pub fn after(limit: Duration) -> Self {
        Self {
            started: Instant::now(),
            limit,
        }
    }

    /// Time since the deadline was set.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// An error that says what was awaited, once the time is over.
    pub fn check(&self, awaited: &str) -> anyhow::Result<()> {
        let limit = self.limit;
        anyhow::ensure!(
            self.elapsed() < limit,
            "{awaited} did not happen within {limit:?}"
        );
        Ok(())
    }
}

/// Waits out a part of a seeded schedule, or the gap between two looks.
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Runs `work` on a thread of its own until it returns.
pub fn spawn(work: impl FnOnce() + Send + 'static) {
    std::thread::spawn(work);
}
