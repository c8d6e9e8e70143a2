use super::*;
use crate::partition::testing::Numbers;

/// Ten offsets each, of so many bytes and of that time.
fn pieces(bytes_and_times: &[(u64, i64)]) -> Vec<Piece> {
    let numbered = (0..).zip(bytes_and_times);
    numbered
        .map(|(n, (bytes, max_timestamp))| Piece {
            base: n * 10,
            last: n * 10 + 9,
            bytes: *bytes,
            max_timestamp: *max_timestamp,
        })
        .collect()
}

/// Four pieces of 100 bytes, the last one in the file that is being written; all may go.
const LOOK: Look = Look {
    clean_upto: 0,
    settled: 30,
    upto: 40,
    now_ms: 1_000,
    may_seal: true,
    segment_bytes: 1_000_000,
    segment_ms: 1_000_000,
};
const FOUR: [(u64, i64); 4] = [(100, 0), (100, 100), (100, 200), (100, 300)];

fn planned(rules: CompactionRules, look: Look) -> Option<(i64, bool)> {
    planned_beside(rules, look, 0)
}

fn planned_beside(rules: CompactionRules, look: Look, clean_bytes: u64) -> Option<(i64, bool)> {
    let mut planner = Planner::new(rules, look);
    for piece in pieces(&FOUR) {
        planner.push(&piece);
    }
    let plan = planner.finish(clean_bytes);
    assert!(plan.is_none() || !planner.is_idle());
    plan.map(|plan| (plan.upto, plan.seal))
}

#[test]
fn the_part_that_is_new_decides() {
    let rules = CompactionRules::default();
    assert_eq!(planned(rules, LOOK), Some((40, false)));
    for (clean_bytes, expected) in [(299, Some((40, false))), (300, None), (10_000, None)] {
        let found = planned_beside(rules, LOOK, clean_bytes);
        assert_eq!(found, expected, "{clean_bytes}");
    }
    let eager = CompactionRules {
        min_dirty_ratio: 0,
        ..rules
    };
    let beside_much = planned_beside(eager, LOOK, 1 << 40);
    assert_eq!(beside_much, Some((40, false)));
    let never = CompactionRules {
        min_dirty_ratio: WHOLE,
        ..rules
    };
    assert_eq!(planned(never, LOOK), None);
    // What is clean already, and what only the open file has, is not new.
    assert_eq!(
        planned(
            eager,
            Look {
                clean_upto: 30,
                ..LOOK
            }
        ),
        None
    );
    assert_eq!(planned(eager, Look { settled: 0, ..LOOK }), None);
}

#[test]
fn nothing_behind_the_bound_is_planned() {
    let eager = CompactionRules {
        min_dirty_ratio: 0,
        ..CompactionRules::default()
    };
    for (upto, expected) in [(40, Some((40, false))), (25, Some((25, false))), (0, None)] {
        assert_eq!(planned(eager, Look { upto, ..LOOK }), expected, "{upto}");
    }
}

#[test]
fn nothing_is_looked_for_behind_what_is_too_young() {
    let rules = CompactionRules {
        min_lag_ms: 1_001,
        ..CompactionRules::default()
    };
    let mut planner = Planner::new(rules, LOOK);
    assert!(!planner.is_idle());
    planner.push(&pieces(&FOUR)[0]);
    assert!(planner.is_idle());
}

#[test]
fn young_records_are_left_alone() {
    for (min_lag_ms, expected) in [
        (700, Some((40, false))),
        (701, Some((30, false))),
        (801, Some((20, false))),
        (1001, None),
    ] {
        let rules = CompactionRules {
            min_lag_ms,
            min_dirty_ratio: 0,
            ..CompactionRules::default()
        };
        assert_eq!(planned(rules, LOOK), expected, "{min_lag_ms}");
    }
}

