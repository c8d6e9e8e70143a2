//! Bounds the log lines about connections that are closed for what they sent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Lines of one window.
const LINES: u64 = 20;
const WINDOW: Duration = Duration::from_secs(10);

/// How many lines were written lately. All connections share it.
#[derive(Debug, Default)]
pub struct LogLimit {
    /// The window that is counted, from the origin of the monotonic clock.
    window: AtomicU64,
    lines: AtomicU64,
}

impl LogLimit {
    /// Whether one more line may be written at `now`; the last one says that more are left out.
    pub fn allows(&self, now: Duration) -> bool {
        let window = now.as_secs() / WINDOW.as_secs();
        if self.window.swap(window, Ordering::Relaxed) != window {
            self.lines.store(0, Ordering::Relaxed);
        }
        let lines = self.lines.fetch_add(1, Ordering::Relaxed);
        if lines == LINES {
            let metric = "fencepost_connections_aborted_total";
            tracing::info!("many connections are closed for what they sent; {metric} counts them");
        }
        lines < LINES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_lines_in_ten_seconds() {
        let limit = LogLimit::default();
        for second in [0, 9, 10, 30] {
            let now = Duration::from_secs(second);
            let allowed = (0..50).filter(|_| limit.allows(now)).count();
            assert_eq!(allowed, if second == 9 { 0 } else { 20 }, "{second}");
        }
    }
}
