//! Real time, for the parts of the kit that measure it. Suites don't assert on what it says.

use std::time::Instant;

/// Now, by the monotonic clock.
#[allow(
    clippy::disallowed_methods,
    reason = "the load generator measures real time"
)]
pub fn now() -> Instant {
    Instant::now()
}
