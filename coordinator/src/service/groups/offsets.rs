//! The offsets of the groups that this broker coordinates.
//!
//! A change is decided and prepared under the lock of its group's cell, which orders it; it is
//! answered when the file that has it is durable, and seen by OffsetFetch from then on.

use std::sync::Arc;
use std::time::Duration;

use store_adapter::ids::OwnerEpoch;
use store_adapter::runtime::Env;
use tokio::sync::watch;
use uuid::Uuid;

use super::files::GroupFiles;
use super::housekeeping::Housekeeper;
use super::loader::Loader;
use super::writers::{OffsetCounters, WriteQueue, Writer};
use super::{CellState, Groups, Pending};
use crate::machine::group::classic::{Caller, ClassicState, Effects};
use crate::machine::group::offsets::{
    CommitFacts, Decided, Fetched, Membership, NewOffset, NewTxn, StageError, TxnEnd,
};
use crate::machine::group::{GroupError, Now};
use crate::service::cluster::{ClusterView, TopicIndex};

/// What of the configuration offsets use.
#[derive(Debug, Clone)]
pub struct OffsetConfig {
    /// `offset.metadata.max.bytes`.
    pub metadata_max_bytes: usize,
    /// `offsets.retention.minutes`, in milliseconds.
    pub retention_ms: i64,
    /// `offsets.retention.check.interval.ms`.
    pub retention_check_interval: Duration,
    /// `producer.id.expiration.ms`: how long decided transactions are remembered.
    pub producer_id_expiration_ms: i64,
}

impl Default for OffsetConfig {
    fn default() -> Self {
        Self {
            metadata_max_bytes: 4096,
            retention_ms: 7 * 24 * 3_600_000,
            retention_check_interval: Duration::from_mins(10),
            producer_id_expiration_ms: 24 * 3_600_000,
        }
    }
}

/// A topic and some of its partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicPartitions {
    /// Its name.
    pub topic: Arc<str>,
    /// Partition numbers.
    pub partitions: Vec<i32>,
}

/// OffsetCommit.
#[derive(Debug, Clone)]
pub struct OffsetCommit<'a> {
    /// Who commits.
    pub caller: Caller<'a>,
    /// The generation; negative outside of membership.
    pub generation: i32,
    /// The offsets, of partitions that exist.
    pub offsets: Vec<NewOffset>,
    /// How long the client wants them kept, milliseconds (v2-4).
    pub retention_ms: Option<i64>,
    /// The answer for a member of a group that does not exist.
    pub missing: GroupError,
}

/// What a partition has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchedOffset {
    /// A committed offset.
    Committed {
        /// The offset.
        offset: i64,
        /// Leader epoch, -1 where the client gave none.
        leader_epoch: i32,
        /// The client's metadata.
        metadata: Arc<str>,
    },
    /// None.
    None,
    /// A transaction with an offset of it is open.
    Unstable,
}

/// The partitions of one topic, as asked or by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedTopic {
    /// Its name.
    pub topic: Arc<str>,
    /// The partitions.
    pub partitions: Vec<(i32, FetchedOffset)>,
}

/// The service; clones share it. When the last one is dropped its tasks end.
#[derive(Debug, Clone)]
pub struct Offsets {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    groups: Groups,
    view: watch::Receiver<Arc<ClusterView>>,
    queue: Arc<WriteQueue>,
    counters: Arc<OffsetCounters>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.queue.close();
        self.queue.again.notify_one();
    }
}

/// Whether an offset of a topic of this name, with the id that it had at the commit, is of a topic
/// that is gone.
pub(super) fn is_gone(topics: &TopicIndex, name: &str, id: Option<Uuid>) -> bool {
    let Some(id) = id else {
        return false;
    };
    let other = topics.get(name).is_some_and(|topic| topic.id != id);
    other || topics.is_deleted(id)
}

