//! Requests that wait for others to come: they must not be what those wait for.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::{DescribeGroupsRequest, FetchRequest, JoinGroupRequest};
use tests::raw::{RawClient, ops};

use crate::fsyncs::counter;
use crate::groups::{connect, group_id};
use crate::kit::{Target, on_kafka, plain, produce, text};
use crate::passing::until;
use crate::reading::{fetch_request, partitions};

/// Bytes of requests in memory, as the gateway counts them.
fn counted(target: &Target) -> u64 {
    counter(target, "fencepost_requests_in_memory_bytes ")
}

/// Until so many Fetches wait, and none of them holds anything.
async fn await_parked(target: &Target, fetches: usize) {
    let said = format!("fencepost_requests_inflight{{api=\"Fetch\"}} {fetches}");
    let parked = async {
        while !target.admin("/metrics").contains(&said) || counted(target) > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), parked)
        .await
        .unwrap();
}

fn joining(member: &str, metadata: usize) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text("range"))
        .with_metadata(Bytes::from(vec![7; metadata]));
    JoinGroupRequest::default()
        .with_group_id(group_id("crowd"))
        .with_session_timeout_ms(300_000)
        .with_rebalance_timeout_ms(300_000)
        .with_member_id(text(member))
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol])
}

async fn members(client: &mut RawClient) -> usize {
    let request = DescribeGroupsRequest::default().with_groups(vec![group_id("crowd")]);
    let response = client.call(&request, 0).await.unwrap();
    response.groups[0].members.len()
}

/// Members that say more in all than requests may take in memory join one generation.
#[tokio::test]
async fn more_members_wait_to_join_than_requests_fit_into_memory() {
    const MEMBERS: usize = 40;
    let limits = [
        ("queued.max.request.bytes", "1048576"),
        ("group.max.session.timeout.ms", "300000"),
    ];
    let target = Target::start(&limits);
    let mut leader = connect(&target, "crowd").await;
    leader = leader.with_patience(Duration::from_mins(2));
    let first = leader.call(&joining("", 1000), 3).await.unwrap();
    assert_eq!((first.error_code, first.generation_id), (0, 1));
    let mut waiting = Vec::new();
    for _ in 0..MEMBERS {
        let client = target.connect().await;
        let mut client = client.with_patience(Duration::from_mins(2));
        client.send(&joining("", 50_000), 3).await.unwrap();
        waiting.push(client);
    }
    // All of them are read, though none is answered yet.
    let mut other = target.connect().await;
    let read = async {
        while members(&mut other).await <= MEMBERS {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), read)
        .await
        .unwrap();
    if !on_kafka() {
        // The last of them may be seen before its bytes are let go.
        until("let go", || counted(&target) < 1 << 19).await;
    }
    let again = joining(&first.member_id, 1000);
    let joined = leader.call(&again, 3).await.unwrap();
    assert_eq!((joined.error_code, joined.generation_id), (0, 2));
    assert_eq!(joined.members.len(), MEMBERS + 1);
    for client in &mut waiting {
        let (_, joined) = client.receive::<JoinGroupRequest>(3).await.unwrap();
        assert_eq!((joined.error_code, joined.generation_id), (0, 2));
    }
    target.log_is_clean(&[]);
}

/// Readers that wait for records take nothing from who writes them.
#[tokio::test]
async fn readers_that_wait_hold_nothing_of_the_budget() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[("queued.max.request.bytes", "1048576")]);
    let mut writer = target.with_topic("awaited", 1).await;
    let request = fetch_request("awaited", &[(0, 0)])
        .with_max_wait_ms(300_000)
        .with_min_bytes(1);
    let mut readers = Vec::new();
    for _ in 0..300 {
        let mut reader = target.connect().await;
        reader.send(&request, 12).await.unwrap();
        readers.push(reader);
    }
    await_parked(&target, 300).await;
    assert_eq!(produce(&mut writer, "awaited", plain(1)).await, (0, 0));
    for reader in &mut readers {
        let (_, response) = reader.receive::<FetchRequest>(12).await.unwrap();
        assert_eq!(partitions(&response)[0].high_watermark, 1);
    }
}

/// Nor do those that wait for many partitions.
#[tokio::test]
async fn readers_of_many_partitions_hold_nothing_of_the_budget_either() {
    const READERS: usize = 20;
    const PARTITIONS: i32 = 200;
    if on_kafka() {
        return;
    }
    let target = Target::start(&[("queued.max.request.bytes", "1048576")]);
    let mut writer = target.with_topic("widely-awaited", PARTITIONS).await;
    let wanted: Vec<(i32, i64)> = (0..PARTITIONS).map(|partition| (partition, 0)).collect();
    let request = fetch_request("widely-awaited", &wanted)
        .with_max_wait_ms(300_000)
        .with_min_bytes(1);
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let mut reader = target.connect().await;
        reader.send(&request, 12).await.unwrap();
        readers.push(reader);
    }
    await_parked(&target, READERS).await;
    let last = PARTITIONS - 1;
    let sent = ops::produce(&mut writer, "widely-awaited", last, plain(1)).await;
    assert_eq!(sent.unwrap().error_code, 0);
    for reader in &mut readers {
        let (_, response) = reader.receive::<FetchRequest>(12).await.unwrap();
        let answers = partitions(&response);
        let ends: Vec<i64> = answers.iter().map(|answer| answer.high_watermark).collect();
        assert_eq!(ends.iter().sum::<i64>(), 1);
        assert_eq!(ends.last(), Some(&1));
    }
}
