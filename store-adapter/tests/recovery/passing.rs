//! Batches that are only passed on: of large ones it is told where they lie, for a minute after
//! they were written, or read and checked.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use store_adapter::conformance::batch_of;
use store_adapter::journal::{JournalStore, MemoryIndex};
use store_adapter::runtime::{BoxFuture, Clock, Env};
use store_adapter::store::{LogStore, Op, Passed, StoreError, Wanted};
use store_adapter::volume::PosixVolume;

use crate::support::{EPOCH, add, config, log, open, submit_sized};

/// A clock that stands until it is moved on.
#[derive(Debug)]
struct Late {
    real: Arc<dyn Clock>,
    seconds: AtomicU64,
}

impl Clock for Late {
    fn wall_ms(&self) -> i64 {
        self.real.wall_ms()
    }

    fn monotonic(&self) -> Duration {
        Duration::from_secs(self.seconds.load(Ordering::Relaxed))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.real.sleep(duration)
    }
}

/// A store in a directory with batches of these sizes.
async fn filled(dir: &Path, sizes: &[usize]) -> (JournalStore, Arc<Late>) {
    let real = Env::real();
    let clock = Arc::new(Late {
        real: Arc::clone(&real.clock),
        seconds: AtomicU64::new(0),
    });
    let env = Env {
        clock: Arc::<Late>::clone(&clock),
        ..real
    };
    let volume = Arc::new(PosixVolume::open(dir).unwrap());
    let store = JournalStore::new(env, volume, Arc::new(MemoryIndex::new()), config());
    open(&store, 1).await.unwrap();
    add(&store, 0).await;
    for (end, size) in (0..).zip(sizes) {
        let outcome = submit_sized(&store, 0, end, fill(end), *size).await;
        outcome.unwrap();
    }
    (store, clock)
}

fn fill(offset: i64) -> u8 {
    u8::try_from(offset + 1).unwrap()
}

/// What was sent as the batch at `offset`.
fn sent(offset: i64, size: usize) -> Bytes {
    batch_of(1, size, 3, fill(offset))
        .stamp(offset, EPOCH)
        .to_bytes()
}

async fn pass(store: &JournalStore, wanted: Wanted) -> Result<Vec<Passed>, StoreError> {
    store.pass_on(log(0), wanted).await
}

const ALL: Wanted = Wanted {
    from: 0,
    max_bytes: usize::MAX,
    upto: i64::MAX,
    within: false,
};

/// Which of them are told by where they lie.
fn in_files(passed: &[Passed]) -> Vec<bool> {
    let in_file = |passed: &Passed| matches!(passed, Passed::File { .. });
    passed.iter().map(in_file).collect()
}

fn bytes(passed: &Passed) -> Bytes {
    match passed {
        Passed::Read(batch) => batch.bytes.clone(),
        Passed::File { range, .. } => range.read().unwrap(),
    }
}

fn journals(dir: &Path) -> Vec<PathBuf> {
    let journal = dir.join("__store/shard-0/journal");
    let names = fs::read_dir(journal).unwrap();
    let mut found: Vec<_> = names.map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|end| end == "log"));
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_is_read_once_a_minute() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = [300_000, 40_000, 300_000, 100];
    let (store, clock) = filled(dir.path(), &sizes).await;
    for minute in 0..3 {
        // What was just written is not read at all.
        for (round, large) in [(0, minute == 0), (1, true), (2, true)] {
            let passed = pass(&store, ALL).await.unwrap();
            let expected = [large, large, large, false];
            assert_eq!(in_files(&passed), expected, "{minute}, {round}");
            for (offset, (passed, size)) in (0..).zip(passed.iter().zip(sizes)) {
                assert_eq!(passed.last_offset(), offset);
                assert!(bytes(passed) == sent(offset, size), "{offset}");
            }
        }
        clock.seconds.fetch_add(61, Ordering::Relaxed);
    }
}

/// Who passes on what is known is answered at once, and waits for no thread that reads.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_right_lately_is_found_without_asking_anybody() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = [300_000, 40_000, 300_000, 100];
    let (store, clock) = filled(dir.path(), &sizes).await;
    let large = Wanted { upto: 3, ..ALL };
    let at_once = |wanted| pass(&store, wanted).now_or_never();
    assert_eq!(in_files(&at_once(large).unwrap().unwrap()), [true; 3]);
    // The last one has to be read.
    assert_eq!(
        in_files(&pass(&store, ALL).await.unwrap()),
        [true, true, true, false]
    );
    clock.seconds.fetch_add(61, Ordering::Relaxed);
    assert_eq!(in_files(&pass(&store, large).await.unwrap()), [false; 3]);
    assert_eq!(in_files(&at_once(large).unwrap().unwrap()), [true; 3]);
    // A file that nobody writes any more is no different, once its index is at hand.
    submit_sized(&store, 0, 4, fill(4), 300_000).await.unwrap();
    submit_sized(&store, 0, 5, fill(5), 100).await.unwrap();
    assert!(journals(dir.path()).len() > 1);
    pass(&store, large).await.unwrap();
    let passed = at_once(large).unwrap().unwrap();
    assert_eq!(in_files(&passed), [true; 3]);
    for (offset, (passed, size)) in (0..).zip(passed.iter().zip(sizes)) {
        assert!(bytes(passed) == sent(offset, size), "{offset}");
    }
}

