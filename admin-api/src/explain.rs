//! Why a reader of committed records does not see the end of a partition.
//!
//! A transaction is *hanging* if it is open on the partition, and at its coordinator neither
//! Ongoing with that partition nor owed. The partition is looked at, then the coordinators, then,
//! before anything is said to hang, the partition again: what ended in between is not open there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coordinator::machine::txn::{TxnEntry, TxnState};
use coordinator::volume::format::rfc3339;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::model::{
    LsoView, Next, OpenTxn, SlotGapView, Source, age, client_of, next, shown_state,
};
use crate::remedy::{remedies, sentence};
use crate::views::{NoPartition, PartitionView, TxnViews};

/// Open transactions of a partition that are looked at; more are counted.
const OPEN_MAX: usize = 1000;
/// How often partitions are looked at again that change while they are explained.
const LOOKS_MAX: usize = 3;

/// What stays as it is in a segment of a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// A segment of a path that stands for `text`.
pub(crate) fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).collect()
}

/// A transaction that is open on a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Open {
    pid: i64,
    first_offset: i64,
    epoch: i16,
    last_timestamp_ms: i64,
}

/// What is open on a partition at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Looked {
    topic: String,
    partition: i32,
    view: PartitionView,
    /// In order of first offsets.
    open: Vec<Open>,
    count: usize,
}

impl Looked {
    pub(crate) fn at(
        views: &dyn TxnViews,
        topic: &str,
        partition: i32,
    ) -> Result<Self, NoPartition> {
        let (mut open, mut count) = (Vec::new(), 0);
        let view = views.partition(topic, partition, &mut |producers| {
            count = producers.open_txns().count();
            let first = producers.open_txns().take(OPEN_MAX);
            open.extend(first.filter_map(|(first_offset, pid)| {
                let entry = producers.producer(pid)?;
                Some(Open {
                    pid: pid.0,
                    first_offset,
                    epoch: entry.epoch.0,
                    last_timestamp_ms: entry.last_timestamp,
                })
            }));
        })?;
        Ok(Self {
            topic: topic.to_owned(),
            partition,
            view,
            open,
            count,
        })
    }

    /// Whether a transaction is open still.
    fn has(&self, one: &Open) -> bool {
        let same = |open: &Open| (open.pid, open.first_offset) == (one.pid, one.first_offset);
        self.open.iter().any(same)
    }
}

/// What coordinators know of the producers of open transactions.
struct Known {
    owners: BTreeMap<i64, (Arc<str>, TxnEntry)>,
    missing_slots: Vec<SlotGapView>,
}

impl Known {
    /// One visit to all transactional ids, whatever is asked about.
    fn of(views: &dyn TxnViews, looks: &[Looked]) -> Self {
        let open = looks.iter().flat_map(|look| &look.open);
        let wanted: BTreeSet<i64> = open.map(|one| one.pid).collect();
        let mut owners = BTreeMap::new();
        if wanted.is_empty() {
            return Self {
                owners,
                missing_slots: Vec::new(),
            };
        }
        let gaps = views.visit(&mut |id, entry| {
            let owed = entry.owed.iter().map(|owed| owed.producer_id.0);
            let before = entry.prev_pid.map(|pid| pid.0);
            // What is present wins over what was.
            for pid in owed.chain(before).filter(|pid| wanted.contains(pid)) {
                owners
                    .entry(pid)
                    .or_insert_with(|| (id.clone(), entry.clone()));
            }
            if wanted.contains(&entry.pid.0) {
                owners.insert(entry.pid.0, (id.clone(), entry.clone()));
            }
        });
        Self {
            owners,
            missing_slots: gaps.into_iter().map(Into::into).collect(),
        }
    }

