//! Torn and damaged files.

use std::sync::Arc;

use store_adapter::conformance::{batch, batch_of};
use store_adapter::journal::MemoryIndex;
use store_adapter::store::{Append, LogStore, Op, StoreError};
use store_adapter::volume::VolumePath;
use store_adapter::volume::memory::MemoryVolume;

use crate::support::{
    EPOCH, add, add_two_with_rounds, files, journal, log, open, read_all, store_on, submit, tree,
};

fn empty() -> Arc<MemoryIndex> {
    Arc::default()
}

/// Two logs with three acknowledged rounds each, then one more round of both; and where it starts.
async fn written() -> (Vec<(VolumePath, Vec<u8>)>, usize) {
    let volume = MemoryVolume::new();
    let store = store_on(&volume, &empty());
    add_two_with_rounds(&store).await;
    let before = files(&volume).await;
    let start = before[journal(&before)].1.len();
    let ops = [0, 1].map(|partition| {
        Op::Append(Append {
            log: log(partition),
            epoch: EPOCH,
            expect_end: 3,
            append_ms: 7,
            batch: batch(9).stamp(3, EPOCH),
        })
    });
    store.submit(ops.to_vec()).await.unwrap();
    (files(&volume).await, start)
}

/// Opens the tree and checks that both logs have `ends`, with the right bytes.
async fn assert_opens(files: &[(VolumePath, Vec<u8>)], end: i64, what: &str) {
    let store = store_on(&tree(files).await, &empty());
    let info = open(&store, 2).await.unwrap();
    assert_eq!(info.damaged, [], "{what}");
    for (partition, fill) in [(0, 1), (1, 2)] {
        assert_eq!(store.bounds(log(partition)).unwrap().end, end, "{what}");
        let found = read_all(&store, partition).await.unwrap();
        for (offset, stored) in (0..).zip(&found) {
            let fill = if offset == 3 { 9 } else { fill };
            let sent = batch_of(1, 100, if offset == 3 { 9 } else { 3 }, fill);
            assert_eq!(stored.bytes, sent.stamp(offset, EPOCH).to_bytes(), "{what}");
            assert_eq!(stored.append_ms, 7);
        }
        assert_eq!(found.len(), usize::try_from(end).unwrap());
    }
    submit(&store, 0, end, 5).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_torn_at_any_byte_is_dropped_and_no_other() {
    let (mut files, start) = written().await;
    let at = journal(&files);
    let whole = files[at].1.clone();
    for len in start..whole.len() {
        files[at].1 = whole[..len].to_vec();
        assert_opens(&files, 3, &format!("cut at {len}")).await;
    }
    files[at].1 = whole;
    assert_opens(&files, 4, "whole").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_in_the_last_round_drops_it_and_no_other() {
    let (mut files, start) = written().await;
    let at = journal(&files);
    let whole = files[at].1.clone();
    for byte in start..whole.len() {
        files[at].1 = whole.clone();
        files[at].1[byte] ^= 1 << (byte % 8);
        assert_opens(&files, 3, &format!("flip at {byte}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_before_the_last_round_takes_one_log_offline_and_is_reported() {
    let (mut files, start) = written().await;
    let at = journal(&files);
    let whole = files[at].1.clone();
    // The batch of log 0 in its second round.
    let needle = batch_of(1, 100, 3, 1).stamp(1, EPOCH).to_bytes();
    let found = whole
        .windows(needle.len())
        .position(|w| w == needle)
        .unwrap();
    assert!(found + needle.len() <= start);
    // In the records, in the batch's header, in the frame's header.
    for byte in [found + 80, found + 3, found - 10] {
        files[at].1 = whole.clone();
        files[at].1[byte] ^= 0x10;
        let volume = tree(&files).await;
        let store = store_on(&volume, &empty());
        let info = open(&store, 2).await.unwrap();
        let [(id, StoreError::Corrupt { path, .. })] = &info.damaged[..] else {
            panic!("{:?}", info.damaged);
        };
        assert_eq!(*id, log(0));
        assert_eq!(path, files[at].0.as_str());
        assert!(matches!(
            read_all(&store, 0).await,
            Err(StoreError::Corrupt { .. })
        ));
        assert!(matches!(
            submit(&store, 0, 4, 5).await,
            Err(StoreError::Corrupt { .. })
        ));
        assert_eq!(read_all(&store, 1).await.unwrap().len(), 4);
        submit(&store, 1, 4, 5).await.unwrap();
        // It stays offline for the next owner, and the damaged file stays where it is.
        store.close().await.unwrap();
        let next = store_on(&volume, &empty());
        let info = open(&next, 3).await.unwrap();
        assert_eq!(info.damaged.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_in_a_closed_file_stops_reads_of_that_log_only() {
    let volume = MemoryVolume::new();
    let store = store_on(&volume, &empty());
    open(&store, 1).await.unwrap();
    add(&store, 0).await;
    add(&store, 1).await;
    for end in 0..20 {
        crate::support::submit_sized(&store, 0, end, 1, 20_000)
            .await
            .unwrap();
        crate::support::submit_sized(&store, 1, end, 2, 20_000)
            .await
            .unwrap();
    }
    store.close().await.unwrap();
    let mut files = files(&volume).await;
    let needle = batch_of(1, 20_000, 3, 1).stamp(2, EPOCH).to_bytes();
    let (at, found) = files
        .iter()
        .enumerate()
        .find_map(|(at, (_, bytes))| {
            let found = bytes.windows(needle.len()).position(|w| w == needle);
            found.map(|found| (at, found))
        })
        .unwrap();
    for byte in [found + 9000, found - 30] {
        files[at].1[byte] ^= 4;
        let store = store_on(&tree(&files).await, &empty());
        let info = open(&store, 2).await.unwrap();
        assert_eq!(info.damaged, []);
        assert_eq!(store.read(log(0), 0, 1, i64::MAX).await.unwrap().len(), 1);
        let damaged = store.read(log(0), 2, 1, i64::MAX).await;
        let Err(StoreError::Corrupt { path, .. }) = damaged else {
            panic!("{damaged:?}");
        };
        assert_eq!(path, files[at].0.as_str());
        assert_eq!(store.read(log(0), 3, 1, i64::MAX).await.unwrap().len(), 1);
        assert_eq!(read_all(&store, 1).await.unwrap().len(), 20);
        files[at].1[byte] ^= 4;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_damage_never_shows_wrong_bytes_and_never_panics() {
    let (files, _) = written().await;
    let at = journal(&files);
    let mut random = fastrand::Rng::with_seed(11);
    let mut opened = 0;
    for round in 0..300 {
        let mut damaged = files.clone();
        for _ in 0..random.usize(1..4) {
            let len = damaged[at].1.len();
            match random.u8(0..3) {
                0 => damaged[at].1[random.usize(..len)] ^= 1 << random.u8(..8),
                1 => damaged[at].1[random.usize(..len)] = random.u8(..),
                _ => {
                    let from = random.usize(..len);
                    let until = (from + random.usize(1..200)).min(len);
                    damaged[at].1[from..until].fill(random.u8(..));
                }
            }
        }
        let store = store_on(&tree(&damaged).await, &empty());
        let Ok(info) = open(&store, 2).await else {
            continue;
        };
        opened += 1;
        for (partition, fill) in [(0, 1), (1, 2)] {
            if info.damaged.iter().any(|(id, _)| *id == log(partition)) {
                continue;
            }
            let Some(bounds) = store.bounds(log(partition)) else {
                // Only where the file's own header, or its first rounds, are gone.
                continue;
            };
            assert!(bounds.end <= 4, "{round}");
            for stored in read_all(&store, partition).await.unwrap() {
                let last = stored.base_offset == 3;
                let fill = if last { 9 } else { fill };
                let sent = batch_of(1, 100, if last { 9 } else { 3 }, fill);
                let sent = sent.stamp(stored.base_offset, EPOCH).to_bytes();
                assert_eq!(stored.bytes, sent, "{round}");
            }
        }
    }
    assert!(opened > 200, "{opened}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_header_of_the_newest_file_is_known_otherwise() {
    let (written, _) = written().await;
    let at = journal(&written);
    let whole = store_on(&tree(&written).await, &empty());
    open(&whole, 2).await.unwrap();
    for byte in [3, 11, 17, 30, 63] {
        let mut damaged = written.clone();
        damaged[at].1[byte] ^= 0xff;
        let volume = tree(&damaged).await;
        // Also once another file is behind it.
        for instance in 2..4 {
            let store = store_on(&volume, &empty());
            let info = open(&store, instance).await.unwrap();
            assert_eq!(info.damaged, [], "byte {byte}");
            for partition in [0, 1] {
                let found = read_all(&store, partition).await.unwrap();
                assert_eq!(found, read_all(&whole, partition).await.unwrap());
            }
            std::mem::forget(store);
        }
        let after = files(&volume).await;
        assert!(
            after.contains(&damaged[at]),
            "byte {byte}: the file is not as it was"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_used_file_without_header_and_checkpoint_is_refused_and_not_touched() {
    let (written, _) = written().await;
    let at = journal(&written);
    let checkpoints = crate::checkpoint::checkpoints(&written[at].1);
    for byte in [3, 17, 30] {
        let mut damaged = written.clone();
        damaged[at].1[byte] ^= 0xff;
        // In the first frames of the checkpoints.
        for checkpoint in &checkpoints {
            damaged[at].1[checkpoint.start + byte] ^= 0xff;
        }
        let volume = tree(&damaged).await;
        let refused = open(&store_on(&volume, &empty()), 2).await;
        let Err(StoreError::Corrupt { path, why }) = refused else {
            panic!("byte {byte}: {refused:?}");
        };
        assert_eq!(path, damaged[at].0.as_str());
        assert!(why.contains("header"), "{why}");
        let after = files(&volume).await;
        assert!(
            after.contains(&damaged[at]),
            "byte {byte}: the file is not as it was"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_format_is_refused_and_not_touched() {
    let (mut files, _) = written().await;
    let at = journal(&files);
    let header = &mut files[at].1[..64];
    header[11] = 3;
    let crc = crc32c::crc32c(&header[..60]);
    header[60..].copy_from_slice(&crc.to_be_bytes());
    let volume = tree(&files).await;
    let before = volume.fingerprint();
    let refused = open(&store_on(&volume, &empty()), 2).await;
    let Err(StoreError::Offline(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(
        why.contains("format 3") && why.contains(files[at].0.as_str()),
        "{why}"
    );
    assert_eq!(volume.fingerprint(), before);
}
