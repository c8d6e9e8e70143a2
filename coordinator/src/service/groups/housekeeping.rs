//! What happens to offsets without a request: topics go, offsets expire, failures are tried again.
//!
//! An io task, which may take its time: it looks at all that every group has, one group at a time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use store_adapter::runtime::Env;
use tokio::sync::watch;
use uuid::Uuid;

use super::offsets::{is_gone, is_stable, membership};
use super::writers::WriteQueue;
use super::{CellState, Groups};
use crate::machine::group::classic::ClassicState;
use crate::machine::group::offsets::Retention;
use crate::service::cluster::{ClusterView, TopicIndex};

/// The task that looks after offsets.
#[derive(Debug)]
pub(super) struct Housekeeper {
    pub(super) env: Env,
    pub(super) groups: Groups,
    pub(super) queue: Arc<WriteQueue>,
    pub(super) view: watch::Receiver<Arc<ClusterView>>,
}

/// What the task was woken by.
enum Woken {
    Failure,
    Topics,
    Interval,
}

impl Housekeeper {
    /// Works until the queue is closed or the node is gone.
    pub(super) async fn run(mut self) {
        let clock = Arc::clone(&self.env.clock);
        let interval = self.groups.config().offsets.retention_check_interval;
        let mut topics = Arc::clone(&self.view.borrow_and_update().topics);
        let mut next = clock.monotonic() + interval;
        let mut again: Option<Duration> = None;
        while !self.queue.is_closed() {
            let now = clock.monotonic();
            if again.is_some_and(|at| at <= now) {
                again = self.queue.retry(now);
            }
            if next <= now {
                next = now + interval;
                self.check();
            }
            let wait = again.map_or(next, |at| at.min(next)).saturating_sub(now);
            let woken = tokio::select! {
                biased;
                () = self.queue.again.notified() => Woken::Failure,
                changed = self.view.changed() => match changed {
                    Ok(()) => Woken::Topics,
                    Err(_) => return,
                },
                () = clock.sleep(wait) => Woken::Interval,
            };
            match woken {
                Woken::Failure => again = self.queue.retry(clock.monotonic()),
                Woken::Topics => {
                    let now = Arc::clone(&self.view.borrow_and_update().topics);
                    self.topics_changed(&topics, &now);
                    topics = now;
                }
                Woken::Interval => {}
            }
        }
    }

    /// Drops the offsets of topics that went between two views.
    fn topics_changed(&self, before: &TopicIndex, now: &TopicIndex) {
        let gone: BTreeSet<(Arc<str>, Uuid)> = before
            .iter()
            .filter(|topic| now.by_id(topic.id).is_none() && now.is_deleted(topic.id))
            .map(|topic| (Arc::clone(&topic.name), topic.id))
            .collect();
        if gone.is_empty() {
            return;
        }
        let names: BTreeSet<&str> = gone.iter().map(|(name, _)| &**name).collect();
        self.each(|_, state, _| {
            // What an older volume gives no id for is of the topic that had the name.
            let purged = state.offsets.book.purge(|name, id| match id {
                Some(id) => names.contains(name) && gone.contains(&(name.into(), id)),
                None => names.contains(name),
            });
            log_unsettled(purged.err());
        });
    }

    /// Expires what is due, and forgets groups of which nothing is left.
    fn check(&self) {
        let config = self.groups.config().offsets.clone();
        let topics = Arc::clone(&self.view.borrow().topics);
        let mut vacant = Vec::new();
        self.each(|group, state, now_ms| {
            if state.offsets.check().is_err() {
                return;
            }
            let purged = state
                .offsets
                .book
                .purge(|name, id| is_gone(&topics, name, id));
            log_unsettled(purged.err());
            if is_stable(state) {
                state.offsets.book.begin(&membership(state));
            }
            state.offsets.book.note_membership(&membership(state));
            expire(state, now_ms, config.retention_ms);
            let before_ms = now_ms.saturating_sub(config.producer_id_expiration_ms);
            state.offsets.book.forget_decisions(before_ms);
            if state.is_vacant() {
                vacant.push(Arc::clone(group));
            }
        });
        for group in vacant {
            if self.groups.forget(&group) {
                tracing::debug!(%group, "nothing is left of a group");
            }
        }
    }

    fn each(&self, mut look: impl FnMut(&Arc<str>, &mut CellState, i64)) {
        let now = self.groups.now();
        for cell in self.groups.cells() {
            let mut state = cell.lock();
            if state.forgotten {
                continue;
            }
            state.keep_time(now);
            look(cell.id(), &mut state, now.wall_ms);
            self.groups.count_bytes(&cell, &mut state);
            if state.offsets.wants_queue() {
                self.queue.push(Arc::clone(cell.id()));
            }
        }
    }
}

fn expire(state: &mut CellState, now_ms: i64, period_ms: i64) {
    let known = state.classic.knows_subscriptions();
    let topics = state.offsets.book.ahead().committed().keys();
    let subscribed: BTreeSet<Arc<str>> = topics
        .filter(|topic| state.classic.is_subscribed_to(topic))
        .cloned()
        .collect();
    let members = membership(state);
    let group = match (state.shown_state(), members.protocol_type) {
        (ClassicState::Empty, Some(_)) => match members.empty_since_ms {
            Some(since) => Retention::EmptySince(since),
            None => Retention::Changing,
        },
        (ClassicState::Empty, None) => Retention::Simple,
        _ if is_stable(state) && state.classic.uses_consumer_protocol() => {
            Retention::Stable(known.then_some(&subscribed))
        }
        _ => Retention::Changing,
    };
    match state.offsets.book.expire(now_ms, period_ms, group) {
        Ok(Some(_)) => tracing::info!("offsets of a group expired"),
        Ok(None) => {}
        Err(error) => log_unsettled(Some(error)),
    }
}

/// What could not be done now is done by the next check.
fn log_unsettled(error: Option<crate::machine::group::offsets::PrepareError>) {
    if let Some(error) = error {
        tracing::debug!(%error, "offsets left for the next check");
    }
}
