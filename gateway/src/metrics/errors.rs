//! The error codes inside a response, for counting, and their names in Kafka's spelling.

use kafka_protocol::error::ResponseError;

use crate::api::ApiResponse;

/// Visits the codes of lists inside a list.
macro_rules! nested {
    ($visit:ident, $($list:ident).+, $inner:ident) => {
        $($list).+
            .iter()
            .flat_map(|outer| &outer.$inner)
            .for_each(|inner| $visit(inner.error_code))
    };
}

/// Calls `count` with every error code in `response` that is not 0.
pub(super) fn for_each(response: &ApiResponse, count: &mut impl FnMut(i16)) {
    let mut visit = |code: i16| {
        if code != 0 {
            count(code);
        }
    };
    match response {
        ApiResponse::Produce(r) => nested!(visit, r.responses, partition_responses),
        ApiResponse::Fetch(r) => {
            visit(r.error_code);
            nested!(visit, r.topics, partitions);
        }
        ApiResponse::ListOffsets(r) => nested!(visit, r.topics, partitions),
        ApiResponse::FindCoordinator(r) => {
            visit(r.error_code);
            r.coordinators.iter().for_each(|c| visit(c.error_code));
        }
        ApiResponse::ApiVersions(r) => visit(r.error_code),
        ApiResponse::CreateTopics(r) => r.topics.iter().for_each(|t| visit(t.error_code)),
        ApiResponse::DeleteTopics(r) => r.responses.iter().for_each(|t| visit(t.error_code)),
        ApiResponse::InitProducerId(r) => visit(r.error_code),
        ApiResponse::JoinGroup(r) => visit(r.error_code),
        ApiResponse::Heartbeat(r) => visit(r.error_code),
        ApiResponse::LeaveGroup(r) => {
            visit(r.error_code);
            r.members.iter().for_each(|m| visit(m.error_code));
        }
        ApiResponse::SyncGroup(r) => visit(r.error_code),
        ApiResponse::DescribeGroups(r) => r.groups.iter().for_each(|g| visit(g.error_code)),
        ApiResponse::ListGroups(r) => visit(r.error_code),
        ApiResponse::ConsumerGroupHeartbeat(r) => visit(r.error_code),
        ApiResponse::ConsumerGroupDescribe(r) => r.groups.iter().for_each(|g| visit(g.error_code)),
        ApiResponse::OffsetCommit(r) => nested!(visit, r.topics, partitions),
        ApiResponse::OffsetFetch(r) => {
            visit(r.error_code);
            nested!(visit, r.topics, partitions);
            for group in &r.groups {
                visit(group.error_code);
                nested!(visit, group.topics, partitions);
            }
        }
        ApiResponse::OffsetDelete(r) => {
            visit(r.error_code);
            nested!(visit, r.topics, partitions);
        }
        ApiResponse::DeleteGroups(r) => r.results.iter().for_each(|g| visit(g.error_code)),
        ApiResponse::AddPartitionsToTxn(_)
        | ApiResponse::AddOffsetsToTxn(_)
        | ApiResponse::EndTxn(_)
        | ApiResponse::WriteTxnMarkers(_)
        | ApiResponse::TxnOffsetCommit(_)
        | ApiResponse::DescribeTransactions(_)
        | ApiResponse::ListTransactions(_) => transactions(response, &mut visit),
        ApiResponse::Metadata(_)
        | ApiResponse::DeleteRecords(_)
        | ApiResponse::OffsetForLeaderEpoch(_)
        | ApiResponse::AlterConfigs(_)
        | ApiResponse::CreatePartitions(_)
        | ApiResponse::IncrementalAlterConfigs(_)
        | ApiResponse::ElectLeaders(_)
        | ApiResponse::AlterPartitionReassignments(_)
        | ApiResponse::ListPartitionReassignments(_)
        | ApiResponse::UpdateFeatures(_)
        | ApiResponse::DescribeProducers(_)
        | ApiResponse::DescribeConfigs(_)
        | ApiResponse::DescribeLogDirs(_)
        | ApiResponse::ListConfigResources(_)
        | ApiResponse::DescribeCluster(_)
        | ApiResponse::DescribeTopicPartitions(_) => admin(response, &mut visit),
    }
}

