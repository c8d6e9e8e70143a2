//! Markers into the partitions that this broker leads.

use std::sync::{Arc, OnceLock, Weak};

use coordinator::machine::txn::{Dispatch, TopicIds, TopicPartitions};
use coordinator::service::txns::{Done, MarkerSink, PortError};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use crate::broker::Broker;
use crate::partition::{AppendError, Marker, Partition};

/// The partitions of the broker that is coming up: its ports are made before it is.
#[derive(Debug, Default)]
pub struct LocalMarkers {
    broker: OnceLock<Weak<Broker>>,
}

impl LocalMarkers {
    /// From now on markers go to this broker's partitions.
    pub fn bind(&self, broker: &Arc<Broker>) {
        let bound = self.broker.set(Arc::downgrade(broker));
        debug_assert!(bound.is_ok(), "bound twice");
    }

    fn broker(&self) -> Result<Arc<Broker>, PortError> {
        let broker = self.broker.get().and_then(Weak::upgrade);
        broker.ok_or_else(|| PortError("the broker is starting or stopping".to_owned()))
    }

    /// Writes a marker to partitions that this broker leads; durable in all of them when it
    /// returns. A partition that refuses it for good, because a newer session has written there
    /// without asking its coordinator, is left to that one, as Kafka does: what is open there
    /// then hangs, is shown so, and an administrator may end it.
    ///
    /// # Errors
    /// If it is not, or may not be, in one of them.
    pub(crate) async fn write_to(
        &self,
        partitions: &TopicPartitions,
        ids: &TopicIds,
        marker: Marker,
    ) -> Result<(), PortError> {
        let broker = self.broker()?;
        let (mut led, mut outcome) = (Vec::new(), Ok(()));
        for (topic, partitions) in partitions {
            let id = ids.get(topic).copied();
            for index in partitions {
                // One that can't be served holds no other up.
                match find(&broker, topic, id, *index) {
                    Ok(partition) => led.push(partition),
                    Err(error) => outcome = Err(error),
                }
            }
        }
        // All are queued before the first is awaited: they share commits.
        let ordered = led.into_iter().map(|partition| {
            let ticket = partition.append_marker(marker);
            (partition, ticket)
        });
        for (partition, ticket) in ordered.collect::<Vec<_>>() {
            let Err(error) = ticket.outcome().await else {
                continue;
            };
            let (topic, number) = (partition.topic(), partition.id().partition);
            if let AppendError::StaleEpoch | AppendError::CoordinatorFenced = error {
                let (pid, epoch) = (marker.producer_id.0, marker.producer_epoch.0);
                let commit = marker.commit;
                tracing::error!(
                    %topic, number, pid, epoch, commit, %error,
                    "a partition refuses the end of a transaction; what is open there hangs"
                );
            } else {
                outcome = Err(PortError(format!("marker of {topic}-{number}: {error}")));
            }
        }
        outcome
    }
}

impl MarkerSink for LocalMarkers {
    fn write(&self, order: Dispatch, coordinator_epoch: i32) -> Done<'_> {
        let marker = Marker {
            producer_id: order.pid,
            producer_epoch: order.marker_epoch,
            commit: order.commit,
            coordinator_epoch,
            txn_seq: Some(order.txn_seq),
        };
        Box::pin(async move {
            self.write_to(&order.partitions, &order.topic_ids, marker)
                .await
        })
    }
}

/// A partition of a topic, by id where it is known: another topic of that name is not meant.
fn find(
    broker: &Broker,
    topic: &str,
    id: Option<Uuid>,
    index: i32,
) -> Result<Arc<Partition>, PortError> {
    let hosted = match id {
        Some(id) => broker.topic_by_id(id),
        None => broker.topic_by_name(&StrBytes::from_string(topic.to_owned())),
    };
    let partition = hosted.and_then(|hosted| hosted.any_partition(index).cloned());
    partition.ok_or_else(|| PortError(format!("{topic}-{index} is not served here")))
}
