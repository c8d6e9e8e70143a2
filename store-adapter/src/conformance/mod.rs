//! The suite that every store passes: public async functions over a [`Harness`], one per point of
//! the `LogStore` contract. [`store_conformance!`](crate::store_conformance) makes tests of them.
//!
//! A store that cannot do something (outlive a kill, a power cut) says so in its harness, and the
//! points that need it return at once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    reason = "a suite that fails by panicking, and runs on tokio"
)]

pub mod append;
pub mod crash;
pub mod fencing;
mod fixture;
pub mod gate;
pub mod reading;
pub mod space;

use std::fmt::Debug;
use std::sync::Arc;

pub use fixture::{World, batch, batch_of};

use crate::runtime::Env;
use crate::store::LogStore;

/// A store under test, with the storage below it.
pub trait Harness: Send + Sync + Debug {
    /// The environment that the stores run in.
    fn env(&self) -> Env;

    /// A further broker's handle on the same storage, with no shard open.
    fn broker(&self) -> Arc<dyn LogStore>;

    /// Ends a broker as kill -9 does: nothing of it happens any more, the page cache survives.
    /// `false` when that can't be done.
    fn kill(&self, store: &Arc<dyn LogStore>) -> bool;

    /// Cuts the power of all brokers; what was not synced may be lost. `false` when that can't be
    /// done.
    fn power_cut(&self, seed: u64) -> bool;

    /// fdatasyncs of journal files so far; `None` for a store without.
    fn syncs(&self) -> Option<u64>;
}

/// Makes a module `$name` with one test per point of the suite; `$harness` is an expression that
/// gives a fresh harness.
#[macro_export]
macro_rules! store_conformance {
    ($name:ident, $harness:expr) => {
        mod $name {
            use super::*;
            $crate::store_conformance!(@tests $harness;
                append: [
                    sizes, wrong_end_changes_nothing, racing_handles, groups_are_atomic,
                    pipelined_order, failure_fails_what_is_behind, dropped_commit_commits,
                    group_commit,
                ];
                reading: [
                    floor, small_limit_returns_one_batch, limit_within, upto_hides, times,
                    append_time,
                    readers_see_committed_prefixes, watch_loses_no_wakeup,
                ];
                fencing: [
                    zombie_is_fenced, epochs_only_grow, other_owner_fences,
                    lower_owner_is_refused, names_of_errors,
                ];
                space: [
                    trim, delete_and_create_again, shards_are_apart, space_is_given_back,
                    pieces_and_sizes,
                ];
                crash: [
                    reopen_after_close, acked_survives_kill, acked_survives_power_cut,
                    kill_restart_work_power_cut, trim_survives_kill,
                ];
            );
        }
    };
    (@tests $harness:expr; $($module:ident: [$($test:ident),* $(,)?];)*) => {
        $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let harness = $harness;
                $crate::conformance::$module::$test(&harness).await;
            }
        )*)*
    };
}
