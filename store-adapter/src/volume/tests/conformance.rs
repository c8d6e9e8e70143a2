//! What every volume does.

use std::sync::Arc;

use bytes::Bytes;

use super::{on_each_volume, path};
use crate::volume::{DirEntry, PosixVolume, Volume, VolumeError, VolumePath, block_on};

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn names(entries: &[DirEntry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.name.as_str()).collect()
}

async fn put(volume: &Arc<dyn Volume>, name: &str, text: &str) {
    let file = volume.create_new(&path(name)).await.unwrap();
    file.write_at(0, &[bytes(text)]).await.unwrap();
}

#[test]
fn files_are_created_once_and_read_back() {
    on_each_volume(async |volume| {
        let a = path("a");
        let file = volume.create_new(&a).await.unwrap();
        let again = volume.create_new(&a).await.unwrap_err();
        assert_eq!(again, VolumeError::AlreadyExists { path: "a".into() });
        let parts = [bytes("one "), Bytes::new(), bytes("two"), Bytes::new()];
        file.write_at(0, &parts).await.unwrap();
        file.write_at(7, &[]).await.unwrap();
        file.write_at(9, &[bytes("!")]).await.unwrap();
        file.write_at(1_000_000, &[Bytes::new()]).await.unwrap();
        file.sync_data().await.unwrap();
        assert_eq!(file.size().await.unwrap(), 10);
        let whole = volume.read(&a, 10).await.unwrap();
        assert_eq!(&whole[..], b"one two\0\0!");
        let (len, max) = (10, 9);
        let too_large = VolumeError::TooLarge {
            path: "a".into(),
            len,
            max,
        };
        assert_eq!(volume.read(&a, 9).await, Err(too_large));
    });
}

#[test]
fn reads_end_with_the_file() {
    on_each_volume(async |volume| {
        put(&volume, "a", "0123456789").await;
        let file = volume.open(&path("a")).await.unwrap();
        assert_eq!(&file.read_at(2, 3).await.unwrap()[..], b"234");
        assert_eq!(&file.read_at(8, usize::MAX).await.unwrap()[..], b"89");
        for (offset, len) in [(10, 1), (11, usize::MAX), (u64::MAX, 1), (0, 0)] {
            assert!(file.read_at(offset, len).await.unwrap().is_empty());
        }
        // Opened for reading.
        assert!(file.write_at(0, &[bytes("x")]).await.is_err());
        assert_eq!(file.size().await.unwrap(), 10);
    });
}

#[test]
fn large_writes_of_many_parts_arrive_whole() {
    on_each_volume(async |volume| {
        // More parts than one call takes, small beside large, empty ones between.
        let part = |i: usize| {
            let len = if i.is_multiple_of(500) {
                300_001
            } else {
                i % 7
            };
            Bytes::from(vec![u8::try_from(i % 251).unwrap(); len])
        };
        let parts: Vec<Bytes> = (0..3000).map(part).collect();
        let expected: Vec<u8> = parts.iter().flatten().copied().collect();
        let file = volume.create_new(&path("a")).await.unwrap();
        file.write_at(0, &[bytes("abc")]).await.unwrap();
        file.write_at(3, &parts).await.unwrap();
        let found = file.read_at(3, usize::MAX).await.unwrap();
        assert_eq!(found.len(), expected.len());
        assert!(found == expected);
    });
}

#[test]
fn renames_replace_and_open_files_stay_what_they_were() {
    on_each_volume(async |volume| {
        put(&volume, "old", "old").await;
        put(&volume, "new", "new").await;
        let (old, new) = (path("old"), path("new"));
        let open = volume.open(&old).await.unwrap();
        volume.rename(&new, &old).await.unwrap();
        assert_eq!(&volume.read(&old, 9).await.unwrap()[..], b"new");
        assert_eq!(&open.read_at(0, 9).await.unwrap()[..], b"old");
        let gone = volume.rename(&new, &old).await.unwrap_err();
        assert_eq!(gone, VolumeError::NotFound { path: "new".into() });
        let reader = volume.open_write(&old).await.unwrap();
        volume.remove(&old).await.unwrap();
        reader.write_at(3, &[bytes("er")]).await.unwrap();
        assert_eq!(&reader.read_at(0, 9).await.unwrap()[..], b"newer");
        assert!(volume.remove(&old).await.unwrap_err().is_not_found());
        assert!(volume.open(&old).await.unwrap_err().is_not_found());
        put(&volume, "lone", "lone").await;
        let nowhere = volume.rename(&path("lone"), &path("no/where")).await;
        assert!(nowhere.unwrap_err().is_not_found());
        assert_eq!(
            names(&volume.list(&VolumePath::root()).await.unwrap()),
            ["lone"]
        );
    });
}

