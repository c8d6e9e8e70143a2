use std::sync::Arc;

use store_adapter::batch::{Batch, BatchHeader};
use store_adapter::ids::{OwnerEpoch, ProducerEpoch, ProducerId, Sequence};
use store_adapter::memory::MemoryStore;
use store_adapter::store::LogStore;

use super::*;
use crate::admitted::Admitted;
use crate::partition::guard::Opening;
use crate::partition::testing::{LOG, Numbers, SHARD, lead};

fn pieces(sizes_and_times: &[(u64, i64)]) -> Vec<Piece> {
    let numbered = (0..).zip(sizes_and_times);
    numbered
        .map(|(n, (bytes, max_timestamp))| Piece {
            base: n * 10,
            last: n * 10 + 9,
            bytes: *bytes,
            max_timestamp: *max_timestamp,
        })
        .collect()
}

fn held(pieces: &[Piece], now_ms: i64) -> Held {
    Held {
        start: 0,
        upto: pieces.last().map_or(0, |piece| piece.last + 1),
        bytes: pieces.iter().map(|piece| piece.bytes).sum(),
        now_ms,
    }
}

fn judged(rules: RetentionRules, held: Held, pieces: &[Piece]) -> i64 {
    let mut judge = Judge::new(rules, held);
    if pieces.iter().all(|piece| judge.push(piece)) {
        judge.finish()
    } else {
        judge.start()
    }
}

/// The same, as one would write it down: cut all segments, then go through them.
fn naive(rules: RetentionRules, held: Held, pieces: &[Piece]) -> i64 {
    let mut segments: Vec<Vec<Piece>> = Vec::new();
    for piece in pieces {
        let fits = segments.last().is_some_and(|segment| {
            let bytes: u64 = segment.iter().map(|p| p.bytes).sum();
            let reach = piece.max_timestamp - segment[0].max_timestamp;
            bytes + piece.bytes <= u64::try_from(rules.segment_bytes).unwrap()
                && reach <= rules.segment_ms
        });
        match segments.last_mut() {
            Some(segment) if fits => segment.push(*piece),
            _ => segments.push(vec![*piece]),
        }
    }
    let mut start = held.start;
    let mut left = i128::from(held.bytes);
    for segment in segments {
        let end = segment.last().unwrap().last + 1;
        let newest = segment.iter().map(|p| p.max_timestamp).max().unwrap();
        let bytes: u64 = segment.iter().map(|p| p.bytes).sum();
        let old = rules.retention_ms >= 0 && held.now_ms - newest > rules.retention_ms;
        let after = left - i128::from(bytes);
        let over = rules.retention_bytes >= 0 && after >= i128::from(rules.retention_bytes);
        if end > held.upto || !(old || over) {
            break;
        }
        start = end;
        left = after;
    }
    start
}

const FOR_EVER: RetentionRules = RetentionRules {
    retention_ms: -1,
    retention_bytes: -1,
    segment_bytes: 100,
    segment_ms: 1000,
};

#[test]
fn a_segment_goes_when_its_newest_record_is_too_old() {
    let rules = RetentionRules {
        retention_ms: 50,
        ..FOR_EVER
    };
    let log = pieces(&[(60, 10), (40, 30), (60, 20), (60, 90), (60, 5)]);
    // Segments: 0..20 (newest 30), 20..30 (20), 30..40 (90), 40..50 (5).
    for (now, start) in [(60, 0), (80, 0), (81, 30), (140, 30), (141, 50)] {
        assert_eq!(judged(rules, held(&log, now), &log), start, "at {now}");
    }
    assert_eq!(judged(FOR_EVER, held(&log, i64::MAX), &log), 0);
}

#[test]
fn the_oldest_go_while_the_others_are_enough() {
    let log = pieces(&[(100, 0), (100, 0), (100, 0), (50, 0)]);
    for (kept, start) in [(351, 0), (251, 0), (250, 10), (249, 10), (150, 20), (0, 40)] {
        let rules = RetentionRules {
            retention_bytes: kept,
            ..FOR_EVER
        };
        assert_eq!(judged(rules, held(&log, 0), &log), start, "{kept}");
    }
}

#[test]
fn nothing_goes_that_is_not_committed_or_belongs_to_an_open_transaction() {
    let log = pieces(&[(100, 0), (100, 0), (100, 0)]);
    let rules = RetentionRules {
        retention_ms: 0,
        ..FOR_EVER
    };
    for (upto, start) in [(0, 0), (9, 0), (10, 10), (29, 20), (30, 30)] {
        let held = Held {
            upto,
            ..held(&log, 1)
        };
        assert_eq!(judged(rules, held, &log), start, "up to {upto}");
    }
}

#[test]
fn segments_end_with_their_time_too() {
    let rules = RetentionRules {
        retention_ms: 10_000,
        segment_bytes: 1 << 40,
        ..FOR_EVER
    };
    let log = pieces(&[(1, 0), (1, 1000), (1, 1001), (1, 2001), (1, 2002)]);
    assert_eq!(judged(rules, held(&log, 11_001), &log), 20);
    assert_eq!(judged(rules, held(&log, 12_002), &log), 40);
}

