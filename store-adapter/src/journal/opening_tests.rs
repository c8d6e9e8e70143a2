//! What an opening holds in memory, seen from outside: by the process that does it.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use uuid::Uuid;

use super::extents::{Extent, FileIndex};
use super::file::{FILE_HEADER_LEN, FileHeader, FileId};
use super::files::{journal_dir, path};
use super::recovery::begin_file;
use super::round::footer;
use super::table::{Entry, Table};
use super::{JournalConfig, JournalStore, MemoryIndex, OfflineShard};
use crate::ids::{LogId, OwnerEpoch, ShardId};
use crate::runtime::Env;
use crate::store::{Bounds, LogStore};
use crate::volume::{PosixVolume, Volume, block_on};

const SHARD: ShardId = ShardId(0);
const LOG: LogId = LogId {
    topic: Uuid::from_u128(1),
    partition: 0,
};
const FILES: u64 = 100;
/// Extents of each file.
const EXTENTS: i64 = 20_000;
/// Memory of the indexes of all files, KiB.
const INDEXES_KIB: u64 = FILES * EXTENTS.unsigned_abs() * 40 / 1024;
/// What a process of this test is to open, and how.
const VARIABLE: &str = "FENCEPOST_OPENING_CHILD";

/// Files that hold little but say of many batches where they lie.
fn write(dir: &Path) {
    let volume: Arc<dyn Volume> = Arc::new(PosixVolume::open(dir).unwrap());
    let header = |seq| FileHeader {
        id: FileId {
            shard: SHARD,
            epoch: OwnerEpoch::single(1),
            seq,
        },
        first_lsn: 1 + seq * 100,
        previous_len: if seq == 0 { 0 } else { FILE_HEADER_LEN as u64 },
        rewritten: None,
        unsynced: false,
    };
    let at = FILE_HEADER_LEN as u64;
    block_on(async {
        volume.create_dir_all(&journal_dir(SHARD)).await.unwrap();
        for seq in 0..FILES {
            let header = header(seq);
            let first = i64::try_from(seq).unwrap() * EXTENTS;
            let extents = (first..first + EXTENTS).map(|offset| Extent {
                position: at,
                span: 100,
                bytes: 100,
                base: offset,
                last: offset,
                max_timestamp: offset,
            });
            let mut index = FileIndex::default();
            index.logs.insert(LOG, extents.collect());
            let mut parts = vec![header.encode()];
            parts.extend(footer(index.encode_footer(at), header.id.seed(), at));
            let file = volume.create_new(&path(header.id)).await.unwrap();
            file.write_at(0, &parts).await.unwrap();
        }
        let mut entry = Entry::new("orders".into(), 0);
        entry.bounds = Bounds {
            start: 0,
            end: i64::try_from(FILES).unwrap() * EXTENTS,
        };
        let mut table = Table::new();
        table.insert(LOG, entry);
        let last = header(FILES);
        let file = volume.create_new(&path(last.id)).await.unwrap();
        begin_file(&volume, &file, last, &table).await.unwrap();
    });
}

/// A line of what the kernel says of this process, KiB.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.unwrap().trim().trim_end_matches("kB").trim();
    kib.parse().unwrap()
}

/// Opens what is in `dir`, and says how much memory that took at most.
fn open(how: &str, dir: &Path) {
    let before = status("VmRSS:");
    let volume: Arc<dyn Volume> = Arc::new(PosixVolume::open(dir).unwrap());
    if how == "offline" {
        let shard = block_on(OfflineShard::read(volume, SHARD)).unwrap();
        assert_eq!(shard.files().count() as u64, FILES + 1);
        assert!(shard.logs().all(|log| log.damaged.is_none()));
    } else {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let index = Arc::new(MemoryIndex::new());
            let config = JournalConfig::default();
            let store = JournalStore::new(Env::real(), volume, index, config);
            let opened = store.open_shard(SHARD, OwnerEpoch::single(2)).await;
            assert_eq!(opened.unwrap().damaged, []);
            store.close().await.unwrap();
        });
    }
    println!("\ntook {} KiB", status("VmHWM:").saturating_sub(before));
}

#[test]
fn an_opening_does_not_hold_the_indexes_of_all_files() {
    if let Ok(told) = std::env::var(VARIABLE) {
        let (how, dir) = told.split_once(' ').unwrap();
        return open(how, Path::new(dir));
    }
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    for how in ["offline", "store"] {
        let name = "an_opening_does_not_hold_the_indexes_of_all_files";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("journal::opening_tests::{name}")])
            .arg("--nocapture")
            .env(VARIABLE, format!("{how} {}", dir.path().display()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned();
        let took = said.lines().find_map(|line| line.strip_prefix("took "));
        let kib = took.and_then(|took| took.strip_suffix(" KiB")?.parse::<u64>().ok());
        assert!(child.status.success() && kib.is_some(), "{child:?}");
        println!("{how}: {kib:?} KiB of {INDEXES_KIB}");
        assert!(kib.unwrap() < INDEXES_KIB / 2, "{how}: {kib:?} KiB");
    }
}