#[test]
fn directories_are_made_listed_in_order_and_removed_empty() {
    on_each_volume(async |volume| {
        let dir = path("x/y/z");
        for _ in 0..2 {
            volume.create_dir_all(&dir).await.unwrap();
        }
        for name in ["x/y/z/b", "x/y/z/a", "x/y/z/10", "x/y/f"] {
            put(&volume, name, "").await;
        }
        assert_eq!(names(&volume.list(&dir).await.unwrap()), ["10", "a", "b"]);
        let entries = volume.list(&path("x/y")).await.unwrap();
        let entry = |name: &str, is_dir| DirEntry {
            name: name.into(),
            is_dir,
        };
        assert_eq!(entries, [entry("f", false), entry("z", true)]);
        volume.sync_dir(&dir).await.unwrap();
        let not_empty = volume.remove_dir(&dir).await.unwrap_err();
        assert!(matches!(not_empty, VolumeError::Io { .. }), "{not_empty}");
        for name in ["b", "a", "10"] {
            volume.remove(&dir.join(name)).await.unwrap();
        }
        volume.remove_dir(&dir).await.unwrap();
        assert!(volume.remove_dir(&dir).await.unwrap_err().is_not_found());
        assert!(volume.list(&dir).await.unwrap_err().is_not_found());
        assert!(volume.sync_dir(&dir).await.unwrap_err().is_not_found());
        assert!(
            volume
                .create_new(&dir.join("a"))
                .await
                .unwrap_err()
                .is_not_found()
        );
    });
}

#[test]
fn files_are_not_directories() {
    on_each_volume(async |volume| {
        put(&volume, "f", "text").await;
        volume.create_dir_all(&path("d")).await.unwrap();
        let failures = [
            volume.list(&path("f")).await.err(),
            volume.create_dir_all(&path("f")).await.err(),
            volume.create_dir_all(&path("f/d")).await.err(),
            volume.create_new(&path("f/g")).await.err(),
            volume.remove_dir(&path("f")).await.err(),
            volume.remove(&path("d")).await.err(),
            volume.rename(&path("f"), &path("d")).await.err(),
            volume.read(&path("d"), 100).await.err(),
        ];
        for failure in failures {
            assert!(
                matches!(failure, Some(VolumeError::Io { .. })),
                "{failure:?}"
            );
        }
        let taken = volume.create_new(&path("d")).await.unwrap_err();
        assert!(matches!(taken, VolumeError::AlreadyExists { .. }));
    });
}

#[test]
fn odd_names_work() {
    on_each_volume(async |volume| {
        for name in ["..", ".", "ü€", "a b", "%2F", "-", "a\nb"] {
            let dir = VolumePath::root().join(name);
            volume.create_dir_all(&dir).await.unwrap();
            let file = dir.join(name);
            volume.create_new(&file).await.unwrap();
            let found = volume.list(&dir).await.unwrap();
            assert_eq!(names(&found), [file.file_name()]);
        }
        assert_eq!(volume.list(&VolumePath::root()).await.unwrap().len(), 7);
    });
}

#[test]
fn space_is_reserved_without_a_length() {
    on_each_volume(async |volume| {
        let file = volume.create_new(&path("a")).await.unwrap();
        file.allocate(1 << 16).await.unwrap();
        file.allocate(0).await.unwrap();
        assert_eq!(file.size().await.unwrap(), 0);
        let space = volume.space().await.unwrap();
        assert!(space.free > 0 && space.free <= space.total);
    });
}

#[test]
fn a_full_file_system_says_so() {
    block_on(async {
        // Linux answers ENOSPC to every write to this device.
        let volume = PosixVolume::open("/dev").unwrap();
        let full = volume.open_write(&path("full")).await.unwrap();
        full.write_at(0, &[]).await.unwrap();
        let error = full.write_at(0, &[bytes("x")]).await.unwrap_err();
        assert_eq!(
            error,
            VolumeError::NoSpace {
                path: "full".into()
            }
        );
    });
}

#[test]
fn a_root_that_is_no_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::File::create(&file).unwrap();
    for root in [file.clone(), file.join("below")] {
        let error = PosixVolume::open(root).unwrap_err();
        assert!(!error.to_string().is_empty());
    }
}
