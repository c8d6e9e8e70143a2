//! Why a reader of committed records does not see the end of a partition.
//!
//! Pure: from what the partition's leader and the coordinators know at one moment. A transaction is
//! *hanging* if it is open on the partition, and at its coordinator neither Ongoing with that
//! partition nor owed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use coordinator::machine::producer::ProducerEntry;
use coordinator::machine::txn::{TxnEntry, TxnState};
use coordinator::volume::format::rfc3339;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::model::{
    LsoView, Next, OpenTxn, Remedy, SlotGapView, Source, Transaction, client_of, shown_state,
};
use crate::views::{PartitionView, TxnViews};

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

/// One word of a command line; `None` for text that can't be typed safely.
pub(crate) fn word(text: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@%+,".contains(c);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(plain) {
        return Some(text.to_owned());
    }
    if text.chars().any(|c| !(' '..='~').contains(&c)) || text.starts_with('-') {
        return None;
    }
    Some(format!("'{}'", text.replace('\'', r"'\''")))
}

/// What a coordinator knows of a producer.
pub(crate) type Owners = BTreeMap<i64, (Arc<str>, TxnEntry)>;

/// Finds the transactional ids of producers.
pub(crate) fn owners(
    views: &dyn TxnViews,
    wanted: impl Fn(i64) -> bool,
) -> (Owners, Vec<SlotGapView>) {
    let mut owners = Owners::new();
    let gaps = views.visit(&mut |id, entry| {
        let owed = entry.owed.iter().map(|owed| owed.producer_id.0);
        let before = entry.prev_pid.map(|pid| pid.0);
        // What is present wins over what was.
        for pid in owed.chain(before) {
            if wanted(pid) {
                owners
                    .entry(pid)
                    .or_insert_with(|| (id.clone(), entry.clone()));
            }
        }
        if wanted(entry.pid.0) {
            owners.insert(entry.pid.0, (id.clone(), entry.clone()));
        }
    });
    (owners, gaps.into_iter().map(Into::into).collect())
}

/// How a transaction on a partition stands with its coordinator.
fn standing(pid: i64, at: (&str, i32), owner: Option<&TxnEntry>, all_asked: bool) -> &'static str {
    let Some(entry) = owner else {
        return if all_asked { "hanging" } else { "unknown" };
    };
    let (topic, partition) = at;
    let has = |partitions: &coordinator::machine::txn::TopicPartitions| {
        let numbers = partitions.get(topic);
        numbers.is_some_and(|numbers| numbers.contains(&partition))
    };
    let owes = entry.owed.iter().any(|owed| {
        let entries = owed.entries.values();
        owed.producer_id.0 == pid && entries.into_iter().any(|one| has(&one.partitions))
    });
    if owes {
        return "queued";
    }
    match entry.state {
        TxnState::Ongoing if entry.pid.0 == pid && has(&entry.partitions) => "ongoing",
        TxnState::PrepareCommit | TxnState::PrepareAbort
            if entry.pid.0 == pid && has(&entry.partitions) =>
        {
            "deciding"
        }
        _ => "hanging",
    }
}

fn open_txn(
    (pid, first_offset, producer): (i64, i64, &ProducerEntry),
    at: (&str, i32),
    owner: Option<&(Arc<str>, TxnEntry)>,
    all_asked: bool,
    now_ms: i64,
) -> OpenTxn {
    let standing = standing(pid, at, owner.map(|(_, entry)| entry), all_asked);
    let live = matches!(standing, "ongoing" | "deciding" | "queued");
    let shown = owner.map(|(id, entry)| Transaction::of(id, entry, 0, 0, now_ms));
    let nothing = |text: &str| Next {
        action: "nothing",
        at_ms: None,
        text: text.to_owned(),
    };
    let next = match (&shown, standing) {
        (Some(shown), _) if live => shown.next.clone(),
        (_, "unknown") => nothing("its coordinator can't be asked now, so nobody knows"),
        _ => nothing("nothing ends it: its coordinator does not know that it is open here"),
    };
    let entry = owner.map(|(_, entry)| entry).filter(|_| live);
    let start_ms = entry.and_then(|entry| entry.start_ms);
    OpenTxn {
        producer_id: pid,
        producer_epoch: producer.epoch.0,
        first_offset,
        last_timestamp_ms: producer.last_timestamp,
        standing,
        transactional_id: owner.map(|(id, _)| id.to_string()),
        state: owner.map(|(_, entry)| shown_state(entry).name()),
        start_ms,
        start: start_ms.map(rfc3339),
        age_ms: start_ms.map(|start| now_ms.saturating_sub(start)),
        timeout_ms: entry.map(|entry| entry.timeout_ms),
        client: entry.and_then(|entry| entry.client.as_ref()).map(client_of),
        next,
    }
}

