//! Processes of this binary: they are killed, looked at from outside, and may hang or end as they
//! like.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use store_adapter::conformance::batch_of;
use store_adapter::store::{Commit, LogStore, Op, StoreError};

use crate::counts;
use crate::stores::{self, Layout};

/// What a child is told, as `<work> <layout> <directory> <number>`.
const VARIABLE: &str = "FENCEPOST_CONFORMANCE_CHILD";
/// The log that is compacted, one of those that are written one by one.
pub(crate) const COMPACTED: u32 = 0;
/// Logs that are written one by one, and those that groups write together.
pub(crate) const SINGLE: std::ops::Range<u32> = 0..3;
pub(crate) const TOGETHER: std::ops::Range<u32> = 3..6;
/// Groups on their way.
const IN_FLIGHT: usize = 8;

/// A running child; killed with its handle.
pub(crate) struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

/// Starts a child that does `work`.
pub(crate) fn start(work: &str, layout: Layout, dir: &Path, number: u64) -> Running {
    let told = format!("{work} {} {} {number}", layout.name(), dir.display());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .env(VARIABLE, told)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    Running { child, lines }
}

impl Running {
    /// The next line that it says; `None` at its end.
    pub(crate) fn line(&mut self) -> Option<String> {
        self.lines.next().and_then(Result::ok)
    }

    /// Awaits that it says so.
    pub(crate) fn await_line(&mut self, wanted: &str) {
        loop {
            let line = self.line();
            assert!(line.is_some(), "the child ended without {wanted:?}");
            if line.as_deref() == Some(wanted) {
                return;
            }
        }
    }

    /// Kills it; returns what it had said.
    pub(crate) fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        counts::KILLS.add(1);
        let said = self.lines.by_ref().map_while(Result::ok).collect();
        self.child.wait().unwrap();
        said
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        self.child.kill().unwrap_or_default();
        self.child.wait().ok();
    }
}

/// Does what this process was told as a child; whether it is one.
pub(crate) fn run_child() -> bool {
    let Ok(told) = std::env::var(VARIABLE) else {
        return false;
    };
    let words: Vec<&str> = told.split(' ').collect();
    let [work, layout, dir, number] = words[..] else {
        panic!("{told}");
    };
    let (layout, dir) = (Layout::of(layout), Path::new(dir));
    let number: u64 = number.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        match work {
            "write" => write(layout, dir, number).await,
            "fill" => {
                let _store = fill(layout, dir, number).await;
                say("filled");
                std::future::pending::<()>().await;
            }
            "grow" => grow(layout, dir, number).await,
            "many" => many(layout, dir, number).await,
            "much" => much(layout, dir, number).await,
            "open" => say(&opened(layout, dir, number).await),
            "judge" => say(&judge(layout, dir).await),
            other => panic!("{other}"),
        }
    });
    true
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // One write, so that whoever reads sees whole lines or a torn last one.
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// Appends, to one log or to three together, trims and compacts, until it is killed; says what is
/// acknowledged.
async fn write(layout: Layout, dir: &Path, instance: u64) {
    let store = stores::open(layout, dir, instance).await;
    for partition in SINGLE.chain(TOGETHER) {
        stores::add(&store, partition).await;
    }
    let mut random = fastrand::Rng::with_seed(instance);
    let bounds = |partition| store.bounds(stores::log(partition)).unwrap();
    let mut ends: Vec<i64> = SINGLE.chain(TOGETHER).map(|log| bounds(log).end).collect();
    let mut waiting: std::collections::VecDeque<Commit> = std::collections::VecDeque::new();
    let mut compacting = tokio::spawn(async {});
    say("ready");
    loop {
        if compacting.is_finished() && random.u8(..8) == 0 {
            let (store, end) = (Arc::clone(&store), bounds(COMPACTED).end);
            compacting = tokio::spawn(async move {
                // One that fails, and how far one came, is looked at when this process is gone.
                let done = store.rewrite(stores::thirds(COMPACTED, end - 1)).await;
                if done.is_ok_and(|done| done.bytes_after < done.bytes_before) {
                    say("compacted");
                }
            });
        }
        let ops: Vec<Op> = match random.u32(0..10) {
            0 => {
                // What compaction leaves stays, to be looked at.
                let partition = random.u32(COMPACTED + 1..SINGLE.end);
                let end = bounds(partition).end;
                vec![stores::trim(partition, (end - 20).max(0))]
            }
            1..=4 => TOGETHER
                .map(|log| stores::append(log, ends[log as usize]))
                .collect(),
            _ => {
                let log = random.u32(SINGLE);
                vec![stores::append(log, ends[log as usize])]
            }
        };
        for op in &ops {
            if let Op::Append(append) = op {
                ends[append.log.partition as usize] += 1;
            }
        }
        waiting.push_back(store.submit(ops));
        if waiting.len() >= IN_FLIGHT
            && let Some(commit) = waiting.pop_front()
        {
            commit.await.unwrap();
            // Everything that is shown counts, not only what was waited for.
            let shown = SINGLE.chain(TOGETHER).map(|log| {
                let bounds = bounds(log);
                format!("{} {}", bounds.start, bounds.end)
            });
            say(&shown.collect::<Vec<_>>().join(" "));
        }
    }
}

