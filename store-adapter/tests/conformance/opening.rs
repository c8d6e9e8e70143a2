//! Points 25 to 28: many logs, other processes, newer formats, large stores.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use store_adapter::conformance::{batch_of, full, full_or};
use store_adapter::runtime::Env;
use store_adapter::store::StoreError;

use crate::process::start;
use crate::stores::{self, Layout, SHARD};

/// 25: a store with a thousand logs opens with few handles and little memory.
pub(crate) async fn a_thousand_logs(layout: Layout) {
    let dir = tempfile::tempdir().unwrap();
    let store = stores::open(layout, dir.path(), 1).await;
    let logs = 1000;
    let created = (0..logs).map(|log| store.create(stores::log(log), "orders", SHARD));
    let created = join_all(created).await;
    assert!(created.iter().all(Result::is_ok));
    let acquired = (0..logs).map(|log| store.acquire(stores::log(log), stores::EPOCH));
    let acquired = join_all(acquired).await;
    assert!(acquired.iter().all(Result::is_ok));
    let appends = (0..logs).map(|log| store.submit(vec![stores::append(log, 0)]));
    stores::done(appends.collect()).await;
    stores::close(store).await;
    let mut child = start("many", layout, dir.path(), 2);
    let said = child.line().unwrap();
    let figures: Vec<u64> = said.split(' ').map(|word| word.parse().unwrap()).collect();
    let [found, millis, handles, kib] = figures[..] else {
        panic!("{said}");
    };
    println!(
        "25 {}: 1000 logs open in {millis} ms, {handles} handles, {} MiB resident",
        layout.name(),
        kib / 1024
    );
    assert_eq!(found, u64::from(logs));
    assert!(handles < 64, "{handles} handles");
    let mib = match layout {
        Layout::Journal => 96,
        Layout::Kv => 256,
    };
    assert!(kib < mib << 10, "{kib} KiB");
    assert!(!full() || millis < 2000, "{millis} ms");
}

/// Memory is bounded whatever is in the store.
pub(crate) async fn memory_behind_many_batches(layout: Layout) {
    let dir = tempfile::tempdir().unwrap();
    let mib = full_or(1024, 384);
    let mut child = start("much", layout, dir.path(), mib);
    let kib: u64 = child.line().unwrap().parse().unwrap();
    println!(
        "   {}: {} MiB resident behind {mib} MiB that were written and read",
        layout.name(),
        kib / 1024
    );
    let most = match layout {
        Layout::Journal => 96,
        Layout::Kv => 512,
    };
    assert!(kib < most << 10, "{kib} KiB");
}

/// 26: another process with a higher owner takes the shard, and the first one is fenced; with a
/// lower one it is refused. A lock that nobody gives up is told as such.
pub(crate) async fn a_second_process(layout: Layout) {
    let dir = tempfile::tempdir().unwrap();
    let store = stores::open(layout, dir.path(), 5).await;
    stores::add(&store, 0).await;
    store.submit(vec![stores::append(0, 0)]).await.unwrap();
    let said = start("open", layout, dir.path(), 4).line().unwrap();
    match layout {
        // It shares the index, which is looked at first.
        Layout::Journal => assert!(said.contains("in use by another process"), "{said}"),
        Layout::Kv => assert_eq!(said, "refused fenced"),
    }
    store.submit(vec![stores::append(0, 1)]).await.unwrap();
    if layout == Layout::Journal {
        // Another machine's index.
        let index = dir.path().join("index");
        fs::rename(&index, dir.path().join("elsewhere")).unwrap();
    }
    let said = start("open", layout, dir.path(), 6).line().unwrap();
    assert_eq!(said, "open Some(2)");
    let late = store.submit(vec![stores::append(0, 2)]).await.unwrap_err();
    let fenced = [StoreError::Fenced, StoreError::Uncertain { fenced: true }];
    assert!(fenced.contains(&late), "{late:?}");
    stores::close(store).await;
    if layout == Layout::Kv {
        let db = dir.path().join("__store/shard-0/kv/sled/db");
        let held = File::open(&db).unwrap();
        held.lock().unwrap();
        let said = start("open", layout, dir.path(), 7).line().unwrap();
        assert!(
            said.contains("kv/sled: in use by another process"),
            "{said}"
        );
        held.unlock().unwrap();
        let said = start("open", layout, dir.path(), 8).line().unwrap();
        assert_eq!(said, "open Some(2)");
    }
}

