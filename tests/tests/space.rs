//! Far more is written than is kept, with readers attached: the disk holds what retention keeps and
//! little more, and who reads what is gone is told so.
//!
//! 2 GB through a limit of 100 MB; `SPACE_GB=20` writes that many through a twentieth of them.

#![allow(missing_docs, reason = "a test")]

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tests::gatewayproc::{Gateway, GatewayOptions};
use tests::raw::batch::{BatchSpec, CRC_AT, CRC_FROM, Record};
use tests::raw::fetch::{Stored, batches, fetch};
use tests::raw::{RawClient, ops};
use tests::wallclock::now;

const TOPIC: &str = "through";
const PARTITIONS: i32 = 2;
/// Bytes of a batch, about.
const BATCH: u64 = 1_000_000;
const FIRST_MS: i64 = 1_700_000_000_000;

/// How much goes through how little.
#[derive(Debug, Clone, Copy)]
struct Size {
    total: u64,
    limit: u64,
    /// Of the store's files.
    journal_segment: u64,
    /// Writers wait while more of the disk is in use: how fast a small machine is does not matter.
    wait_above: Option<u64>,
}

impl Size {
    fn of_environment() -> Self {
        match std::env::var("SPACE_GB") {
            Ok(value) => {
                let total: u64 =
                    value.parse::<u64>().expect("SPACE_GB is a number") * 1_000_000_000;
                Self {
                    total,
                    limit: total / 20,
                    journal_segment: 128 << 20,
                    wait_above: None,
                }
            }
            Err(_) => Self {
                total: 2_000_000_000,
                limit: 100_000_000,
                journal_segment: 8 << 20,
                // From here one step of both writers, new files and copies of old ones are within
                // the bound.
                wait_above: Some(133_000_000),
            },
        }
    }

    /// Bytes of the disk that may be in use.
    fn bound(self) -> u64 {
        // Nobody waits where segments are large: what is written meanwhile is a part of one.
        let segments = if self.wait_above.is_some() { 4 } else { 2 };
        self.limit * 13 / 10 + segments * self.journal_segment
    }
}

/// One partition as its writer and its readers know it.
#[derive(Debug, Default)]
struct Log {
    /// CRC-32C of each batch, by its offset: a batch has one record.
    sent: Mutex<Vec<u32>>,
    /// Where the log begins, as the broker said last.
    start: AtomicI64,
    done: AtomicBool,
}

impl Log {
    /// A stored batch is the one that was sent, where it belongs.
    fn check(&self, stored: &Stored) {
        let offset = usize::try_from(stored.base).unwrap();
        assert_eq!(stored.base, stored.last);
        assert_eq!(stored.timestamp_ms - FIRST_MS, stored.base);
        assert_eq!(self.sent.lock().get(offset), Some(&stored.crc), "{offset}");
    }
}

fn batch(partition: i32, offset: i64) -> Bytes {
    let mut value = vec![b'x'; usize::try_from(BATCH).unwrap() - 100];
    value[..8].copy_from_slice(&offset.to_be_bytes());
    value[8] = u8::try_from(partition).unwrap();
    let spec = BatchSpec {
        timestamp_ms: FIRST_MS + offset,
        records: vec![Record::value(value)],
        ..BatchSpec::default()
    };
    spec.build()
}

/// Bytes that a tree takes on the disk, also what is allocated ahead. What goes meanwhile is not
/// counted, nor the room that is held for deletions, which is given up when it is needed.
fn disk_use(dir: &Path) -> u64 {
    let mut sum = 0;
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with("room-kaas-")
        {
            continue;
        }
        match entry.metadata() {
            Ok(found) if found.is_dir() => sum += disk_use(&entry.path()),
            Ok(found) => sum += found.blocks() * 512,
            Err(_) => {}
        }
    }
    sum
}

