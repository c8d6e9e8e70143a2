//! Slot files: what is written, what older volumes have, and what is damage.

use store_adapter::volume::sum::with_sum;

use super::super::tests::golden;
use super::super::{SlotText, decode, encode};
use super::*;

/// The example of the format's description.
const OLD: &str = concat!(
    r#"{"orders-1":{"pid":1099511627779,"epoch":4,"partitions":[{"topic":"out","#,
    r#""partitions":[0,2]}],"ongoingSinceMs":1790000000000,"transactionTimeoutMs":60000,"#,
    r#""state":"Ongoing","groups":["g1"]}}"#
);

fn entry() -> TxnEntry {
    let topic: Arc<str> = "out".into();
    let id = Uuid::from_u128(0x1234_5678_9abc_4def_8123_4567_89ab_cdef);
    let partitions = TopicPartitions::from([(topic.clone(), BTreeSet::from([0, 2]))]);
    let owed = OwedEntry {
        partitions: partitions.clone(),
        topic_ids: TopicIds::from([(topic.clone(), id)]),
        groups: Groups::from(["g1".into()]),
    };
    TxnEntry {
        epoch: ProducerEpoch(0),
        last_epoch: Some(ProducerEpoch(32_766)),
        prev_pid: Some(ProducerId(7)),
        state: TxnState::CompleteCommit,
        start_ms: Some(1),
        txn_seq: 3,
        client: Some(Client {
            id: "c".into(),
            address: "10.0.0.1:5".into(),
            software: "java 4.3".into(),
        }),
        coordinator_epoch: Some(2),
        txn_version: 2,
        owed: vec![Owed {
            txn_seq: 3,
            producer_id: ProducerId(7),
            record_epoch: ProducerEpoch(32_766),
            marker_epoch: ProducerEpoch(32_767),
            commit: true,
            entries: BTreeMap::from([(BrokerId(2), owed)]),
        }],
        ..TxnEntry::new(ProducerId(8), 60_000, 1_790_000_000_000)
    }
}

fn file(entry: &TxnEntry) -> TxnSlotFile {
    let entry = TxnEntryFile::of(entry, &Extra::new());
    TxnSlotFile {
        ids: BTreeMap::from([("a\"\u{e9}".to_owned(), entry)]),
    }
}

#[test]
fn a_file_of_an_older_volume_reads_and_rewrites() {
    let read: TxnSlotFile = decode(OLD.as_bytes()).unwrap();
    assert_eq!(encode(&read).unwrap(), OLD.as_bytes());
    let (entry, extra) = read.ids["orders-1"].clone().into_entry(5);
    assert_eq!(
        (entry.pid.0, entry.epoch.0, entry.txn_seq),
        (1_099_511_627_779, 4, 0)
    );
    assert_eq!(entry.state, TxnState::Ongoing);
    assert_eq!(entry.partitions["out"], BTreeSet::from([0, 2]));
    assert_eq!((entry.last_update_ms, entry.last_epoch), (5, None));
    assert!(extra.is_empty() && entry.groups.contains("g1"));
    for timeout in ["-1", "0"] {
        let text = OLD.replace("60000", timeout);
        let read: TxnSlotFile = decode(text.as_bytes()).unwrap();
        assert_eq!(
            read.ids["orders-1"].clone().into_entry(5).0.timeout_ms,
            60_000
        );
    }
    let bare: TxnSlotFile = decode(br#"{"x":{"pid":1,"epoch":0}}"#).unwrap();
    let (bare, _) = bare.ids["x"].clone().into_entry(9);
    assert_eq!(bare, TxnEntry::new(ProducerId(1), 60_000, 9));
}

#[test]
fn an_entry_goes_to_its_file_and_back() {
    let prepared = TxnEntry {
        state: TxnState::PrepareAbort,
        epoch: ProducerEpoch(32_767),
        record_epoch: Some(ProducerEpoch(32_766)),
        next_pid: Some(ProducerId(9)),
        owed: Vec::new(),
        groups: Groups::from(["g".into()]),
        ..entry()
    };
    for entry in [entry(), prepared, TxnEntry::new(ProducerId(1), 5, 6)] {
        let file = file(&entry);
        let bytes = encode(&file).unwrap();
        let read: TxnSlotFile = decode(&bytes).unwrap();
        assert_eq!(read, file);
        let back = read.ids.into_values().next().unwrap().into_entry(0);
        assert_eq!(back, (entry, Extra::new()));
        let none = SlotText::default();
        let mut edit = none.edit(0);
        for (id, one) in &file.ids {
            edit.add(&one.field(id).unwrap());
        }
        assert_eq!(*edit.finish().bytes(), with_sum(&bytes));
    }
    golden("{}", &TxnSlotFile::default());
}

#[test]
fn unknown_fields_of_an_entry_are_kept() {
    let text = r#"{"x":{"pid":1,"epoch":0,"transactionTimeoutMs":7,"lastUpdateMs":8,"zz":[1]}}"#;
    let read: TxnSlotFile = decode(text.as_bytes()).unwrap();
    assert_eq!(encode(&read).unwrap(), text.as_bytes());
    let (entry, extra) = read.ids["x"].clone().into_entry(0);
    let again = TxnEntryFile::of(&entry, &extra).field("x").unwrap();
    assert_eq!(format!(",{}", &text[1..text.len() - 1]).as_bytes(), again);
}

#[test]
fn contradictions_are_damage() {
    let owed = |of: &str| {
        format!(
            "{{\"pid\":1,\"epoch\":0{of},\"owed\":[{{\"txnSeq\":1,\"markerEpoch\":0,\
             \"commit\":true,\"entries\":[{{\"broker\":\"kaas-1\",\"partitions\":[]}}]}}]}}"
        )
    };
    assert!(
        decode::<TxnSlotFile>(format!(r#"{{"x":{}}}"#, owed(r#","txnSeq":1"#)).as_bytes()).is_ok()
    );
    let bad = [
        r#"{"pid":-1,"epoch":0}"#.to_owned(),
        r#"{"pid":1,"epoch":-1}"#.to_owned(),
        r#"{"pid":1}"#.to_owned(),
        r#"{"pid":1,"epoch":0,"state":"Dead"}"#.to_owned(),
        r#"{"pid":1,"epoch":0,"nextPid":2}"#.to_owned(),
        r#"{"pid":1,"epoch":0,"prevPid":1}"#.to_owned(),
        r#"{"pid":1,"epoch":0,"state":"Ongoing","recordEpoch":2}"#.to_owned(),
        r#"{"pid":1,"epoch":0,"partitions":[{"topic":"a","partitions":[-1]}]}"#.to_owned(),
        owed(""),
        owed(r#","txnSeq":1,"state":"Ongoing""#),
    ];
    for entry in bad {
        let text = format!(r#"{{"x":{entry}}}"#);
        assert!(decode::<TxnSlotFile>(text.as_bytes()).is_err(), "{entry}");
    }
    for text in ["", "[]", "{\"x\":1}", "{\"x\":"] {
        assert!(decode::<TxnSlotFile>(text.as_bytes()).is_err(), "{text}");
    }
}