/// Explains the last stable offset of a partition.
pub(crate) fn explain(
    views: &dyn TxnViews,
    topic: &str,
    partition: i32,
    view: &PartitionView,
) -> LsoView {
    let producers = view.image.entries.iter();
    let mut open: Vec<_> = producers
        .filter_map(|(pid, entry)| Some((pid.0, entry.current_txn_first_offset?, entry)))
        .collect();
    open.sort_by_key(|(_, first_offset, _)| *first_offset);
    let (owners, missing_slots) = if open.is_empty() {
        (Owners::new(), Vec::new())
    } else {
        owners(views, |pid| open.iter().any(|(open, ..)| *open == pid))
    };
    let source = Source::owner(views);
    let open_transactions: Vec<OpenTxn> = open
        .into_iter()
        .map(|one| {
            let owner = owners.get(&one.0);
            let all_asked = missing_slots.is_empty();
            open_txn(one, (topic, partition), owner, all_asked, source.as_of_ms)
        })
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
    let holds = views.holds();
    let is_held = |id: Option<&str>| holds.iter().find(|hold| holds_id(hold, id));
    let remedies = holder.as_ref().map_or_else(Vec::new, |holder| {
        let held = is_held(holder.transactional_id.as_deref()).map(|hold| hold.number);
        remedies(holder, topic, partition, held)
    });
    LsoView {
        topic: topic.to_owned(),
        topic_id: view.topic_id.clone(),
        partition,
        leader_epoch: view.leader_epoch,
        log_start_offset: view.log_start,
        last_stable_offset: view.last_stable,
        high_watermark: view.high_watermark,
        held_back,
        summary,
        holder,
        remedies,
        open_transactions,
        missing_slots,
        source,
    }
}

fn holds_id(hold: &crate::views::HoldView, id: Option<&str>) -> bool {
    match (&hold.transactional_id, id) {
        (None, _) => true,
        (Some(held), Some(id)) => held == id,
        (Some(_), None) => false,
    }
}

/// A time that has passed, in its largest unit.
struct Age(i64);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.max(0) / 1000;
        match seconds {
            0..=119 => write!(f, "{seconds} s"),
            120..=7199 => write!(f, "{} min", seconds / 60),
            _ => write!(f, "{} h", seconds / 3600),
        }
    }
}

fn sentence(holder: &OpenTxn, held_back: i64) -> String {
    let who = match &holder.transactional_id {
        Some(id) => format!("{id:?} (producer {})", holder.producer_id),
        None => format!("producer {}", holder.producer_id),
    };
    let since = holder
        .age_ms
        .map_or_else(String::new, |age_ms| format!(", open for {}", Age(age_ms)));
    let what = match holder.standing {
        "ongoing" => "an open transaction",
        "deciding" | "queued" => "a transaction that is decided, and whose marker is not written",
        "hanging" => "a hanging transaction",
        _ => "a transaction whose coordinator can't be asked",
    };
    format!(
        "{held_back} offsets are held back by {what} of {who}{since}, which began at offset {} \
         here; {}.",
        holder.first_offset, holder.next.text
    )
}

fn remedies(holder: &OpenTxn, topic: &str, partition: i32, held: Option<u64>) -> Vec<Remedy> {
    let remedy = |text: &str, request: Option<String>, command: Option<String>| Remedy {
        text: text.to_owned(),
        request,
        command,
    };
    let id = holder.transactional_id.as_deref().unwrap_or_default();
    match holder.standing {
        "ongoing" => {
            let request = format!("POST /api/v1/transactions/{}/abort", segment(id));
            let typed = word(id);
            let command =
                typed.map(|id| format!("fencepost txn force-terminate --transactional-id {id}"));
            vec![
                remedy(
                    "Let its client end it, or wait for its timeout.",
                    None,
                    None,
                ),
                remedy(
                    "Abort it: its records are dropped, and its client is fenced.",
                    Some(request),
                    command,
                ),
            ]
        }
        "deciding" | "queued" => {
            let release = held.map(|number| {
                let request = format!("DELETE /api/v1/faults/{number}");
                remedy(
                    "Release the fault that holds its markers.",
                    Some(request),
                    None,
                )
            });
            let again = "POST /api/v1/reconcile/run".to_owned();
            let again = remedy("Have its markers tried again now.", Some(again), None);
            release.into_iter().chain([again]).collect()
        }
        "hanging" => {
            let command = word(topic).map(|topic| {
                format!(
                    "fencepost txn abort --topic {topic} --partition {partition} --start-offset {}",
                    holder.first_offset
                )
            });
            let text = "Abort it on this partition: its records here are dropped.";
            vec![remedy(text, None, command)]
        }
        _ => {
            let request = "GET /readyz?verbose".to_owned();
            let text = "See which files are damaged or being loaded.";
            vec![remedy(text, Some(request), None)]
        }
    }
}
