//! CreatePartitions: topics grow.

use kafka_protocol::messages::create_partitions_request::{
    CreatePartitionsAssignment, CreatePartitionsTopic,
};
use kafka_protocol::messages::{BrokerId, CreatePartitionsRequest};
use tests::raw::{RawClient, ops};

use crate::kit::{Target, plain};

fn topic(name: &str, count: i32, assigned: Option<&[&[i32]]>) -> CreatePartitionsTopic {
    let assignments = assigned.map(|lists| {
        let lists = lists.iter().map(|ids| {
            let ids = ids.iter().map(|id| BrokerId(*id)).collect();
            CreatePartitionsAssignment::default().with_broker_ids(ids)
        });
        lists.collect()
    });
    CreatePartitionsTopic::default()
        .with_name(ops::topic_name(name))
        .with_count(count)
        .with_assignments(assignments)
}

async fn grow(
    client: &mut RawClient,
    version: i16,
    topics: Vec<CreatePartitionsTopic>,
    validate_only: bool,
) -> Vec<i16> {
    let request = CreatePartitionsRequest::default()
        .with_topics(topics)
        .with_timeout_ms(30_000)
        .with_validate_only(validate_only);
    let response = client.call(&request, version).await.unwrap();
    let codes = response.results.iter().map(|result| {
        assert!(result.error_code != 0 || result.error_message.is_none());
        result.error_code
    });
    codes.collect()
}

async fn count(client: &mut RawClient, topic: &str) -> usize {
    let metadata = ops::metadata(client, topic).await.unwrap();
    metadata.topics[0].partitions.len()
}

#[tokio::test]
async fn new_partitions_are_served() {
    let target = Target::shared();
    let mut client = target.with_topic("grow", 1).await;
    ops::produce(&mut client, "grow", 0, plain(2))
        .await
        .unwrap();
    for (version, total) in [(0, 2), (1, 3), (2, 5), (3, 6)] {
        let codes = grow(
            &mut client,
            version,
            vec![topic("grow", total, None)],
            false,
        )
        .await;
        assert_eq!(codes, [0], "v{version}");
        ops::await_topic(&mut client, "grow", total).await.unwrap();
        let last = ops::produce(&mut client, "grow", total - 1, plain(1))
            .await
            .unwrap();
        assert_eq!((last.error_code, last.base_offset), (0, 0));
    }
    let ends = ops::list_offsets(&mut client, "grow", 6, ops::LATEST)
        .await
        .unwrap();
    assert_eq!(ends, [2, 1, 1, 0, 1, 1]);
}

#[tokio::test]
async fn a_topic_does_not_shrink() {
    let target = Target::shared();
    let mut client = target.with_topic("shrink", 3).await;
    for total in [3, 2, 1, 0, -1] {
        let codes = grow(&mut client, 3, vec![topic("shrink", total, None)], false).await;
        assert_eq!(codes, [37], "{total}");
    }
    assert_eq!(
        grow(&mut client, 3, vec![topic("grow-none", 3, None)], false).await,
        [3]
    );
    let twice = vec![topic("shrink", 4, None), topic("shrink", 5, None)];
    let mut codes = grow(&mut client, 3, twice, false).await;
    codes.dedup();
    assert_eq!(codes, [42]);
    assert_eq!(count(&mut client, "shrink").await, 3);
}

#[tokio::test]
async fn a_dry_run_and_assignments_are_checked() {
    let target = Target::shared();
    let mut client = target.with_topic("assigned", 1).await;
    let metadata = ops::metadata(&mut client, "assigned").await.unwrap();
    let here = metadata.brokers[0].node_id.0;
    let elsewhere = here + 1;
    let cases: [(&[&[i32]], i16); 6] = [
        (&[&[here], &[here]], 0),
        (&[&[here]], 39),
        (&[&[here], &[here], &[here]], 39),
        (&[&[here], &[elsewhere]], 39),
        (&[&[here], &[]], 39),
        (&[&[here], &[here, here]], 39),
    ];
    for (assigned, code) in cases {
        let asked = vec![topic("assigned", 3, Some(assigned))];
        assert_eq!(
            grow(&mut client, 3, asked, true).await,
            [code],
            "{assigned:?}"
        );
    }
    assert_eq!(
        grow(&mut client, 3, vec![topic("assigned", 1, None)], true).await,
        [37]
    );
    assert_eq!(count(&mut client, "assigned").await, 1);
    let asked = vec![topic("assigned", 3, Some(&[&[here], &[here]]))];
    assert_eq!(grow(&mut client, 3, asked, false).await, [0]);
    ops::await_topic(&mut client, "assigned", 3).await.unwrap();
}

#[tokio::test]
async fn new_partitions_survive_a_kill() {
    let target = Target::start(&[]);
    let mut client = target.with_topic("grow-kill", 1).await;
    let codes = grow(&mut client, 3, vec![topic("grow-kill", 3, None)], false).await;
    assert_eq!(codes, [0]);
    ops::await_topic(&mut client, "grow-kill", 3).await.unwrap();
    for partition in 0..3 {
        let answer = ops::produce(&mut client, "grow-kill", partition, plain(2)).await;
        assert_eq!(answer.unwrap().error_code, 0);
    }
    target.kill_and_restart();
    let mut client = target.connect().await;
    ops::await_topic(&mut client, "grow-kill", 3).await.unwrap();
    let ends = ops::list_offsets(&mut client, "grow-kill", 3, ops::LATEST)
        .await
        .unwrap();
    assert_eq!(ends, [2, 2, 2]);
}
