//! `docs/on-volume-format.md` says what the code writes.

use std::collections::BTreeMap;
use std::fmt::Debug;

use serde_json::Value;
use store_adapter::volume::sum::with_sum;

use super::super::tests::create;
use super::world::{Site, World};
use crate::volume::format::{
    AssignmentFile, ClusterFile, FencesFile, Format, GroupOffsetsFile, HistoryLine, IdBlockFile,
    Manifest, MarkerQueueFile, ProducerSnapshot, Registration, TopicConfigFile, TopicIdFile,
    TopicTombstone, TxnIndexSnapshot, TxnSlotFile, decode, encode,
};

const DOC: &str = include_str!("../../../../../docs/on-volume-format.md");

/// The samples of the document by the word behind `json`, each with its section's text.
fn samples() -> BTreeMap<&'static str, (&'static str, &'static str)> {
    let mut samples = BTreeMap::new();
    for section in DOC.split("\n## ").skip(1) {
        for block in section.split("```json ").skip(1) {
            let (name, rest) = block.split_once('\n').unwrap();
            let (sample, _) = rest.split_once("\n```").unwrap();
            assert_eq!(samples.insert(name, (sample, section)), None, "{name}");
        }
    }
    samples
}

/// Every key of the sample at any depth, except in maps whose keys are data.
fn keys(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                found.push(key.clone());
                keys(value, found);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

fn check<T: Format + Debug>(name: &str, sample: &str) {
    let read: T = decode(sample.as_bytes()).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(encode(&read).unwrap(), sample.as_bytes(), "{name}");
}

/// Every flipped bit of the file as it lies on the volume, and every cut, is refused or changes
/// nothing; how many there were.
fn harm<T: Format + Debug + PartialEq>(sample: &str) -> usize {
    let value: T = decode(sample.as_bytes()).unwrap();
    let written = with_sum(sample.as_bytes());
    assert_eq!(decode::<T>(&written).as_ref(), Ok(&value));
    let same = |bytes: &[u8]| decode::<T>(bytes).is_ok_and(|found| found == value);
    for bit in 0..written.len() * 8 {
        let mut bytes = written.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(same(&bytes) || decode::<T>(&bytes).is_err(), "bit {bit}");
        assert_eq!(
            same(&bytes),
            bit / 8 >= sample.len() && decode::<T>(&bytes).is_ok()
        );
    }
    for len in 0..written.len() {
        let cut = &written[..len];
        assert_eq!(same(cut), len >= sample.len(), "{len} bytes");
        assert!(same(cut) || decode::<T>(cut).is_err(), "{len} bytes");
    }
    written.len() * 9
}

/// How many changes of a sample were tried.
type Harm = fn(&str) -> usize;

#[test]
fn every_flipped_bit_and_every_cut_is_refused_or_changes_nothing() {
    let samples = samples();
    let kinds: [(&str, Harm); 15] = [
        ("cluster", harm::<ClusterFile>),
        ("assignment", harm::<AssignmentFile>),
        ("producer-ids", harm::<IdBlockFile>),
        ("group-offsets", harm::<GroupOffsetsFile>),
        ("group-deleted", harm::<GroupOffsetsFile>),
        ("txn-slot", harm::<TxnSlotFile>),
        ("fences", harm::<FencesFile>),
        ("marker-queue", harm::<MarkerQueueFile>),
        ("topic-id", harm::<TopicIdFile>),
        ("topic-id-deleted", harm::<TopicIdFile>),
        ("topic-config", harm::<TopicConfigFile>),
        ("topic-tombstone", harm::<TopicTombstone>),
        ("manifest", harm::<Manifest>),
        ("producer-state", harm::<ProducerSnapshot>),
        ("txn-index", harm::<TxnIndexSnapshot>),
    ];
    let harms = kinds.map(|(name, harm)| harm(samples[name].0));
    println!("{} flips and cuts", harms.iter().sum::<usize>());
}

fn check_line(name: &str, sample: &str) {
    let (lines, gaps) = HistoryLine::read(sample.as_bytes());
    assert_eq!((lines.len(), gaps), (1, 0), "{name}");
    assert_eq!(lines[0].encode().unwrap(), format!("{sample}\n").as_bytes());
}

/// Checks a sample: its name and its text.
type Check = fn(&str, &str);

#[test]
fn every_sample_is_what_the_code_writes() {
    let mut samples = samples();
    let checks: [(&str, Check); 18] = [
        ("cluster", check::<ClusterFile>),
        ("assignment", check::<AssignmentFile>),
        ("registration", check::<Registration>),
        ("producer-ids", check::<IdBlockFile>),
        ("group-offsets", check::<GroupOffsetsFile>),
        ("group-deleted", check::<GroupOffsetsFile>),
        ("txn-slot", check::<TxnSlotFile>),
        ("fences", check::<FencesFile>),
        ("marker-queue", check::<MarkerQueueFile>),
        ("txn-history", check_line),
        ("topic-id", check::<TopicIdFile>),
        ("topic-id-deleted", check::<TopicIdFile>),
        ("topic-config", check::<TopicConfigFile>),
        ("topic-tombstone", check::<TopicTombstone>),
        ("manifest", check::<Manifest>),
        ("producer-state", check::<ProducerSnapshot>),
        ("txn-index", check::<TxnIndexSnapshot>),
        ("current", |_, _| {}),
    ];
    for (name, check) in checks {
        let (sample, section) = samples.remove(name).expect(name);
        check(name, sample);
        let mut found = Vec::new();
        keys(&serde_json::from_str(sample).unwrap(), &mut found);
        for key in found {
            let documented = section.contains(&format!("`{key}`"));
            assert!(documented, "{name}: `{key}` is not explained");
        }
    }
    assert!(samples.is_empty(), "{:?} are not checked", samples.keys());
}

#[test]
fn a_real_life_writes_the_files_of_the_document() {
    let world = World::new(1);
    let site = Site::new(&world);
    let node = site.start(0);
    create(&world, &node, "orders").unwrap();
    let files = site.files();
    let (current, _) = samples()["current"];
    assert_eq!(
        files["__cluster/owners/controller/current.json"],
        with_sum(current.as_bytes())
    );
    for path in [
        "__cluster/cluster.json",
        "__cluster/assignment.json",
        "__cluster/brokers/kaas-0.json",
        "orders/.config.json",
        "orders/.topic-id.json",
    ] {
        assert!(files.contains_key(path), "{path}");
    }
}
