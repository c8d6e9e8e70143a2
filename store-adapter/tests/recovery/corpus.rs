//! The journals that fuzzing of recovery starts from: committed, and equal to what is written here.
//! `UPDATE_CORPUS=1 cargo test -p store-adapter --all-features --test recovery corpus` writes them
//! anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use store_adapter::journal::{JournalConfig, JournalCounters, JournalStore, MemoryIndex};
use store_adapter::runtime::Env;
use store_adapter::store::{LogStore, Op};
use store_adapter::volume::memory::MemoryVolume;

use crate::support::{EPOCH, add, config, files, log, open, submit, submit_sized};

/// Contents of the first two files of a shard's first owner.
type Pair = [Vec<u8>; 2];

fn store(volume: &MemoryVolume, config: JournalConfig) -> JournalStore {
    let index = Arc::new(MemoryIndex::new());
    JournalStore::new(Env::real(), Arc::new(volume.clone()), index, config)
}

async fn pair(volume: &MemoryVolume) -> Pair {
    let mut found = files(volume).await;
    found.retain(|(path, _)| path.as_str().ends_with(".log"));
    [0, 1].map(|seq| {
        let name = format!("/1.1-{seq}.log");
        let file = found
            .iter()
            .find(|(path, _)| path.as_str().ends_with(&name));
        file.map(|(_, bytes)| bytes.clone()).unwrap_or_default()
    })
}

/// A journal that is being written; in the end one log may be trimmed, and the topic deleted.
async fn open_file(batches: i64, trim: bool, delete: bool) -> Pair {
    let volume = MemoryVolume::new();
    let store = store(&volume, config());
    open(&store, 1).await.unwrap();
    add(&store, 0).await;
    add(&store, 1).await;
    for end in 0..batches {
        submit(&store, 0, end, 1).await.unwrap();
        submit_sized(&store, 1, end, 2, 80).await.unwrap();
    }
    if trim {
        let trim = Op::Trim {
            log: log(0),
            epoch: EPOCH,
            start: batches / 2,
        };
        store.submit(vec![trim]).await.unwrap();
    }
    if delete {
        store.delete(log(1).topic).await.unwrap();
    }
    pair(&volume).await
}

/// A closed file and the one behind it; `anew`, the first one without what a trim gave up.
async fn closed_file(anew: bool) -> Pair {
    let volume = MemoryVolume::new();
    let counters = Arc::new(JournalCounters::default());
    let config = JournalConfig {
        segment_bytes: 2048,
        counters: Arc::clone(&counters),
        ..config()
    };
    let store = store(&volume, config);
    open(&store, 1).await.unwrap();
    add(&store, 0).await;
    add(&store, 1).await;
    submit(&store, 1, 0, 2).await.unwrap();
    let end = 14;
    for end in 0..end {
        submit(&store, 0, end, 1).await.unwrap();
    }
    // Its footer is written behind the answers.
    while !pair(&volume).await[0].ends_with(b"FPFOOT02") {
        tokio::task::yield_now().await;
    }
    if anew {
        let trim = Op::Trim {
            log: log(0),
            epoch: EPOCH,
            start: end,
        };
        store.submit(vec![trim]).await.unwrap();
        while counters.rewrites.load(Ordering::SeqCst) < 1 {
            tokio::task::yield_now().await;
        }
    }
    pair(&volume).await
}

fn input(mend: bool, [first, second]: &Pair) -> Vec<u8> {
    let len = u16::try_from(first.len()).unwrap().to_be_bytes();
    [&[u8::from(mend)][..], &len, first, second].concat()
}

async fn seeds() -> BTreeMap<&'static str, Vec<u8>> {
    let small = open_file(2, false, false).await;
    let trimmed = open_file(4, true, false).await;
    let deleted = open_file(4, true, true).await;
    let rolled = closed_file(false).await;
    let anew = closed_file(true).await;
    let [first, second] = rolled.clone();
    let torn = [small[0][..small[0].len() - 9].to_vec(), Vec::new()];
    BTreeMap::from([
        ("empty", input(false, &open_file(0, false, false).await)),
        ("small", input(false, &small)),
        ("small-mended", input(true, &small)),
        ("torn", input(false, &torn)),
        ("trimmed-mended", input(true, &trimmed)),
        ("deleted", input(false, &deleted)),
        ("deleted-mended", input(true, &deleted)),
        ("rolled", input(false, &rolled)),
        ("rolled-mended", input(true, &rolled)),
        ("anew-mended", input(true, &anew)),
        ("first-missing", input(true, &[Vec::new(), second])),
        ("second-missing", input(true, &[first, Vec::new()])),
        (
            "header-cut",
            input(true, &[small[0][..40].to_vec(), Vec::new()]),
        ),
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_corpus_is_what_the_store_writes() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus/journal");
    let update = std::env::var_os("UPDATE_CORPUS").is_some();
    for (name, bytes) in seeds().await {
        let path = root.join(name);
        if update {
            fs::create_dir_all(&root).unwrap();
            #[allow(clippy::disallowed_methods, reason = "a test's own files")]
            fs::write(&path, &bytes).unwrap();
        }
        let committed = fs::read(&path).unwrap_or_default();
        assert!(
            committed == bytes,
            "{name} differs; UPDATE_CORPUS=1 writes it"
        );
    }
}
