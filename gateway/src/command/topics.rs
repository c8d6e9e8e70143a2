//! Topics and brokers of a cluster, by Metadata.

use std::collections::BTreeMap;

use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{MetadataRequest, TopicName};
use kafka_protocol::protocol::StrBytes;

use super::client::Client;
use super::output::{Failure, check};

/// Topic and partition.
pub(super) type Place = (String, i32);

/// Who has a partition.
#[derive(Debug, Clone)]
pub(super) struct Held {
    /// Number of its leader; negative if there is none.
    pub(super) leader: i32,
    /// Numbers of the brokers that have a replica.
    pub(super) replicas: Vec<i32>,
}

/// Brokers and partitions.
#[derive(Debug, Clone, Default)]
pub(super) struct Cluster {
    /// Addresses of the brokers by their numbers.
    pub(super) brokers: BTreeMap<i32, String>,
    /// Partitions of the topics that were asked for.
    pub(super) partitions: BTreeMap<Place, Held>,
}

impl Cluster {
    /// Brokers, and the partitions of `topics` (of all topics, for `None`).
    pub(super) async fn ask(
        client: &mut Client,
        topics: Option<&[String]>,
    ) -> Result<Self, Failure> {
        let named = topics.map(|topics| {
            let named = topics.iter().map(|topic| {
                MetadataRequestTopic::default().with_name(Some(TopicName(text(topic))))
            });
            named.collect::<Vec<_>>()
        });
        let metadata = client
            .metadata(|version| {
                let request = MetadataRequest::default().with_topics(named);
                if version >= 4 {
                    request.with_allow_auto_topic_creation(false)
                } else {
                    request
                }
            })
            .await?;
        let mut cluster = Self::default();
        for broker in &metadata.brokers {
            let address = format!("{}:{}", broker.host.as_str(), broker.port);
            cluster.brokers.insert(broker.node_id.0, address);
        }
        for topic in &metadata.topics {
            let name = topic.name.as_ref().map(|name| name.to_string());
            let name = name.unwrap_or_default();
            check(topic.error_code, || format!("topic {name}"))?;
            for partition in &topic.partitions {
                let held = Held {
                    leader: partition.leader_id.0,
                    replicas: partition.replica_nodes.iter().map(|id| id.0).collect(),
                };
                let place = (name.clone(), partition.partition_index);
                cluster.partitions.insert(place, held);
            }
        }
        Ok(cluster)
    }

    /// Address of a broker.
    pub(super) fn broker(&self, id: i32) -> Result<&str, Failure> {
        let address = self.brokers.get(&id).map(String::as_str);
        address.ok_or_else(|| Failure::Refused(format!("broker {id} is not in the cluster")))
    }

    /// Address of the leader of a partition.
    pub(super) fn leader(&self, place: &Place) -> Result<&str, Failure> {
        let (topic, partition) = place;
        let held = self.partitions.get(place);
        let held = held.ok_or_else(|| {
            Failure::Refused(format!("topic {topic} has no partition {partition}"))
        })?;
        let address = self.brokers.get(&held.leader).map(String::as_str);
        address.ok_or_else(|| Failure::Refused(format!("{topic}-{partition} has no leader")))
    }
}

/// Leaders' addresses of the partitions of `topics` (of all topics, for `None`).
pub(super) async fn leaders(
    client: &mut Client,
    topics: Option<&[String]>,
) -> Result<BTreeMap<Place, String>, Failure> {
    let Cluster {
        brokers,
        partitions,
    } = Cluster::ask(client, topics).await?;
    let led = partitions.into_iter().filter_map(|(place, held)| {
        let address = brokers.get(&held.leader)?;
        Some((place, address.clone()))
    });
    Ok(led.collect())
}

/// A string of the wire.
pub(super) fn text(value: &str) -> StrBytes {
    StrBytes::from_string(value.to_owned())
}
