//! The same on a real file system, with real threads, time and process.

use std::path::Path;
use std::sync::Arc;

use store_adapter::local::{IdentityFile, ProcHost};
use store_adapter::runtime::Env;
use store_adapter::volume::PosixVolume;

use super::super::{ClusterNode, StartError};
use super::new_topic;
use super::world::config;

async fn start(dir: &Path) -> Result<ClusterNode, StartError> {
    let data = dir.join("data");
    ClusterNode::start(
        Env::real(),
        Arc::new(PosixVolume::open(&data).unwrap()),
        Arc::new(ProcHost),
        Arc::new(IdentityFile::new(data.join("index").join("cluster-id"))),
        config(0),
    )
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_lives_and_comes_back_on_a_real_volume() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await.unwrap();
    let cluster = node.view().cluster_id.clone();
    let kept = node.create_topic(new_topic("kept", 3)).await.unwrap();
    let gone = node.create_topic(new_topic("gone", 1)).await.unwrap();
    node.delete_topic(gone.id).await.unwrap();
    node.stop().await.unwrap();
    let node = start(dir.path()).await.unwrap();
    let view = node.view();
    assert_eq!((node.instance(), &view.cluster_id), (2, &cluster));
    assert_eq!(view.topics.get("kept"), Some(&kept));
    assert!(view.topics.get("gone").is_none() && view.topics.is_deleted(gone.id));
    assert!(node.damage().is_empty());
    // While it runs, nobody else starts.
    let refused = start(dir.path()).await;
    assert!(matches!(refused, Err(StartError::RunsAlready { .. })));
    node.stop().await.unwrap();
    let cluster_file = dir
        .path()
        .join("data")
        .join("__cluster")
        .join("cluster.json");
    std::fs::remove_file(cluster_file).unwrap();
    let refused = start(dir.path()).await;
    assert!(matches!(refused, Err(StartError::VolumeMissing { .. })));
}
