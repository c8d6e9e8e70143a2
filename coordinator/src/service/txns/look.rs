//! What is known of transactional ids, for those who only look.

use std::sync::Arc;

use store_adapter::ids::ProducerId;

use super::Txns;
use crate::machine::txn::{self, TopicPartitions, TxnEntry, TxnError};

impl Txns {
    /// Whether this broker coordinates an id.
    pub fn coordinates(&self, id: &str) -> bool {
        self.slot(id).is_ok()
    }

    /// What `take` makes of the ids that this broker coordinates, in the order of slots. Ids of a
    /// slot that is damaged, or that another process has, are not among them.
    ///
    /// # Errors
    /// [`TxnError::CoordinatorLoading`] while a slot is being read: a list would lack ids.
    pub fn list<R>(
        &self,
        mut take: impl FnMut(&Arc<str>, &TxnEntry) -> Option<R>,
    ) -> Result<Vec<R>, TxnError> {
        let mut listed = Vec::new();
        for slot in self.shared.slots.values() {
            let slot = slot.lock();
            match slot.check() {
                Ok(()) => listed.extend(slot.entries().filter_map(|(id, entry)| take(id, entry))),
                Err(TxnError::CoordinatorLoading) => return Err(TxnError::CoordinatorLoading),
                Err(_) => {}
            }
        }
        Ok(listed)
    }

    /// Partitions of a producer's records on which a decision is still to be carried out, as far as
    /// this broker coordinates it.
    ///
    /// # Errors
    /// As [`Txns::list`], and [`TxnError::CoordinatorNotAvailable`] where a slot is damaged: it may
    /// have decided anything.
    pub fn undecided(&self, pid: ProducerId) -> Result<TopicPartitions, TxnError> {
        let mut partitions = TopicPartitions::new();
        for slot in self.shared.slots.values() {
            let slot = slot.lock();
            match slot.check() {
                Ok(()) => {
                    for (_, entry) in slot.entries() {
                        for (topic, numbers) in txn::undecided(entry, pid) {
                            partitions.entry(topic).or_default().extend(numbers);
                        }
                    }
                }
                Err(TxnError::NotCoordinator) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(partitions)
    }
}
