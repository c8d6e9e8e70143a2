//! Real time, for the parts of the kit that measure it or watch other processes. Suites don't
//! assert on what it says.

use std::time::{Duration, Instant};

/// Now, by the monotonic clock.
#[allow(clippy::disallowed_methods, reason = "the kit measures real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// Calls `ready` every `pace` until it is true; false when it is not within `patience`. For what
/// announces itself by no event: another process's port or its exit.
#[allow(
    clippy::disallowed_methods,
    reason = "nothing can be awaited in another process"
)]
pub fn poll_until(patience: Duration, pace: Duration, mut ready: impl FnMut() -> bool) -> bool {
    let end = now() + patience;
    while !ready() {
        if now() >= end {
            return false;
        }
        std::thread::sleep(pace);
    }
    true
}

/// Waits out a part of a seeded schedule, or the gap between two looks at another process.
#[allow(
    clippy::disallowed_methods,
    reason = "the schedule is the test's input; nothing can be awaited in another process"
)]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
