//! Topics and brokers of a cluster, by Metadata.

use std::collections::BTreeMap;

use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{BrokerId, MetadataRequest, TopicName};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::client::Client;
use super::output::{Failure, check};

/// Topic and partition.
pub(super) type Place = (String, i32);

/// Who has a partition.
#[derive(Debug, Clone)]
pub(super) struct Held {
    /// Number of its leader; negative if there is none.
    pub(super) leader: i32,
    /// Which reign of it this is; negative if it is not known.
    pub(super) leader_epoch: i32,
    /// Numbers of the brokers that have a replica.
    pub(super) replicas: Vec<i32>,
    /// Numbers of those that have all of it.
    pub(super) in_sync: Vec<i32>,
}

/// What is said of a topic as a whole.
#[derive(Debug, Clone, Default)]
pub(super) struct Named {
    /// Kafka's error code; 0 for none.
    pub(super) code: i16,
    /// Its id; zero where topics have none.
    pub(super) id: Uuid,
    /// Whether it is the cluster's own.
    pub(super) is_internal: bool,
}

/// Brokers and partitions.
#[derive(Debug, Clone, Default)]
pub(super) struct Cluster {
    /// Addresses of the brokers by their numbers.
    pub(super) brokers: BTreeMap<i32, String>,
    /// The topics that were asked for.
    pub(super) topics: BTreeMap<String, Named>,
    /// Their partitions.
    pub(super) partitions: BTreeMap<Place, Held>,
}

impl Cluster {
    /// Brokers, and the partitions of `topics` (of all topics, for `None`).
    ///
    /// # Errors
    /// If one of the topics is not there, or not as it should be.
    pub(super) async fn ask(
        client: &mut Client,
        topics: Option<&[String]>,
    ) -> Result<Self, Failure> {
        let cluster = Self::look(client, topics, false).await?;
        for (name, topic) in &cluster.topics {
            check(topic.code, || format!("topic {name}"))?;
        }
        Ok(cluster)
    }

    /// The same, whatever the cluster says of a topic; if `create`, topics that are not there are
    /// made where the cluster does that.
    pub(super) async fn look(
        client: &mut Client,
        topics: Option<&[String]>,
        create: bool,
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
                    request.with_allow_auto_topic_creation(create)
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
            for partition in &topic.partitions {
                let ids = |ids: &[BrokerId]| ids.iter().map(|id| id.0).collect();
                let held = Held {
                    leader: partition.leader_id.0,
                    leader_epoch: partition.leader_epoch,
                    replicas: ids(&partition.replica_nodes),
                    in_sync: ids(&partition.isr_nodes),
                };
                let place = (name.clone(), partition.partition_index);
                cluster.partitions.insert(place, held);
            }
            let named = Named {
                code: topic.error_code,
                id: topic.topic_id,
                is_internal: topic.is_internal,
            };
            cluster.topics.insert(name, named);
        }
        Ok(cluster)
    }

    /// The partitions of a topic, in order.
    pub(super) fn of<'a>(&'a self, topic: &'a str) -> impl Iterator<Item = (&'a Place, &'a Held)> {
        let places = self.partitions.iter();
        places.filter(move |((name, _), _)| name == topic)
    }

    /// Address of a broker.
    pub(super) fn broker(&self, id: i32) -> Result<&str, Failure> {
        let address = self.brokers.get(&id).map(String::as_str);
        address.ok_or_else(|| Failure::Refused(format!("broker {id} is not in the cluster")))
    }

    /// Addresses of the leaders; partitions without one are not there.
    pub(super) fn leaders(&self) -> BTreeMap<Place, String> {
        let led = self.partitions.iter().filter_map(|(place, held)| {
            let address = self.brokers.get(&held.leader)?;
            Some((place.clone(), address.clone()))
        });
        led.collect()
    }

    /// Address of the leader of a partition.
    pub(super) fn leader(&self, place: &Place) -> Result<&str, Failure> {
        let (topic, partition) = place;
        let held = self.partitions.get(place);
        let held = held.ok_or_else(|| match self.of(topic).last() {
            Some(((_, last), _)) => Failure::Refused(format!(
                "topic {topic} has no partition {partition}: it has 0 to {last}"
            )),
            None => Failure::Refused(format!("topic {topic} has no partition {partition}")),
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
    Ok(Cluster::ask(client, topics).await?.leaders())
}

/// A string of the wire.
pub(super) fn text(value: &str) -> StrBytes {
    StrBytes::from_string(value.to_owned())
}
