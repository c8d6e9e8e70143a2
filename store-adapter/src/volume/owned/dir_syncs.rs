//! Syncs of directories that many need at once: one makes durable what everybody did before it
//! began.
//!
//! Who comes while nobody syncs the directory does it. Who comes while somebody does may have come
//! too late for that sync, and waits: the first of those who wait syncs for all of them.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::fault::{Fault, planted};
use crate::volume::{Volume, VolumeError, VolumePath};

/// What those who wait for a sync that has not begun are told.
type Waiting = VecDeque<oneshot::Sender<Turn>>;

/// The directories that are being synced, each with those who wait for the next sync of it.
#[derive(Debug, Default)]
pub(super) struct DirSyncs(Mutex<BTreeMap<VolumePath, Waiting>>);

/// What becomes of who waited.
#[derive(Debug)]
enum Turn {
    /// It syncs, for others too.
    Sync(Leader),
    /// Another has synced for it.
    Synced(Result<(), VolumeError>),
}

/// Whose turn it is to sync a directory. Dropped, it gives the turn to who waits: those that it
/// was to sync for, if it has not, begin anew.
#[derive(Debug)]
struct Leader {
    syncs: Arc<DirSyncs>,
    dir: VolumePath,
    others: Waiting,
}

impl DirSyncs {
    /// Makes durable what was done in `dir` before this call.
    ///
    /// # Errors
    /// That of the sync, which everybody has who waited for it.
    pub(super) async fn sync(
        self: &Arc<Self>,
        volume: &Arc<dyn Volume>,
        dir: &VolumePath,
    ) -> Result<(), VolumeError> {
        loop {
            let leader = match self.enter(dir) {
                Ok(leader) => leader,
                Err(_) if planted(Fault::SyncNotAwaited) => return Ok(()),
                Err(turn) => match turn.await {
                    Ok(Turn::Sync(leader)) => leader,
                    Ok(Turn::Synced(outcome)) => return outcome,
                    Err(_) => continue,
                },
            };
            let outcome = volume.sync_dir(dir).await;
            leader.tell(&outcome);
            return outcome;
        }
    }

    /// The turn to sync, or where it will come.
    fn enter(self: &Arc<Self>, dir: &VolumePath) -> Result<Leader, oneshot::Receiver<Turn>> {
        let mut syncing = self.0.lock();
        if let Some(waiting) = syncing.get_mut(dir) {
            let (turn, comes) = oneshot::channel();
            waiting.push_back(turn);
            return Err(comes);
        }
        syncing.insert(dir.clone(), Waiting::new());
        Ok(Leader {
            syncs: Arc::clone(self),
            dir: dir.clone(),
            others: Waiting::new(),
        })
    }
}

impl Leader {
    /// Ends the turn, and tells those that were waited for.
    fn tell(mut self, outcome: &Result<(), VolumeError>) {
        let others = std::mem::take(&mut self.others);
        // The next sync need not wait until they have heard.
        drop(self);
        for other in others {
            // Who is gone needs no answer.
            drop(other.send(Turn::Synced(outcome.clone())));
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        let mut syncing = self.syncs.0.lock();
        let waiting = syncing.get_mut(&self.dir).map(std::mem::take);
        let mut others = waiting.unwrap_or_default();
        let Some(next) = others.pop_front() else {
            syncing.remove(&self.dir);
            return;
        };
        drop(syncing);
        let leader = Self {
            syncs: Arc::clone(&self.syncs),
            dir: self.dir.clone(),
            others,
        };
        // Not heard, it is dropped, and gives the turn on.
        drop(next.send(Turn::Sync(leader)));
    }
}
