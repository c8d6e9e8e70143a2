//! Random lives of a book against a map without cleverness, with crashes and failed writes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::table_tests::{end, new, txn};
use super::*;

type Key = (String, i32);
/// Offset and commit number.
type Numbered = (i64, u64);

/// What a file would hold: each step is applied to a copy of it, and copied over when durable.
#[derive(Debug, Clone, PartialEq, Default)]
struct Model {
    committed: BTreeMap<Key, Numbered>,
    /// By producer: transaction, and its offsets.
    staged: BTreeMap<i64, (u64, BTreeMap<Key, Numbered>)>,
    applied: BTreeMap<i64, u64>,
    seq: u64,
    deleted: bool,
}

#[derive(Debug, Clone)]
enum Step {
    Commit(u8, u8, i64),
    Stage(u8, u8, u8, i64),
    /// Producer; commit; whether the number is that of the open transaction or the one before.
    Decide(u8, bool, bool),
    /// An offset of the last decided transaction of a producer, which comes late.
    Late(u8, u8, u8),
    Delete(u8, u8),
    Purge(u8),
    DeleteGroup,
    /// The write happens.
    Write,
    /// It does not, for sure.
    Fail,
    /// It may have: which it was.
    Unknown(bool),
    /// The process dies; a write that was under way may have happened.
    Crash(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let key = (0..3_u8, 0..2_u8);
    prop_oneof![
        4 => (key.clone(), 0..100_i64).prop_map(|((t, p), o)| Step::Commit(t, p, o)),
        4 => (0..3_u8, key.clone(), 0..100_i64).prop_map(|(n, (t, p), o)| Step::Stage(n, t, p, o)),
        3 => (0..3_u8, any::<bool>(), any::<bool>()).prop_map(|(n, c, b)| Step::Decide(n, c, b)),
        2 => (0..3_u8, key.clone()).prop_map(|(n, (t, p))| Step::Late(n, t, p)),
        1 => key.prop_map(|(t, p)| Step::Delete(t, p)),
        1 => (0..3_u8).prop_map(Step::Purge),
        1 => Just(Step::DeleteGroup),
        4 => Just(Step::Write),
        1 => Just(Step::Fail),
        1 => any::<bool>().prop_map(Step::Unknown),
        1 => any::<bool>().prop_map(Step::Crash),
    ]
}

fn topic(n: u8) -> String {
    format!("t{n}")
}

impl Model {
    fn drop_keys(&mut self, gone: impl Fn(&Key) -> bool) {
        self.committed.retain(|key, _| !gone(key));
        for (_, offsets) in self.staged.values_mut() {
            offsets.retain(|key, _| !gone(key));
        }
        self.staged.retain(|_, (_, offsets)| !offsets.is_empty());
    }

    fn decide(&mut self, producer: i64, txn_seq: u64, commit: bool) {
        let last = self.applied.get(&producer);
        if last.is_some_and(|last| *last >= txn_seq) {
            return;
        }
        self.deleted = false;
        if self
            .staged
            .get(&producer)
            .is_some_and(|(open, _)| *open == txn_seq)
        {
            let (_, offsets) = self.staged.remove(&producer).unwrap();
            for (key, (offset, seq)) in offsets {
                let known = self.committed.get(&key);
                if commit && known.is_none_or(|(_, known)| *known < seq) {
                    self.committed.insert(key, (offset, seq));
                }
            }
        }
        self.applied.insert(producer, txn_seq);
    }

