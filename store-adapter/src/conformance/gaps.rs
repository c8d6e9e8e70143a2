//! Logs of which compaction has left every so-manieth record.

use std::sync::Arc;

use bytes::Bytes;

use super::Harness;
use super::fixture::{EPOCH, World, append, batch_of, first};
use crate::batch::{Batch, BatchHeader, HEADER_LEN};
use crate::ids::LeaderEpoch;
use crate::store::{
    Bounds, Durability, Left, Passed, Piece, Rewrite, Rewritten, Sieve, StoreError, StoredBatch,
    Wanted,
};

/// Bytes of a record.
const RECORD: usize = 10_000;
/// Records of the batches, in turn.
const RECORDS: [u16; 8] = [1, 1, 2, 1, 5, 1, 3, 1];
/// Batches at first.
const BATCHES: usize = 80;
/// What compaction is asked to reach: in the middle of a batch, and behind some files of a journal.
const UPTO: i64 = 116;

/// The time of a record: neither rising nor falling.
fn time_of(offset: i64) -> i64 {
    1_000 + offset * 37 % 101
}

/// Keeps the records whose offsets can be divided by so much.
#[derive(Debug, Clone, Copy)]
struct Every(i64);

impl Sieve for Every {
    fn sift(&self, batch: &StoredBatch) -> Left {
        let header = BatchHeader::read(&batch.bytes).unwrap();
        let offsets = header.base_offset..=header.last_offset();
        let kept = offsets.filter(|offset| offset % self.0 == 0);
        let count = kept.clone().count();
        let Some(max_timestamp) = kept.map(time_of).max() else {
            return Left::Nothing;
        };
        let records_count = i32::try_from(count).unwrap();
        if records_count == header.records_count {
            return Left::Whole;
        }
        let header = BatchHeader {
            max_timestamp,
            records_count,
            ..header
        };
        let records = &batch.bytes[HEADER_LEN..HEADER_LEN + count * RECORD];
        Left::Batch(Batch::assemble(header, records).bytes().clone())
    }
}

fn header_of(batch: &StoredBatch) -> BatchHeader {
    BatchHeader::read(&batch.bytes).unwrap()
}

/// The first log, what was appended to it, and what was asked of it since.
struct Sifted<'a> {
    world: World<'a>,
    sent: Vec<StoredBatch>,
    /// What the sieve was asked to keep of what ends below [`UPTO`].
    every: i64,
    start: i64,
}

impl<'a> Sifted<'a> {
    async fn filled(harness: &'a dyn Harness) -> Self {
        let mut filled = Self {
            world: World::with_log(harness).await,
            sent: Vec::new(),
            every: 1,
            start: 0,
        };
        filled.append(BATCHES).await;
        filled
    }

    async fn append(&mut self, batches: usize) {
        let mut commits = Vec::new();
        for number in self.sent.len()..self.sent.len() + batches {
            let records = RECORDS[number % RECORDS.len()];
            let base = self.end();
            let last = base + i64::from(records) - 1;
            let time = (base..=last).map(time_of).max().unwrap();
            let len = HEADER_LEN + usize::from(records) * RECORD;
            let batch = batch_of(records, len, time, u8::try_from(number).unwrap());
            let op = append(first(), EPOCH, base, &batch);
            commits.push(self.world.store.submit(vec![op]));
            self.sent.push(StoredBatch {
                bytes: batch.stamp(base, EPOCH).to_bytes(),
                base_offset: base,
                last_offset: last,
                append_ms: 1_000_000 + base,
            });
        }
        for commit in commits {
            commit.await.unwrap();
        }
    }

    fn end(&self) -> i64 {
        self.sent.last().map_or(0, |last| last.last_offset + 1)
    }

    async fn sift(&mut self, every: i64) -> Rewritten {
        let done = self.world.store.rewrite(keeping(every, EPOCH)).await;
        self.every = every;
        done.unwrap()
    }

