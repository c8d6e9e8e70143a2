use super::*;
use crate::partition::compaction::samples::{Sample, in_txn, marker, plain, sample, shown};

/// The table's own: `a` is newest at 11, `b` at 20, `c` at 12.
fn survivors() -> Survivors {
    let mut newest = NewestOffsets::default();
    for (key, offset) in [("a", 5), ("a", 11), ("c", 12), ("b", 20)] {
        newest.note(key.as_bytes(), offset);
    }
    let aborted = AbortedTxn {
        producer_id: ProducerId(8),
        first_offset: 10,
        last_offset: 30,
        last_stable_offset: None,
    };
    Survivors {
        newest,
        aborted: Aborted::new(&[aborted]),
        needless_markers: BTreeSet::from([40, 41]),
        producers: BTreeMap::from([
            (
                ProducerId(5),
                LastWritten {
                    last_offset: Some(12),
                    epoch: ProducerEpoch(0),
                },
            ),
            (
                ProducerId(6),
                LastWritten {
                    last_offset: None,
                    epoch: ProducerEpoch(0),
                },
            ),
        ]),
        now_ms: 50_000,
        delete_retention_ms: 100,
        tombstones_stay: false,
    }
}

fn left(survivors: &Survivors, batch: &Bytes) -> String {
    match survivors.judge(batch) {
        Left::Whole => "whole".to_owned(),
        Left::Nothing => "nothing".to_owned(),
        Left::Batch(batch) => shown(&batch),
    }
}

/// The same batch of another producer.
fn of(base: i64, producer: i64, records: &str) -> Bytes {
    sample(Sample {
        base,
        producer: (producer, 0, 0),
        transactional: false,
        records,
    })
}

#[test]
fn the_table_of_what_survives() {
    let survivors = survivors();
    for (what, batch, expected) in [
        ("the newest", plain(11, "a=1 c=2"), "whole"),
        ("keys that nobody looked at", plain(30, "x=1 y=2"), "whole"),
        ("an older one", plain(9, "b=1 x=1"), "9..10 10@1001:x=1"),
        (
            "between two that stay",
            plain(10, "x=1 b=2 c=3"),
            "10..12 10@1000:x=1 12@1002:c=3",
        ),
        ("none", plain(5, "a=1 b=1"), "nothing"),
        (
            "twice in a batch",
            plain(10, "a=1 a=2"),
            "10..11 11@1001:a=2",
        ),
        ("without a key", plain(30, "=1 x=1"), "30..31 31@1001:x=1"),
        (
            "a tombstone",
            plain(20, "b"),
            "20..20 until 50100 20@1000:b",
        ),
        ("an older tombstone", plain(19, "b"), "nothing"),
        (
            "a tombstone and a value",
            plain(19, "x=1 b"),
            "19..20 until 50100 19@1000:x=1 20@1001:b",
        ),
        ("of an aborted transaction", in_txn(11, 8, "a=1"), "nothing"),
        ("before it", in_txn(9, 8, "x=1"), "whole"),
        ("behind it", in_txn(31, 8, "x=1"), "whole"),
        ("of another's transaction", in_txn(11, 7, "a=1"), "whole"),
        ("the last of a producer", of(11, 5, "b=1 b=2"), "11..12 p5"),
        ("not its last", of(9, 5, "b=1 b=2"), "nothing"),
        ("a marker that is needed", marker(39, 7, true), "whole"),
        (
            "a marker that is not",
            marker(40, 7, false),
            "40..40 p7 until 50100 40@1000:marker",
        ),
        ("the only thing of a producer", marker(41, 6, true), "whole"),
    ] {
        assert_eq!(left(&survivors, &batch), expected, "{what}");
    }
}

#[test]
fn what_has_a_horizon_goes_when_it_is_passed() {
    let mut survivors = survivors();
    let with = |survivors: &Survivors, batch: &Bytes| match survivors.judge(batch) {
        Left::Batch(batch) => batch,
        other => panic!("{other:?}"),
    };
    let mixed = with(&survivors, &plain(19, "x=1 b"));
    let marker = with(&survivors, &marker(40, 7, true));
    let empty = with(&survivors, &of(11, 5, "b=1 b=2"));
    for (now_ms, expected) in [
        (50_000, ["whole", "whole"]),
        (50_099, ["whole", "whole"]),
        (50_100, ["19..20 until 50100 19@1000:x=1", "nothing"]),
    ] {
        survivors.now_ms = now_ms;
        assert_eq!(left(&survivors, &mixed), expected[0], "{now_ms}");
        assert_eq!(left(&survivors, &marker), expected[1], "{now_ms}");
        // It waits for nothing but the producer.
        assert_eq!(left(&survivors, &empty), "whole");
    }
    survivors.tombstones_stay = true;
    assert_eq!(left(&survivors, &mixed), "whole");
    survivors.producers.clear();
    assert_eq!(left(&survivors, &empty), "nothing");
    // A marker that came to be needed again, as one of a new session.
    survivors.needless_markers.clear();
    assert_eq!(left(&survivors, &marker), "whole");
}

#[test]
fn what_can_not_be_read_stays() {
    let survivors = survivors();
    let mut packed = plain(5, "a=1").to_vec();
    // zstd, says the header; they are not.
    packed[22] = 4;
    let header = BatchHeader::read(&packed).unwrap();
    let packed = store_adapter::batch::Batch::assemble(header, &packed[61..]);
    assert_eq!(left(&survivors, packed.bytes()), "whole");
    assert_eq!(left(&survivors, &Bytes::from_static(b"short")), "whole");
}

#[test]
fn judging_twice_is_judging_once() {
    let survivors = survivors();
    for batch in [
        plain(9, "b=1 x=1"),
        plain(19, "x=1 b"),
        of(11, 5, "b=1 b=2"),
        marker(40, 7, true),
    ] {
        let Left::Batch(once) = survivors.judge(&batch) else {
            panic!("nothing changes");
        };
        assert_eq!(survivors.judge(&once), Left::Whole);
    }
}
