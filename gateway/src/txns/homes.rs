//! Who has a partition or a group, from the node's view.

use std::sync::Arc;

use coordinator::machine::txn::Home;
use coordinator::service::cluster::{ClusterNode, ClusterView, Ownership};
use coordinator::service::txns::Homes;
use store_adapter::ids::BrokerId;
use uuid::Uuid;

/// What the assignment says. Only a tombstone says that a topic is gone.
#[derive(Debug, Clone)]
pub struct NodeHomes(pub ClusterNode);

impl NodeHomes {
    fn owned(&self, owner: Option<Ownership>) -> Home {
        match owner {
            Some(owner) if owner.broker == self.0.broker() => Home::Here,
            Some(owner) => Home::Broker(owner.broker),
            None => Home::Unknown,
        }
    }

    /// Whether only a tombstone is left of a topic.
    pub fn is_deleted(&self, topic: Uuid) -> bool {
        self.0.view().topics.is_deleted(topic)
    }

    /// This broker's number.
    pub fn broker(&self) -> BrokerId {
        self.0.broker()
    }
}

impl Homes for NodeHomes {
    fn partition(&self, topic: &str, id: Option<Uuid>, partition: i32) -> Home {
        let view = self.0.view();
        let Ok(partition) = u32::try_from(partition) else {
            return Home::Unknown;
        };
        if id.is_some_and(|id| view.topics.is_deleted(id)) {
            return Home::Deleted;
        }
        let name = name_of(&view, topic, id);
        let owner = name.and_then(|name| view.assignment.leader(&name, partition));
        self.owned(owner)
    }

    fn group(&self, group: &str) -> Home {
        let view = self.0.view();
        let slot = view.assignment.group_slot(group);
        self.owned(slot.map(|(_, owner)| owner))
    }
}

/// The name of a topic by its id; without one, its own.
fn name_of(view: &ClusterView, topic: &str, id: Option<Uuid>) -> Option<Arc<str>> {
    let known = match id {
        Some(id) => view.topics.by_id(id),
        None => view.topics.get(topic),
    };
    known.map(|topic| topic.name.clone())
}
