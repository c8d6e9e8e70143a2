//! DeleteRecords: the log begins later.

use kafka_protocol::messages::DeleteRecordsRequest;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use tests::raw::{RawClient, ops};

use crate::kit::{P, Target, differs, on_kafka, plain, produce};

/// Code and low watermark of every partition.
pub(crate) async fn delete(
    client: &mut RawClient,
    version: i16,
    topic: &str,
    offsets: &[(i32, i64)],
) -> Vec<(i32, i16, i64)> {
    let partitions = offsets.iter().map(|(index, offset)| {
        DeleteRecordsPartition::default()
            .with_partition_index(*index)
            .with_offset(*offset)
    });
    let topic = DeleteRecordsTopic::default()
        .with_name(ops::topic_name(topic))
        .with_partitions(partitions.collect());
    let request = DeleteRecordsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(30_000);
    let response = client.call(&request, version).await.unwrap();
    let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
    let mut answers: Vec<_> = partitions
        .map(|p| (p.partition_index, p.error_code, p.low_watermark))
        .collect();
    answers.sort_unstable();
    answers
}

async fn bounds(client: &mut RawClient, topic: &str) -> (i64, i64) {
    let start = ops::list_offsets(client, topic, 1, ops::EARLIEST)
        .await
        .unwrap()[0];
    let end = ops::list_offsets(client, topic, 1, ops::LATEST)
        .await
        .unwrap()[0];
    (start, end)
}

#[tokio::test]
async fn the_start_moves_forward_only() {
    let target = Target::shared();
    let mut client = target.with_topic("trim", 1).await;
    for _ in 0..4 {
        assert_eq!(produce(&mut client, "trim", plain(5)).await.0, 0);
    }
    for (version, offset, code, low) in [
        (0, 0, 0, 0),
        (0, 5, 0, 5),
        (1, 7, 0, 7),
        // Where it is already.
        (2, 7, 0, 7),
        (2, 3, 0, 7),
        (2, 21, 1, -1),
        (2, -2, 1, -1),
        (1, -7, 1, -1),
        (2, 20, 0, 20),
        (2, -1, 0, 20),
    ] {
        let answer = delete(&mut client, version, "trim", &[(0, offset)]).await;
        assert_eq!(answer, [(0, code, low)], "to {offset}");
        if low >= 0 {
            assert_eq!(bounds(&mut client, "trim").await, (low, 20));
        }
    }
    assert_eq!(produce(&mut client, "trim", plain(1)).await, (0, 20));
    assert_eq!(bounds(&mut client, "trim").await, (20, 21));
}

#[tokio::test]
async fn minus_one_is_the_high_watermark() {
    let target = Target::shared();
    let mut client = target.with_topic("trim-all", 2).await;
    assert_eq!(produce(&mut client, "trim-all", plain(3)).await.0, 0);
    let answers = delete(&mut client, 2, "trim-all", &[(0, -1), (1, -1), (2, -1)]).await;
    assert_eq!(answers, [(0, 0, 3), (1, 0, 0), (2, 3, -1)]);
    let answers = delete(&mut client, 2, "trim-none", &[(0, -1)]).await;
    assert_eq!(answers, [(0, 3, -1)]);
}

#[tokio::test]
async fn i35_producers_outlive_their_records() {
    let target = Target::shared();
    let mut client = target.with_topic("i35", 1).await;
    let (id, epoch) = ops::init_producer_id(&mut client).await.unwrap();
    let first = P(id, epoch, 0, 3).batch();
    assert_eq!(produce(&mut client, "i35", first.clone()).await, (0, 0));
    assert_eq!(delete(&mut client, 2, "i35", &[(0, -1)]).await, [(0, 0, 3)]);
    assert_eq!(
        produce(&mut client, "i35", P(id, epoch, 3, 1).batch()).await,
        (0, 3)
    );
    assert_eq!(produce(&mut client, "i35", first).await, (0, 0));
    assert_eq!(bounds(&mut client, "i35").await, (3, 4));
}

