//! What HTTP says of partitions, groups, producer ids and fences, beside what the wire says.

use kafka_protocol::messages::ListOffsetsRequest;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use serde_json::{Value, json};
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::{RawClient, group, ops};

use super::kit::{Site, ask};

const TOPIC: &str = "orders";

/// The end of the partition for a reader of that isolation.
async fn end(client: &mut RawClient, isolation: i8) -> i64 {
    let partition = ListOffsetsPartition::default()
        .with_partition_index(0)
        .with_current_leader_epoch(-1)
        .with_timestamp(ops::LATEST);
    let topic = ListOffsetsTopic::default()
        .with_name(ops::topic_name(TOPIC))
        .with_partitions(vec![partition]);
    let request = ListOffsetsRequest::default()
        .with_replica_id((-1).into())
        .with_isolation_level(isolation)
        .with_topics(vec![topic]);
    let answer = client.call(&request, 7).await.unwrap();
    let partition = &answer.topics[0].partitions[0];
    assert_eq!(partition.error_code, 0);
    partition.offset
}

/// Both ends of the partition, and the lags of the group, are those of the wire; what HTTP says.
async fn ends_agree(site: &Site, client: &mut RawClient) -> Value {
    let lso = site.json("/api/v1/topics/orders/partitions/0/lso").await;
    let (high, stable) = (end(client, 0).await, end(client, 1).await);
    let said = (&lso["highWatermark"], &lso["lastStableOffset"]);
    assert_eq!(said, (&json!(high), &json!(stable)));
    assert_eq!(lso["heldBack"], high - stable);
    let committed = group::committed(client, "readers", TOPIC, 1).await.unwrap()[0];
    let group = site.json("/api/v1/groups/readers/offsets").await;
    let offset = &group["offsets"][0];
    assert_eq!(
        [
            &offset["offset"],
            &offset["lag"],
            &offset["lagToLastStable"]
        ],
        [committed, high - committed, (stable - committed).max(0)]
            .map(Value::from)
            .each_ref()
    );
    lso
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_lags_ids_and_fences_are_those_of_the_wire() {
    let site = Site::start().await;
    let address = site.0.addresses().kafka.clone();
    let mut client = RawClient::connect(&address).await.unwrap();
    site.create(TOPIC).await;
    let plain = BatchSpec {
        records: ["x", "y"].map(Record::value).into(),
        ..BatchSpec::default()
    };
    let sent = ops::produce(&mut client, TOPIC, 0, plain.build()).await;
    assert_eq!(sent.unwrap().error_code, 0);
    group::await_coordinator(&mut client, "readers")
        .await
        .unwrap();
    let commit = group::commit(&mut client, "readers", ("", -1), TOPIC, &[(0, 1)]);
    commit.await.unwrap();
    let lso = ends_agree(&site, &mut client).await;
    assert_eq!(lso["highWatermark"], 2);

    let session = site.open("tx", TOPIC).await;
    let lso = ends_agree(&site, &mut client).await;
    assert_eq!(
        (&lso["heldBack"], &lso["openCount"]),
        (&json!(3), &json!(1))
    );
    // The next id that is handed out is in what is reserved.
    let (id, _) = ops::init_producer_id(&mut client).await.unwrap();
    let blocks = site.json("/api/v1/producer-ids").await;
    let block = &blocks["brokers"][0];
    let reserved =
        block["firstProducerId"].as_i64().unwrap()..block["nextProducerId"].as_i64().unwrap();
    assert!(
        reserved.contains(&id) && reserved.contains(&session.pid.0),
        "{block}"
    );

    let path = "/api/v1/transactions/tx/abort";
    let admin = &site.0.addresses().admin;
    let done = ask(admin, "POST", path, Some(r#"{"reason":"x"}"#)).await;
    assert_eq!(done.json()["outcome"], "aborted");
    let lso = ends_agree(&site, &mut client).await;
    assert_eq!(
        (&lso["heldBack"], &lso["highWatermark"]),
        (&json!(0), &json!(6))
    );
    // Who is fenced is told so.
    let path = format!("/api/v1/fences?producer_id={}", session.pid.0);
    let fences = site.json(&path).await;
    let fence = &fences["brokers"][0]["fences"][0];
    assert_eq!(fence["producerEpoch"], i64::from(session.epoch.0) + 1);
    for (epoch, code) in [(session.epoch.0, 47), (session.epoch.0 + 1, 0)] {
        let spec = BatchSpec {
            producer_id: session.pid.0,
            producer_epoch: epoch,
            base_sequence: 0,
            ..plain.clone()
        };
        let sent = ops::produce(&mut client, TOPIC, 0, spec.build()).await;
        assert_eq!(sent.unwrap().error_code, code, "epoch {epoch}");
    }
    // Nothing is queued for others: there are none.
    let queue = site.json("/api/v1/marker-queue").await;
    assert_eq!(
        (&queue["entries"], &queue["waiting"]),
        (&json!([]), &json!(0))
    );
    assert!(site.0.shutdown().await);
}
