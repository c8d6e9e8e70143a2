//! Power cuts on ext4: nothing that was acknowledged or shown is lost, whenever they come, also
//! after a kill and a restart.
//!
//! `POWER_CUTS` says how many for each layout (default 100) and `POWER_CUTS_SEED` with which seed;
//! `POWER_CUTS=skip` leaves them out on a machine where nothing may be mounted, which fails
//! otherwise.

#![allow(missing_docs, reason = "a test")]

use tests::cuts::{Plan, disk, run};
use tests::tell;

/// Disks that are worked on at once: each waits for most of its time.
const LANES: u32 = 3;

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(value) => value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is {value:?}: a number")),
        Err(_) => default,
    }
}

/// Whether this machine is without the right to mount, and that is known.
fn left_out() -> bool {
    let left_out = !disk::may_mount().unwrap();
    if left_out {
        tell("power cuts left out: POWER_CUTS=skip");
    }
    left_out
}

fn cut(store: &str) {
    if left_out() {
        return;
    }
    let seed = number("POWER_CUTS_SEED", 1);
    let plan = Plan {
        store: store.to_owned(),
        settings: Vec::new(),
        seed,
        cuts: u32::try_from(number("POWER_CUTS", 100)).unwrap(),
    };
    let seeded = format!("{store} POWER_CUTS={} POWER_CUTS_SEED={seed}", plan.cuts);
    tell(&seeded);
    let done = run(&plan, LANES).unwrap_or_else(|error| panic!("{store}: {error:?}"));
    tell(&format!("{store} {done:?}"));
    assert_eq!(done.cuts, plan.cuts);
    assert!(done.promises > u64::from(plan.cuts), "{done:?}");
    assert!(done.compacted > 0 || plan.cuts < 20, "{done:?}");
}

#[test]
fn the_journal_keeps_what_was_promised() {
    cut("sled:");
}

#[test]
fn layout_kv_keeps_what_was_promised() {
    cut("sled:?layout=kv");
}

/// The same cuts find it out when what is acknowledged is not synced.
#[test]
fn what_is_not_synced_is_missed() {
    if left_out() {
        return;
    }
    let plan = Plan {
        store: "sled:".to_owned(),
        settings: vec!["flush.policy=os".to_owned()],
        seed: 1,
        cuts: 20,
    };
    let missed = run(&plan, 1).expect_err("nothing was lost").to_string();
    println!("{}", missed.lines().next().unwrap_or_default());
    assert!(missed.starts_with("seed 1, "), "{missed}");
}
