//! A file that is made from the one before is the one that would be made anew.

use bytes::Bytes;
use proptest::prelude::*;
use store_adapter::ids::ProducerId;
use store_adapter::volume::sum::with_sum;

use super::*;
use crate::machine::txn::Client;
use crate::volume::format::{decode, encode};

const NAMES: [&str; 6] = ["a", "a\u{1}", "b\"", "ba", "\u{e9}", "z"];
/// A field that nobody knows is kept.
const FIRST: &str = concat!(
    r#"{"b\"":{"pid":1,"epoch":0,"transactionTimeoutMs":5,"lastUpdateMs":6,"zz":[1]},"#,
    r#""z":{"pid":1,"epoch":0,"transactionTimeoutMs":5,"lastUpdateMs":6}}"#
);

#[derive(Debug, Clone)]
enum Step {
    /// An entry is in force that is derived.
    Put(usize, u8),
    /// A write begins; `None`: the id goes.
    Write(BTreeMap<usize, Option<u8>>),
    /// It ends; whether it was done.
    End(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let id = 0..NAMES.len();
    let changes = proptest::collection::btree_map(id.clone(), any::<Option<u8>>(), 0..4);
    prop_oneof![
        (id, any::<u8>()).prop_map(|(id, version)| Step::Put(id, version)),
        changes.prop_map(Step::Write),
        any::<bool>().prop_map(Step::End),
    ]
}

/// Longer and shorter ones.
fn entry(version: u8) -> TxnEntry {
    let id = "c".repeat(usize::from(version));
    TxnEntry {
        client: Some(Client {
            id: id.into(),
            ..Client::default()
        }),
        ..TxnEntry::new(ProducerId(version.into()), 60_000, 5)
    }
}

type Entries = BTreeMap<Arc<str>, (TxnEntry, Extra)>;

fn change(entries: &mut Entries, id: &Arc<str>, next: Option<TxnEntry>) {
    let Some(next) = next else {
        entries.remove(id);
        return;
    };
    let extra = entries.remove(id).map(|(_, extra)| extra);
    entries.insert(id.clone(), (next, extra.unwrap_or_default()));
}

fn file(entries: &Entries) -> Bytes {
    let ids = entries
        .iter()
        .map(|(id, (entry, extra))| (id.to_string(), TxnEntryFile::of(entry, extra)));
    let ids = ids.collect();
    with_sum(&encode(&TxnSlotFile { ids }).unwrap())
}

#[test]
fn an_idle_id_is_small() {
    // What an allocator gives for a bit more is a fourth more.
    assert!(size_of::<Known>() <= 256);
    assert!(size_of::<Cell>() <= 16);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn files_follow_each_other(steps in proptest::collection::vec(step(), 1..60)) {
        let first: TxnSlotFile = decode(FIRST.as_bytes()).unwrap();
        let entries = first.ids.clone().into_iter();
        let mut force: Entries = entries
            .map(|(id, entry)| (id.into(), entry.into_entry(7)))
            .collect();
        let mut ids = Ids::of(first, 7).unwrap();
        let mut writing: Option<BTreeMap<Arc<str>, Option<TxnEntry>>> = None;
        for step in steps {
            match step {
                Step::Put(id, version) => {
                    let (id, next) = (NAMES[id], entry(version));
                    if let Some((known, _)) = force.get_mut(id) {
                        known.clone_from(&next);
                        let field = ids.field(id, &next).unwrap();
                        ids.put_unwritten(id, next, field);
                    }
                }
                Step::Write(changes) if writing.is_none() => {
                    let changes = changes.into_iter();
                    let changes: BTreeMap<Arc<str>, Option<TxnEntry>> = changes
                        .map(|(id, version)| (NAMES[id].into(), version.map(entry)))
                        .collect();
                    let mut expected = force.clone();
                    let mut fields = BTreeMap::new();
                    for (id, next) in &changes {
                        change(&mut expected, id, next.clone());
                        let field = next.as_ref().map(|next| ids.field(id, next).unwrap());
                        fields.insert(id, field.unwrap_or_default());
                    }
                    let text = ids.write(fields.iter().map(|(id, field)| (*id, &**field)));
                    prop_assert_eq!(text.bytes(), &file(&expected));
                    writing = Some(changes);
                }
                Step::End(done) => {
                    let changes = writing.take();
                    match changes {
                        Some(changes) if done => {
                            for (id, next) in &changes {
                                change(&mut force, id, next.clone());
                            }
                            ids.written(changes);
                        }
                        _ => ids.not_written(),
                    }
                }
                Step::Write(_) => {}
            }
            prop_assert_eq!(ids.is_writing(), writing.is_some());
            let known: Vec<_> = ids.entries().collect();
            let expected = force.iter().map(|(id, (entry, _))| (id, entry));
            prop_assert_eq!(known, expected.collect::<Vec<_>>());
            prop_assert_eq!(ids.bytes(), file(&force).len());
            for (id, (entry, _)) in &force {
                prop_assert_eq!(ids.field_len(id), ids.field(id, entry).unwrap().len());
            }
        }
    }
}
