//! Takes group slots over and finds their groups.
//!
//! All slots are claimed side by side; then one listing, which is fresh because it follows the
//! claims, and the marks of each area tell which groups there are. Each becomes a cell whose file
//! the writers read; until then it is answered with a retriable error, and no other is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use store_adapter::ids::OwnerEpoch;
use store_adapter::runtime::{BoxFuture, Env};

use super::files::{FoundGroup, GroupFileError, GroupFiles};
use super::slots::Phase;
use super::writers::WriteQueue;
use super::{Groups, OffsetState};

/// Slots that are claimed side by side.
const CLAIMERS: usize = 8;
/// How long to wait before what failed is tried again.
pub(super) const AGAIN: Duration = Duration::from_millis(500);

/// The io task that takes slots over. It ends when all are taken.
#[derive(Debug, Clone)]
pub(super) struct Loader {
    pub(super) env: Env,
    pub(super) groups: Groups,
    pub(super) files: Arc<dyn GroupFiles>,
    pub(super) queue: Arc<WriteQueue>,
    /// How many slots the cluster has.
    pub(super) slots: u32,
}

/// What the claims of slots came to.
type Claimed = Arc<Mutex<BTreeMap<u32, Result<Vec<FoundGroup>, GroupFileError>>>>;

impl Loader {
    pub(super) async fn run(self, slots: Vec<(u32, OwnerEpoch)>) {
        let mut waiting: BTreeMap<u32, OwnerEpoch> = slots.into_iter().collect();
        loop {
            let ready = self.take(&waiting).await;
            waiting.retain(|slot, _| !ready.contains(slot));
            if waiting.is_empty() || self.queue.is_closed() {
                return;
            }
            self.env.clock.sleep(AGAIN).await;
        }
    }

    /// Takes over what can be; the slots that need no further try.
    async fn take(&self, waiting: &BTreeMap<u32, OwnerEpoch>) -> BTreeSet<u32> {
        let claimed = self.claim(waiting).await;
        let mut ready = BTreeSet::new();
        let mut found: BTreeMap<u32, BTreeSet<FoundGroup>> = BTreeMap::new();
        for (slot, outcome) in claimed {
            match outcome {
                Ok(written) => {
                    found.insert(slot, written.into_iter().collect());
                }
                Err(GroupFileError::Stale) => {
                    self.groups.lose(slot);
                    ready.insert(slot);
                }
                Err(error) => tracing::warn!(%error, slot, "a group slot is not taken over yet"),
            }
        }
        let listed = match self.files.list().await {
            Ok(listed) => listed,
            Err(error) => {
                tracing::warn!(%error, "the files of groups are not listed yet");
                return ready;
            }
        };
        for group in listed {
            if let Some(groups) = found.get_mut(&group.slot(self.slots)) {
                groups.insert(group);
            }
        }
        for (slot, groups) in found {
            if self.install(slot, groups).await {
                self.groups.shared.slots.set(slot, Phase::Ready);
                ready.insert(slot);
            }
        }
        ready
    }

    async fn claim(
        &self,
        waiting: &BTreeMap<u32, OwnerEpoch>,
    ) -> BTreeMap<u32, Result<Vec<FoundGroup>, GroupFileError>> {
        let claimed = Claimed::default();
        let slots: Vec<(u32, OwnerEpoch)> = waiting.iter().map(|(s, e)| (*s, *e)).collect();
        let mut running = Vec::new();
        for share in slots.chunks(slots.len().div_ceil(CLAIMERS).max(1)) {
            let (share, files) = (share.to_vec(), self.files.clone());
            let claimed = claimed.clone();
            let task: BoxFuture<'static, ()> = Box::pin(async move {
                for (slot, epoch) in share {
                    let outcome = files.claim(slot, epoch).await;
                    claimed.lock().insert(slot, outcome);
                }
            });
            running.push(self.env.runtime.spawn_io("group-claim", task));
        }
        for task in running {
            task.await;
        }
        std::mem::take(&mut *claimed.lock())
    }

    /// Makes a cell for each group of a slot. Whether all have one.
    async fn install(&self, slot: u32, groups: BTreeSet<FoundGroup>) -> bool {
        for group in groups {
            let group = match group {
                FoundGroup::Named(group) => group,
                FoundGroup::Hashed { name, .. } => match self.files.identify(slot, &name).await {
                    Ok(Some(group)) => group,
                    Ok(None) => continue,
                    // Reported. Who names the group finds the file again.
                    Err(GroupFileError::Damaged(_)) => {
                        self.groups.shared.slots.set_untold(name);
                        continue;
                    }
                    Err(error) => {
                        tracing::warn!(%error, name, "a file of a group is not read yet");
                        return false;
                    }
                },
            };
            match self.groups.install(&group, OffsetState::unread()) {
                Ok(true) => self.queue.push(group.into()),
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(%error, slot, "more groups than fit into memory");
                    return false;
                }
            }
        }
        true
    }
}
