//! What lasts is said when it begins, and then once a minute, however often it is met.

use std::time::Duration;

const EVERY: Duration = Duration::from_mins(1);

/// When something that lasts was said last.
#[derive(Debug, Clone, Copy, Default)]
pub struct Told(Option<Duration>);

impl Told {
    /// It is met at `now`, of the monotonic clock: whether it is to be said.
    pub fn is_due(&mut self, now: Duration) -> bool {
        let due = self.0.is_none_or(|last| now.saturating_sub(last) >= EVERY);
        if due {
            self.0 = Some(now);
        }
        due
    }

    /// It has ended: whether it was said.
    pub fn end(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_at_once_and_once_a_minute() {
        let mut told = Told::default();
        assert!(!told.end());
        let due: Vec<u64> = (5..=130)
            .filter(|at| told.is_due(Duration::from_secs(*at)))
            .collect();
        assert_eq!(due, [5, 65, 125]);
        assert!(told.end() && !told.end());
        assert!(told.is_due(Duration::from_secs(131)));
    }
}