fn contents(dir: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let files = stores::files(dir).into_iter();
    files
        .map(|path| {
            let bytes = fs::read(&path).unwrap();
            (path, bytes)
        })
        .collect()
}

/// 27, of kv: a format that is newer than ours is refused, and nothing is touched. A shard of the
/// other layout likewise.
pub(crate) async fn a_newer_format(layout: Layout) {
    let dir = tempfile::tempdir().unwrap();
    let store = stores::open(layout, dir.path(), 1).await;
    stores::add(&store, 0).await;
    store.submit(vec![stores::append(0, 0)]).await.unwrap();
    stores::close(store).await;
    let other = match layout {
        Layout::Journal => Layout::Kv,
        Layout::Kv => Layout::Journal,
    };
    let before = contents(&dir.path().join("__store"));
    let refused = stores::try_open(&stores::store(other, dir.path()), 2).await;
    assert!(
        matches!(refused, Err(StoreError::Offline(_))),
        "{refused:?}"
    );
    if layout == Layout::Kv {
        let rounds = dir.path().join("__store/shard-0/kv/rounds");
        let mut bytes = fs::read(&rounds).unwrap();
        bytes[7] += 1;
        let crc = crc32c::crc32c(&bytes[..8]);
        bytes[8..12].copy_from_slice(&crc.to_be_bytes());
        let ours = fs::read(&rounds).unwrap();
        fs::write(&rounds, &bytes).unwrap();
        let refused = stores::try_open(&stores::store(layout, dir.path()), 2).await;
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("kv format 2"), "{text}");
        assert_eq!(fs::read(&rounds).unwrap(), bytes);
        fs::write(&rounds, ours).unwrap();
    }
    assert!(
        contents(&dir.path().join("__store")) == before,
        "something was touched"
    );
    let store = stores::open(layout, dir.path(), 3).await;
    stores::check(&store, 0).await.unwrap();
    stores::close(store).await;
}

/// 28: how long a large store takes to open, behind a close and behind a kill.
pub(crate) async fn opening_time(layout: Layout) {
    let dir = tempfile::tempdir().unwrap();
    let clock = Env::real().clock;
    let mib: i64 = full_or(2048, 64);
    let store = stores::open(layout, dir.path(), 1).await;
    stores::add(&store, 0).await;
    let batch = batch_of(1, 1 << 20, 0, 3);
    for base in 0..mib {
        store
            .submit(vec![stores::sized(0, base, &batch)])
            .await
            .unwrap();
    }
    stores::close(store).await;
    let timed = async |instance| {
        let began = clock.monotonic();
        let store = stores::open(layout, dir.path(), instance).await;
        let took = clock.monotonic().saturating_sub(began);
        let end = store.bounds(stores::log(0)).unwrap().end;
        assert!(end >= mib);
        (store, took)
    };
    let (store, closed) = timed(2).await;
    stores::close(store).await;
    let mut child = start("grow", layout, dir.path(), 3);
    for _ in 0..20 {
        child.line().unwrap();
    }
    child.kill();
    let (store, killed) = timed(4).await;
    stores::close(store).await;
    println!(
        "28 {}: {mib} MiB open in {closed:?}, behind a kill in {killed:?}",
        layout.name()
    );
    let limits = (Duration::from_secs(1), Duration::from_secs(2));
    assert!(!full() || (closed < limits.0 && killed < limits.1));
}
