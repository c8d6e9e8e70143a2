//! What is sent at once is answered as if each request had waited for the answer before it.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::{
    BrokerId, CreatePartitionsRequest, CreateTopicsRequest, DeleteGroupsRequest,
    DeleteRecordsRequest, DeleteTopicsRequest, DescribeConfigsRequest,
    IncrementalAlterConfigsRequest, ListGroupsRequest, ListOffsetsRequest, MetadataRequest,
    OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest, ProduceRequest,
};
use kafka_protocol::protocol::Request;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tests::raw::{RawClient, decode_response, encode_request, ops};

use crate::groups::{connect, group_id};
use crate::kit::{P, Target, answers, end_of, on_kafka, plain, produce_request, text};
use crate::reading::{fetch_request, partitions, records};

const PATIENCE: Duration = Duration::from_mins(2);

/// A request, and what is looked at of its answer.
struct Ask {
    frame: Bytes,
    said: Box<dyn Fn(Bytes) -> String + Send>,
}

fn ask<R: Request, S: std::fmt::Debug>(
    request: &R,
    version: i16,
    said: impl Fn(R::Response) -> S + Send + 'static,
) -> Ask {
    Ask {
        frame: encode_request(request, version, 0).unwrap(),
        said: Box::new(move |frame| {
            let (_, response) = decode_response::<R>(frame, version).unwrap();
            format!("{:?}", said(response))
        }),
    }
}

async fn answer(client: &mut RawClient, ask: &Ask) -> String {
    (ask.said)(client.receive_frame().await.unwrap().unwrap())
}

/// Sends all in one write.
async fn at_once(client: &mut RawClient, asked: &[Ask]) -> Vec<String> {
    let frames: Vec<&[u8]> = asked.iter().map(|ask| &ask.frame[..]).collect();
    client.send_bytes(&frames.concat()).await.unwrap();
    let mut said = Vec::new();
    for ask in asked {
        said.push(answer(client, ask).await);
    }
    said
}

async fn one_by_one(client: &mut RawClient, asked: &[Ask]) -> Vec<String> {
    let mut said = Vec::new();
    for ask in asked {
        client.send_bytes(&ask.frame).await.unwrap();
        said.push(answer(client, ask).await);
    }
    said
}

/// What may be asked of some topics and groups.
#[derive(Debug, Clone, Copy)]
enum Op {
    Create(i32),
    Delete,
    Grow(i32),
    Describe,
    Produce,
    Sequence(i32),
    Ends,
    Fetch,
    Trim,
    Commit(i64),
    Committed,
    Uncommit,
    Forget,
    Groups,
    Set(u32),
    Shown,
}

/// With which topic, and which group.
type Step = (Op, u8);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let op = prop_oneof![
        1 => (1..3).prop_map(Op::Create),
        1 => Just(Op::Delete),
        1 => (1..4).prop_map(Op::Grow),
        1 => Just(Op::Describe),
        3 => Just(Op::Produce),
        3 => (0..4).prop_map(Op::Sequence),
        1 => Just(Op::Ends),
        1 => Just(Op::Fetch),
        1 => Just(Op::Trim),
        3 => (0_i64..9).prop_map(Op::Commit),
        2 => Just(Op::Committed),
        1 => Just(Op::Uncommit),
        1 => Just(Op::Forget),
        1 => Just(Op::Groups),
        1 => (1_u32..9).prop_map(Op::Set),
        1 => Just(Op::Shown),
    ];
    proptest::collection::vec((op, 0_u8..2), 2..15)
}