    /// What is there of what was sent.
    fn expected(&self) -> Vec<StoredBatch> {
        let mut expected = Vec::new();
        let sent = self.sent.iter();
        for sent in sent.filter(|sent| sent.last_offset >= self.start) {
            let left = if sent.last_offset < UPTO {
                Every(self.every).sift(sent)
            } else {
                Left::Whole
            };
            let bytes: Bytes = match left {
                Left::Whole => sent.bytes.clone(),
                Left::Batch(bytes) => bytes,
                Left::Nothing => continue,
            };
            let sent = sent.clone();
            expected.push(StoredBatch { bytes, ..sent });
        }
        expected
    }

    async fn check(&self) {
        let bounds = Bounds {
            start: self.start,
            end: self.end(),
        };
        assert_eq!(self.world.bounds(first()), bounds);
        let watch = self.world.store.watch(first()).unwrap();
        assert_eq!(*watch.borrow(), bounds);
        // What was last of a part may be there without records.
        let found = self.world.read_all(first(), self.start).await;
        let with_records = found
            .iter()
            .filter(|found| header_of(found).records_count > 0);
        let with_records: Vec<StoredBatch> = with_records.cloned().collect();
        assert_same(&with_records, &self.expected());
        for batch in &found {
            let header = Batch::parse(batch.bytes.clone()).unwrap();
            let range = (header.header().base_offset, header.header().last_offset());
            assert_eq!(range, (batch.base_offset, batch.last_offset));
        }
        assert!(found.is_sorted_by(|a, b| a.last_offset < b.base_offset));
        assert!(found.last() == self.sent.last(), "the last one");
        self.check_reads(&found).await;
        self.check_times(&found).await;
        self.check_pieces(&found).await;
    }

    /// From each offset what is there, or else the next batch that is.
    async fn check_reads(&self, found: &[StoredBatch]) {
        let Bounds { start, end } = self.world.bounds(first());
        for from in start..end {
            let at = found.partition_point(|batch| batch.last_offset < from);
            for limit in [1, 3 * RECORD + 3 * HEADER_LEN] {
                let read = self.world.read(first(), from, limit, i64::MAX).await;
                let count = fitting(&found[at..], limit).max(1);
                assert_same(&read.unwrap(), &found[at..at + count]);
                let store = &self.world.store;
                let read = store.read_within(first(), from, limit, i64::MAX).await;
                let count = fitting(&found[at..], limit);
                assert_same(&read.unwrap(), &found[at..at + count]);
                let wanted = Wanted {
                    from,
                    max_bytes: limit,
                    upto: i64::MAX,
                    within: false,
                };
                let passed = store.pass_on(first(), wanted).await.unwrap();
                let last = passed.last().map(Passed::last_offset);
                let count = fitting(&found[at..], limit).max(1);
                assert_eq!(last, Some(found[at + count - 1].last_offset));
                assert_eq!(passed.len(), count, "{limit} from {from}");
            }
            let upto = from + 7;
            let read = self.world.read(first(), from, usize::MAX, upto).await;
            let below = found.partition_point(|batch| batch.base_offset < upto);
            assert_same(&read.unwrap(), &found[at..below.max(at)]);
        }
        let at_end = self.world.read(first(), end, 1, i64::MAX).await;
        assert_eq!(at_end, Ok(Vec::new()));
        for from in [start - 1, end + 1] {
            let out = self.world.read(first(), from, 1, i64::MAX).await;
            assert_eq!(out, Err(StoreError::OutOfRange { start, end }));
        }
    }

    async fn check_times(&self, found: &[StoredBatch]) {
        let end = self.end();
        let froms = (0..=end).step_by(5);
        let times = |from| (999..1_103).step_by(8).map(move |time| (from, time));
        for (from, time) in froms.flat_map(times) {
            let at = found.partition_point(|batch| batch.last_offset < from);
            let expected = found[at..].iter().find(|b| header_of(b).reaches(time));
            let store = &self.world.store;
            let first = store.find_time(first(), from, time).await.unwrap();
            assert!(first.as_ref() == expected, "{time} from {from}");
        }
    }

