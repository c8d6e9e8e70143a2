//! Producer state against a naive model that keeps every batch and looks through all of them.

use proptest::prelude::*;
use store_adapter::ids::{LeaderEpoch, ProducerEpoch, ProducerId, Sequence};
use uuid::Uuid;

use super::*;
use crate::volume::format::{ProducerSnapshot, TxnIndexSnapshot, Writer, decode, encode, restore};

const LIMIT_MS: i64 = 100;
const PRODUCERS: [i64; 4] = [-1, 3, 4, 5];

#[derive(Debug, Clone)]
enum Seq {
    Next,
    Zero,
    /// Both ends of the batch this far back.
    Repeat(usize),
    /// Next, off by this.
    Off(i32),
    NearTheWrap,
}

#[derive(Debug, Clone)]
enum Step {
    Order {
        pid: usize,
        epoch: i16,
        seq: Seq,
        count: i32,
        txn: bool,
        implicit_add: bool,
    },
    Marker {
        pid: usize,
        epoch: i16,
        commit: bool,
    },
    Commit(usize),
    Drop,
    Wait(i64),
    Sweep,
    Snapshot,
    /// Loses the tail, restores the last snapshot and replays the log from its end, or from the
    /// batches before it too.
    Crash {
        overlap: usize,
    },
    Trim(usize),
}

