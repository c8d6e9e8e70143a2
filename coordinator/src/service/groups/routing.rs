//! Who coordinates a group, by the assignment.

use std::fmt::Debug;

use store_adapter::ids::BrokerId;

use crate::service::cluster::ClusterNode;

/// Where a group is coordinated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// By this broker.
    Here {
        /// The group slot.
        slot: u32,
        /// The epoch by which this broker owns it.
        epoch: u32,
    },
    /// By another broker.
    Broker(BrokerId),
    /// By nobody yet.
    Nobody,
}

/// The assignment of groups to brokers.
pub trait GroupRouting: Send + Sync + Debug + 'static {
    /// Who coordinates `group`.
    fn route(&self, group: &str) -> Route;
}

impl GroupRouting for ClusterNode {
    fn route(&self, group: &str) -> Route {
        match self.view().assignment.group_slot(group) {
            Some((slot, owner)) if owner.broker == self.broker() => Route::Here {
                slot,
                epoch: owner.epoch,
            },
            Some((_, owner)) => Route::Broker(owner.broker),
            None => Route::Nobody,
        }
    }
}
