//! Points 11 and 30 as figures: appends and bytes a second, and bytes written for one. A report,
//! but for the bytes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use store_adapter::conformance::{batch_of, full, full_or};
use store_adapter::journal::JournalCounters;
use store_adapter::runtime::Env;
use store_adapter::volume::PosixVolume;

use crate::stores::{self, Layout};

/// Appenders that wait for their answers.
const APPENDERS: u32 = 256;
const LOGS: u32 = 16;

/// Durable appends with 256 of them on their way.
pub(crate) async fn speed(layout: Layout) {
    let small = run(layout, 1 << 10, full_or(200_000, 20_000)).await;
    let large = run(layout, 16 << 10, full_or(32_768, 4096)).await;
    println!(
        "30 {}: {:.0} appends of 1 KiB a second, {:.2} bytes written for one; {:.0} MB/s at 16 \
         KiB, {:.2} bytes written for one (0 where it is not counted)",
        layout.name(),
        small.0,
        small.1,
        large.0 * 16.384e-3,
        large.1,
    );
    assert!(large.1 <= 1.2, "{}", large.1);
    assert!(!full() || (small.0 >= 20_000.0 && large.0 * 16.384e-3 >= 200.0));
}

/// Appends a second, and bytes written for one.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
async fn run(layout: Layout, bytes: usize, appends: u32) -> (f64, f64) {
    let dir = tempfile::tempdir().unwrap();
    let counters: Arc<JournalCounters> = Arc::default();
    let volume = Arc::new(PosixVolume::open(dir.path()).unwrap());
    let store = stores::store_on(layout, volume, dir.path(), &counters);
    stores::try_open(&store, 1).await.unwrap();
    for log in 0..LOGS {
        stores::add(&store, log).await;
    }
    let batch = batch_of(1, bytes, 0, 5);
    let clock = Env::real().clock;
    let before = counters.bytes.load(Ordering::Relaxed);
    let began = clock.monotonic();
    let mut ends = vec![0_i64; LOGS as usize];
    for _ in 0..appends / APPENDERS {
        let commits = (0..APPENDERS).map(|n| {
            let log = n % LOGS;
            let end = ends[log as usize];
            ends[log as usize] += 1;
            store.submit(vec![stores::sized(log, end, &batch)])
        });
        stores::done(commits.collect()).await;
    }
    let took = clock.monotonic().saturating_sub(began).as_secs_f64();
    let written = counters.bytes.load(Ordering::Relaxed) - before;
    stores::close(store).await;
    let count = f64::from(appends / APPENDERS * APPENDERS);
    (count / took, written as f64 / (count * bytes as f64))
}
