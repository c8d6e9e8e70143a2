use super::super::tests::golden;
use super::super::{decode, encode};
use super::*;

const STATE: &str = concat!(
    r#"{"version":1,"entries":[{"producer_id":1099511627776,"epoch":0,"#,
    r#""recent":[{"first_seq":2147483647,"last_seq":8,"base_offset":90,"last_offset":99,"#,
    r#""timestamp":1790000000000,"crc":305419896}],"last_timestamp":1790000000000,"#,
    r#""last_append_ms":1790000000005},{"producer_id":1099511627777,"epoch":4,"#,
    r#""last_timestamp":-1,"last_append_ms":1790000000001,"current_txn_first_offset":80,"#,
    r#""coordinator_epoch":3,"last_marker":{"epoch":4,"txn_seq":12,"commit":false}}],"#,
    r#""log_end_offset":100,"leader_epoch":6,"#,
    r#""last_batch":{"base_offset":90,"crc":305419896},"#,
    r#""topic_id":"12345678-9abc-4def-8123-456789abcdef"}"#
);
const INDEX: &str = concat!(
    r#"{"version":1,"open":[{"producer_id":1099511627777,"first_offset":80}],"#,
    r#""aborted":[{"producer_id":1099511627777,"first_offset":10,"last_offset":20,"#,
    r#""last_stable_offset":21}],"log_end_offset":100,"leader_epoch":6,"#,
    r#""last_batch":{"base_offset":90,"crc":305419896},"#,
    r#""topic_id":"12345678-9abc-4def-8123-456789abcdef"}"#
);
const TOPIC: Uuid = Uuid::from_u128(0x1234_5678_9abc_4def_8123_4567_89ab_cdef);
const PROOF: BatchProof = BatchProof {
    base_offset: 90,
    crc: 0x1234_5678,
};

fn image() -> Image {
    let mut window = Window::default();
    window.push(BatchMetadata {
        first_seq: Sequence(i32::MAX),
        last_seq: Sequence(8),
        offset_delta: 9,
        crc: 0x1234_5678,
        base_offset: 90,
        timestamp: 1_790_000_000_000,
    });
    let first = machine::ProducerEntry {
        epoch: ProducerEpoch(0),
        window,
        last_timestamp: 1_790_000_000_000,
        last_append_ms: 1_790_000_000_005,
        current_txn_first_offset: None,
        coordinator_epoch: -1,
        last_marker: None,
    };
    let second = machine::ProducerEntry {
        epoch: ProducerEpoch(4),
        window: Window::default(),
        last_timestamp: -1,
        last_append_ms: 1_790_000_000_001,
        current_txn_first_offset: Some(80),
        coordinator_epoch: 3,
        last_marker: Some(LastMarker {
            epoch: ProducerEpoch(4),
            txn_seq: 12,
            commit: false,
        }),
    };
    Image {
        entries: BTreeMap::from([
            (ProducerId(1_099_511_627_776), first),
            (ProducerId(1_099_511_627_777), second),
        ]),
        aborted: vec![AbortedTxn {
            producer_id: ProducerId(1_099_511_627_777),
            first_offset: 10,
            last_offset: 20,
            last_stable_offset: Some(21),
        }],
        log_end_offset: 100,
        last_batch: Some(PROOF),
    }
}

fn state(json: &str) -> ProducerSnapshot {
    decode(json.as_bytes()).unwrap()
}

fn index(json: &str) -> TxnIndexSnapshot {
    decode(json.as_bytes()).unwrap()
}

#[test]
fn samples_and_the_state_they_stand_for() {
    let writer = Writer {
        leader_epoch: LeaderEpoch(6),
        topic_id: TOPIC,
    };
    golden(STATE, &ProducerSnapshot::of(&image(), writer));
    golden(INDEX, &TxnIndexSnapshot::of(&image(), writer));
    let restored = restore(&state(STATE), &index(INDEX), TOPIC)
        .unwrap()
        .unwrap();
    assert_eq!(restored.image, image());
    assert_eq!(restored.proofs, [PROOF]);
}

#[test]
fn an_empty_log_has_a_snapshot_too() {
    let writer = Writer {
        leader_epoch: LeaderEpoch(0),
        topic_id: TOPIC,
    };
    let empty = ProducerSnapshot::of(&Image::default(), writer);
    let text = r#"{"version":1,"log_end_offset":0,"leader_epoch":0,"topic_id":"#;
    assert!(encode(&empty).unwrap().starts_with(text.as_bytes()));
    let restored = restore(
        &empty,
        &TxnIndexSnapshot::of(&Image::default(), writer),
        TOPIC,
    );
    assert_eq!(restored.unwrap().unwrap().image, Image::default());
}

