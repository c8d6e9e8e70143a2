use bytes::BytesMut;
use store_adapter::ids::{LeaderEpoch, ProducerEpoch, ProducerId, Sequence};

use super::*;
use crate::command::produce::batch::{Pending, Producer};

/// A batch of `count` records at `base`, in a transaction of `producer` if there is one.
fn data(base: i64, count: u64, producer: Option<i64>) -> Bytes {
    let mut pending = Pending::default();
    for number in 0..count {
        pending.push(number, 7, (None, Some(b"v")), &[]);
    }
    let producer = Producer {
        id: ProducerId(producer.unwrap_or(-1)),
        epoch: ProducerEpoch(0),
        is_transactional: producer.is_some(),
    };
    let batch = pending.batch(producer, Sequence(0));
    batch.stamp(base, LeaderEpoch(0)).to_bytes()
}

fn marker(base: i64, producer: i64, commit: bool) -> Bytes {
    let marker = EndTxnMarker {
        commit,
        coordinator_epoch: 0,
        txn_seq: None,
    };
    let batch = marker.to_batch(ProducerId(producer), ProducerEpoch(0), 7);
    batch.stamp(base, LeaderEpoch(0)).to_bytes()
}

fn log(batches: &[Bytes]) -> Bytes {
    let mut bytes = BytesMut::new();
    for batch in batches {
        bytes.extend_from_slice(batch);
    }
    bytes.freeze()
}

/// Offsets from 0 on: 1 and 2 plain, producer 1 commits 3, producer 2 aborts 4 and 5 and then
/// commits 8, producer 3 is open at 10.
fn mixed() -> Bytes {
    log(&[
        data(0, 3, None),
        data(3, 1, Some(1)),
        data(4, 2, Some(2)),
        marker(6, 1, true),
        marker(7, 2, false),
        data(8, 1, Some(2)),
        marker(9, 2, true),
        data(10, 1, Some(3)),
        data(11, 1, None),
    ])
}

fn look(shows_all: bool) -> Look {
    Look {
        position: 1,
        stop: i64::MAX,
        stable: 10,
        aborted: vec![(2, 4)],
        shows_all,
    }
}

fn seen(bytes: Bytes, look: &Look) -> (Vec<(i64, Fate)>, Result<i64, String>) {
    let mut seen = Vec::new();
    let next = read(bytes, look, |one| {
        seen.push((one.offset, one.fate));
        ControlFlow::Continue(())
    });
    (seen, next)
}

#[test]
fn aborted_records_and_markers_are_seen_only_by_who_asks() {
    use Fate::{Aborted, Committed, None, Pending};
    let (shown, next) = seen(mixed(), &look(false));
    let expected = [
        (1, None),
        (2, None),
        (3, Committed),
        (8, Committed),
        (10, Pending),
        (11, None),
    ];
    assert_eq!((shown.as_slice(), next), (&expected[..], Ok(12)));
    let (shown, next) = seen(mixed(), &look(true));
    let all = [
        (1, None),
        (2, None),
        (3, Committed),
        (4, Aborted),
        (5, Aborted),
        (6, Committed),
        (7, Aborted),
        (8, Committed),
        (9, Committed),
        (10, Pending),
        (11, None),
    ];
    assert_eq!((shown.as_slice(), next), (&all[..], Ok(12)));
}

#[test]
fn reading_stops_in_the_middle_of_a_batch_and_goes_on_there() {
    let mut look = look(false);
    (look.position, look.stop) = (0, 2);
    let (shown, next) = seen(mixed(), &look);
    assert_eq!((shown.len(), next), (2, Ok(2)));
    let mut count = 0;
    look.stop = i64::MAX;
    let next = read(mixed(), &look, |_| {
        count += 1;
        if count == 2 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert_eq!((count, next), (2, Ok(2)));
    look.position = 9;
    let (shown, next) = seen(mixed(), &look);
    // What lies before the position decides nothing, but is not shown.
    assert_eq!((shown[0].0, next), (10, Ok(12)));
}

#[test]
fn a_batch_that_is_cut_off_is_left_and_a_damaged_one_refused() {
    let whole = mixed();
    let (shown, next) = seen(whole.slice(..whole.len() - 1), &look(false));
    assert_eq!((shown.last().map(|one| one.0), next), (Some(10), Ok(11)));
    let mut damaged = whole.to_vec();
    let len = damaged.len();
    damaged[len - 1] ^= 1;
    let (_, next) = seen(Bytes::from(damaged), &look(false));
    assert_eq!(next, Err("offset 11: CRC mismatch".to_owned()));
    let mut old = whole.to_vec();
    old[16] = 1;
    let (_, next) = seen(Bytes::from(old), &look(false));
    assert!(next.unwrap_err().contains("message format v1"));
    let mut short = whole.to_vec();
    short[8..12].copy_from_slice(&(-1_i32).to_be_bytes());
    assert!(seen(Bytes::from(short), &look(false)).1.is_err());
}
