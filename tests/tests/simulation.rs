//! The deterministic simulation: many seeds without a violation, the same seed twice with the same
//! events, and every planted fault found.

use tests::sim::scenario;

/// Seeds that run without a fault in CI; faults of transactions and groups are found within them.
const SEEDS: u64 = 300;
/// Seeds that faults of the log, of its owners and of idempotence are found within.
#[cfg(feature = "planted-faults")]
const LOG_SEEDS: u64 = 200;
/// Tests that share them: the test runner gives each a thread.
const PARTS: u64 = 4;

/// The one seed to run, if the environment names one.
fn one_seed() -> Option<Result<u64, std::num::ParseIntError>> {
    let seed = std::env::var("FENCEPOST_SIM_SEED").ok()?;
    Some(seed.parse())
}

fn run_part(part: u64) {
    let mut failed = String::new();
    let seeds: Vec<u64> = match one_seed() {
        Some(Ok(seed)) if seed % PARTS == part => vec![seed],
        Some(Ok(_)) => Vec::new(),
        Some(Err(error)) => {
            failed = format!("FENCEPOST_SIM_SEED: {error}");
            Vec::new()
        }
        None => (0..SEEDS).filter(|seed| seed % PARTS == part).collect(),
    };
    for seed in seeds {
        let report = scenario::run(seed);
        if !report.violations.is_empty() {
            failed.push_str(&report.to_string());
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

#[test]
fn seeds_hold_part_0() {
    run_part(0);
}

#[test]
fn seeds_hold_part_1() {
    run_part(1);
}

#[test]
fn seeds_hold_part_2() {
    run_part(2);
}

#[test]
fn seeds_hold_part_3() {
    run_part(3);
}

#[test]
fn the_same_seed_gives_the_same_events() {
    // Every kind of plan, see `plan.rs`.
    for seed in 0..12 {
        let (one, two) = (scenario::run(seed), scenario::run(seed));
        assert!(
            one.log.len() > 1000,
            "seed {seed}: {} events",
            one.log.len()
        );
        let differs = one.log.iter().zip(&two.log).position(|(a, b)| a != b);
        if let Some(at) = differs {
            panic!("seed {seed}: {:?} and {:?}", one.log[at], two.log[at]);
        }
        assert_eq!(one.log.len(), two.log.len(), "seed {seed}");
    }
}

/// Every planted fault is found by a seed: proof that the checkers can fail, one by one.
#[cfg(feature = "planted-faults")]
mod planted {
    use store_adapter::fault::{Fault, plant};

    use super::{LOG_SEEDS, SEEDS, scenario};

    /// Seeds that must be enough.
    fn within(fault: Fault) -> u64 {
        match fault {
            Fault::WindowBeforeCommit
            | Fault::DuplicateEarly
            | Fault::NoClaimCheck
            | Fault::NoSecondSweep
            | Fault::SnapshotUnchecked
            | Fault::DirectoryNotSynced
            | Fault::TailNotSynced
            | Fault::BlockBeforeDurable => LOG_SEEDS,
            _ => SEEDS,
        }
    }

    /// Plants `fault` on this thread, which is one world at a time, and looks for a seed.
    fn is_found(fault: Fault) {
        assert!(Fault::ALL.contains(&fault));
        plant(Some(fault));
        let seeds = within(fault);
        let found = (0..seeds).find(|seed| !scenario::run(*seed).violations.is_empty());
        plant(None);
        assert!(found.is_some(), "no seed below {seeds} finds {fault:?}");
        let report = scenario::run(found.unwrap_or_default());
        assert!(
            report.violations.is_empty(),
            "{fault:?} is not what {report}"
        );
    }

    #[test]
    fn offset_before_durable() {
        is_found(Fault::OffsetBeforeDurable);
    }

    #[test]
    fn offsets_not_read() {
        is_found(Fault::OffsetsNotRead);
    }

    #[test]
    fn window_before_commit() {
        is_found(Fault::WindowBeforeCommit);
    }

    #[test]
    fn duplicate_early() {
        is_found(Fault::DuplicateEarly);
    }

    #[test]
    fn no_claim_check() {
        is_found(Fault::NoClaimCheck);
    }

    #[test]
    fn no_second_sweep() {
        is_found(Fault::NoSecondSweep);
    }

    #[test]
    fn snapshot_unchecked() {
        is_found(Fault::SnapshotUnchecked);
    }

    #[test]
    fn directory_not_synced() {
        is_found(Fault::DirectoryNotSynced);
    }

    #[test]
    fn tail_not_synced() {
        is_found(Fault::TailNotSynced);
    }

    #[test]
    fn draft_not_synced() {
        is_found(Fault::DraftNotSynced);
    }

    #[test]
    fn joined_not_whole() {
        is_found(Fault::JoinedNotWhole);
    }

    #[test]
    fn block_before_durable() {
        is_found(Fault::BlockBeforeDurable);
    }

    #[test]
    fn window_not_replayed() {
        is_found(Fault::WindowNotReplayed);
    }

    #[test]
    fn rejoin_without_abort() {
        is_found(Fault::RejoinWithoutAbort);
    }

    #[test]
    fn not_verified() {
        is_found(Fault::NotVerified);
    }

    #[test]
    fn prepare_before_durable() {
        is_found(Fault::PrepareBeforeDurable);
    }

    #[test]
    fn marker_repeated() {
        is_found(Fault::MarkerRepeated);
    }

    #[test]
    fn staged_in_memory() {
        is_found(Fault::StagedInMemory);
    }

    #[test]
    fn fence_judges_markers() {
        is_found(Fault::FenceJudgesMarkers);
    }

    #[test]
    fn owed_dropped() {
        is_found(Fault::OwedDropped);
    }

    #[test]
    fn newest_not_kept() {
        is_found(Fault::NewestNotKept);
    }

    #[test]
    fn gate_left_out() {
        is_found(Fault::GateLeftOut);
    }

    #[test]
    fn unread_shown() {
        is_found(Fault::UnreadShown);
    }

    #[test]
    fn owed_not_shown() {
        is_found(Fault::OwedNotShown);
    }

    #[test]
    fn sync_before_durable() {
        is_found(Fault::SyncBeforeDurable);
    }

    #[test]
    fn others_not_asked() {
        is_found(Fault::OthersNotAsked);
    }
}
