//! Journal appends against raw fdatasync on the same disk.
//!
//!     cargo run --release -p store-adapter --features conformance \
//!         --example journal_bench -- DIR [RUNS]
//!
//! For each shape, raw and journal runs take turns; medians are printed. Raw writes the same bytes
//! of payload in slices of 256 KiB and syncs once per group. The journal's groups come two deep,
//! so that the writer always finds a whole one queued.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use store_adapter::batch::Batch;
use store_adapter::conformance::batch_of;
use store_adapter::conformance::gate::GateVolume;
use store_adapter::ids::{LeaderEpoch, LogId, OwnerEpoch, ShardId};
use store_adapter::journal::{JournalConfig, JournalStore, MemoryIndex};
use store_adapter::runtime::Env;
use store_adapter::store::{Append, Commit, LogStore, Op};
use store_adapter::volume::{PosixVolume, Volume, VolumePath};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs of each kind, unless the command line says another number.
const RUNS: usize = 5;
const PARTITIONS: u32 = 16;
const EPOCH: LeaderEpoch = LeaderEpoch(1);

#[derive(Debug, Clone, Copy)]
struct Shape {
    bytes: usize,
    per_sync: usize,
    groups: usize,
}

/// What one run gave.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    seconds: f64,
    syncs: u64,
    written: u64,
    cpu_seconds: f64,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let dir = std::env::args()
        .nth(1)
        .ok_or("usage: journal_bench DIR [RUNS]")?;
    let runs = std::env::args()
        .nth(2)
        .map_or(Ok(RUNS), |runs| runs.parse())?;
    let shapes = [(16 << 10, 64, 200), (1 << 10, 256, 200), (1 << 20, 8, 40)];
    for (bytes, per_sync, groups) in shapes {
        let shape = Shape {
            bytes,
            per_sync,
            groups,
        };
        let (mut raws, mut journals) = (Vec::new(), Vec::new());
        for _ in 0..runs {
            raws.push(raw(Path::new(&dir), shape).await?);
            journals.push(journal(Path::new(&dir), shape).await?);
        }
        report(shape, median(&mut raws), median(&mut journals))?;
    }
    Ok(())
}

