//! One task for the deadlines of all groups.
//!
//! A group is queued under one deadline at most, the earliest that it ever had since it was last
//! called; when it is called too early it is queued again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use store_adapter::runtime::Env;
use tokio::sync::Notify;

use super::{CellState, GroupCell, Groups, Shared};

/// Calls groups at their deadlines until the service is dropped.
pub(super) async fn run(env: Env, shared: Weak<Shared>, wake: Arc<Notify>) {
    loop {
        let wait = match shared.upgrade() {
            Some(shared) => Groups { shared }.expire(),
            None => return,
        };
        let Some(wait) = wait else {
            wake.notified().await;
            continue;
        };
        tokio::select! {
            biased;
            () = wake.notified() => {}
            () = env.clock.sleep(wait) => {}
        }
    }
}

impl Groups {
    /// Queues the group for its next deadline. A later one than is queued is left for the moment
    /// at which the task looks: a heartbeat costs no change of the queue.
    pub(super) fn keep_deadline(&self, cell: &GroupCell, state: &mut CellState) {
        let Some(next) = state.classic.next_deadline() else {
            return;
        };
        if state.queued.is_some_and(|queued| queued <= next) {
            return;
        }
        let mut deadlines = self.shared.deadlines.lock();
        if let Some(queued) = state.queued.replace(next) {
            deadlines.remove(&(queued, Arc::clone(cell.id())));
        }
        deadlines.insert((next, Arc::clone(cell.id())));
        let first = deadlines.first().map(|(at, _)| *at);
        drop(deadlines);
        if first == Some(next) {
            self.shared.wake.notify_one();
        }
    }

    /// Calls every group whose time has come; how long until the next one.
    fn expire(&self) -> Option<Duration> {
        loop {
            let now = self.now();
            let due = {
                let mut deadlines = self.shared.deadlines.lock();
                let (at, _) = deadlines.first()?;
                if *at > now.mono_ms {
                    return Some(Duration::from_millis(*at - now.mono_ms));
                }
                deadlines.pop_first()
            };
            let (at, group) = due?;
            let Some(cell) = self.cell(&group) else {
                continue;
            };
            let mut state = cell.lock();
            if state.queued != Some(at) {
                continue;
            }
            state.queued = None;
            let effects = state.classic.on_deadline(&self.shared.config.classic, now);
            self.carry_out(&cell, &mut state, effects);
        }
    }
}