    /// What a table amounts to.
    fn of(table: &OffsetTable) -> Self {
        let mut model = Self {
            seq: table.next_seq(),
            deleted: table.is_deleted(),
            ..Self::default()
        };
        for (topic, partitions) in table.committed() {
            for (partition, committed) in partitions {
                let key = (topic.to_string(), *partition);
                model
                    .committed
                    .insert(key, (committed.offset, committed.seq.unwrap()));
            }
        }
        for (id, open) in table.staged() {
            let mut offsets = BTreeMap::new();
            for (topic, partitions) in &open.offsets {
                for (partition, staged) in partitions {
                    let key = (topic.to_string(), *partition);
                    offsets.insert(key, (staged.offset, staged.seq));
                }
            }
            model.staged.insert(id.0, (open.txn_seq, offsets));
        }
        let applied = table.applied().iter();
        model.applied = applied.map(|(id, last)| (id.0, last.txn_seq)).collect();
        model
    }
}

/// A book, the file behind it, and what both should be.
#[derive(Debug, Default)]
struct Life {
    book: OffsetBook,
    file: OffsetTable,
    durable: Model,
    ahead: Model,
    /// The open or next transaction of each producer.
    txns: [u64; 3],
}

impl Life {
    fn prepare(&mut self, step: &Step) {
        let facts = CommitFacts::default();
        match *step {
            Step::Commit(t, p, offset) => {
                let offsets = vec![new(&topic(t), p.into(), offset)];
                self.book.commit(offsets, &facts).unwrap();
                let seq = self.ahead.seq;
                self.ahead.seq += 1;
                self.ahead.deleted = false;
                self.ahead
                    .committed
                    .insert((topic(t), p.into()), (offset, seq));
            }
            Step::Stage(n, t, p, offset) => {
                let txn_seq = self.txns[usize::from(n)] + 1;
                let offsets = vec![new(&topic(t), p.into(), offset)];
                let txn = txn(n.into(), 0, txn_seq);
                let staged = self.book.stage(&txn, offsets, &facts.membership);
                let applied = self.ahead.applied.get(&n.into()).copied();
                if applied.is_some_and(|applied| applied >= txn_seq) {
                    assert_eq!(staged, Err(StageError::Decided));
                    return;
                }
                staged.unwrap();
                let seq = self.ahead.seq;
                self.ahead.seq += 1;
                self.ahead.deleted = false;
                let open = self.ahead.staged.entry(n.into()).or_default();
                open.0 = txn_seq;
                open.1.insert((topic(t), p.into()), (offset, seq));
            }
            Step::Decide(n, commit, current) => {
                let last = self.txns[usize::from(n)];
                let txn_seq = last + u64::from(current);
                let end = end(n.into(), 0, txn_seq, commit);
                let decided = self.book.decide(end, 0).unwrap();
                self.ahead.decide(n.into(), txn_seq, commit);
                assert!(matches!(decided, Decided::With(_)));
            }
            Step::Late(n, t, p) => self.late(n, t, p),
            Step::Delete(t, p) => {
                let gone = (topic(t), i32::from(p));
                self.book
                    .delete(&[(gone.0.as_str().into(), gone.1)])
                    .unwrap();
                self.ahead.drop_keys(|key| *key == gone);
            }
            Step::Purge(t) => {
                self.book.purge(|name, _| name == topic(t)).unwrap();
                self.ahead.drop_keys(|(name, _)| *name == topic(t));
            }
            Step::DeleteGroup => {
                self.book.delete_group().unwrap();
                let nothing = self.ahead.deleted
                    || (self.ahead.seq == 0
                        && self.ahead.committed.is_empty()
                        && self.ahead.staged.is_empty());
                if nothing {
                    return;
                }
                let applied = std::mem::take(&mut self.ahead.applied);
                self.ahead = Model {
                    deleted: applied.is_empty(),
                    applied,
                    ..Model::default()
                };
            }
            _ => {}
        }
    }

    /// What a producer's last decided transaction stages is refused.
    fn late(&mut self, n: u8, t: u8, p: u8) {
        let txn_seq = self.txns[usize::from(n)];
        if txn_seq > 0 {
            let offsets = vec![new(&topic(t), p.into(), 1)];
            let txn = txn(n.into(), 0, txn_seq);
            let late = self.book.stage(&txn, offsets, &Membership::default());
            assert_eq!(late, Err(StageError::Decided));
        }
    }

    fn write(&mut self, happens: bool) {
        if let Some(image) = self.book.image().filter(|_| happens) {
            self.file = OffsetTable::clone(&image.table);
            self.durable = self.ahead.clone();
        }
    }

    fn step(&mut self, step: &Step) {
        self.prepare(step);
        match *step {
            Step::Write => {
                let image = self.book.image();
                self.write(true);
                if let Some(image) = image {
                    self.book.written(&image);
                }
            }
            Step::Fail => {
                self.book.not_written();
                self.ahead = self.durable.clone();
            }
            Step::Unknown(happened) => {
                self.write(happened);
                self.book.maybe_written();
                self.ahead = self.durable.clone();
                self.book.reloaded(self.file.clone());
                let image = self.book.image().unwrap();
                self.book.written(&image);
            }
            Step::Crash(happened) => {
                self.write(happened);
                self.ahead = self.durable.clone();
                self.book = OffsetBook::restore(self.file.clone());
            }
            _ => {}
        }
        // A producer begins its next transaction when the one before is decided for good.
        for (producer, last) in (0_i64..).zip(&mut self.txns) {
            let decided = self.durable.applied.get(&producer).copied().unwrap_or(0);
            *last = (*last).max(decided);
        }
        self.check();
    }

    fn check(&self) {
        assert_eq!(Model::of(self.book.durable()), self.durable);
        assert_eq!(Model::of(self.book.ahead()), self.ahead);
        assert_eq!(self.book.durable(), &self.file);
        let recounted = size::of_table(self.book.ahead());
        assert_eq!(self.book.ahead().bytes(), recounted);
        for t in 0..3 {
            for p in 0..2 {
                self.check_key(&(topic(t), p));
            }
        }
    }

    fn check_key(&self, key: &Key) {
        let (name, partition) = (key.0.as_str(), key.1);
        let open = self
            .durable
            .staged
            .values()
            .any(|(_, offsets)| offsets.contains_key(key));
        let plain = self.durable.committed.get(key).map(|(offset, _)| *offset);
        let fetch = |stable| match self.book.fetch(name, partition, stable, |_, _| true) {
            Fetched::Committed(committed) => Ok(Some(committed.offset)),
            Fetched::None => Ok(None),
            Fetched::Unstable => Err(88),
        };
        assert_eq!(fetch(false), Ok(plain));
        assert_eq!(fetch(true), if open { Err(88) } else { Ok(plain) });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A failing case prints its seed and shrinks to its shortest life.
    #[test]
    fn a_book_is_what_its_file_says(steps in proptest::collection::vec(step(), 1..60)) {
        let mut life = Life::default();
        for step in &steps {
            life.step(step);
        }
    }
}