fn median(outcomes: &mut [Outcome]) -> Outcome {
    outcomes.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    outcomes[outcomes.len() / 2]
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn report(shape: Shape, raw: Outcome, journal: Outcome) -> Result<(), Failure> {
    let payload = (shape.bytes * shape.per_sync * shape.groups) as f64;
    let line = |name: &str, outcome: Outcome| {
        format!(
            "{name:8} {:7.1} MB/s {:9.0} appends/s {:6} syncs {:5.3} bytes/byte {:5.2} CPU s/GB",
            payload / outcome.seconds / 1e6,
            (shape.per_sync * shape.groups) as f64 / outcome.seconds,
            outcome.syncs,
            outcome.written as f64 / payload,
            outcome.cpu_seconds / (payload / 1e9),
        )
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{} B x {} per sync", shape.bytes, shape.per_sync)?;
    writeln!(out, "  {}", line("raw", raw))?;
    writeln!(out, "  {}", line("journal", journal))?;
    let ratio = journal.seconds / raw.seconds;
    writeln!(out, "  ratio    {ratio:.2} (target 1.3)")?;
    Ok(())
}

async fn raw(dir: &Path, shape: Shape) -> Result<Outcome, Failure> {
    let dir = tempfile::tempdir_in(dir)?;
    let env = Env::real();
    let volume = PosixVolume::open(dir.path())?;
    let payload = batch_of(1, shape.bytes, 0, 1).bytes().clone();
    let parts = vec![payload; shape.per_sync];
    let (before, clock) = (written()?, Arc::clone(&env.clock));
    let cpu = cpu_seconds()?;
    let start = clock.monotonic();
    let (done, outcome) = tokio::sync::oneshot::channel();
    let work = async move {
        let path = VolumePath::root().join("raw");
        let file = volume.create_new(&path).await?;
        for group in 0..shape.groups {
            let at = group * shape.per_sync * shape.bytes;
            file.write_at(at as u64, &parts).await?;
            file.sync_data().await?;
        }
        Ok::<(), Failure>(())
    };
    let task = Box::pin(async move { done.send(work.await).unwrap_or_default() });
    env.runtime.spawn_io("raw", task).await;
    outcome.await??;
    Ok(Outcome {
        seconds: clock.monotonic().saturating_sub(start).as_secs_f64(),
        syncs: shape.groups as u64,
        written: written()? - before,
        cpu_seconds: cpu_seconds()? - cpu,
    })
}

fn log(partition: u32) -> LogId {
    LogId {
        topic: uuid::Uuid::from_u128(1),
        partition,
    }
}

async fn journal(dir: &Path, shape: Shape) -> Result<Outcome, Failure> {
    let dir = tempfile::tempdir_in(dir)?;
    let env = Env::real();
    let syncs = Arc::new(AtomicU64::new(0));
    let volume = Arc::new(PosixVolume::open(dir.path())?);
    let volume = Arc::new(GateVolume::new(volume, Arc::clone(&syncs)));
    let index = Arc::new(MemoryIndex::new());
    let store = JournalStore::new(env.clone(), volume, index, JournalConfig::default());
    store.open_shard(ShardId(0), OwnerEpoch::single(1)).await?;
    for partition in 0..PARTITIONS {
        store.create(log(partition), "bench", ShardId(0)).await?;
        store.acquire(log(partition), EPOCH).await?;
    }
    let batch = batch_of(1, shape.bytes, 0, 1);
    let (before, synced) = (written()?, syncs.load(Ordering::SeqCst));
    let cpu = cpu_seconds()?;
    let start = env.clock.monotonic();
    let mut sent = 0;
    let mut ahead: Vec<Commit> = Vec::new();
    for _ in 0..shape.groups {
        let next = group(&store, &batch, shape, &mut sent);
        for commit in std::mem::replace(&mut ahead, next) {
            commit.await?;
        }
    }
    for commit in ahead {
        commit.await?;
    }
    let seconds = env.clock.monotonic().saturating_sub(start).as_secs_f64();
    let outcome = Outcome {
        seconds,
        syncs: syncs.load(Ordering::SeqCst) - synced,
        written: written()? - before,
        cpu_seconds: cpu_seconds()? - cpu,
    };
    store.close().await?;
    Ok(outcome)
}

/// Submits one group's worth of appends, round robin over the partitions.
fn group(store: &JournalStore, batch: &Batch, shape: Shape, sent: &mut u64) -> Vec<Commit> {
    let mut commits = Vec::with_capacity(shape.per_sync);
    for _ in 0..shape.per_sync {
        let partition = u32::try_from(*sent % u64::from(PARTITIONS)).unwrap_or(0);
        let end = i64::try_from(*sent / u64::from(PARTITIONS)).unwrap_or(0);
        let append = Append {
            log: log(partition),
            epoch: EPOCH,
            expect_end: end,
            append_ms: 0,
            batch: batch.stamp(end, EPOCH),
        };
        commits.push(store.submit(vec![Op::Append(append)]));
        *sent += 1;
    }
    commits
}

/// Bytes that this process caused to be sent to disks.
fn written() -> Result<u64, Failure> {
    let io = std::fs::read_to_string("/proc/self/io")?;
    let line = io
        .lines()
        .find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(line.ok_or("no write_bytes")?.trim().parse()?)
}

/// Processor time of this process, user and system.
fn cpu_seconds() -> Result<f64, Failure> {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let nanos = u32::try_from(usage.tv_nsec)?;
    Ok(Duration::new(u64::try_from(usage.tv_sec)?, nanos).as_secs_f64())
}