/// Of little that comes at once, the copy costs less than a thread that sends it.
#[tokio::test(flavor = "multi_thread")]
async fn less_than_256_kib_in_a_row_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = filled(dir.path(), &[80_000, 80_000, 80_000, 80_000]).await;
    for (from, max_bytes, large) in [
        (0, usize::MAX, true),
        (1, usize::MAX, false),
        (0, 319_999, false),
        (0, 320_000, true),
    ] {
        let wanted = Wanted {
            from,
            max_bytes,
            ..ALL
        };
        let passed = pass(&store, wanted).await.unwrap();
        assert_eq!(in_files(&passed), vec![large; passed.len()], "{wanted:?}");
        assert!(passed.len() >= 3);
        for (offset, passed) in (from..).zip(&passed) {
            assert!(bytes(passed) == sent(offset, 80_000), "{offset}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limits_are_those_of_a_read() {
    let dir = tempfile::tempdir().unwrap();
    let (store, clock) = filled(dir.path(), &[300_000, 40_000, 300_000, 100]).await;
    let wanted = |from, max_bytes, upto, within| Wanted {
        from,
        max_bytes,
        upto,
        within,
    };
    // From files, then not, then again.
    for seconds in [0, 61, 0] {
        clock.seconds.fetch_add(seconds, Ordering::Relaxed);
        for (wanted, from, count) in [
            (wanted(0, 0, 4, false), 0, 1),
            (wanted(0, 0, 4, true), 0, 0),
            (wanted(0, 299_999, 4, true), 0, 0),
            (wanted(0, 300_000, 4, true), 0, 1),
            (wanted(0, 340_000, 4, true), 0, 2),
            (wanted(1, 339_999, 4, false), 1, 1),
            (wanted(1, 340_000, 4, false), 1, 2),
            (wanted(1, 1 << 20, 2, false), 1, 1),
            (wanted(1, 1 << 20, 4, false), 1, 3),
            (wanted(4, 1 << 20, 4, false), 4, 0),
        ] {
            let passed = pass(&store, wanted).await.unwrap();
            let offsets: Vec<i64> = passed.iter().map(Passed::last_offset).collect();
            assert_eq!(
                offsets,
                (from..from + count).collect::<Vec<_>>(),
                "{wanted:?}"
            );
        }
    }
    let beyond = pass(&store, wanted(5, 1, 9, false)).await;
    assert_eq!(beyond, Err(StoreError::OutOfRange { start: 0, end: 4 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_seen_by_who_reads_and_a_minute_later_by_who_passes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (store, clock) = filled(dir.path(), &[300_000, 300_000]).await;
    let first = Wanted {
        max_bytes: 1,
        ..ALL
    };
    clock.seconds.fetch_add(61, Ordering::Relaxed);
    for large in [false, true] {
        let passed = pass(&store, first).await.unwrap();
        assert_eq!(in_files(&passed), [large]);
    }
    let body = sent(0, 300_000);
    let place = |path: PathBuf| {
        let whole = fs::read(&path).unwrap();
        let at = whole
            .windows(1000)
            .position(|part| part == &body[1000..2000]);
        Some((path, at?))
    };
    let (path, at) = journals(dir.path()).into_iter().find_map(place).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let at = u64::try_from(at).unwrap();
    file.write_all_at(&[!body[1000]], at).unwrap();
    let corrupt = |outcome| matches!(outcome, Err(StoreError::Corrupt { .. }));
    assert!(corrupt(store.read(log(0), 0, 1, i64::MAX).await.map(drop)));
    // What has been looked at since the damage is of no use to this one.
    clock.seconds.fetch_add(61, Ordering::Relaxed);
    assert!(corrupt(pass(&store, first).await.map(drop)));
    // The other batch is well.
    let other = Wanted { from: 1, ..first };
    for large in [false, true] {
        let passed = pass(&store, other).await.unwrap();
        assert_eq!(in_files(&passed), [large]);
        assert!(bytes(&passed[0]) == sent(1, 300_000));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_being_passed_on_outlives_its_file() {
    let dir = tempfile::tempdir().unwrap();
    // Files are closed after 256 KiB.
    let (store, _) = filled(dir.path(), &[70_000; 12]).await;
    let passed = pass(&store, ALL).await.unwrap();
    assert_eq!(in_files(&passed), [true; 12]);
    let before = journals(dir.path());
    assert!(before.len() > 2, "{before:?}");
    let trim = Op::Trim {
        log: log(0),
        epoch: EPOCH,
        start: 11,
    };
    store.submit(vec![trim]).await.unwrap();
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    let mut rounds = 0;
    while before[0].exists() {
        rounds += 1;
        assert!(rounds < 3000, "the file is still there");
        pace.tick().await;
    }
    for (offset, passed) in (0..).zip(&passed) {
        assert!(bytes(passed) == sent(offset, 70_000), "{offset}");
    }
    let gone = pass(&store, ALL).await;
    assert_eq!(gone, Err(StoreError::OutOfRange { start: 11, end: 12 }));
}
