//! Snapshots at a stop, in a time that is bounded: who stops a broker kills it when it takes long.

use std::cmp::Reverse;
use std::time::Duration;

/// How long snapshots are begun at a stop. Those that are not written are not missed: the next
/// start reads what they would have had.
const BEGUN_FOR: Duration = Duration::from_secs(5);

/// Writes what changed, that of the most bytes first; how many are left because time is up.
pub(super) async fn most_first<T>(
    mut changed: Vec<(u64, T)>,
    write: impl AsyncFn(T),
    now: impl Fn() -> Duration,
) -> usize {
    changed.sort_unstable_by_key(|(bytes, _)| Reverse(*bytes));
    let ends = now().saturating_add(BEGUN_FOR);
    let mut left = changed.len();
    for (_, one) in changed {
        if now() >= ends {
            break;
        }
        write(one).await;
        left -= 1;
    }
    left
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// What is written of these, and how many are left, where a write takes so long.
    async fn written(changed: &[(u64, &'static str)], takes_ms: u64) -> (Vec<&'static str>, usize) {
        let (now, done) = (Cell::new(Duration::ZERO), RefCell::new(Vec::new()));
        let write = async |name| {
            now.set(now.get() + Duration::from_millis(takes_ms));
            done.borrow_mut().push(name);
        };
        let left = most_first(changed.to_vec(), write, || now.get()).await;
        (done.into_inner(), left)
    }

    #[tokio::test]
    async fn the_most_is_written_first_until_time_is_up() {
        let changed = [(1, "little"), (30, "most"), (20, "more"), (2, "some")];
        let all = vec!["most", "more", "some", "little"];
        assert_eq!(written(&changed, 1249).await, (all, 0));
        assert_eq!(written(&changed, 2500).await, (vec!["most", "more"], 2));
        assert_eq!(written(&changed, 60_000).await, (vec!["most"], 3));
        assert_eq!(written(&[], 1).await, (vec![], 0));
    }
}
