//! The fences in force: looked at by every data batch of a producer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use store_adapter::ids::{ProducerEpoch, ProducerId};

use crate::machine::txn::Fence;

/// By producer, the lowest epoch that is not refused.
#[derive(Debug, Default)]
pub struct FenceTable {
    epochs: RwLock<BTreeMap<ProducerId, ProducerEpoch>>,
    /// Whether there are any: most brokers have none, and their batches pass without the lock.
    any: AtomicBool,
}

impl FenceTable {
    /// Whether a data batch of this producer and epoch is refused.
    pub fn is_stale(&self, id: ProducerId, epoch: ProducerEpoch) -> bool {
        if id.0 < 0 || !self.any.load(Ordering::Acquire) {
            return false;
        }
        let epochs = self.epochs.read();
        epochs.get(&id).is_some_and(|lowest| epoch < *lowest)
    }

    /// Every fence, in order of producer ids.
    pub fn list(&self) -> Vec<Fence> {
        let epochs = self.epochs.read();
        let fence = |(pid, epoch): (&ProducerId, &ProducerEpoch)| Fence {
            pid: *pid,
            epoch: *epoch,
        };
        epochs.iter().map(fence).collect()
    }

    /// Puts fences into force; one that is higher already stays.
    pub fn raise(&self, fences: impl IntoIterator<Item = Fence>) {
        let mut epochs = self.epochs.write();
        for fence in fences {
            let lowest = epochs.entry(fence.pid).or_insert(fence.epoch);
            *lowest = fence.epoch.max(*lowest);
        }
        self.any.store(!epochs.is_empty(), Ordering::Release);
    }

    /// Puts exactly these into force.
    pub(super) fn replace(&self, all: BTreeMap<ProducerId, ProducerEpoch>) {
        let mut epochs = self.epochs.write();
        self.any.store(!all.is_empty(), Ordering::Release);
        let before = std::mem::replace(&mut *epochs, all);
        drop(epochs);
        // Freed where no batch waits for it.
        drop(before);
    }
}