    /// Pieces have no gaps, and end with batches.
    async fn check_pieces(&self, found: &[StoredBatch]) {
        let Bounds { start, end } = self.world.bounds(first());
        for from in start..=end {
            let mut next = from;
            for piece in self.pieces(from).await {
                assert_eq!(piece.base, next, "from {from}");
                let ends = found.iter().any(|batch| batch.last_offset == piece.last);
                assert!(ends && piece.last >= next, "{piece:?} from {from}");
                next = piece.last + 1;
            }
            assert_eq!(next, end, "from {from}");
        }
        let all = self.pieces(start).await;
        for piece in &all {
            let within = piece.base..=piece.last;
            let batches = found
                .iter()
                .filter(|batch| within.contains(&batch.last_offset));
            let times = batches.map(|batch| match header_of(batch).max_timestamp {
                -1 => batch.append_ms,
                time => time,
            });
            assert_eq!(Some(piece.max_timestamp), times.max(), "{piece:?}");
        }
        let size = self.world.store.size(first()).unwrap();
        let before = all.iter().filter(|piece| piece.base < size.from);
        let size = size.bytes + before.map(|piece| piece.bytes).sum::<u64>();
        let bytes: u64 = all.iter().map(|piece| piece.bytes).sum();
        assert_eq!(bytes, size);
        let held: usize = found.iter().map(|batch| batch.bytes.len()).sum();
        let held = held as u64;
        assert!((held..2 * held).contains(&bytes), "{bytes} for {held}");
    }

    async fn pieces(&self, from: i64) -> Vec<Piece> {
        let store = &self.world.store;
        store.pieces(first(), from, u64::MAX).await.unwrap()
    }
}

fn keeping(every: i64, epoch: LeaderEpoch) -> Rewrite {
    Rewrite {
        log: first(),
        epoch,
        upto: UPTO,
        seal: true,
        sieve: Arc::new(Every(every)),
    }
}

/// As `assert_eq`, without telling all the bytes.
fn assert_same(found: &[StoredBatch], expected: &[StoredBatch]) {
    let short = |batches: &[StoredBatch]| -> Vec<(i64, i64)> {
        let ranges = batches.iter().map(|b| (b.base_offset, b.last_offset));
        ranges.collect()
    };
    assert_eq!(short(found), short(expected));
    assert!(found == expected, "{:?} are others", short(found));
}

/// How many of `batches` have at most so many bytes together.
fn fitting(batches: &[StoredBatch], limit: usize) -> usize {
    let mut bytes = 0;
    let fits = batches.iter().take_while(|batch| {
        bytes += batch.bytes.len();
        bytes <= limit
    });
    fits.count()
}

/// Compaction leaves every third record, then every ninetieth: reads from each offset find it, or
/// the next one that is left; times, pieces and bounds fit what is there. All of it outlives a
/// closing, a kill and a power cut; the start may come to lie in a gap, and the log goes on.
pub async fn gaps(harness: &dyn Harness) {
    let mut log = Sifted::filled(harness).await;
    let older = keeping(3, LeaderEpoch(EPOCH.0 - 1));
    if log.world.store.settled(first()).is_none() {
        let refused = log.world.store.rewrite(older).await;
        assert!(matches!(refused, Err(StoreError::Unsupported(_))));
        return;
    }
    assert_eq!(
        log.world.store.rewrite(older).await,
        Err(StoreError::Fenced)
    );
    log.check().await;
    let done = log.sift(3).await;
    assert_eq!(done.upto, UPTO);
    assert!(done.bytes_after < done.bytes_before / 2, "{done:?}");
    log.check().await;
    log.world = log.world.reopened().await;
    log.check().await;
    let done = log.sift(90).await;
    assert!(done.bytes_after < done.bytes_before / 10, "{done:?}");
    log.check().await;
    // What is gone is gone: nothing is left to be done.
    let again = log.sift(90).await;
    assert_eq!(again.bytes_after, again.bytes_before);
    log.check().await;
    if harness.kill(&log.world.store) {
        log.world = World::open(harness, log.world.owner.instance + 1).await;
        log.check().await;
    }
    log.start = 50;
    log.world.trim(first(), log.start).await.unwrap();
    log.check().await;
    log.append(10).await;
    log.check().await;
    let durable = log.world.store.caps().durability == Durability::Fsync;
    if durable && harness.power_cut(1) {
        log.world = World::open(harness, log.world.owner.instance + 1).await;
    } else {
        log.world = log.world.reopened().await;
    }
    log.check().await;
}
