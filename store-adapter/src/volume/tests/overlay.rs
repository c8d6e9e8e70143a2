//! What is done over a volume is seen, and the volume is as it was.

use std::sync::Arc;

use bytes::Bytes;

use super::path;
use crate::volume::{MemoryVolume, Overlay, Volume, VolumePath, block_on};

async fn put(volume: &dyn Volume, name: &str, text: &'static str) {
    let file = volume.create_new(&path(name)).await.unwrap();
    file.write_at(0, &[Bytes::from_static(text.as_bytes())])
        .await
        .unwrap();
}

async fn text(volume: &dyn Volume, name: &str) -> Option<String> {
    match volume.read(&path(name), 100).await {
        Ok(bytes) => Some(String::from_utf8(bytes.to_vec()).unwrap()),
        Err(error) => {
            assert!(error.is_not_found(), "{error}");
            None
        }
    }
}

async fn names(volume: &dyn Volume, dir: &VolumePath) -> Vec<String> {
    let entries = volume.list(dir).await.unwrap();
    entries.into_iter().map(|entry| entry.name).collect()
}

#[test]
fn what_is_changed_over_a_volume_is_seen_there_only() {
    block_on(async {
        let below: Arc<dyn Volume> = Arc::new(MemoryVolume::new());
        below.create_dir_all(&path("d/empty")).await.unwrap();
        for (name, content) in [("d/a", "a"), ("d/b", "b"), ("d/c", "c"), ("e", "e")] {
            put(below.as_ref(), name, content).await;
        }
        let over = Overlay::new(Arc::clone(&below));
        let taken = over.create_new(&path("d/a")).await.unwrap_err();
        assert_eq!(taken.to_string(), "d/a: exists already");
        let file = over.open(&path("d/a")).await.unwrap();
        assert!(file.write_at(0, &[Bytes::from_static(b"x")]).await.is_err());
        file.sync_data().await.unwrap();
        // Replaced, renamed from below, written in place, unlinked and made anew.
        put(&over, "d/t", "new a").await;
        over.rename(&path("d/t"), &path("d/a")).await.unwrap();
        over.rename(&path("d/b"), &path("d/moved")).await.unwrap();
        let file = over.open_write(&path("d/c")).await.unwrap();
        file.write_at(1, &[Bytes::from_static(b"!")]).await.unwrap();
        over.remove(&path("e")).await.unwrap();
        assert!(over.remove(&path("e")).await.unwrap_err().is_not_found());
        put(&over, "e", "another").await;
        over.remove(&path("e")).await.unwrap();
        over.remove_dir(&path("d/empty")).await.unwrap();
        assert!(over.remove_dir(&path("d")).await.is_err());
        over.create_dir_all(&path("made")).await.unwrap();
        put(&over, "made/f", "f").await;
        for (name, content) in [
            ("d/a", Some("new a")),
            ("d/b", None),
            ("d/moved", Some("b")),
            ("d/c", Some("c!")),
            ("d/t", None),
            ("e", None),
            ("made/f", Some("f")),
        ] {
            assert_eq!(text(&over, name).await.as_deref(), content, "{name}");
            assert_eq!(over.open(&path(name)).await.is_ok(), content.is_some());
        }
        assert_eq!(names(&over, &path("d")).await, ["a", "c", "moved"]);
        assert_eq!(names(&over, &VolumePath::root()).await, ["d", "made"]);
        let gone = over.list(&path("d/empty")).await.unwrap_err();
        assert!(gone.is_not_found());

        assert_eq!(names(below.as_ref(), &VolumePath::root()).await, ["d", "e"]);
        assert_eq!(
            names(below.as_ref(), &path("d")).await,
            ["a", "b", "c", "empty"]
        );
        for (name, content) in [("d/a", "a"), ("d/b", "b"), ("d/c", "c"), ("e", "e")] {
            assert_eq!(text(below.as_ref(), name).await.as_deref(), Some(content));
        }
    });
}
