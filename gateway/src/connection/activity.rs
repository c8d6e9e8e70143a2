//! What the sweeper knows of a connection, and when it ends one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::frame::Pace;

/// Bytes by which answers must go on in [`PROGRESS_TIME`] while others wait for room.
pub(super) const PROGRESS: usize = 64 * 1024;
const PROGRESS_TIME: Duration = Duration::from_secs(5);
/// Bytes of requests whose answers are not taken, from which on others that wait go first.
const HOLDS_MIN: usize = 64 * 1024;

/// What the sweeper sees of a connection.
#[derive(Debug)]
pub struct Activity {
    /// Last frame, or bytes of an answer that the peer took, in milliseconds of the monotonic
    /// clock.
    last_ms: AtomicU64,
    /// Since when a write makes no progress; 0 if none is under way.
    blocked_since_ms: AtomicU64,
    /// When the answers under way went on by [`PROGRESS`] bytes last; 0 if none are.
    slow_since_ms: AtomicU64,
    /// Answers that are owed.
    pub(super) owed: AtomicUsize,
    /// Bytes of requests that stay counted until those are written.
    pub(super) holds: AtomicUsize,
    /// The frame under way.
    pub(super) pace: Arc<Pace>,
    /// No request will come any more.
    pub(super) read_ended: AtomicBool,
    /// Ends the connection at once.
    pub(super) kill: CancellationToken,
}

/// Why the sweeper ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// Nothing happened for too long.
    Idle,
    /// The peer does not take its answers.
    Stuck,
    /// The peer takes its answers too slowly while others wait for the room that they hold.
    Hoarding,
    /// A request comes too slowly while others wait for the room that it holds.
    Dribbling,
}

/// What somebody waits for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Contended {
    /// Room for answers.
    pub answers: bool,
    /// Room for requests.
    pub requests: bool,
}

impl Activity {
    /// A connection that begins at `now`; `kill` ends it.
    pub fn new(now: Duration, kill: CancellationToken) -> Self {
        Self {
            last_ms: AtomicU64::new(ms(now)),
            blocked_since_ms: AtomicU64::new(0),
            slow_since_ms: AtomicU64::new(0),
            owed: AtomicUsize::new(0),
            holds: AtomicUsize::new(0),
            pace: Arc::default(),
            read_ended: AtomicBool::new(false),
            kill,
        }
    }

    /// Ends the connection if it is idle or stuck. One that is owed an answer is not idle, unless
    /// its client has closed. `contended`: who holds room and does not go on makes way.
    pub fn sweep(
        &self,
        now: Duration,
        idle: Duration,
        stuck: Duration,
        contended: Contended,
    ) -> Option<Eviction> {
        let since = |at: &AtomicU64| ms(now).saturating_sub(at.load(Ordering::Relaxed));
        let blocked = self.blocked_since_ms.load(Ordering::Relaxed) != 0;
        let holds = self.holds.load(Ordering::Relaxed) >= HOLDS_MIN;
        let wanted = contended.answers || contended.requests && holds;
        let slow = wanted && self.slow_since_ms.load(Ordering::Relaxed) != 0;
        let waits = self.owed.load(Ordering::Relaxed) > 0;
        let waits = waits && !self.read_ended.load(Ordering::Relaxed);
        let idles = since(&self.last_ms).min(ms(now).saturating_sub(self.pace.came_ms()));
        let eviction = if blocked && since(&self.blocked_since_ms) >= ms(stuck) {
            Eviction::Stuck
        } else if slow && since(&self.slow_since_ms) >= ms(PROGRESS_TIME) {
            Eviction::Hoarding
        } else if contended.requests && self.pace.is_slow(now) {
            Eviction::Dribbling
        } else if !waits && idles >= ms(idle) {
            Eviction::Idle
        } else {
            return None;
        };
        self.kill.cancel();
        Some(eviction)
    }

    pub(super) fn touch(&self, now: Duration) {
        self.last_ms.store(ms(now), Ordering::Relaxed);
    }

    pub(super) fn slow(&self, since: Option<Duration>) {
        let since = since.map_or(0, |at| ms(at).max(1));
        self.slow_since_ms.store(since, Ordering::Relaxed);
    }

    pub(super) fn blocked(&self, since: Option<Duration>) {
        let since = since.map_or(0, |at| ms(at).max(1));
        self.blocked_since_ms.store(since, Ordering::Relaxed);
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_idle_when_neither_side_moves() {
        const IDLE: Duration = Duration::from_mins(10);
        let at = Duration::from_secs;
        let activity = Activity::new(at(100), CancellationToken::new());
        let evicted = |now| activity.sweep(at(now), IDLE, IDLE, Contended::default());
        assert_eq!(evicted(699), None);
        // A part of a frame.
        activity.pace.came(at(650));
        assert_eq!(evicted(1249), None);
        activity.touch(at(1200));
        assert_eq!(evicted(1799), None);
        assert_eq!(evicted(1800), Some(Eviction::Idle));
    }
}