/// Parts of some pieces each. Before the first one there may be more, which is gone: so many bytes.
fn parts(pieces: &[Piece], numbers: &mut Numbers) -> (Vec<Piece>, u64) {
    let mut parts: Vec<Piece> = Vec::new();
    for piece in pieces {
        match parts.last_mut() {
            Some(last) if numbers.below(2) == 0 => {
                last.last = piece.last;
                last.bytes += piece.bytes;
                last.max_timestamp = last.max_timestamp.max(piece.max_timestamp);
            }
            _ => parts.push(*piece),
        }
    }
    let more = numbers.below(3).unsigned_abs() * 20;
    if let Some(first) = parts.first_mut().filter(|_| more > 0) {
        first.base -= 5;
        first.bytes += more;
        first.max_timestamp = first.max_timestamp.max(numbers.below(3000));
    }
    (parts, more)
}

#[test]
fn it_decides_as_the_naive_model_does() {
    let (mut went, mut kept, mut stayed) = (0, 0, 0);
    for seed in 0..20_000 {
        let mut numbers = Numbers(seed);
        let count = numbers.below(12);
        let log: Vec<(u64, i64)> = (0..count)
            .map(|_| (numbers.below(80).unsigned_abs() + 1, numbers.below(3000)))
            .collect();
        let log = pieces(&log);
        let or_never = |number: i64| if number % 2 == 0 { number } else { -1 };
        let rules = RetentionRules {
            retention_ms: or_never(numbers.below(3000)),
            retention_bytes: or_never(numbers.below(500)),
            segment_bytes: numbers.below(200) + 1,
            segment_ms: numbers.below(3000) + 1,
        };
        let mut held = held(&log, numbers.below(6000));
        if numbers.below(2) == 0 {
            held.upto = numbers.below(held.upto + 1);
        }
        let expected = naive(rules, held, &log);
        assert_eq!(judged(rules, held, &log), expected, "seed {seed}");
        if let Some(first) = log.first() {
            let (parts, more) = parts(&log, &mut numbers);
            let held = Held {
                bytes: held.bytes + more,
                ..held
            };
            let keeps = keeps_all(rules, held, first.max_timestamp, &parts);
            assert!(!keeps || expected == 0, "seed {seed}");
            kept += i32::from(keeps);
            stayed += i32::from(expected == 0);
        }
        went += i32::from(expected > 0);
    }
    assert!(went > 2000, "{went}");
    // Mostly the parts tell that nothing goes.
    assert!(kept > stayed / 2, "{kept} of {stayed}");
}

/// Two records of long ago; of a transaction of producer `id`, or of nobody for -1.
fn batch(id: i64) -> Batch {
    let of_txn = id >= 0;
    let header = BatchHeader {
        base_offset: 0,
        batch_length: 0,
        leader_epoch: 0,
        magic: 2,
        crc: 0,
        attributes: if of_txn { 0x10 } else { 0 },
        last_offset_delta: 1,
        base_timestamp: 0,
        max_timestamp: 0,
        producer_id: ProducerId(id),
        producer_epoch: ProducerEpoch(if of_txn { 0 } else { -1 }),
        base_sequence: Sequence(if of_txn { 0 } else { -1 }),
        records_count: 2,
    };
    Batch::assemble(header, &[12, 0, 0, 0, 1, 0, 0, 12, 0, 0, 2, 1, 0, 0])
}

#[tokio::test]
async fn a_partition_begins_later_and_never_behind_an_open_transaction() {
    let store = Arc::new(MemoryStore::new());
    let owner = OwnerEpoch::single(1);
    store.open_shard(SHARD, owner).await.unwrap();
    store.create(LOG, "t", SHARD).await.unwrap();
    let partition = lead(&store, 1).await;
    let rules = RetentionRules {
        retention_ms: 5,
        retention_bytes: 0,
        segment_bytes: 1,
        ..FOR_EVER
    };
    assert_eq!(partition.apply_retention(rules, i64::MAX).await, Ok(None));
    for id in [-1, -1, -1, 7, -1] {
        let opening = Opening::Unverified;
        let ticket = partition.append_opening(&batch(id), opening, Admitted::default());
        ticket.outcome().await.unwrap();
    }
    let never = partition.apply_retention(FOR_EVER, i64::MAX).await;
    assert_eq!(never, Ok(None));
    let by_time = RetentionRules {
        retention_bytes: -1,
        ..rules
    };
    assert_eq!(partition.apply_retention(by_time, 5).await, Ok(None));
    // Six records lie before the transaction.
    assert_eq!(partition.apply_retention(by_time, 6).await, Ok(Some(6)));
    assert_eq!(partition.apply_retention(rules, i64::MAX).await, Ok(None));
    let visible = partition.visible();
    assert_eq!((visible.log_start, visible.last_stable), (6, 6));
    assert_eq!(visible.high_watermark, 10);
}