fn seq() -> impl Strategy<Value = Seq> {
    prop_oneof![
        8 => Just(Seq::Next),
        2 => Just(Seq::Zero),
        4 => (0_usize..8).prop_map(Seq::Repeat),
        1 => (-3_i32..4).prop_map(Seq::Off),
        1 => Just(Seq::NearTheWrap),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let epoch = prop_oneof![6 => Just(0_i16), 1 => Just(1_i16), 1 => Just(-1_i16)];
    let order = (
        0_usize..4,
        epoch,
        seq(),
        1_i32..4,
        prop::bool::weighted(0.4),
        any::<bool>(),
    );
    prop_oneof![
        20 => order.prop_map(|(pid, epoch, seq, count, txn, implicit_add)| Step::Order {
            pid, epoch, seq, count, txn, implicit_add
        }),
        5 => (1_usize..4, 0_i16..2, any::<bool>())
            .prop_map(|(pid, epoch, commit)| Step::Marker { pid, epoch, commit }),
        8 => (1_usize..6).prop_map(Step::Commit),
        2 => Just(Step::Drop),
        2 => (0_i64..60).prop_map(Step::Wait),
        1 => Just(Step::Sweep),
        1 => Just(Step::Snapshot),
        2 => (0_usize..4).prop_map(|overlap| Step::Crash { overlap }),
        1 => (0_usize..4).prop_map(Step::Trim),
    ]
}

/// What the batches of one producer amount to.
#[derive(Debug, Clone, Default)]
struct Naive {
    epoch: i16,
    /// Data batches since the epoch rose.
    batches: Vec<BatchMeta>,
    open: Option<i64>,
    last_append_ms: i64,
    last_timestamp: i64,
    coordinator_epoch: i32,
    last_marker: Option<LastMarker>,
}

#[derive(Debug, Default)]
struct Model {
    durable: Vec<BatchMeta>,
    tail: Vec<BatchMeta>,
    aborted: Vec<(i64, i64, i64)>,
    /// Of producers without state: the batches that were dropped, oldest first.
    refused: Vec<BatchMeta>,
}

impl Model {
    fn naive<'a>(
        batches: impl Iterator<Item = &'a BatchMeta>,
        pid: i64,
        now_ms: i64,
    ) -> Option<Naive> {
        let mut state: Option<Naive> = None;
        for batch in batches.filter(|batch| batch.producer_id.0 == pid && pid >= 0) {
            state =
                state.filter(|s| s.open.is_some() || batch.append_ms < s.last_append_ms + LIMIT_MS);
            let s = state.get_or_insert_with(|| Naive {
                epoch: batch.producer_epoch.0,
                coordinator_epoch: -1,
                ..Naive::default()
            });
            if batch.producer_epoch.0 > s.epoch {
                s.epoch = batch.producer_epoch.0;
                s.batches.clear();
            }
            s.last_append_ms = batch.append_ms;
            s.last_timestamp = batch.max_timestamp;
            if let Some(marker) = batch.marker {
                s.open = None;
                s.coordinator_epoch = marker.coordinator_epoch;
                s.last_marker = marker.txn_seq.map(|txn_seq| LastMarker {
                    epoch: batch.producer_epoch,
                    txn_seq,
                    commit: marker.commit,
                });
            } else {
                s.batches.push(*batch);
                if batch.is_transactional && s.open.is_none() {
                    s.open = Some(batch.base_offset);
                }
            }
        }
        state.filter(|s| s.open.is_some() || now_ms < s.last_append_ms + LIMIT_MS)
    }

    fn projected(&self, pid: i64, now_ms: i64) -> Option<Naive> {
        Self::naive(self.durable.iter().chain(&self.tail), pid, now_ms)
    }

    fn end(&self) -> i64 {
        self.durable.last().map_or(0, |batch| batch.last_offset + 1)
    }

    fn next_offset(&self) -> i64 {
        self.tail
            .last()
            .map_or(self.end(), |batch| batch.last_offset + 1)
    }

    /// Whether the producer's first refused batch of this epoch is another one.
    fn must_wait(&self, batch: &BatchMeta) -> bool {
        let mut first: Option<&BatchMeta> = None;
        for refused in self
            .refused
            .iter()
            .filter(|b| b.producer_id == batch.producer_id)
        {
            let stands = first.is_some_and(|f| {
                f.producer_epoch >= refused.producer_epoch
                    && refused.append_ms < f.append_ms + LIMIT_MS
            });
            if !stands {
                first = Some(refused);
            }
        }
        first.is_some_and(|f| {
            f.producer_epoch == batch.producer_epoch
                && f.first_seq != batch.first_seq
                && batch.append_ms < f.append_ms + LIMIT_MS
        })
    }

    fn drop_tail(&mut self) {
        for batch in std::mem::take(&mut self.tail) {
            let data = batch.producer_id.0 >= 0 && !batch.is_control;
            if data
                && self
                    .projected(batch.producer_id.0, batch.append_ms)
                    .is_none()
            {
                self.refused.push(batch);
            }
        }
    }

    fn classify(&self, batch: &BatchMeta) -> Verdict {
        if batch.producer_id.0 < 0 {
            return if batch.is_transactional {
                Verdict::InvalidRecord
            } else {
                Verdict::Accept
            };
        }
        let Some(s) = self.projected(batch.producer_id.0, batch.append_ms) else {
            let tv2 = batch.is_transactional && batch.implicit_add && batch.first_seq.0 != 0;
            return if tv2 || self.must_wait(batch) {
                Verdict::OutOfOrder
            } else {
                Verdict::Accept
            };
        };
        let epoch = batch.producer_epoch.0;
        let window = s.batches.iter().rev().take(5);
        let same = |b: &&BatchMeta| b.first_seq == batch.first_seq && b.last_seq == batch.last_seq;
        if let Some(b) = window.into_iter().find(same).filter(|_| epoch == s.epoch) {
            let duplicate = Duplicate {
                base_offset: b.base_offset,
                last_offset: b.last_offset,
                timestamp: b.max_timestamp,
            };
            return if self.durable.iter().any(|d| d.base_offset == b.base_offset) {
                Verdict::DuplicateDurable(duplicate)
            } else {
                Verdict::DuplicateQueued(duplicate)
            };
        }
        if epoch < s.epoch {
            return Verdict::StaleEpoch;
        }
        let expected = match s.batches.last() {
            Some(last) if epoch == s.epoch && last.last_seq.0 == i32::MAX => 0,
            Some(last) if epoch == s.epoch => last.last_seq.0 + 1,
            _ => 0,
        };
        if batch.first_seq.0 != expected {
            return Verdict::OutOfOrder;
        }
        if s.open.is_some() && !batch.is_transactional {
            return Verdict::InvalidTxnState;
        }
        Verdict::Accept
    }

    fn commit(&mut self, count: usize) -> Option<i64> {
        let count = count.min(self.tail.len());
        for batch in self.tail.drain(..count).collect::<Vec<_>>() {
            let before = Self::naive(self.durable.iter(), batch.producer_id.0, i64::MIN);
            if let (Some(marker), Some(first)) = (batch.marker, before.and_then(|s| s.open))
                && !marker.commit
            {
                self.aborted
                    .push((batch.producer_id.0, first, batch.last_offset));
            }
            self.refused.retain(|b| b.producer_id != batch.producer_id);
            self.durable.push(batch);
        }
        (count > 0).then(|| self.end() - 1)
    }
}

