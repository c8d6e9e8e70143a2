//! Deadlines of suites that watch real processes.

use std::time::{Duration, Instant};

use crate::wallclock::now;
pub use crate::wallclock::pause;

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
            started: now(),
            limit,
        }
    }

    /// Time since the deadline was set.
    pub fn elapsed(&self) -> Duration {
        now() - self.started
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
