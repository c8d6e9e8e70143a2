//! The newest file of a shard is gone or empty: its loss is refused, whatever went before.

use std::sync::Arc;

use bytes::Bytes;
use store_adapter::journal::MemoryIndex;
use store_adapter::store::{LogStore, StoreError};
use store_adapter::volume::memory::MemoryVolume;
use store_adapter::volume::{Volume, VolumePath};

use crate::support::{add, files, io, log, open, read_all, store_on, submit, submit_sized};

fn empty() -> Arc<MemoryIndex> {
    Arc::default()
}

/// The newest journal file that holds something, with its bytes.
async fn newest(volume: &MemoryVolume) -> (VolumePath, Vec<u8>) {
    let mut found = files(volume).await;
    found.retain(|(path, bytes)| path.as_str().ends_with(".log") && !bytes.is_empty());
    // "<assignment>.<instance>-<seq>.log", each of one digit here.
    found.pop().unwrap()
}

async fn remove(volume: &MemoryVolume, path: &VolumePath) {
    let (volume, path) = (volume.clone(), path.clone());
    io(async move { volume.remove(&path).await.unwrap() }).await;
}

async fn write(volume: &MemoryVolume, path: &VolumePath, bytes: Vec<u8>) {
    let (volume, path) = (volume.clone(), path.clone());
    io(async move {
        let file = match volume.create_new(&path).await {
            Err(_) => {
                volume.remove(&path).await.unwrap();
                volume.create_new(&path).await.unwrap()
            }
            file => file.unwrap(),
        };
        file.write_at(0, &[Bytes::from(bytes)]).await.unwrap();
    })
    .await;
}

async fn refused(volume: &MemoryVolume, instance: u64, file: &VolumePath) {
    let store = store_on(volume, &empty());
    match open(&store, instance).await {
        Err(StoreError::Corrupt { path, why }) => {
            assert_eq!(path, file.as_str());
            assert!(why.contains("newest.json"), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

/// A shard with acknowledged batches in several files, whose owner was killed.
async fn killed(rolls: bool) -> MemoryVolume {
    let volume = MemoryVolume::new();
    let store = store_on(&volume, &empty());
    open(&store, 1).await.unwrap();
    add(&store, 0).await;
    for end in 0..4 {
        // The last one is small: it comes behind the last roll, and brings no other.
        let bytes = if rolls && end < 3 { 200_000 } else { 100 };
        submit_sized(&store, 0, end, 1, bytes).await.unwrap();
    }
    // Leaked, as a process that is killed leaves it.
    std::mem::forget(store);
    volume
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newest_file_that_is_gone_is_refused_until_it_is_back() {
    for rolls in [false, true] {
        let volume = killed(rolls).await;
        let (path, bytes) = newest(&volume).await;
        assert_eq!(path.as_str().ends_with("-0.log"), !rolls, "{path}");
        remove(&volume, &path).await;
        refused(&volume, 2, &path).await;
        // What the refused opening left does not count as a newer file.
        refused(&volume, 3, &path).await;
        write(&volume, &path, Vec::new()).await;
        refused(&volume, 4, &path).await;
        volume.power_cut(1);
        refused(&volume, 5, &path).await;
        write(&volume, &path, bytes).await;
        let store = store_on(&volume, &empty());
        open(&store, 6).await.unwrap();
        assert_eq!(read_all(&store, 0).await.unwrap().len(), 4);
        submit(&store, 0, 4, 1).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_file_can_be_given_up_by_hand() {
    let volume = killed(false).await;
    let (path, _) = newest(&volume).await;
    remove(&volume, &path).await;
    refused(&volume, 2, &path).await;
    let mut found = files(&volume).await;
    found.retain(|(path, _)| path.file_name() == "newest.json");
    write(&volume, &found[0].0, br#"{"file":""}"#.to_vec()).await;
    let store = store_on(&volume, &empty());
    open(&store, 3).await.unwrap();
    assert_eq!(store.bounds(log(0)), None);
    add(&store, 0).await;
    submit(&store, 0, 0, 1).await.unwrap();
}