/// The image as the snapshot files give it back.
fn through_the_files(image: &Image) -> Image {
    let writer = Writer {
        leader_epoch: LeaderEpoch(1),
        topic_id: Uuid::from_u128(5),
    };
    let index = encode(&TxnIndexSnapshot::of(image, writer)).unwrap();
    let producers = encode(&ProducerSnapshot::of(image, writer)).unwrap();
    let (producers, index) = (decode(&producers).unwrap(), decode(&index).unwrap());
    let restored = restore(&producers, &index, writer.topic_id)
        .unwrap()
        .unwrap();
    assert_eq!(restored.proofs.first(), image.last_batch.as_ref());
    restored.image
}

#[derive(Debug)]
struct World {
    model: Model,
    states: ProducerStates,
    saved: Image,
    now_ms: i64,
    start: i64,
    markers: u64,
}

impl World {
    fn new() -> Self {
        Self {
            model: Model::default(),
            states: ProducerStates::new(LIMIT_MS),
            saved: Image::default(),
            now_ms: 1000,
            start: 0,
            markers: 0,
        }
    }

    fn batch(&self, pid: i64, epoch: i16, first: i32, count: i32) -> BatchMeta {
        let base_offset = self.model.next_offset();
        BatchMeta {
            producer_id: ProducerId(pid),
            producer_epoch: ProducerEpoch(epoch),
            first_seq: Sequence(first),
            last_seq: Sequence(first).plus(count - 1),
            base_offset,
            last_offset: base_offset + i64::from(count) - 1,
            max_timestamp: base_offset * 7,
            append_ms: self.now_ms,
            crc: 17,
            is_transactional: false,
            is_control: false,
            implicit_add: false,
            marker: None,
        }
    }

    fn put(&mut self, batch: BatchMeta) {
        self.states.queue(batch);
        self.model.tail.push(batch);
    }

    fn order(&mut self, pid: i64, raise: i16, seq: &Seq, count: i32, flags: (bool, bool)) {
        let known = self.model.projected(pid, self.now_ms).unwrap_or_default();
        let epoch = (known.epoch + raise).max(0);
        let next = known
            .batches
            .last()
            .map_or(Sequence(0), |last| last.last_seq.plus(1))
            .0;
        let mut batch = match seq {
            Seq::Next => self.batch(pid, epoch, next, count),
            Seq::Zero => self.batch(pid, epoch, 0, count),
            Seq::Off(off) => self.batch(pid, epoch, next.saturating_add(*off).max(0), count),
            Seq::NearTheWrap => self.batch(pid, epoch, i32::MAX - 1, count),
            Seq::Repeat(back) => match known.batches.iter().rev().nth(*back) {
                Some(old) => {
                    let count = i32::try_from(old.last_offset - old.base_offset).unwrap() + 1;
                    self.batch(pid, epoch, old.first_seq.0, count)
                }
                None => self.batch(pid, epoch, 1, count),
            },
        };
        (batch.is_transactional, batch.implicit_add) = flags;
        let verdict = self.states.classify(&batch);
        assert_eq!(verdict, self.model.classify(&batch), "{batch:?}");
        if verdict == Verdict::Accept {
            self.put(batch);
        }
    }

    fn marker(&mut self, pid: i64, raise: i16, commit: bool) {
        let epoch = self
            .model
            .projected(pid, self.now_ms)
            .map_or(0, |s| s.epoch);
        self.markers += 1;
        let marker = MarkerInfo {
            commit,
            coordinator_epoch: 2,
            txn_seq: Some(self.markers),
        };
        let batch = BatchMeta {
            first_seq: Sequence(-1),
            last_seq: Sequence(-1),
            is_transactional: true,
            is_control: true,
            marker: Some(marker),
            ..self.batch(pid, epoch + raise, 0, 1)
        };
        self.put(batch);
    }