impl Op {
    fn ask(self, topic: &str, group: &str) -> Ask {
        match self {
            Self::Create(count) => create(topic, count),
            Self::Delete => {
                let request = DeleteTopicsRequest::default()
                    .with_topic_names(vec![ops::topic_name(topic)])
                    .with_timeout_ms(60_000);
                ask(&request, 5, |r| r.responses[0].error_code)
            }
            Self::Grow(count) => {
                let grown = CreatePartitionsTopic::default()
                    .with_name(ops::topic_name(topic))
                    .with_count(count)
                    .with_assignments(None);
                let request = CreatePartitionsRequest::default()
                    .with_topics(vec![grown])
                    .with_timeout_ms(60_000);
                ask(&request, 1, |r| r.results[0].error_code)
            }
            Self::Describe => describe(topic),
            Self::Produce => produce(topic, plain(1)),
            Self::Sequence(sequence) => produce(topic, P(77, 0, sequence, 1).batch()),
            Self::Ends => ends(topic),
            Self::Fetch => {
                let request = fetch_request(topic, &[(0, 0)]);
                ask(&request, 12, |r| {
                    let seen = partitions(&r);
                    let look = |p| {
                        let bytes = records(p).len();
                        (p.error_code, p.high_watermark, p.log_start_offset, bytes)
                    };
                    seen.iter().map(look).collect::<Vec<_>>()
                })
            }
            Self::Trim => trim(topic, &[0]),
            Self::Commit(offset) => commit(group, topic, offset),
            Self::Committed => committed(group, topic),
            Self::Uncommit => {
                let partition = OffsetDeleteRequestPartition::default();
                let of = OffsetDeleteRequestTopic::default()
                    .with_name(ops::topic_name(topic))
                    .with_partitions(vec![partition]);
                let request = OffsetDeleteRequest::default()
                    .with_group_id(group_id(group))
                    .with_topics(vec![of]);
                ask(&request, 0, |r| {
                    let partitions = r.topics.into_iter().flat_map(|t| t.partitions);
                    let codes: Vec<i16> = partitions.map(|p| p.error_code).collect();
                    (r.error_code, codes)
                })
            }
            Self::Forget => {
                let request =
                    DeleteGroupsRequest::default().with_groups_names(vec![group_id(group)]);
                ask(&request, 1, |r| r.results[0].error_code)
            }
            Self::Groups => {
                let group = group.to_owned();
                ask(&ListGroupsRequest::default(), 2, move |r| {
                    r.groups.iter().any(|g| g.group_id.as_str() == group)
                })
            }
            Self::Set(hours) => {
                let ms = (u64::from(hours) * 3_600_000).to_string();
                let entry = AlterableConfig::default()
                    .with_name(text("retention.ms"))
                    .with_value(Some(text(&ms)));
                let resource = AlterConfigsResource::default()
                    .with_resource_type(2)
                    .with_resource_name(text(topic))
                    .with_configs(vec![entry]);
                let request =
                    IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
                ask(&request, 1, |r| r.responses[0].error_code)
            }
            Self::Shown => {
                let resource = DescribeConfigsResource::default()
                    .with_resource_type(2)
                    .with_resource_name(text(topic))
                    .with_configuration_keys(Some(vec![text("retention.ms")]));
                let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
                ask(&request, 4, |r| {
                    let of = &r.results[0];
                    let values = of.configs.iter().map(|config| config.value.clone());
                    (of.error_code, values.collect::<Vec<_>>())
                })
            }
        }
    }
}

fn create(topic: &str, count: i32) -> Ask {
    let topic = CreatableTopic::default()
        .with_name(ops::topic_name(topic))
        .with_num_partitions(count)
        .with_replication_factor(1);
    let request = CreateTopicsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(60_000);
    ask(&request, 5, |r| r.topics[0].error_code)
}

fn describe(topic: &str) -> Ask {
    let topic = MetadataRequestTopic::default().with_name(Some(ops::topic_name(topic)));
    let request = MetadataRequest::default()
        .with_topics(Some(vec![topic]))
        .with_allow_auto_topic_creation(false);
    ask(&request, 12, |r| {
        (r.topics[0].error_code, r.topics[0].partitions.len())
    })
}

fn produce(topic: &str, batch: Bytes) -> Ask {
    let request = produce_request(topic, &[(0, Some(batch))]).with_timeout_ms(60_000);
    ask(&request, 9, |r| {
        (answers(&r)[0].error_code, answers(&r)[0].base_offset)
    })
}

fn ends(topic: &str) -> Ask {
    let partition = |timestamp| {
        ListOffsetsPartition::default()
            .with_partition_index(i32::from(timestamp != ops::LATEST))
            .with_current_leader_epoch(-1)
            .with_timestamp(timestamp)
    };
    let topic = ListOffsetsTopic::default()
        .with_name(ops::topic_name(topic))
        .with_partitions(vec![partition(ops::LATEST), partition(ops::EARLIEST)]);
    let request = ListOffsetsRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_topics(vec![topic]);
    ask(&request, 5, |r| {
        let partitions = r.topics.into_iter().flat_map(|topic| topic.partitions);
        let ends = partitions.map(|p| (p.error_code, p.offset));
        ends.collect::<Vec<_>>()
    })
}

/// Deletes the records below the high watermarks.
fn trim(topic: &str, indices: &[i32]) -> Ask {
    let partitions = indices.iter().map(|index| {
        DeleteRecordsPartition::default()
            .with_partition_index(*index)
            .with_offset(-1)
    });
    let topic = DeleteRecordsTopic::default()
        .with_name(ops::topic_name(topic))
        .with_partitions(partitions.collect());
    let request = DeleteRecordsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(60_000);
    ask(&request, 2, |r| {
        let partitions = r.topics.into_iter().flat_map(|topic| topic.partitions);
        let mut lows: Vec<_> = partitions
            .map(|p| (p.partition_index, p.error_code, p.low_watermark))
            .collect();
        lows.sort_unstable();
        lows
    })
}

fn commit(group: &str, topic: &str, offset: i64) -> Ask {
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(offset);
    let topic = OffsetCommitRequestTopic::default()
        .with_name(ops::topic_name(topic))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(group_id(group))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![topic]);
    ask(&request, 7, |r| r.topics[0].partitions[0].error_code)
}

