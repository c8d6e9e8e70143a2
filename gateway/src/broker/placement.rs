//! Where partitions are said to lie: on this broker, and for clients that insist on several
//! replicas on brokers that do not exist (`virtual.replicas`).

use kafka_protocol::messages::BrokerId;

use super::Broker;
use crate::partition::Partition;

impl Broker {
    /// Numbers of the brokers that a partition's replicas are said to be on: this one first, then
    /// the virtual ones, which Metadata does not list and nobody can connect to.
    pub(crate) fn replicas(&self) -> Vec<BrokerId> {
        let this = self.id().0;
        (0..i32::from(self.config().virtual_replicas.max(1)))
            .map(|further| BrokerId(this.saturating_add(further)))
            .collect()
    }

    /// Who is said to lead a partition, and under which epoch, as Metadata says it.
    pub(crate) fn said_leader(&self, partition: &Partition) -> (BrokerId, i32) {
        let epoch = i32::try_from(partition.epoch().0).unwrap_or(i32::MAX);
        (BrokerId(self.id().0), epoch)
    }

    /// Whether a partition can be placed on these brokers: on this one, and on virtual ones, each
    /// named once. What is reported does not depend on it.
    pub(crate) fn can_place(&self, asked: &[BrokerId]) -> bool {
        let known = self.replicas();
        // A longer list names one twice, or one that is not there. It may be as long as a client
        // likes, and each is compared with all others below.
        if asked.len() > known.len() {
            return false;
        }
        let distinct = asked
            .iter()
            .enumerate()
            .all(|(index, id)| !asked.iter().take(index).any(|earlier| earlier == id));
        let here = asked.iter().any(|id| id.0 == self.id().0);
        here && distinct && asked.iter().all(|id| known.contains(id))
    }

    /// Why a placement that [`can_place`](Self::can_place) refuses is refused.
    pub(crate) fn placement_refusal(&self) -> String {
        let here = self.id().0;
        match self.replicas().as_slice() {
            [] | [_] => {
                format!("Each partition takes one replica, and only broker {here} is there for it.")
            }
            [.., last] => format!(
                "Each partition takes a replica on broker {here}, and others on the virtual \
                 brokers up to {}, each once.",
                last.0
            ),
        }
    }
}