impl Offsets {
    /// Starts the service on the slots that this broker owns. Requests for a group are answered
    /// with a retriable error until its slot is taken over and its file is read.
    pub fn start(
        env: &Env,
        groups: &Groups,
        files: &Arc<dyn GroupFiles>,
        view: watch::Receiver<Arc<ClusterView>>,
        slots: Vec<(u32, OwnerEpoch)>,
    ) -> Self {
        let queue = Arc::clone(&groups.shared.writes);
        let assigned = slots.iter().map(|(slot, _)| *slot);
        groups.shared.slots.begin(assigned);
        let counters = Arc::new(OffsetCounters::default());
        let writer = Writer {
            env: env.clone(),
            groups: groups.clone(),
            files: Arc::clone(files),
            queue: Arc::clone(&queue),
            counters: Arc::clone(&counters),
        };
        writer.start();
        let count = view.borrow().assignment.group_slots.len();
        let loader = Loader {
            env: env.clone(),
            groups: groups.clone(),
            files: Arc::clone(files),
            queue: Arc::clone(&queue),
            slots: u32::try_from(count).unwrap_or(u32::MAX),
        };
        drop(
            env.runtime
                .spawn_io("group-slots", Box::pin(loader.run(slots))),
        );
        let housekeeper = Housekeeper {
            env: env.clone(),
            groups: groups.clone(),
            queue: Arc::clone(&queue),
            view: view.clone(),
        };
        // Not on a worker: it looks at every offset there is.
        let task = Box::pin(housekeeper.run());
        drop(env.runtime.spawn_io("group-retention", task));
        let shared = Shared {
            groups: groups.clone(),
            view,
            queue,
            counters,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// What happens to the files of groups.
    pub fn counters(&self) -> &Arc<OffsetCounters> {
        &self.shared.counters
    }

    /// Slots that are still being taken over.
    pub fn slots_loading(&self) -> usize {
        self.shared.groups.shared.slots.loading()
    }

    /// OffsetCommit. When it returns, the commit is ordered behind those before it.
    ///
    /// # Errors
    /// As the membership of the group demands; [`GroupError::CoordinatorLoading`] while its file
    /// can't be read; [`GroupError::OffsetsTooLarge`]; [`GroupError::CoordinatorNotAvailable`]
    /// where the offsets of all groups take too much.
    pub fn commit(&self, group: &str, commit: OffsetCommit<'_>) -> Result<Pending, GroupError> {
        let simple = commit.generation < 0;
        let missing = commit.missing;
        let groups = &self.shared.groups;
        let committed = self.on_cell(group, simple, |state, now| {
            if !simple && state.is_missing() {
                return Err(missing);
            }
            if simple && state.is_awaiting() {
                return Err(GroupError::UnknownMemberId);
            }
            state
                .classic
                .check_commit(commit.caller, commit.generation)?;
            state.offsets.check()?;
            state.classic.touch(commit.caller.member_id, now);
            if commit.offsets.is_empty() {
                return Ok(Pending::concluded());
            }
            let book = &state.offsets.book;
            groups.check_offsets_room(|| book.growth(&commit.offsets))?;
            let facts = CommitFacts {
                now_ms: now.wall_ms,
                retention_ms: commit.retention_ms,
                membership: membership(state),
            };
            let prepared = state.offsets.book.commit(commit.offsets, &facts);
            state.offsets.pending(prepared)
        })?;
        committed.unwrap_or(Err(missing))
    }

    /// OffsetFetch of the partitions that are `asked` for, or of all that have an offset.
    ///
    /// # Errors
    /// [`GroupError::CoordinatorLoading`] while the group's file can't be read.
    pub fn fetch(
        &self,
        group: &str,
        asked: Option<&[TopicPartitions]>,
        require_stable: bool,
    ) -> Result<Vec<FetchedTopic>, GroupError> {
        let topics = Arc::clone(&self.shared.view.borrow().topics);
        let fetched = self.on_cell(group, false, |state, _| {
            state.offsets.check()?;
            Ok(fetch_in(state, asked, require_stable, &topics))
        })?;
        fetched.unwrap_or_else(|| Ok(nothing(asked)))
    }

    /// OffsetDelete: an outcome for each topic, and the wait for those that are deleted.
    ///
    /// # Errors
    /// [`GroupError::InvalidGroupId`] of a group without a name, [`GroupError::GroupIdNotFound`],
    /// [`GroupError::NonEmptyGroup`] of members that are no consumers of topics, and as
    /// [`Offsets::fetch`].
    pub fn delete(
        &self,
        group: &str,
        topics: &[TopicPartitions],
    ) -> Result<(Vec<Result<(), GroupError>>, Pending), GroupError> {
        if group.is_empty() {
            return Err(GroupError::InvalidGroupId);
        }
        let deleted = self.on_cell(group, false, |state, _| {
            if state.is_missing() {
                return Err(GroupError::GroupIdNotFound);
            }
            state.classic.can_delete_offsets()?;
            let awaiting = state.is_awaiting();
            let consumers = membership(state).protocol_type.as_deref() == Some("consumer");
            if awaiting && !consumers {
                return Err(GroupError::NonEmptyGroup);
            }
            let mut keys = Vec::new();
            let outcomes = topics.iter().map(|asked| {
                // What members subscribe to that have not come back is not known.
                if awaiting || state.classic.is_subscribed_to(&asked.topic) {
                    return Err(GroupError::SubscribedToTopic);
                }
                let partitions = asked.partitions.iter();
                keys.extend(partitions.map(|number| (Arc::clone(&asked.topic), *number)));
                Ok(())
            });
            let outcomes = outcomes.collect();
            let prepared = state.offsets.book.delete(&keys);
            Ok((outcomes, state.offsets.pending(prepared)?))
        })?;
        deleted.unwrap_or(Err(GroupError::GroupIdNotFound))
    }

    /// DeleteGroups: deletes a group without members. When it returns, the deletion is ordered; the
    /// group's file says so when the future is done.
    ///
    /// # Errors
    /// Of the future: [`GroupError::GroupIdNotFound`], [`GroupError::NonEmptyGroup`], and as
    /// [`Offsets::fetch`].
    pub fn delete_group(
        &self,
        group: &str,
    ) -> impl Future<Output = Result<(), GroupError>> + Send + use<> {
        let deleted = self.on_cell(group, false, |state, _| {
            state.classic.can_delete()?;
            state.offsets.check()?;
            if state.is_missing() {
                return Err(GroupError::GroupIdNotFound);
            }
            if state.is_awaiting() {
                return Err(GroupError::NonEmptyGroup);
            }
            if state.offsets.is_blank() {
                return Ok(Pending::concluded());
            }
            let prepared = state.offsets.book.delete_group();
            state.offsets.pending(prepared)
        });
        let (groups, group) = (self.shared.groups.clone(), group.to_owned());
        async move {
            let deleted = deleted?.unwrap_or(Err(GroupError::GroupIdNotFound));
            deleted?.durable().await?;
            // Somebody may have joined or committed meanwhile: then it is a new group.
            groups.forget(&group);
            Ok(())
        }
    }

    /// Stages the offsets of a transaction (TxnOffsetCommit). The transaction itself was checked.
    ///
    /// # Errors
    /// As [`Offsets::commit`], and [`StageError`] inside.
    pub fn stage(
        &self,
        group: &str,
        caller: Caller<'_>,
        generation: i32,
        txn: &NewTxn,
        offsets: Vec<NewOffset>,
    ) -> Result<Result<Pending, StageError>, GroupError> {
        let simple = generation < 0;
        let (view, groups) = (&self.shared.view, &self.shared.groups);
        let staged = self.on_cell(group, simple, |state, _| {
            if !simple && state.is_missing() {
                return Err(GroupError::IllegalGeneration);
            }
            let names_member = !caller.member_id.is_empty() || caller.instance_id.is_some();
            if simple && names_member && state.is_awaiting() {
                return Err(GroupError::UnknownMemberId);
            }
            state.classic.check_txn_commit(caller, generation)?;
            state.offsets.check()?;
            // The name may have got to another topic since the request came: offsets that were
            // committed for that one must not go.
            let topics = Arc::clone(&view.borrow().topics);
            let mut named = offsets.iter();
            if named.any(|new| is_gone(&topics, &new.topic, Some(new.topic_id))) {
                return Ok(Err(StageError::TopicGone));
            }
            let book = &state.offsets.book;
            groups.check_offsets_room(|| book.staged_growth(txn, &offsets))?;
            let membership = membership(state);
            match state.offsets.book.stage(txn, offsets, &membership) {
                Ok(change) => Ok(Ok(state.offsets.pending(Ok(change))?)),
                Err(error) => Ok(Err(error)),
            }
        })?;
        staged.unwrap_or(Err(GroupError::IllegalGeneration))
    }

    /// Ends a transaction for a group; a repeat waits for the first and changes nothing. `None`
    /// inside: an earlier transaction of the producer is still open here. It is remembered of a
    /// group that does not exist, too: an offset of it may still be under way.
    ///
    /// # Errors
    /// As [`Offsets::fetch`].
    pub fn decide(&self, group: &str, end: TxnEnd) -> Result<Option<Pending>, GroupError> {
        if group.is_empty() {
            // Of which nothing can be staged.
            return Ok(Some(Pending::concluded()));
        }
        let decided = self.on_cell(group, true, |state, now| {
            state.offsets.check()?;
            let book = &mut state.offsets.book;
            let decided = book.decide(end, now.wall_ms);
            let prepared = match decided {
                Ok(Decided::EarlierOpen) => return Ok(None),
                Ok(Decided::With(change)) => Ok(change),
                Err(error) => Err(error),
            };
            state.offsets.pending(prepared).map(Some)
        })?;
        decided.unwrap_or(Err(GroupError::CoordinatorNotAvailable))
    }

    /// Decides on the offsets of a group.
    pub(super) fn on_cell<R>(
        &self,
        group: &str,
        create: bool,
        decide: impl FnOnce(&mut CellState, Now) -> R,
    ) -> Result<Option<R>, GroupError> {
        let groups = &self.shared.groups;
        groups.admit(group)?;
        // A damaged file under a hashed name may be the group's.
        let create = create || groups.shared.slots.may_be_untold(group);
        groups.decide(group, create, |state, now| {
            (decide(state, now), Effects::default())
        })
    }
}

/// What is to be remembered of a group's members.
pub(super) fn membership(state: &CellState) -> Membership {
    if let Some(protocol_type) = state.classic.protocol_type() {
        return Membership {
            protocol_type: Some(Arc::clone(protocol_type)),
            empty_since_ms: state.classic.empty_since(),
        };
    }
    // None since this process began: what the file says still holds.
    let table = state.offsets.book.ahead();
    let empty_since = state.classic.empty_since().filter(|_| !state.is_awaiting());
    Membership {
        protocol_type: table.protocol_type().cloned(),
        empty_since_ms: table.empty_since_ms().or(empty_since),
    }
}

/// Whether the group is stable.
pub(super) fn is_stable(state: &CellState) -> bool {
    state.classic.state() == ClassicState::Stable
}

fn fetch_in(
    state: &CellState,
    asked: Option<&[TopicPartitions]>,
    require_stable: bool,
    topics: &TopicIndex,
) -> Vec<FetchedTopic> {
    let book = &state.offsets.book;
    let standing = |name: &str, id: Option<Uuid>| !is_gone(topics, name, id);
    let one = |topic: &str, partition: i32| match book.fetch(
        topic,
        partition,
        require_stable,
        standing,
    ) {
        Fetched::Committed(committed) => FetchedOffset::Committed {
            offset: committed.offset,
            leader_epoch: committed.leader_epoch.unwrap_or(-1),
            metadata: Arc::clone(&committed.metadata),
        },
        Fetched::None => FetchedOffset::None,
        Fetched::Unstable => FetchedOffset::Unstable,
    };
    if let Some(asked) = asked {
        let topic = |asked: &TopicPartitions| FetchedTopic {
            topic: Arc::clone(&asked.topic),
            partitions: asked
                .partitions
                .iter()
                .map(|number| (*number, one(&asked.topic, *number)))
                .collect(),
        };
        return asked.iter().map(topic).collect();
    }
    let ids = book.durable().topic_ids();
    let known = book.durable().committed().iter();
    let known = known.filter(|(topic, _)| standing(topic, ids.get(*topic).copied()));
    known
        .map(|(topic, partitions)| FetchedTopic {
            topic: Arc::clone(topic),
            partitions: partitions
                .keys()
                .map(|number| (*number, one(topic, *number)))
                .collect(),
        })
        .collect()
}

/// The answer for a group that does not exist.
fn nothing(asked: Option<&[TopicPartitions]>) -> Vec<FetchedTopic> {
    let none = |asked: &TopicPartitions| FetchedTopic {
        topic: Arc::clone(&asked.topic),
        partitions: asked
            .partitions
            .iter()
            .map(|number| (*number, FetchedOffset::None))
            .collect(),
    };
    asked.unwrap_or_default().iter().map(none).collect()
}
