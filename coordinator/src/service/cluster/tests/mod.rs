//! Brokers on a memory volume: starts, topics, crashes at every step, twins.

mod assigned;
mod boot;
mod changes;
mod crash;
mod docs;
mod features;
mod fences;
mod files;
mod group_loading;
mod group_members;
mod groups;
mod harm;
mod queues;
mod real;
mod refusing;
mod rerouting;
mod topics;
mod twins;
mod txn_troubles;
mod txns;
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use super::{ClusterNode, NewTopic, Topic, TopicError};
use world::World;

fn new_topic(name: &str, partitions: u32) -> NewTopic {
    NewTopic {
        name: name.into(),
        partitions,
        configs: BTreeMap::from([("retention.ms".to_owned(), "1000".to_owned())]),
    }
}

fn create(world: &World, node: &ClusterNode, name: &str) -> Result<Arc<Topic>, TopicError> {
    let (node, new) = (node.clone(), new_topic(name, 2));
    world
        .run(async move { node.create_topic(new).await })
        .unwrap()
}

fn delete(world: &World, node: &ClusterNode, id: Uuid) -> Result<(), TopicError> {
    let node = node.clone();
    world
        .run(async move { node.delete_topic(id).await })
        .unwrap()
}