/// The APIs of transactional ids; their list is in [`for_each`].
fn transactions(response: &ApiResponse, visit: &mut impl FnMut(i16)) {
    match response {
        ApiResponse::AddPartitionsToTxn(r) => {
            visit(r.error_code);
            let batched = r.results_by_transaction.iter();
            let topics = batched.flat_map(|transaction| &transaction.topic_results);
            let partitions = topics
                .chain(&r.results_by_topic_v3_and_below)
                .flat_map(|topic| &topic.results_by_partition);
            partitions.for_each(|p| visit(p.partition_error_code));
        }
        ApiResponse::AddOffsetsToTxn(r) => visit(r.error_code),
        ApiResponse::EndTxn(r) => visit(r.error_code),
        ApiResponse::WriteTxnMarkers(r) => {
            let topics = r.markers.iter().flat_map(|marker| &marker.topics);
            let partitions = topics.flat_map(|topic| &topic.partitions);
            partitions.for_each(|p| visit(p.error_code));
        }
        ApiResponse::TxnOffsetCommit(r) => nested!(visit, r.topics, partitions),
        ApiResponse::DescribeTransactions(r) => {
            r.transaction_states
                .iter()
                .for_each(|t| visit(t.error_code));
        }
        ApiResponse::ListTransactions(r) => visit(r.error_code),
        _ => {}
    }
}

/// The APIs that describe and change the cluster; their list is in [`for_each`].
fn admin(response: &ApiResponse, visit: &mut impl FnMut(i16)) {
    match response {
        ApiResponse::Metadata(r) => {
            visit(r.error_code);
            for topic in &r.topics {
                visit(topic.error_code);
                topic.partitions.iter().for_each(|p| visit(p.error_code));
            }
        }
        ApiResponse::DeleteRecords(r) => nested!(visit, r.topics, partitions),
        ApiResponse::OffsetForLeaderEpoch(r) => nested!(visit, r.topics, partitions),
        ApiResponse::AlterConfigs(r) => r.responses.iter().for_each(|r| visit(r.error_code)),
        ApiResponse::CreatePartitions(r) => r.results.iter().for_each(|t| visit(t.error_code)),
        ApiResponse::IncrementalAlterConfigs(r) => {
            r.responses.iter().for_each(|r| visit(r.error_code));
        }
        ApiResponse::ElectLeaders(r) => {
            visit(r.error_code);
            nested!(visit, r.replica_election_results, partition_result);
        }
        ApiResponse::AlterPartitionReassignments(r) => {
            visit(r.error_code);
            nested!(visit, r.responses, partitions);
        }
        ApiResponse::ListPartitionReassignments(r) => visit(r.error_code),
        ApiResponse::UpdateFeatures(r) => {
            visit(r.error_code);
            r.results.iter().for_each(|f| visit(f.error_code));
        }
        ApiResponse::DescribeProducers(r) => nested!(visit, r.topics, partitions),
        ApiResponse::DescribeConfigs(r) => r.results.iter().for_each(|r| visit(r.error_code)),
        ApiResponse::DescribeLogDirs(r) => {
            visit(r.error_code);
            r.results.iter().for_each(|dir| visit(dir.error_code));
        }
        ApiResponse::ListConfigResources(r) => visit(r.error_code),
        ApiResponse::DescribeCluster(r) => visit(r.error_code),
        ApiResponse::DescribeTopicPartitions(r) => {
            for topic in &r.topics {
                visit(topic.error_code);
                topic.partitions.iter().for_each(|p| visit(p.error_code));
            }
        }
        _ => {}
    }
}

/// Kafka's name of an error, as `NOT_COORDINATOR`; `UNKNOWN` for a number without a name, so that
/// the label stays bounded.
pub(crate) fn name(code: i16) -> String {
    match ResponseError::try_from_code(code) {
        None | Some(ResponseError::Unknown(_)) => "UNKNOWN".to_owned(),
        Some(error) => upper_snake(&format!("{error:?}")),
    }
}

fn upper_snake(camel: &str) -> String {
    let mut out = String::with_capacity(camel.len() + 8);
    for c in camel.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_uppercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_kafka() {
        for (code, expected) in [
            (-1, "UNKNOWN_SERVER_ERROR"),
            (3, "UNKNOWN_TOPIC_OR_PARTITION"),
            (45, "OUT_OF_ORDER_SEQUENCE_NUMBER"),
            (47, "INVALID_PRODUCER_EPOCH"),
            (9999, "UNKNOWN"),
        ] {
            assert_eq!(name(code), expected);
        }
    }
}