    /// How a transaction on a partition stands with its coordinator.
    fn standing(&self, look: &Looked, open: &Open) -> &'static str {
        let Some((_, entry)) = self.owners.get(&open.pid) else {
            let all_asked = self.missing_slots.is_empty();
            return if all_asked { "hanging" } else { "unknown" };
        };
        let has = |partitions: &coordinator::machine::txn::TopicPartitions| {
            let numbers = partitions.get(look.topic.as_str());
            numbers.is_some_and(|numbers| numbers.contains(&look.partition))
        };
        let owes = entry.owed.iter().any(|owed| {
            let mut entries = owed.entries.values();
            owed.producer_id.0 == open.pid && entries.any(|one| has(&one.partitions))
        });
        let takes_part = entry.pid.0 == open.pid && has(&entry.partitions);
        match entry.state {
            _ if owes => "queued",
            TxnState::Ongoing if takes_part => "ongoing",
            TxnState::PrepareCommit | TxnState::PrepareAbort if takes_part => "deciding",
            _ => "hanging",
        }
    }

    /// Looks again at partitions on which something seems to hang; whether anything has ended since
    /// they were looked at, so that the coordinators are to be asked again.
    fn look_again(&self, views: &dyn TxnViews, looks: &mut [Looked]) -> bool {
        let mut moved = false;
        for look in looks {
            let open = look.open.iter();
            let hanging: Vec<_> = open
                .filter(|one| self.standing(look, one) == "hanging")
                .copied()
                .collect();
            if hanging.is_empty() {
                continue;
            }
            // One that is gone or closed by now is told as it was.
            let Ok(now) = Looked::at(views, &look.topic, look.partition) else {
                continue;
            };
            if hanging.iter().any(|one| !now.has(one)) {
                *look = now;
                moved = true;
            }
        }
        moved
    }

    fn open_txn(
        &self,
        views: &dyn TxnViews,
        look: &Looked,
        open: &Open,
        sure: bool,
        now_ms: i64,
    ) -> OpenTxn {
        let standing = match self.standing(look, open) {
            "hanging" if !sure => "unknown",
            standing => standing,
        };
        let owner = self.owners.get(&open.pid);
        let live = matches!(standing, "ongoing" | "deciding" | "queued");
        let next = match (owner, standing) {
            (Some((id, entry)), _) if live => next(views, id, entry, now_ms),
            (_, "unknown") => Next::nothing("its coordinator can't be asked now, so nobody knows"),
            _ => {
                Next::nothing("nothing ends it: its coordinator does not know that it is open here")
            }
        };
        let entry = owner.map(|(_, entry)| entry).filter(|_| live);
        let start_ms = entry.and_then(|entry| entry.start_ms);
        OpenTxn {
            producer_id: open.pid,
            producer_epoch: open.epoch,
            first_offset: open.first_offset,
            last_timestamp_ms: open.last_timestamp_ms,
            standing,
            transactional_id: owner.map(|(id, _)| id.to_string()),
            state: owner.map(|(_, entry)| shown_state(entry).name()),
            start_ms,
            start: start_ms.map(rfc3339),
            age_ms: start_ms.map(|start| age(start, now_ms)),
            timeout_ms: entry.map(|entry| entry.timeout_ms),
            client: entry.and_then(|entry| entry.client.as_ref()).map(client_of),
            next,
        }
    }

    fn explained(&self, views: &dyn TxnViews, look: &Looked, sure: bool) -> LsoView {
        let source = Source::owner(views);
        let view = &look.view;
        let open = look.open.iter();
        let open_transactions: Vec<_> = open
            .map(|one| self.open_txn(views, look, one, sure, source.as_of_ms))
            .collect();
        let holder = open_transactions.first().cloned();
        let holder = holder.filter(|_| view.last_stable < view.high_watermark);
        let held_back = view.high_watermark.saturating_sub(view.last_stable);
        let summary = match &holder {
            None => format!(
                "Nothing is held back: readers of committed records see everything below {}.",
                view.last_stable
            ),
            Some(holder) => sentence(holder, held_back),
        };
        let remedies = holder.as_ref().map_or_else(Vec::new, |holder| {
            let id = holder.transactional_id.as_deref();
            let holds = views.holds();
            let held = holds.iter().find(|hold| hold.holds(id));
            let place = (look.topic.as_str(), look.partition);
            remedies(
                holder,
                place,
                held.map(|hold| hold.number),
                &views.kafka_address(),
            )
        });
        LsoView {
            topic: look.topic.clone(),
            topic_id: view.topic_id.clone(),
            partition: look.partition,
            leader_epoch: view.leader_epoch,
            log_start_offset: view.log_start,
            last_stable_offset: view.last_stable,
            high_watermark: view.high_watermark,
            held_back,
            summary,
            holder,
            remedies,
            open_count: look.count,
            open_transactions,
            missing_slots: self.missing_slots.clone(),
            source,
        }
    }
}

/// Explains the last stable offsets of partitions that were looked at.
pub(crate) fn explain(views: &dyn TxnViews, mut looks: Vec<Looked>) -> Vec<LsoView> {
    let mut known = Known::of(views, &looks);
    let mut sure = false;
    for _ in 0..LOOKS_MAX {
        sure = !known.look_again(views, &mut looks);
        if sure {
            break;
        }
        known = Known::of(views, &looks);
    }
    let looks = looks.iter();
    looks
        .map(|look| known.explained(views, look, sure))
        .collect()
}
