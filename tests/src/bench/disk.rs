//! What the disk can do by itself, for the rows that depend on it; and row 8: the journal alone
//! beside what the disk can do with the same bytes per sync.

#![allow(
    clippy::cast_precision_loss,
    reason = "rates are reported to few digits"
)]

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use store_adapter::batch::{Batch, BatchHeader};
use store_adapter::ids::{LeaderEpoch, LogId, OwnerEpoch, ShardId};
use store_adapter::journal::{JournalConfig, JournalStore, MemoryIndex};
use store_adapter::runtime::Env;
use store_adapter::store::{Append, Commit, LogStore, Op};
use store_adapter::volume::PosixVolume;

use super::progress;
use super::results::{CPU_PER_GB, Case, MB_PER_SECOND, Results, SHARE};
use crate::raw::batch::{BatchSpec, HEADER_LEN, Record};
use crate::wallclock;

/// Batch length and batches per sync.
const SHAPES: [(usize, usize); 2] = [(16 * 1024, 64), (1024, 256)];
const PARTITIONS: u32 = 16;
const EPOCH: LeaderEpoch = LeaderEpoch(1);

/// Rows beside which the disk's own rates are told.
const OF_THE_DISK: [u8; 6] = [3, 7, 12, 13, 14, 15];
/// Bytes of a raw write and of a raw read at a time.
const RAW: usize = 1 << 20;
/// Raw writes behind one sync; row 3 has about as much in a round of its own.
const PER_SYNC: [usize; 2] = [1, 4];

/// What the journal did in a run.
struct Outcome {
    mb_per_second: f64,
    /// Bytes that went to the disk, per byte of the batches.
    written_per_byte: f64,
    cpu_per_gb: f64,
}

/// What the disk does in the same run as rows that depend on it: once in each, before the brokers.
pub(super) fn beside(dir: &Path, rows: &[u8], quick: bool, results: &mut Results) -> Result<()> {
    let span = Duration::from_millis(if quick { 100 } else { 1_000 });
    let Some(row) = OF_THE_DISK.into_iter().find(|row| rows.contains(row)) else {
        return Ok(());
    };
    let unit = MB_PER_SECOND;
    for writes in PER_SYNC {
        let what = format!("raw file, {writes} MiB per fdatasync");
        results.add_alone(Case { row, what, unit }, append(dir, RAW, writes, span)?);
    }
    let what = "raw file, read when it is not in memory".to_owned();
    let rate = read(dir, if quick { 16 } else { 512 })?;
    results.add_alone(Case { row, what, unit }, rate);
    Ok(())
}

/// Reads a file of so many MiB that is not in the page cache; MB/s.
fn read(dir: &Path, mebibytes: usize) -> Result<f64> {
    let mut file: File = tempfile::tempfile_in(dir)?;
    let mut bytes = vec![0; RAW];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    for _ in 0..mebibytes {
        file.write_all(&bytes)?;
    }
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    file.seek(SeekFrom::Start(0))?;
    let begin = wallclock::now();
    for _ in 0..mebibytes {
        file.read_exact(&mut bytes)?;
    }
    let passed = wallclock::now().duration_since(begin).as_secs_f64();
    Ok(mebibytes as f64 * RAW as f64 / 1e6 / passed)
}

/// Raw and journal take turns, a few seconds per shape and run.
pub(super) fn measure(dir: &Path, runs: usize, quick: bool, results: &mut Results) -> Result<()> {
    let span = Duration::from_millis(if quick { 300 } else { 3_000 });
    for _ in 0..runs {
        for (batch, per_sync) in SHAPES {
            let shape = format!("{per_sync} x {} KiB per fdatasync", batch / 1024);
            progress(&shape);
            let raw = append(dir, batch, per_sync, span)?;
            let runtime = tokio::runtime::Runtime::new()?;
            let ours = runtime.block_on(journal(dir, batch, per_sync, span))?;
            let mut add = |what: String, unit, value| {
                results.add_alone(Case { row: 8, what, unit }, value);
            };
            add(format!("raw file, {shape}"), MB_PER_SECOND, raw);
            add(
                format!("journal, {shape}"),
                MB_PER_SECOND,
                ours.mb_per_second,
            );
            let slower = raw / ours.mb_per_second;
            add(format!("raw ÷ journal, {shape}"), SHARE, slower);
            let written = ours.written_per_byte;
            add(format!("bytes written per byte, {shape}"), SHARE, written);
            add(format!("journal, {shape}"), CPU_PER_GB, ours.cpu_per_gb);
        }
    }
    Ok(())
}

