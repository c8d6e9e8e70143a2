//! Random requests of transactional ids.

use bytes::Bytes;
use kafka_protocol::messages as kp;
use kp::add_partitions_to_txn_request as ap;
use kp::{txn_offset_commit_request as toc, write_txn_markers_request as wm};

use super::{Rng, encode};

/// The body of a random valid request; `None` for keys of the other lists.
pub(super) fn body(key: i16, v: i16, r: &mut Rng) -> Option<Bytes> {
    Some(match key {
        22 => encode(&init_producer_id(v, r), v),
        24 => encode(&add_partitions_to_txn(v, r), v),
        25 => encode(&add_offsets_to_txn(r), v),
        26 => encode(&end_txn(r), v),
        27 => encode(&write_txn_markers(r), v),
        28 => encode(&txn_offset_commit(v, r), v),
        65 => encode(&describe_transactions(r), v),
        66 => encode(&list_transactions(v, r), v),
        _ => return None,
    })
}

fn init_producer_id(v: i16, r: &mut Rng) -> kp::InitProducerIdRequest {
    let request = kp::InitProducerIdRequest::default()
        .with_transactional_id(r.maybe_text().map(Into::into))
        .with_transaction_timeout_ms(r.i32());
    if v >= 3 {
        request
            .with_producer_id(r.i64().into())
            .with_producer_epoch(r.i16())
    } else {
        request
    }
}

fn add_topic(r: &mut Rng) -> ap::AddPartitionsToTxnTopic {
    ap::AddPartitionsToTxnTopic::default()
        .with_name(r.text().into())
        .with_partitions(r.list(5, Rng::i32))
}

fn add_partitions_to_txn(v: i16, r: &mut Rng) -> kp::AddPartitionsToTxnRequest {
    if v >= 4 {
        let transactions = r.list(4, |r| {
            ap::AddPartitionsToTxnTransaction::default()
                .with_transactional_id(r.text().into())
                .with_producer_id(r.i64().into())
                .with_producer_epoch(r.i16())
                .with_verify_only(r.chance())
                .with_topics(r.list(4, add_topic))
        });
        return kp::AddPartitionsToTxnRequest::default().with_transactions(transactions);
    }
    kp::AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(r.text().into())
        .with_v3_and_below_producer_id(r.i64().into())
        .with_v3_and_below_producer_epoch(r.i16())
        .with_v3_and_below_topics(r.list(4, add_topic))
}

fn add_offsets_to_txn(r: &mut Rng) -> kp::AddOffsetsToTxnRequest {
    kp::AddOffsetsToTxnRequest::default()
        .with_transactional_id(r.text().into())
        .with_producer_id(r.i64().into())
        .with_producer_epoch(r.i16())
        .with_group_id(r.text().into())
}

fn end_txn(r: &mut Rng) -> kp::EndTxnRequest {
    kp::EndTxnRequest::default()
        .with_transactional_id(r.text().into())
        .with_producer_id(r.i64().into())
        .with_producer_epoch(r.i16())
        .with_committed(r.chance())
}

fn write_txn_markers(r: &mut Rng) -> kp::WriteTxnMarkersRequest {
    let markers = r.list(4, |r| {
        let topics = r.list(4, |r| {
            wm::WritableTxnMarkerTopic::default()
                .with_name(r.text().into())
                .with_partition_indexes(r.list(5, Rng::i32))
        });
        wm::WritableTxnMarker::default()
            .with_producer_id(r.i64().into())
            .with_producer_epoch(r.i16())
            .with_transaction_result(r.chance())
            .with_topics(topics)
            .with_coordinator_epoch(r.i32())
    });
    kp::WriteTxnMarkersRequest::default().with_markers(markers)
}

fn txn_offset_commit(v: i16, r: &mut Rng) -> kp::TxnOffsetCommitRequest {
    let topics = r.list(4, |r| {
        let partitions = r.list(5, |r| {
            let partition = toc::TxnOffsetCommitRequestPartition::default()
                .with_partition_index(r.i32())
                .with_committed_offset(r.i64())
                .with_committed_metadata(r.maybe_text());
            if v >= 2 {
                partition.with_committed_leader_epoch(r.i32())
            } else {
                partition
            }
        });
        toc::TxnOffsetCommitRequestTopic::default()
            .with_name(r.text().into())
            .with_partitions(partitions)
    });
    let mut request = kp::TxnOffsetCommitRequest::default()
        .with_transactional_id(r.text().into())
        .with_group_id(r.text().into())
        .with_producer_id(r.i64().into())
        .with_producer_epoch(r.i16())
        .with_topics(topics);
    if v >= 3 {
        request.generation_id = r.i32();
        request.member_id = r.text();
        request.group_instance_id = r.maybe_text();
    }
    request
}

fn describe_transactions(r: &mut Rng) -> kp::DescribeTransactionsRequest {
    let ids = r.list(4, |r| r.text().into());
    kp::DescribeTransactionsRequest::default().with_transactional_ids(ids)
}

fn list_transactions(v: i16, r: &mut Rng) -> kp::ListTransactionsRequest {
    let mut request = kp::ListTransactionsRequest::default()
        .with_state_filters(r.list(4, Rng::text))
        .with_producer_id_filters(r.list(4, |r| r.i64().into()));
    if v >= 1 {
        request.duration_filter = r.i64();
    }
    if v >= 2 {
        request.transactional_id_pattern = r.maybe_text();
    }
    request
}