/// Who appends to a partition, and how much.
struct Writer {
    address: String,
    data_dir: PathBuf,
    log: Arc<Log>,
    partition: i32,
    /// Batches.
    count: i64,
    /// Batches that retention may keep.
    keep: i64,
    /// Batches between two looks at what it keeps.
    step: i64,
    wait_above: Option<u64>,
}

impl Writer {
    /// Appends; waits now and then until retention has done its work.
    async fn write(self) {
        let mut client = RawClient::connect(&self.address).await.unwrap();
        let mut pace = tokio::time::interval(Duration::from_millis(5));
        for offset in 0..self.count {
            let batch = batch(self.partition, offset);
            let crc = u32::from_be_bytes(batch[CRC_AT..CRC_FROM].try_into().unwrap());
            self.log.sent.lock().push(crc);
            let answer = ops::produce(&mut client, TOPIC, self.partition, batch).await;
            let answer = answer.unwrap();
            assert_eq!((answer.error_code, answer.base_offset), (0, offset));
            if offset % self.step != 0 {
                continue;
            }
            let mut waits = 0;
            loop {
                let start = start(&mut client, self.partition).await;
                self.log.start.store(start, Ordering::SeqCst);
                let full = |limit| disk_use(&self.data_dir) > limit;
                if offset - start <= self.keep && !self.wait_above.is_some_and(full) {
                    break;
                }
                waits += 1;
                let used = disk_use(&self.data_dir);
                assert!(
                    waits < 24_000,
                    "{offset}: nothing goes; the log begins at {start}, {used} bytes are in use"
                );
                pace.tick().await;
            }
        }
        self.log.done.store(true, Ordering::SeqCst);
    }
}

/// The first offset of a partition.
async fn start(client: &mut RawClient, partition: i32) -> i64 {
    let starts = ops::list_offsets(client, TOPIC, PARTITIONS, ops::EARLIEST).await;
    starts.unwrap()[usize::try_from(partition).unwrap()]
}

/// What a reader saw.
#[derive(Debug, Default)]
struct Seen {
    batches: u64,
    out_of_range: u64,
}

/// Reads on from where it is. `behind`: after each answer it waits until that place is gone.
async fn read(address: String, log: Arc<Log>, partition: i32, behind: bool) -> Seen {
    let mut client = RawClient::connect(&address).await.unwrap();
    let mut pace = tokio::time::interval(Duration::from_millis(5));
    let mut seen = Seen::default();
    let mut next = 0;
    loop {
        let done = log.done.load(Ordering::SeqCst);
        let gone = log.start.load(Ordering::SeqCst) > next;
        if behind && !gone && !done {
            pace.tick().await;
            continue;
        }
        let answers = fetch(&mut client, TOPIC, &[(partition, next)], 100, 4 << 20).await;
        let answer = answers.unwrap().remove(0);
        if answer.error_code == 1 {
            seen.out_of_range += 1;
            assert!(answer.records.is_empty());
            let start = start(&mut client, partition).await;
            assert!(
                start > next,
                "{next} is out of a log that begins at {start}"
            );
            next = start;
            continue;
        }
        assert_eq!(answer.error_code, 0);
        assert!(!gone, "{next} lies before the start of the log");
        let found = batches(&answer.records).unwrap();
        for stored in &found {
            assert_eq!(stored.base, next);
            log.check(stored);
            next = stored.last + 1;
            seen.batches += 1;
        }
        if done && (behind || found.is_empty()) {
            return seen;
        }
    }
}

