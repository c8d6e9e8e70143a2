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
/// How long to wait before what failed is tried again for the first time.
pub(super) const AGAIN: Duration = Duration::from_millis(500);

/// How long to wait at most before a file that does not tell its group is looked at again.
const UNTOLD_AGAIN_MAX: Duration = Duration::from_secs(30);

/// The io task that takes slots over. It ends when all are taken and every file told its group.
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

/// Slots that are claimed, with what was written there. A slot is claimed once: its writers have
/// the claim, and what it remembers, as soon as a group of it is found.
type Held = BTreeMap<u32, BTreeSet<FoundGroup>>;

impl Loader {
    pub(super) async fn run(self, slots: Vec<(u32, OwnerEpoch)>) {
        let mut waiting: BTreeMap<u32, OwnerEpoch> = slots.into_iter().collect();
        let mut held = Held::new();
        loop {
            self.claim(&mut waiting, &mut held).await;
            self.take(&mut held).await;
            if (waiting.is_empty() && held.is_empty()) || self.queue.is_closed() {
                break;
            }
            self.env.clock.sleep(AGAIN).await;
        }
        self.identify_the_rest().await;
    }

    /// Claims what can be; a slot that is another process's is given up.
    async fn claim(&self, waiting: &mut BTreeMap<u32, OwnerEpoch>, held: &mut Held) {
        for (slot, outcome) in self.claim_all(waiting).await {
            match outcome {
                Ok(written) => {
                    waiting.remove(&slot);
                    held.insert(slot, written.into_iter().collect());
                }
                Err(GroupFileError::Stale) => {
                    waiting.remove(&slot);
                    self.groups.lose(slot);
                }
                Err(error) => tracing::warn!(%error, slot, "a group slot is not taken over yet"),
            }
        }
    }

    /// Finds the groups of claimed slots; those that need no further try are no longer held.
    async fn take(&self, held: &mut Held) {
        if held.is_empty() {
            return;
        }
        let listed = match self.files.list().await {
            Ok(listed) => listed,
            Err(error) => {
                tracing::warn!(%error, "the files of groups are not listed yet");
                return;
            }
        };
        let mut found = held.clone();
        for group in listed {
            if let Some(groups) = found.get_mut(&group.slot(self.slots)) {
                groups.insert(group);
            }
        }
        for (slot, groups) in found {
            if self.install(slot, groups).await {
                self.groups.shared.slots.set(slot, Phase::Ready);
                held.remove(&slot);
            }
        }
    }

    async fn claim_all(
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

    /// Makes a cell for each group of a slot. Whether all have one, but for those whose file does
    /// not tell its group: who names such a group finds the file again.
    async fn install(&self, slot: u32, groups: BTreeSet<FoundGroup>) -> bool {
        for group in groups {
            let group = match group {
                FoundGroup::Named(group) => group,
                FoundGroup::Hashed { name, .. } => match self.files.identify(slot, &name).await {
                    Ok(Some(group)) => group,
                    Ok(None) => continue,
                    Err(GroupFileError::Stale) => {
                        self.groups.lose(slot);
                        return true;
                    }
                    Err(error) => {
                        // A damaged one was reported. Groups beside it don't wait for it.
                        tracing::warn!(%error, name, "a file does not tell its group yet");
                        self.groups.shared.slots.set_untold(slot, name);
                        continue;
                    }
                },
            };
            if !self.make_cell(slot, group) {
                return false;
            }
        }
        true
    }

    /// Makes the cell of a group; false if there is no room for it.
    fn make_cell(&self, slot: u32, group: String) -> bool {
        match self.groups.install(&group, OffsetState::unread()) {
            Ok(true) => self.queue.push(group.into()),
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, slot, "more groups than fit into memory");
                return false;
            }
        }
        true
    }

    /// Looks again, less and less often, at the files that don't tell their group: it is in no
    /// list until somebody names it.
    async fn identify_the_rest(&self) {
        let mut wait = AGAIN;
        loop {
            let untold = self.groups.shared.slots.untold();
            if untold.is_empty() || self.queue.is_closed() {
                return;
            }
            self.env.clock.sleep(wait).await;
            wait = (wait * 2).min(UNTOLD_AGAIN_MAX);
            for (name, slot) in untold {
                match self.files.identify(slot, &name).await {
                    // Its name stays until it is read.
                    Ok(Some(group)) => drop(self.make_cell(slot, group)),
                    Ok(None) => self.groups.shared.slots.is_told(&name),
                    Err(GroupFileError::Stale) => {
                        self.groups.shared.slots.is_told(&name);
                        self.groups.lose(slot);
                    }
                    Err(error) => tracing::debug!(%error, name, "it still does not tell its group"),
                }
            }
        }
    }
}