/// Batches of each log of a filled store, and where they start.
pub(crate) const FILLED: std::ops::Range<i64> = 10..40;

/// Writes a small store; it is open.
pub(crate) async fn fill(layout: Layout, dir: &Path, instance: u64) -> Store {
    let store = stores::open(layout, dir, instance).await;
    for partition in SINGLE {
        stores::add(&store, partition).await;
        for end in 0..FILLED.end {
            let op = stores::append(partition, end);
            store.submit(vec![op]).await.unwrap();
        }
        let op = stores::trim(partition, FILLED.start);
        store.submit(vec![op]).await.unwrap();
    }
    store
}

/// Appends to a log of its own until it is killed.
async fn grow(layout: Layout, dir: &Path, instance: u64) {
    let store = stores::open(layout, dir, instance).await;
    stores::add(&store, 9).await;
    for end in store.bounds(stores::log(9)).unwrap().end.. {
        store.submit(vec![stores::append(9, end)]).await.unwrap();
        say("grown");
    }
}

/// Opens a store with many logs and says what that took.
async fn many(layout: Layout, dir: &Path, instance: u64) {
    let clock = store_adapter::runtime::Env::real().clock;
    let began = clock.monotonic();
    let store = stores::open(layout, dir, instance).await;
    let took = clock.monotonic().saturating_sub(began);
    let logs = store.list().await.unwrap().len();
    let handles = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let kib = resident_kib();
    say(&format!("{logs} {} {handles} {kib}", took.as_millis()));
    stores::close(store).await;
}

/// Writes and reads so many MiB, and says how much memory is in use then.
async fn much(layout: Layout, dir: &Path, mib: u64) {
    let store = stores::open(layout, dir, 1).await;
    stores::add(&store, 0).await;
    let batch = batch_of(1, 64 << 10, 0, 3);
    let mib = i64::try_from(mib).unwrap();
    for base in (0..mib).map(|mib| mib * 16) {
        let commits = (base..base + 16).map(|base| {
            let op = stores::sized(0, base, &batch);
            store.submit(vec![op])
        });
        stores::done(commits.collect()).await;
    }
    let mut next = 0;
    while next < mib * 16 {
        let read = store.read(stores::log(0), next, 1 << 20, i64::MAX).await;
        next = read.unwrap().last().unwrap().last_offset + 1;
    }
    say(&resident_kib());
    stores::close(store).await;
}

/// Memory of this process that is in use.
fn resident_kib() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.unwrap().trim().trim_end_matches(" kB").trim();
    kib.to_owned()
}

/// Opens the shard and says whether that went.
async fn opened(layout: Layout, dir: &Path, instance: u64) -> String {
    let store = stores::store(layout, dir);
    match stores::try_open(&store, instance).await {
        Ok(_) => {
            let end = store.bounds(stores::log(0)).map(|bounds| bounds.end);
            stores::close(store).await;
            format!("open {end:?}")
        }
        Err(error) => format!("refused {error}"),
    }
}

/// Opens a damaged store and says what became of each log.
async fn judge(layout: Layout, dir: &Path) -> String {
    let store = stores::store(layout, dir);
    if let Err(error) = stores::try_open(&store, 1000).await {
        return refused(&error);
    }
    let mut said = Vec::new();
    for partition in SINGLE {
        match stores::check(&store, partition).await {
            Ok(bounds) => said.push(format!("{} {}", bounds.start, bounds.end)),
            Err(error) => return refused(&error),
        }
    }
    said.join(" ")
}

fn refused(error: &StoreError) -> String {
    match error {
        StoreError::Corrupt { path, why } => format!("corrupt {path} {why}"),
        other => format!("other {other}"),
    }
}

/// Waits for what comes by itself, and fails when it does not come for very long.
pub(crate) async fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let clock = store_adapter::runtime::Env::real().clock;
    let until = clock.monotonic() + Duration::from_mins(2);
    while !is() {
        assert!(clock.monotonic() < until, "{what} does not come");
        clock.sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) type Store = Arc<dyn LogStore>;
