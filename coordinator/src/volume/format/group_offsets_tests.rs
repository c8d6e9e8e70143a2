//! The consumer-offsets file: golden samples, older files, damage.

use super::super::tests::{golden, keeps_unknown};
use super::super::{decode, encode};
use super::*;

const SAMPLE: &str = concat!(
    r#"{"offsets":{"in/0":42,"in/3":7},"metadata":{"in/0":"host-1"},"leaderEpoch":{"in/0":2},"#,
    r#""commitTs":{"in/0":1790000000000,"in/3":1790000000500},"expireTs":{"in/3":1790000060500},"#,
    r#""group":"g1","seq":12,"offsetSeq":{"in/0":9,"in/3":10},"#,
    r#""staged":[{"producerId":1099511627779,"producerEpoch":4,"transactionalId":"tx-1","#,
    r#""txnSeq":3,"offsets":{"in/0":{"offset":50,"metadata":"m","leaderEpoch":2,"seq":11}}}],"#,
    r#""appliedTxn":{"1099511627779":2},"appliedEpoch":{"1099511627779":3},"#,
    r#""topicIds":{"in":"12345678-9abc-4def-8123-456789abcdef"},"#,
    r#""protocolType":"consumer","emptySinceMs":1790000000000}"#
);
const OLD: &str = concat!(
    r#"{"offsets":{"in/0":42,"out/1":3},"metadata":{"in/0":"m"},"#,
    r#""fence":{"assignment_version":7,"controller_epoch":2}}"#
);
const GONE: &str = r#"{"group":"g1","deleted":true}"#;

fn read(text: &str) -> GroupOffsetsFile {
    decode(text.as_bytes()).unwrap()
}

#[test]
fn the_sample_survives_the_table() {
    let file = read(SAMPLE);
    golden(SAMPLE, &file);
    keeps_unknown::<GroupOffsetsFile>(SAMPLE);
    let (table, kept) = file.clone().into_table(5);
    assert_eq!(GroupOffsetsFile::of("g1", &table, &kept), file);
    let first = table.get("in", 0).unwrap();
    assert_eq!((first.offset, &*first.metadata), (42, "host-1"));
    assert_eq!((first.leader_epoch, first.seq), (Some(2), Some(9)));
    assert!(table.is_staged("in", 0) && !table.is_staged("in", 3));
    assert_eq!(table.next_seq(), 12);
    let encoded = encode(&file).unwrap();
    assert!(encoded.len() <= table.bytes(), "{} bytes", table.bytes());
}

#[test]
fn a_file_of_an_older_volume_loads_and_keeps_what_is_not_ours() {
    let file = read(OLD);
    golden(OLD, &file);
    let (table, kept) = file.into_table(1_790_000_000_000);
    let first = table.get("in", 0).unwrap();
    assert_eq!(
        (first.offset, first.seq, first.leader_epoch),
        (42, None, None)
    );
    assert_eq!(first.commit_ms, Some(1_790_000_000_000));
    assert_eq!((table.next_seq(), table.protocol_type()), (0, None));
    let written = GroupOffsetsFile::of("g", &table, &kept);
    let text = String::from_utf8(encode(&written).unwrap().to_vec()).unwrap();
    let fence = r#""fence":{"assignment_version":7,"controller_epoch":2},"group":"g","seq":0"#;
    assert!(text.contains(fence), "{text}");
}

#[test]
fn a_deleted_group_is_its_name() {
    let file = read(GONE);
    golden(GONE, &file);
    keeps_unknown::<GroupOffsetsFile>(GONE);
    let (table, kept) = file.clone().into_table(0);
    assert!(table.is_deleted() && table.has_no_offsets());
    assert_eq!(GroupOffsetsFile::of("g1", &table, &kept), file);
}

#[test]
fn keys_are_split_from_the_right() {
    let (table, _) = read(r#"{"offsets":{"a/b/1":5}}"#).into_table(0);
    assert_eq!(table.get("a/b", 1).unwrap().offset, 5);
}

#[test]
fn contradictions_are_damage() {
    let sample = |from: &str, to: &str| {
        let changed = SAMPLE.replace(from, to);
        assert_ne!(changed, SAMPLE, "{from}");
        changed
    };
    for bad in [
        "{}".to_owned(),
        r#"{"group":"g"}"#.to_owned(),
        r#"{"deleted":true,"offsets":{}}"#.to_owned(),
        r#"{"deleted":true,"seq":3}"#.to_owned(),
        r#"{"offsets":{"in":1}}"#.to_owned(),
        r#"{"offsets":{"in/-1":1}}"#.to_owned(),
        r#"{"offsets":{"in/01":1}}"#.to_owned(),
        r#"{"offsets":{"/1":1}}"#.to_owned(),
        r#"{"offsets":{"in/0":1.5}}"#.to_owned(),
        r#"{"offsets":{"in/0":1},"metadata":{"in/1":"m"}}"#.to_owned(),
        r#"{"offsets":{"in/0":1},"offsetSeq":{"in/0":0}}"#.to_owned(),
        r#"{"offsets":{},"appliedTxn":{"-1":0}}"#.to_owned(),
        sample(r#""seq":12"#, r#""seq":11"#),
        sample(r#""in/3":10}"#, r#""in/3":12}"#),
        sample(r#""producerEpoch":4"#, r#""producerEpoch":-4"#),
        sample(r#"{"1099511627779":2}"#, r#"{"1099511627779":3}"#)
            .replace(r#"{"1099511627779":3},"t"#, r#"{"1099511627779":4},"t"#),
        // Without the epoch the number alone says it.
        sample(r#"{"1099511627779":2}"#, r#"{"1099511627779":3}"#)
            .replace(r#""appliedEpoch":{"1099511627779":3},"#, ""),
        sample(r#"{"in/0":{"offset""#, r#"{"in":{"offset""#),
    ] {
        assert!(decode::<GroupOffsetsFile>(bad.as_bytes()).is_err(), "{bad}");
    }
    let start = SAMPLE.find("{\"producerId\"").unwrap();
    let end = SAMPLE.find("],\"appliedTxn\"").unwrap();
    let twice = SAMPLE.replacen(
        &SAMPLE[start..end],
        &format!("{0},{0}", &SAMPLE[start..end]),
        1,
    );
    assert!(decode::<GroupOffsetsFile>(twice.as_bytes()).is_err());
}