#[tokio::test]
async fn the_start_and_the_producers_survive_a_kill() {
    let target = Target::start(&[]);
    let mut client = target.with_topic("trim-kill", 1).await;
    let (id, epoch) = ops::init_producer_id(&mut client).await.unwrap();
    let batch = |sequence| P(id, epoch, sequence, 3).batch();
    for sequence in [0, 3, 6] {
        assert_eq!(
            produce(&mut client, "trim-kill", batch(sequence)).await.0,
            0
        );
    }
    assert_eq!(
        delete(&mut client, 2, "trim-kill", &[(0, -1)]).await,
        [(0, 0, 9)]
    );
    target.kill_and_restart();
    let mut client = target.connect().await;
    ops::await_topic(&mut client, "trim-kill", 1).await.unwrap();
    let start = differs("log-start-after-a-crash", 0, 9);
    assert_eq!(bounds(&mut client, "trim-kill").await, (start, 9));
    if !on_kafka() {
        // Kafka drops its snapshots with the records and knows the producer no longer.
        assert_eq!(produce(&mut client, "trim-kill", batch(6)).await, (0, 6));
        assert_eq!(produce(&mut client, "trim-kill", batch(12)).await, (45, -1));
    }
    assert_eq!(produce(&mut client, "trim-kill", batch(9)).await, (0, 9));
}

#[tokio::test]
async fn a_time_is_looked_for_from_the_start_of_the_log_on() {
    let target = Target::shared();
    let mut client = target.with_topic("trim-time", 1).await;
    assert_eq!(produce(&mut client, "trim-time", plain(10)).await, (0, 0));
    let deleted = delete(&mut client, 2, "trim-time", &[(0, 5)]).await;
    assert_eq!(deleted, [(0, 0, 5)]);
    // In the middle of a batch.
    let found = ops::list_offsets(&mut client, "trim-time", 1, 0).await;
    assert_eq!(found.unwrap(), [5]);
    // Behind all of it, where the next batch reaches it.
    assert_eq!(produce(&mut client, "trim-time", plain(1)).await, (0, 10));
    let deleted = delete(&mut client, 2, "trim-time", &[(0, 10)]).await;
    assert_eq!(deleted, [(0, 0, 10)]);
    let found = ops::list_offsets(&mut client, "trim-time", 1, 0).await;
    assert_eq!(found.unwrap(), [10]);
}

/// Compaction keeps the newest record of each key, and nothing else may take it.
#[tokio::test]
async fn what_is_only_compacted_is_not_deleted() {
    let target = Target::shared();
    for (topic, policy, expected) in [
        ("trim-compact", "compact", [(0, 44, -1); 3]),
        (
            "trim-both",
            "compact,delete",
            [(0, 1, -1), (0, 0, 1), (0, 0, 2)],
        ),
        ("trim-neither", "", [(0, 1, -1), (0, 0, 1), (0, 0, 2)]),
    ] {
        let configs = [("cleanup.policy", policy)];
        let mut client = target.with_configs(topic, 1, &configs).await;
        for _ in 0..2 {
            let mut spec = P(-1, -1, -1, 1).spec();
            spec.records[0].key = Some(topic.into());
            assert_eq!(produce(&mut client, topic, spec.build()).await.0, 0);
        }
        // Whatever the offset.
        for (offset, expected) in [7, 1, -1].into_iter().zip(expected) {
            let answer = delete(&mut client, 2, topic, &[(0, offset)]).await;
            assert_eq!(answer, [expected], "{policy} to {offset}");
        }
        let start = expected[2].2.max(0);
        assert_eq!(bounds(&mut client, topic).await, (start, 2), "{policy}");
        // What is not there is not judged by any policy.
        let answer = delete(&mut client, 2, topic, &[(1, -1)]).await;
        assert_eq!(answer, [(1, 3, -1)], "{policy}");
    }
}
