//! What the sweeper knows of a connection, and when it ends one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::admitted::Admitted;
use crate::frame::Pace;
use crate::request_budget::{PARTS, Parts};

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
    /// Bytes of requests that stay counted until those are written, by the part of the budget
    /// that they hold something of.
    holds: [AtomicUsize; PARTS],
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
    pub requests: Parts,
}

/// Bytes of requests, by the part of the budget that they hold something of.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Holds([usize; PARTS]);

impl Holds {
    /// A request of `bytes` with this.
    pub(super) fn new(bytes: usize, admitted: &Admitted) -> Self {
        let each = admitted.parts().each();
        Self(each.map(|holds| if holds { bytes } else { 0 }))
    }

    pub(super) fn add(&mut self, other: Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }
}

impl Activity {
    /// A connection that begins at `now`; `kill` ends it.
    pub fn new(now: Duration, kill: CancellationToken) -> Self {
        Self {
            last_ms: AtomicU64::new(ms(now)),
            blocked_since_ms: AtomicU64::new(0),
            slow_since_ms: AtomicU64::new(0),
            owed: AtomicUsize::new(0),
            holds: <[AtomicUsize; PARTS]>::default(),
            pace: Arc::default(),
            read_ended: AtomicBool::new(false),
            kill,
        }
    }

    /// Cancelled when the connection is over.
    pub fn ending(&self) -> CancellationToken {
        self.kill.clone()
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
        let held = contended.requests.each().into_iter().zip(&self.holds);
        let mut held = held.filter(|(wanted, _)| *wanted);
        let holds = held.any(|(_, bytes)| bytes.load(Ordering::Relaxed) >= HOLDS_MIN);
        let wanted = contended.answers || holds;
        let slow = wanted && self.slow_since_ms.load(Ordering::Relaxed) != 0;
        let waits = self.owed.load(Ordering::Relaxed) > 0;
        let waits = waits && !self.read_ended.load(Ordering::Relaxed);
        let idles = since(&self.last_ms).min(ms(now).saturating_sub(self.pace.came_ms()));
        let eviction = if blocked && since(&self.blocked_since_ms) >= ms(stuck) {
            Eviction::Stuck
        } else if slow && since(&self.slow_since_ms) >= ms(PROGRESS_TIME) {
            Eviction::Hoarding
        } else if self.pace.is_slow(now, contended.requests) {
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

    /// Requests hold this much more.
    pub(super) fn hold(&self, more: Holds) {
        for (sum, bytes) in self.holds.iter().zip(more.0) {
            sum.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// They hold this much less.
    pub(super) fn release(&self, less: Holds) {
        for (sum, bytes) in self.holds.iter().zip(less.0) {
            sum.fetch_sub(bytes, Ordering::Relaxed);
        }
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

    #[test]
    fn who_hoards_makes_way_for_those_who_want_what_it_holds() {
        const IDLE: Duration = Duration::from_mins(10);
        let at = Duration::from_secs;
        let [large, huge] = [0b010, 0b100].map(Parts::from_bits);
        let activity = Activity::new(at(100), CancellationToken::new());
        let of_large = Holds([0, HOLDS_MIN, 0]);
        activity.hold(of_large);
        activity.slow(Some(at(100)));
        let evicted = |requests| {
            let answers = false;
            activity.sweep(at(105), IDLE, IDLE, Contended { answers, requests })
        };
        assert_eq!(evicted(huge), None);
        activity.release(of_large);
        assert_eq!(evicted(large), None);
        activity.hold(of_large);
        assert_eq!(evicted(large | huge), Some(Eviction::Hoarding));
    }
}
