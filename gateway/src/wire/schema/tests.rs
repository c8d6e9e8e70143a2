use std::mem::size_of;

use kafka_protocol::messages as kp;
use kafka_protocol::protocol::StrBytes;

use super::*;
use crate::api::api_table;

/// Every array of every request: the api key, the schema of its element, and what an element
/// takes in memory.
#[allow(clippy::too_many_lines, reason = "a table")]
fn elements() -> Vec<(i16, Kind, usize)> {
    use kp::{create_topics_request as ct, fetch_request as f, list_offsets_request as lo};
    let of = Kind::Struct;
    vec![
        (
            0,
            of(&PRODUCE_TOPIC),
            size_of::<kp::produce_request::TopicProduceData>(),
        ),
        (
            0,
            of(&PRODUCE_PARTITION),
            size_of::<kp::produce_request::PartitionProduceData>(),
        ),
        (1, of(&FETCH_TOPIC), size_of::<f::FetchTopic>()),
        (1, of(&FETCH_PARTITION), size_of::<f::FetchPartition>()),
        (1, of(&FORGOTTEN_TOPIC), size_of::<f::ForgottenTopic>()),
        (1, INT32, size_of::<i32>()),
        (
            2,
            of(&LIST_OFFSETS_TOPIC),
            size_of::<lo::ListOffsetsTopic>(),
        ),
        (
            2,
            of(&LIST_OFFSETS_PARTITION),
            size_of::<lo::ListOffsetsPartition>(),
        ),
        (
            3,
            of(&METADATA_TOPIC),
            size_of::<kp::metadata_request::MetadataRequestTopic>(),
        ),
        (
            68,
            of(&groups::OWNED_PARTITIONS),
            size_of::<kp::consumer_group_heartbeat_request::TopicPartitions>(),
        ),
        (
            8,
            of(&offsets::OFFSET_COMMIT_TOPIC),
            size_of::<kp::offset_commit_request::OffsetCommitRequestTopic>(),
        ),
        (
            8,
            of(&offsets::OFFSET_COMMIT_PARTITION),
            size_of::<kp::offset_commit_request::OffsetCommitRequestPartition>(),
        ),
        (
            9,
            of(&offsets::OFFSET_FETCH_GROUP),
            size_of::<kp::offset_fetch_request::OffsetFetchRequestGroup>(),
        ),
        (
            9,
            of(&offsets::OFFSET_FETCH_TOPIC),
            size_of::<kp::offset_fetch_request::OffsetFetchRequestTopics>(),
        ),
        (
            47,
            of(&offsets::OFFSET_DELETE_TOPIC),
            size_of::<kp::offset_delete_request::OffsetDeleteRequestTopic>(),
        ),
        (
            47,
            of(&offsets::OFFSET_DELETE_PARTITION),
            size_of::<kp::offset_delete_request::OffsetDeleteRequestPartition>(),
        ),
        (10, STRING, size_of::<StrBytes>()),
        (
            11,
            of(&groups::JOIN_GROUP_PROTOCOL),
            size_of::<kp::join_group_request::JoinGroupRequestProtocol>(),
        ),
        (
            13,
            of(&groups::MEMBER_IDENTITY),
            size_of::<kp::leave_group_request::MemberIdentity>(),
        ),
        (
            14,
            of(&groups::ASSIGNMENT),
            size_of::<kp::sync_group_request::SyncGroupRequestAssignment>(),
        ),
        (15, STRING, size_of::<kp::GroupId>()),
        (16, STRING, size_of::<StrBytes>()),
        (42, STRING, size_of::<kp::GroupId>()),
        (19, of(&CREATE_TOPIC), size_of::<ct::CreatableTopic>()),
        (
            19,
            of(&REPLICA_ASSIGNMENT),
            size_of::<ct::CreatableReplicaAssignment>(),
        ),
        (19, of(&TOPIC_CONFIG), size_of::<ct::CreatableTopicConfig>()),
        (19, INT32, size_of::<kp::BrokerId>()),
        (
            20,
            of(&DELETE_TOPIC),
            size_of::<kp::delete_topics_request::DeleteTopicState>(),
        ),
        (20, STRING, size_of::<kp::TopicName>()),
    ]
}

/// The same of the APIs of transactional ids.
fn of_transactions() -> Vec<(i16, Kind, usize)> {
    use kp::add_partitions_to_txn_request as ap;
    use kp::{txn_offset_commit_request as toc, write_txn_markers_request as wm};
    let of = Kind::Struct;
    vec![
        (
            24,
            of(&txns::ADD_PARTITIONS_TRANSACTION),
            size_of::<ap::AddPartitionsToTxnTransaction>(),
        ),
        (
            24,
            of(&txns::ADD_PARTITIONS_TOPIC),
            size_of::<ap::AddPartitionsToTxnTopic>(),
        ),
        (27, of(&txns::MARKER), size_of::<wm::WritableTxnMarker>()),
        (
            27,
            of(&txns::MARKER_TOPIC),
            size_of::<wm::WritableTxnMarkerTopic>(),
        ),
        (
            28,
            of(&txns::TXN_OFFSET_TOPIC),
            size_of::<toc::TxnOffsetCommitRequestTopic>(),
        ),
        (
            28,
            of(&txns::TXN_OFFSET_PARTITION),
            size_of::<toc::TxnOffsetCommitRequestPartition>(),
        ),
        (65, STRING, size_of::<kp::TransactionalId>()),
        (66, STRING, size_of::<StrBytes>()),
        (66, INT64, size_of::<kp::ProducerId>()),
    ]
}

#[test]
fn an_element_takes_at_most_128_times_its_bytes() {
    let others = of_transactions().into_iter().chain(admin::elements());
    for (key, element, in_memory) in elements().into_iter().chain(others) {
        let schema = message(key).unwrap();
        let row = api_table().into_iter().find(|row| row.key == key).unwrap();
        for version in row.versions {
            let flexible = version >= schema.flexible_from;
            let on_wire = element.min_size(version, flexible);
            assert!(
                on_wire > 0 && in_memory <= 128 * on_wire,
                "{key} v{version}"
            );
        }
    }
}

#[test]
fn no_array_is_left_out() {
    let others = of_transactions().into_iter().chain(admin::elements());
    let known: Vec<_> = elements().into_iter().chain(others).collect();
    let mut missing = Vec::new();
    for place in super::super::crowds::places() {
        let element = format!("{:?}", place.element);
        let listed = known
            .iter()
            .any(|(key, kind, _)| *key == place.key && format!("{kind:?}") == element);
        // A number takes its own bytes, and a string is listed once for all.
        let plain = matches!(place.element, Kind::Fixed(_) | Kind::String);
        if !listed && !plain {
            missing.push(format!("api {}: array of {element:.60}", place.key));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