/// Reads the first batch that there is, again and again: the one that goes next.
async fn read_the_oldest(address: String, log: Arc<Log>, partition: i32) -> Seen {
    let mut client = RawClient::connect(&address).await.unwrap();
    let mut pace = tokio::time::interval(Duration::from_millis(2));
    let mut seen = Seen::default();
    while !log.done.load(Ordering::SeqCst) {
        pace.tick().await;
        let next = log.start.load(Ordering::SeqCst);
        let answers = fetch(&mut client, TOPIC, &[(partition, next)], 0, 1 << 20).await;
        let answer = answers.unwrap().remove(0);
        match answer.error_code {
            1 => seen.out_of_range += 1,
            0 => {
                for stored in batches(&answer.records).unwrap() {
                    log.check(&stored);
                    seen.batches += 1;
                }
            }
            code => panic!("{code} at {next}"),
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn far_more_than_is_kept_goes_through_a_small_disk() {
    let size = Size::of_environment();
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    let options = GatewayOptions {
        overrides: vec![
            "log.retention.ms=-1".to_owned(),
            "log.retention.check.interval.ms=20".to_owned(),
            "log.initial.task.delay.ms=0".to_owned(),
            format!("journal.segment.bytes={}", size.journal_segment),
        ],
        ..GatewayOptions::default()
    };
    let gateway = Gateway::start(&data_dir, &options).unwrap();
    let mut client = RawClient::connect(gateway.address()).await.unwrap();
    let each = size.limit / u64::try_from(PARTITIONS).unwrap();
    let segment = (each / 20).max(1 << 20);
    let (kept, segment) = (each.to_string(), segment.to_string());
    let configs = [("retention.bytes", &*kept), ("segment.bytes", &*segment)];
    ops::create_topic(&mut client, TOPIC, PARTITIONS, &configs)
        .await
        .unwrap();

    let used = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let watcher = {
        let (used, stop, data_dir) = (used.clone(), stop.clone(), data_dir.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                used.fetch_max(disk_use(&data_dir), Ordering::SeqCst);
                tests::wallclock::pause(Duration::from_millis(10));
            }
        })
    };
    let began = now();
    let mut writers = Vec::new();
    let mut readers = Vec::new();
    let batches_of = |bytes: u64| i64::try_from(bytes / BATCH).unwrap();
    for partition in 0..PARTITIONS {
        let log = Arc::new(Log::default());
        let address = gateway.address();
        let (count, keep) = (size.total / 2, each + each / 10);
        readers.push(tokio::spawn(read(
            address.clone(),
            log.clone(),
            partition,
            false,
        )));
        readers.push(tokio::spawn(read(
            address.clone(),
            log.clone(),
            partition,
            true,
        )));
        let oldest = read_the_oldest(address.clone(), log.clone(), partition);
        readers.push(tokio::spawn(oldest));
        let writer = Writer {
            address,
            data_dir: data_dir.clone(),
            log,
            partition,
            count: batches_of(count),
            keep: batches_of(keep),
            step: batches_of(each / 20).max(1),
            wait_above: size.wait_above,
        };
        writers.push(tokio::spawn(writer.write()));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let seconds = began.elapsed().as_secs_f64();
    stop.store(true, Ordering::SeqCst);
    watcher.join().unwrap();
    let mut kinds: [Seen; 3] = Default::default();
    for (number, reader) in readers.into_iter().enumerate() {
        let seen = reader.await.unwrap();
        kinds[number % 3].batches += seen.batches;
        kinds[number % 3].out_of_range += seen.out_of_range;
    }
    let used = used.load(Ordering::SeqCst);
    println!(
        "{} MB through {} MB in {seconds:.1} s; at most {} MB of the disk, bound {} MB; {kinds:?}",
        size.total / 1_000_000,
        size.limit / 1_000_000,
        used / 1_000_000,
        size.bound() / 1_000_000,
    );
    assert!(used <= size.bound(), "{used} bytes");
    let [_, behind, oldest] = kinds;
    assert!(behind.out_of_range >= 1, "{behind:?}");
    assert!(oldest.batches > 0, "{oldest:?}");
    let log = gateway.log().unwrap();
    let bad: BTreeSet<&str> = log
        .lines()
        .filter(|line| line.contains("panicked") || line.contains("ERROR"))
        .collect();
    assert!(bad.is_empty(), "{bad:?}");
}
