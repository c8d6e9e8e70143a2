//! Who leads a partition that a producer takes this broker to lead (KIP-951).

use kafka_protocol::messages::produce_response::{
    LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse,
};
use kafka_protocol::messages::{BrokerId, ProduceResponse};
use kafka_protocol::protocol::StrBytes;

/// Leader and epoch of a partition.
pub(super) type Leader = (BrokerId, i32);

/// Names the leader of a partition. Versions below 10 have no room for it.
pub(super) fn name(partition: &mut PartitionProduceResponse, (id, epoch): Leader) {
    partition.current_leader = LeaderIdAndEpoch::default()
        .with_leader_id(id)
        .with_leader_epoch(epoch);
}

/// Says, once for all partitions, where leaders are that were named.
pub(super) fn locate(response: &mut ProduceResponse, at: impl Fn(BrokerId) -> (StrBytes, i32)) {
    let partitions = response.responses.iter();
    let mut leaders: Vec<BrokerId> = partitions
        .flat_map(|topic| &topic.partition_responses)
        .map(|partition| partition.current_leader.leader_id)
        .filter(|id| id.0 >= 0)
        .collect();
    leaders.sort_unstable();
    leaders.dedup();
    let endpoint = |id| {
        let (host, port) = at(id);
        NodeEndpoint::default()
            .with_node_id(id)
            .with_host(host)
            .with_port(port)
    };
    response.node_endpoints = leaders.into_iter().map(endpoint).collect();
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use kafka_protocol::messages::produce_response::TopicProduceResponse;
    use kafka_protocol::protocol::{Decodable, Encodable};

    use super::*;

    #[test]
    fn leaders_are_named_by_partition_and_located_once() {
        let mut topic = TopicProduceResponse::default();
        for index in 0..3 {
            let mut partition = PartitionProduceResponse::default().with_index(index);
            if index > 0 {
                partition.error_code = 6;
                name(&mut partition, (BrokerId(7), 4 + index));
            }
            topic.partition_responses.push(partition);
        }
        let mut response = ProduceResponse::default().with_responses(vec![topic]);
        let host = StrBytes::from_static_str("here");
        locate(&mut response, |_| (host.clone(), 9092));
        for (version, leaders, located) in [
            (9, [(-1, -1); 3], 0),
            (10, [(-1, -1), (7, 5), (7, 6)], 1),
            (13, [(-1, -1), (7, 5), (7, 6)], 1),
        ] {
            let mut bytes = BytesMut::new();
            response.encode(&mut bytes, version).unwrap();
            let decoded = ProduceResponse::decode(&mut bytes.freeze(), version).unwrap();
            let partitions = decoded.responses[0].partition_responses.iter();
            let named = partitions.map(|p| &p.current_leader);
            let named: Vec<_> = named.map(|l| (l.leader_id.0, l.leader_epoch)).collect();
            assert_eq!(named, leaders, "v{version}");
            assert_eq!(decoded.node_endpoints.len(), located, "v{version}");
            for node in &decoded.node_endpoints {
                assert_eq!((node.node_id.0, node.port), (7, 9092));
                assert_eq!(node.host, host);
            }
        }
    }
}