fn append(dir: &Path, batch: usize, per_sync: usize, span: Duration) -> Result<f64> {
    let mut file: File = tempfile::tempfile_in(dir)?;
    let mut bytes = vec![0; batch * per_sync];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    let begin = wallclock::now();
    let mut written = 0_usize;
    loop {
        file.write_all(&bytes)?;
        file.sync_data()?;
        written += bytes.len();
        let passed = wallclock::now().duration_since(begin);
        if passed >= span {
            return Ok(written as f64 / 1e6 / passed.as_secs_f64());
        }
    }
}

/// Appends to 16 logs of one shard, two groups deep, so that the writer always finds a whole group
/// queued when it has synced one.
async fn journal(dir: &Path, batch: usize, per_sync: usize, span: Duration) -> Result<Outcome> {
    let dir = tempfile::tempdir_in(dir)?;
    let env = Env::real();
    let volume = Arc::new(PosixVolume::open(dir.path())?);
    let config = JournalConfig {
        round_groups: per_sync,
        ..JournalConfig::default()
    };
    let counters = Arc::clone(&config.counters);
    let index = Arc::new(MemoryIndex::new());
    let store = JournalStore::new(env.clone(), volume, index, config);
    store.open_shard(ShardId(0), OwnerEpoch::single(1)).await?;
    for partition in 0..PARTITIONS {
        store.create(log(partition), "bench", ShardId(0)).await?;
        store.acquire(log(partition), EPOCH).await?;
    }
    let value = vec![7_u8; batch - HEADER_LEN - 16];
    let spec = BatchSpec {
        records: vec![Record::value(value)],
        ..BatchSpec::default()
    };
    let encoded = spec.build();
    let header = BatchHeader::read(&encoded).context("batch")?;
    let batch = Batch::assemble(header, &encoded[HEADER_LEN..]);
    let (disk, cpu) = (bytes_written()?, cpu_seconds()?);
    let before = counters.bytes.load(Ordering::Relaxed);
    let begin = env.clock.monotonic();
    let mut sent = 0_u64;
    let mut ahead: Vec<Commit> = Vec::new();
    while env.clock.monotonic().saturating_sub(begin) < span {
        let next = group(&store, &batch, per_sync, &mut sent);
        for commit in std::mem::replace(&mut ahead, next) {
            commit.await?;
        }
    }
    for commit in ahead {
        commit.await?;
    }
    let seconds = env.clock.monotonic().saturating_sub(begin).as_secs_f64();
    let bytes = sent as f64 * encoded.len() as f64;
    let framed = (counters.bytes.load(Ordering::Relaxed) - before) as f64;
    anyhow::ensure!(
        framed >= bytes,
        "the journal wrote {framed} of {bytes} bytes"
    );
    let outcome = Outcome {
        mb_per_second: bytes / 1e6 / seconds,
        written_per_byte: (bytes_written()? - disk) as f64 / bytes,
        cpu_per_gb: (cpu_seconds()? - cpu) / (bytes / 1e9),
    };
    store.close().await?;
    Ok(outcome)
}

/// Submits one group's worth of appends, round robin over the logs.
fn group(store: &JournalStore, batch: &Batch, per_sync: usize, sent: &mut u64) -> Vec<Commit> {
    let mut commits = Vec::with_capacity(per_sync);
    for _ in 0..per_sync {
        let partition = u32::try_from(*sent % u64::from(PARTITIONS)).unwrap_or(0);
        let end = i64::try_from(*sent / u64::from(PARTITIONS)).unwrap_or(0);
        commits.push(store.submit(vec![Op::Append(Append {
            log: log(partition),
            epoch: EPOCH,
            expect_end: end,
            append_ms: 0,
            batch: batch.stamp(end, EPOCH),
        })]));
        *sent += 1;
    }
    commits
}

fn log(partition: u32) -> LogId {
    LogId {
        topic: uuid::Uuid::from_u128(1),
        partition,
    }
}

/// Bytes that this process caused to be sent to disks.
fn bytes_written() -> Result<u64> {
    let io = std::fs::read_to_string("/proc/self/io")?;
    let mut lines = io.lines();
    let line = lines.find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(line.context("no write_bytes")?.trim().parse()?)
}

/// Processor time of this process, user and system.
fn cpu_seconds() -> Result<f64> {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let nanos = u32::try_from(usage.tv_nsec)?;
    Ok(Duration::new(u64::try_from(usage.tv_sec)?, nanos).as_secs_f64())
}