fn committed(group: &str, topic: &str) -> Ask {
    let topic = OffsetFetchRequestTopic::default()
        .with_name(ops::topic_name(topic))
        .with_partition_indexes(vec![0]);
    let request = OffsetFetchRequest::default()
        .with_group_id(group_id(group))
        .with_topics(Some(vec![topic]));
    ask(&request, 5, |r| {
        let partition = &r.topics[0].partitions[0];
        (partition.committed_offset, partition.error_code)
    })
}

/// Random requests that are sent at once are answered like the same requests one by one.
#[tokio::test]
async fn random_requests_at_once_are_answered_as_one_by_one() {
    // There topics come into being some time after the answer.
    if on_kafka() {
        return;
    }
    let (fast, slow) = (Target::start(&[]), Target::start(&[]));
    let connect = async |target: &Target| target.connect().await.with_patience(PATIENCE);
    let (mut fast, mut slow) = (connect(&fast).await, connect(&slow).await);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    for case in 0..64_usize {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        let asks = || -> Vec<Ask> {
            let of = |which: &str, n: u8| format!("order-{case}-{which}-{n}");
            let first = (0..2).map(|n| create(&of("topic", n), 2));
            let steps = steps
                .iter()
                .map(|(op, n)| op.ask(&of("topic", *n), &of("group", *n)));
            first.take(case % 3).chain(steps).collect()
        };
        let expected = one_by_one(&mut slow, &asks()).await;
        let got = at_once(&mut fast, &asks()).await;
        assert_eq!(got, expected, "{case}: {steps:?}");
    }
}

#[tokio::test]
async fn offsets_are_seen_behind_the_commit_that_was_sent_before() {
    let target = Target::shared();
    target.with_topic("order-offsets", 1).await;
    let mut client = connect(&target, "order-offsets").await;
    for offset in 0..20 {
        let (group, topic) = ("order-offsets", "order-offsets");
        let both = [commit(group, topic, offset), committed(group, topic)];
        let said = at_once(&mut client, &both).await;
        assert_eq!(said, ["0".to_owned(), format!("({offset}, 0)")]);
    }
}

#[tokio::test]
async fn a_topic_is_there_behind_the_request_that_makes_it() {
    if on_kafka() {
        return;
    }
    let target = Target::shared();
    let mut client = target.connect().await;
    for n in 0..5 {
        let topic = format!("order-topic-{n}");
        let all = [
            create(&topic, 2),
            describe(&topic),
            produce(&topic, plain(1)),
            ends(&topic),
            Op::Delete.ask(&topic, ""),
            describe(&topic),
        ];
        let said = at_once(&mut client, &all).await;
        let expected = ["0", "(0, 2)", "(0, 0)", "[(0, 1), (0, 0)]", "0", "(3, 0)"];
        assert_eq!(said, expected, "{n}");
    }
}

#[tokio::test]
async fn what_is_sent_behind_a_deletion_of_records_is_not_deleted() {
    let target = Target::shared();
    let mut client = target.with_topic("order-trim", 8).await;
    let all: Vec<(i32, Option<Bytes>)> = (0..8).map(|index| (index, Some(plain(1)))).collect();
    let fill = produce_request("order-trim", &all);
    client.call(&fill, 9).await.unwrap();
    let last = || {
        let request = produce_request("order-trim", &[(7, Some(plain(1)))]);
        ask(&request, 9, |r| {
            (answers(&r)[0].error_code, answers(&r)[0].base_offset)
        })
    };
    for round in 1..4 {
        let both = [trim("order-trim", &[0, 1, 2, 3, 4, 5, 6, 7]), last()];
        let said = at_once(&mut client, &both).await;
        let lows: Vec<_> = (0..7)
            .map(|index| (index, 0, 1))
            .chain([(7, 0, round)])
            .collect();
        assert_eq!(said[0], format!("{lows:?}"));
        assert_eq!(said[1], format!("(0, {round})"));
        let starts = ops::list_offsets(&mut client, "order-trim", 8, ops::EARLIEST);
        assert_eq!(starts.await.unwrap()[7], i64::from(round));
    }
}

#[tokio::test]
async fn what_a_poll_waits_for_is_not_sent_behind_it() {
    let target = Target::shared();
    let mut client = target.with_topic("order-poll", 1).await;
    let poll = fetch_request("order-poll", &[(0, 0)]).with_max_wait_ms(500);
    let poll = ask(&poll, 12, |r| {
        (partitions(&r)[0].high_watermark, r.error_code)
    });
    let both = [poll, produce("order-poll", plain(1))];
    let said = at_once(&mut client, &both).await;
    assert_eq!(said, ["(0, 0)", "(0, 0)"]);
}

#[tokio::test]
async fn records_without_acknowledgement_are_seen_behind_it() {
    let target = Target::shared();
    let mut client = target.with_topic("order-silent", 1).await;
    for end in 1..=20 {
        let request = produce_request("order-silent", &[(0, Some(plain(1)))]);
        let silent = encode_request::<ProduceRequest>(&request.with_acks(0), 9, 0).unwrap();
        client.send_bytes(&silent).await.unwrap();
        assert_eq!(end_of(&mut client, "order-silent").await, end);
    }
}