#[test]
fn old_records_do_not_wait() {
    let planned = |rules, look| planned_beside(rules, look, 1 << 40);
    for (max_lag_ms, expected) in [(999, Some((40, true))), (1_000, None)] {
        let rules = CompactionRules {
            max_lag_ms,
            ..CompactionRules::default()
        };
        assert_eq!(planned(rules, LOOK), expected, "{max_lag_ms}");
        // Without closing the open file there is something to be done too.
        let open = Look {
            may_seal: false,
            ..LOOK
        };
        assert_eq!(
            planned(rules, open),
            expected.map(|(upto, _)| (upto, false))
        );
        // But not if all of it is there.
        let open = Look { settled: 0, ..open };
        assert_eq!(planned(rules, open), None);
    }
}

#[test]
fn a_segment_that_would_be_closed_closes_the_file() {
    let rules = CompactionRules::default();
    for (segment_bytes, segment_ms, seal) in [
        (99, 1_000, true),
        (100, 1_000, false),
        (100, 699, true),
        (100, 700, false),
    ] {
        let look = Look {
            segment_bytes,
            segment_ms,
            ..LOOK
        };
        let what = format!("{segment_bytes} {segment_ms}");
        assert_eq!(planned(rules, look), Some((40, seal)), "{what}");
    }
}

#[test]
fn parts_of_many_pieces_never_hide_that_it_is_time() {
    let (mut due, mut waits, mut told) = (0, 0, 0);
    for case in 0..20_000 {
        let mut numbers = Numbers(case);
        let count = numbers.below(7) + 1;
        let log: Vec<(u64, i64)> = (0..count)
            .map(|_| (numbers.below(99).unsigned_abs() + 1, numbers.below(1_000)))
            .collect();
        let log = pieces(&log);
        let settled = numbers.below(count + 1);
        let clean = numbers.below(settled + 1);
        let or_never = |number: i64, never: i64| if number % 2 == 0 { number } else { never };
        let look = Look {
            clean_upto: clean * 10,
            settled: settled * 10,
            upto: numbers.below(count * 10 + 1),
            now_ms: 1_000 + numbers.below(1_000),
            may_seal: numbers.below(2) == 0,
            segment_bytes: numbers.below(300) + 1,
            segment_ms: numbers.below(2_000) + 1,
        };
        let rules = CompactionRules {
            min_dirty_ratio: u32::try_from(numbers.below(WHOLE.into())).unwrap(),
            min_lag_ms: or_never(numbers.below(1_000), 0),
            max_lag_ms: or_never(numbers.below(2_000), i64::MAX),
            ..CompactionRules::default()
        };
        let settled = usize::try_from(settled).unwrap();
        let clean = usize::try_from(clean).unwrap();
        let mut planner = Planner::new(rules, look);
        for piece in &log[clean..] {
            planner.push(piece);
        }
        let bytes = |pieces: &[Piece]| pieces.iter().map(|piece| piece.bytes).sum::<u64>();
        let is_due = planner.finish(bytes(&log[..clean])).is_some();
        // Closed files hold several pieces each; in the one that is being written, each is known.
        let mut parts: Vec<Piece> = Vec::new();
        for (at, piece) in log.iter().enumerate() {
            match parts.last_mut() {
                Some(last) if at < settled && numbers.below(2) == 0 => {
                    last.last = piece.last;
                    last.bytes += piece.bytes;
                    last.max_timestamp = last.max_timestamp.max(piece.max_timestamp);
                }
                _ => parts.push(*piece),
            }
        }
        let mut planner = Planner::new(rules, look);
        if let Some(first) = log.get(clean) {
            planner.begins(first.max_timestamp);
        }
        for part in &parts {
            planner.push_part(part);
        }
        let clean = parts.iter().filter(|part| part.last < look.clean_upto);
        let may_be = planner.finish(clean.map(|part| part.bytes).sum()).is_some();
        assert!(may_be || !is_due, "case {case}");
        due += u32::from(is_due);
        waits += u32::from(!is_due);
        told += u32::from(!may_be);
    }
    assert!(
        due > 2_000 && told > waits / 2,
        "{due} due, {told} of {waits}"
    );
}
