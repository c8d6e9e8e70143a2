//! The suite that every store passes: public async functions over a [`Harness`], one per point of
//! the `LogStore` contract. [`points`] is the list of them.
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
pub mod gaps;
pub mod gate;
pub mod reading;
pub mod space;

use std::fmt::{self, Debug};
use std::future::Future;
use std::pin::Pin;
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

    /// Commits that were made durable so far, by syncs of the store's files or what stands for
    /// them; `None` for a store without.
    fn syncs(&self) -> Option<u64>;
}

/// Whether the points run at the sizes of the list: `FENCEPOST_CONFORMANCE=full`.
pub fn full() -> bool {
    std::env::var("FENCEPOST_CONFORMANCE").is_ok_and(|size| size == "full")
}

/// The size of the list, or a smaller one.
pub fn full_or<T>(size: T, small: T) -> T {
    if full() { size } else { small }
}

/// One point of the list, or a part of one.
#[derive(Clone, Copy)]
pub struct Point {
    /// Its number in the list of `docs/store-conformance.md`; 0 for what the list does not name.
    pub number: u8,
    /// The function.
    pub name: &'static str,
    /// Runs it over a fresh harness; panics where the store fails.
    pub run: Run,
}

/// How a point is run: a future on the runtime that polls it.
pub type Run = for<'a> fn(&'a dyn Harness) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

impl Debug for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02} {}", self.number, self.name)
    }
}

/// The suite. Every function is a point of its own; the numbers are those of the list.
pub fn points() -> Vec<Point> {
    macro_rules! points {
        ($($number:literal $module:ident::$name:ident,)*) => {
            vec![$(Point {
                number: $number,
                name: stringify!($name),
                run: |harness| Box::pin($module::$name(harness)),
            }),*]
        };
    }
    points![
        1 append::sizes,
        2 reading::floor,
        2 reading::upto_hides,
        2 gaps::gaps,
        3 reading::small_limit_returns_one_batch,
        3 reading::limit_within,
        4 append::wrong_end_changes_nothing,
        5 append::racing_handles,
        6 fencing::zombie_is_fenced,
        6 fencing::other_owner_fences,
        7 fencing::epochs_only_grow,
        7 fencing::lower_owner_is_refused,
        8 append::groups_are_atomic,
        9 append::pipelined_order,
        9 append::failure_fails_what_is_behind,
        10 append::dropped_commit_commits,
        11 append::group_commit,
        12 crash::acked_survives_kill,
        12 crash::reopen_after_close,
        13 crash::acked_survives_power_cut,
        18 space::trim,
        18 crash::trim_survives_kill,
        19 space::space_is_given_back,
        21 space::delete_and_create_again,
        22 reading::readers_see_committed_prefixes,
        23 reading::watch_loses_no_wakeup,
        24 reading::times,
        32 crash::kill_restart_work_power_cut,
        0 reading::append_time,
        0 fencing::names_of_errors,
        0 space::shards_are_apart,
        0 space::pieces_and_sizes,
    ]
}
