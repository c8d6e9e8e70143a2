//! Drops what may panic when it is dropped, as a sled database does whose files can't be written.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static DROPPING: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread is caught and told by whoever catches it: it is no defect of ours
/// to be reported.
pub fn panics_are_told() -> bool {
    DROPPING.get()
}

/// Drops a value; whether that went without a panic.
#[cfg_attr(
    not(feature = "sled"),
    allow(dead_code, reason = "nothing else is dropped so")
)]
pub(crate) fn dropped<T>(value: T) -> bool {
    let before = DROPPING.replace(true);
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(value))).is_ok();
    DROPPING.set(before);
    dropped
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    struct Breaks(Arc<AtomicBool>);

    impl Drop for Breaks {
        fn drop(&mut self) {
            self.0.store(panics_are_told(), Ordering::Relaxed);
            panic!("as a database whose disk is gone");
        }
    }

    #[test]
    fn a_panic_while_dropping_is_caught_and_known_to_be() {
        let told = Arc::new(AtomicBool::new(false));
        assert!(!dropped(Breaks(Arc::clone(&told))));
        assert!(told.load(Ordering::Relaxed) && !panics_are_told());
        assert!(dropped(5) && !panics_are_told());
    }
}
