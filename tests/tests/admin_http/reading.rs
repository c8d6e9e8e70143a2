//! What is shown of what is open.

use std::sync::Arc;

use coordinator::slot_hash::fnv1a32;
use coordinator::volume::layout::Place;
use gateway::Gateway;
use serde_json::json;
use store_adapter::volume::{MemoryVolume, Volume};

use super::kit::Site;

/// An id that is hostile to paths and pages, and as a segment of a path.
const HOSTILE: (&str, &str) = (
    "../a/b?\"<b>'%2F\u{202e}\n",
    "..%2Fa%2Fb%3F%22%3Cb%3E%27%252F%E2%80%AE%0A",
);

#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_is_seen_everywhere() {
    let site = Site::start().await;
    site.create("orders").await;
    let session = site.open(HOSTILE.0, "orders").await;
    site.init("idle").await;
    let list = site.json("/api/v1/transactions?state=Ongoing").await;
    assert_eq!(
        (&list["matched"], &list["missingSlots"]),
        (&json!(1), &json!([]))
    );
    let one = &list["transactions"][0];
    assert_eq!(one["transactionalId"], HOSTILE.0);
    assert_eq!(one["producerId"], session.pid.0);
    assert_eq!(
        one["partitions"],
        json!([{"topic": "orders", "partitions": [0]}])
    );
    let path = format!("/api/v1/transactions/{}", HOSTILE.1);
    let detail = site.json(&path).await;
    assert_eq!(detail["partitionStates"][0]["holdsLastStableOffset"], true);
    assert_eq!(detail["slot"], fnv1a32(HOSTILE.0.as_bytes()) % 50);
    let history = site.json(&format!("{path}/history")).await;
    let transitions = history["transitions"].as_array().unwrap();
    let moves: Vec<_> = transitions
        .iter()
        .map(|one| (one["from"].as_str().unwrap(), one["to"].as_str().unwrap()))
        .collect();
    assert_eq!(moves, [("Empty", "Empty"), ("Empty", "Ongoing")]);
    assert!(transitions.iter().all(|one| one["gapBefore"] == false));
    let lso = site.json("/api/v1/topics/orders/partitions/0/lso").await;
    assert_eq!(
        (&lso["lastStableOffset"], &lso["highWatermark"]),
        (&json!(0), &json!(3))
    );
    assert_eq!(lso["holder"]["transactionalId"], HOSTILE.0);
    assert_eq!(lso["holder"]["standing"], "ongoing");
    let request = format!("POST {path}/abort");
    assert_eq!(lso["remedies"][1]["request"], request);
    let producers = site
        .json("/api/v1/topics/orders/partitions/0/producers")
        .await;
    assert_eq!(producers["producers"][0]["window"][0]["lastSequence"], 2);
    let blocks = site.json("/api/v1/producer-ids").await;
    assert_eq!(blocks["brokers"][0]["nextProducerId"], (1_i64 << 40) + 1000);
    for empty in [
        "/api/v1/fences?producer_id=1",
        "/api/v1/marker-queue",
        "/api/v1/audit",
    ] {
        site.json(empty).await;
    }
    let page = site.get("/").await;
    assert!(page.head.contains("text/html"));
    assert!(
        page.body.contains("3 offsets are held back"),
        "{}",
        page.body
    );
    assert!(page.body.contains("&lt;b&gt;") && !page.body.contains("<b>"));
    assert_eq!(site.get("/api/v1/transactions/nobody").await.status, 404);
    assert_eq!(site.get("/api/v1/groups/none/offsets").await.status, 404);
    assert!(site.0.shutdown().await);
}

async fn on(volume: &MemoryVolume, dir: &tempfile::TempDir) -> Site {
    let builder = Gateway::builder().free_ports().data_dir(dir.path());
    let started = builder.volume(Arc::new(volume.clone())).start().await;
    Site(started.unwrap()).loaded().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_slot_is_named_and_the_others_are_shown() {
    let (volume, dir) = (MemoryVolume::new(), tempfile::tempdir().unwrap());
    let site = on(&volume, &dir).await;
    // Their slots are 9 and 48.
    for id in ["tx-commit", "tx-abort"] {
        site.init(id).await;
    }
    assert!(site.0.shutdown().await);
    let path = Place::TxnSlot(9).path();
    let file = volume.open_write(&path).await.unwrap();
    file.write_at(0, &[bytes::Bytes::from_static(b"\0\0")])
        .await
        .unwrap();
    let site = on(&volume, &dir).await;
    let list = site.json("/api/v1/transactions").await;
    assert_eq!(
        list["missingSlots"],
        json!([{"slot": 9, "state": "damaged"}])
    );
    assert_eq!(list["transactions"][0]["transactionalId"], "tx-abort");
    let answer = site.get("/api/v1/transactions/tx-commit").await;
    assert_eq!(
        (answer.status, &answer.json()["kafkaErrorCode"]),
        (503, &json!(15))
    );
    assert!(answer.head.contains("retry-after: 1"));
    // What became of it is kept beside it, over the restart too.
    let history = site.json("/api/v1/transactions/tx-commit/history").await;
    assert_eq!(history["transitions"][0]["cause"], "client");
    assert!(site.0.shutdown().await);
}