    fn crash(&mut self, overlap: usize) {
        self.model.tail.clear();
        self.model.refused.clear();
        let mut reopened = ProducerStates::restore(through_the_files(&self.saved), LIMIT_MS);
        let covered = |batch: &BatchMeta| batch.last_offset < self.saved.log_end_offset;
        let from = self.model.durable.iter().take_while(|b| covered(b)).count();
        for batch in self.model.durable.iter().skip(from.saturating_sub(overlap)) {
            reopened.replay(batch);
        }
        reopened.trim(self.start);
        self.states = reopened;
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Order {
                pid,
                epoch,
                seq,
                count,
                txn,
                implicit_add,
            } => {
                self.order(PRODUCERS[*pid], *epoch, seq, *count, (*txn, *implicit_add));
            }
            Step::Marker { pid, epoch, commit } => self.marker(PRODUCERS[*pid], *epoch, *commit),
            Step::Commit(count) => {
                if let Some(last_offset) = self.model.commit(*count) {
                    self.states.commit_through(last_offset);
                }
            }
            Step::Drop => {
                self.model.drop_tail();
                self.states.drop_tail();
            }
            Step::Wait(ms) => self.now_ms += ms,
            Step::Sweep => self.states.expire(self.now_ms),
            Step::Snapshot => self.saved = self.states.image(),
            Step::Crash { overlap } => self.crash(*overlap),
            Step::Trim(batches) => {
                // A trim writes a snapshot first.
                self.saved = self.states.image();
                let durable = &self.model.durable;
                let start = durable
                    .iter()
                    .nth_back(*batches)
                    .map_or(0, |b| b.base_offset);
                self.start = self.start.max(start);
                self.states.trim(self.start);
            }
        }
        self.check();
    }

    fn check(&self) {
        let end = self.model.end();
        assert_eq!(self.states.log_end_offset(), end);
        assert_eq!(self.states.tail_len(), self.model.tail.len());
        let durable = |pid| Model::naive(self.model.durable.iter(), pid, self.now_ms);
        let open = PRODUCERS.iter().filter_map(|pid| durable(*pid)?.open).min();
        let stable = open.unwrap_or(end).max(self.start).min(end);
        assert_eq!(self.states.last_stable_offset(end), stable);
        for pid in PRODUCERS {
            self.check_entry(pid, durable(pid));
        }
        for from in (self.start..=end).step_by(3) {
            for upto in [from + 1, from + 4, end] {
                let mut expected: Vec<_> = self.model.aborted.clone();
                expected.retain(|(_, first, last)| *last >= from && *first < upto);
                expected.sort_by_key(|(_, first, _)| *first);
                let found: Vec<_> = self.states.aborted(from, upto);
                let found: Vec<_> = found
                    .iter()
                    .map(|txn| (txn.producer_id.0, txn.first_offset, txn.last_offset))
                    .collect();
                assert_eq!(found, expected, "{from}..{upto}");
            }
        }
    }

    fn check_entry(&self, pid: i64, expected: Option<Naive>) {
        let found = self.states.producers().find(|(id, _)| id.0 == pid);
        let found = found.map(|(_, entry)| entry);
        let found = found.filter(|entry| !entry.is_expired(self.now_ms, LIMIT_MS));
        let expected = expected.map(|s| {
            let mut window = Window::default();
            for batch in s.batches.iter().skip(s.batches.len().saturating_sub(5)) {
                window.push(BatchMetadata::of(batch));
            }
            ProducerEntry {
                epoch: ProducerEpoch(s.epoch),
                window,
                last_timestamp: s.last_timestamp,
                last_append_ms: s.last_append_ms,
                current_txn_first_offset: s.open,
                coordinator_epoch: s.coordinator_epoch,
                last_marker: s.last_marker,
            }
        });
        assert_eq!(found, expected.as_ref(), "producer {pid}");
    }
}

// `PROPTEST_CASES` soaks; the default is 256 histories.
proptest! {
    #[test]
    fn state_equals_the_naive_model(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        world.step(&Step::Crash { overlap: 1 });
    }
}