#[test]
fn older_and_later_fields_are_tolerated_but_cannot_prove_anything() {
    let old = r#"{"version":1,"entries":[{"producer_id":7,"epoch":1,
        "recent":[{"first_seq":2147483647,"last_seq":1,"base_offset":4,"x":1}],"y":2}],"z":3}"#;
    let old = state(old);
    assert_eq!(last_offset(&old.entries[0].recent[0]), 6);
    assert_eq!(restore(&old, &index(INDEX), TOPIC), Ok(None));
    let bare =
        index(r#"{"version":1,"aborted":[{"producer_id":7,"first_offset":1,"last_offset":2}]}"#);
    assert_eq!(restore(&state(STATE), &bare, TOPIC), Ok(None));
}

#[test]
fn a_pair_that_does_not_fit_is_not_used() {
    assert_eq!(restore(&state(STATE), &index(INDEX), Uuid::nil()), Ok(None));
    let behind = INDEX.replace(r#""log_end_offset":100"#, r#""log_end_offset":99"#);
    assert_eq!(restore(&state(STATE), &index(&behind), TOPIC), Ok(None));
    // Written before a crash that kept the older producer state: what lies ahead is replayed.
    let ahead = INDEX
        .replace(r#""log_end_offset":100"#, r#""log_end_offset":120"#)
        .replace(r#""base_offset":90"#, r#""base_offset":119"#)
        .replace(
            r#""open":[{"producer_id":1099511627777,"first_offset":80}],"#,
            "",
        )
        .replace(
            r#""last_stable_offset":21}"#,
            concat!(
                r#""last_stable_offset":21},"#,
                r#"{"producer_id":1099511627777,"first_offset":80,"last_offset":100}"#
            ),
        );
    let restored = restore(&state(STATE), &index(&ahead), TOPIC)
        .unwrap()
        .unwrap();
    assert_eq!(restored.image, image());
    let offsets: Vec<i64> = restored.proofs.iter().map(|p| p.base_offset).collect();
    assert_eq!(offsets, [90, 119]);
    let differs = INDEX.replace(r#""first_offset":80"#, r#""first_offset":81"#);
    assert!(restore(&state(STATE), &index(&differs), TOPIC).is_err());
}

#[test]
fn contradictions_are_damage() {
    let change = |from: &str, to: &str| {
        assert!(STATE.contains(from), "{from}");
        STATE.replace(from, to)
    };
    let batch = r#"{"first_seq":0,"last_seq":0,"base_offset":0}"#;
    let six = [batch; 6].join(",");
    for bad in [
        change(r#""version":1"#, r#""version":2"#),
        change(r#""epoch":0"#, r#""epoch":-1"#),
        change(r#""producer_id":1099511627776"#, r#""producer_id":-1"#),
        change(
            r#""producer_id":1099511627776"#,
            r#""producer_id":1099511627777"#,
        ),
        change(r#""last_seq":8"#, r#""last_seq":-1"#),
        change(r#""last_offset":99"#, r#""last_offset":89"#),
        change(r#""last_offset":99"#, r#""last_offset":100"#),
        change(
            r#""current_txn_first_offset":80"#,
            r#""current_txn_first_offset":100"#,
        ),
        change(r#""log_end_offset":100"#, r#""log_end_offset":-1"#),
        change(r#"{"base_offset":90,"crc""#, r#"{"base_offset":100,"crc""#),
        format!(r#"{{"version":1,"entries":[{{"producer_id":7,"epoch":1,"recent":[{six}]}}]}}"#),
    ] {
        assert!(decode::<ProducerSnapshot>(bad.as_bytes()).is_err(), "{bad}");
    }
    for (from, to) in [
        (r#""version":1"#, r#""version":0"#),
        (r#""first_offset":80"#, r#""first_offset":100"#),
        (r#""first_offset":10"#, r#""first_offset":20"#),
        (r#""last_offset":20"#, r#""last_offset":100"#),
        (
            r#""producer_id":1099511627777,"first_offset":10"#,
            r#""producer_id":-7,"first_offset":10"#,
        ),
    ] {
        let bad = INDEX.replace(from, to);
        assert_ne!(bad, INDEX);
        assert!(decode::<TxnIndexSnapshot>(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn garbage_is_an_error_and_never_a_panic() {
    let deep = "[".repeat(100_000);
    let huge = STATE.replace("2147483647", "99999999999999999999");
    let cut = &STATE[..STATE.len() - 1];
    assert!(decode::<ProducerSnapshot>(huge.as_bytes()).is_err());
    for bytes in ["", "\0\0", "{", "[]", "{}", "{}x", &deep, cut] {
        assert!(decode::<ProducerSnapshot>(bytes.as_bytes()).is_err());
        assert!(decode::<TxnIndexSnapshot>(bytes.as_bytes()).is_err());
    }
}
