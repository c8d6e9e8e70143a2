//! AddPartitionsToTxn, AddOffsetsToTxn and the verification of a first batch (kafka-contract 1.5,
//! 3.2).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{
    Cause, Client, Ctx, Decision, GATE_WAIT_MS, Named, Session, Then, TopicPartitions, TxnEntry,
    TxnError, TxnState, check_session, is_next, persist,
};

/// The most partitions of one transaction.
pub const PARTITIONS_MAX: usize = 10_000;
/// The most groups of one transaction.
pub const GROUPS_MAX: usize = 1_000;

/// Through which request a partition or group is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddClass {
    /// AddPartitionsToTxn version 0 to 3, or AddOffsetsToTxn, of this version.
    Client(i16),
    /// Implied by Produce version 12 or TxnOffsetCommit version 5 and later (KIP-890).
    Implicit,
}

impl AddClass {
    fn is_old(self) -> bool {
        match self {
            Self::Client(version) => version < 2,
            // Both APIs know no fencing.
            Self::Implicit => true,
        }
    }

    /// What a client is told whose transaction can't take more. Versions that don't know that a
    /// transaction can be aborted and tried again take it for a request that is none.
    fn full(self) -> TxnError {
        match self {
            Self::Client(version) if version < 4 => TxnError::InvalidRequest,
            Self::Client(_) | Self::Implicit => TxnError::TooLarge,
        }
    }

    fn txn_version(self, finalized: i8) -> i8 {
        match self {
            Self::Client(_) => finalized.min(1),
            Self::Implicit => 2,
        }
    }
}

/// What became of an addition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Added {
    /// All of it is in the transaction of this number.
    InTxn(u64),
    /// Nothing was added, because these partitions do not exist.
    Missing(TopicPartitions),
}

/// What is in the transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Its number.
    pub txn_seq: u64,
    /// What of the partitions that were asked for is not in it.
    pub missing: TopicPartitions,
}

/// AddPartitionsToTxn below version 4, and the implicit addition.
pub fn add_partitions(
    entry: Option<&TxnEntry>,
    session: Session,
    named: &[Named],
    class: AddClass,
    client: Option<&Client>,
    ctx: &Ctx,
) -> Decision<Added> {
    let missing = partitions_of(named.iter().filter(|named| named.topic_id.is_none()));
    if !missing.is_empty() {
        return Decision::Answer(Added::Missing(missing));
    }
    add(
        entry,
        session,
        class,
        client,
        ctx,
        named.is_empty(),
        |next| {
            for one in named {
                let before = one
                    .topic_id
                    .and_then(|id| next.topic_ids.insert(one.topic.clone(), id));
                if before.is_some_and(|before| Some(before) != one.topic_id) {
                    // The topic of that name is another one: the partitions went with the first.
                    next.partitions.remove(&one.topic);
                }
                let known = next.partitions.entry(one.topic.clone()).or_default();
                known.insert(one.partition);
            }
            count(&next.partitions) <= PARTITIONS_MAX
        },
    )
}

/// AddOffsetsToTxn, and the implicit addition.
pub fn add_groups(
    entry: Option<&TxnEntry>,
    session: Session,
    group: &Arc<str>,
    class: AddClass,
    client: Option<&Client>,
    ctx: &Ctx,
) -> Decision<Added> {
    add(entry, session, class, client, ctx, false, |next| {
        next.groups.insert(group.clone());
        next.groups.len() <= GROUPS_MAX
    })
}

fn add(
    entry: Option<&TxnEntry>,
    session: Session,
    class: AddClass,
    client: Option<&Client>,
    ctx: &Ctx,
    nothing: bool,
    insert: impl FnOnce(&mut TxnEntry) -> bool,
) -> Decision<Added> {
    let entry = match open(entry, session, class.is_old()) {
        Ok(entry) => entry,
        Err(refusal) => return refusal.into(),
    };
    if nothing {
        return Decision::Answer(Added::InTxn(entry.txn_seq));
    }
    let mut next = entry.clone();
    if entry.state != TxnState::Ongoing {
        next.clear_transaction();
        next.state = TxnState::Ongoing;
        next.start_ms = Some(ctx.now_ms);
        next.txn_seq += 1;
    }
    if !insert(&mut next) {
        return Decision::Refuse(class.full());
    }
    let reply = Added::InTxn(next.txn_seq);
    if next == *entry {
        return Decision::Answer(reply);
    }
    next.txn_version = class.txn_version(ctx.version);
    if let Some(client) = client {
        next.client = Some(client.clone());
    }
    let then = Then::Answer(reply);
    persist(entry.state, next, Vec::new(), Cause::Client, ctx, then)
}

/// Whether partitions are in the open transaction, for Produce below version 12.
pub fn verify_partitions(
    entry: Option<&TxnEntry>,
    session: Session,
    asked: &[Named],
) -> Decision<Verified> {
    let entry = match open(entry, session, true) {
        Ok(entry) => entry,
        Err(refusal) => return refusal.into(),
    };
    let is_in = |one: &&Named| {
        // Another topic of the same name has no partition in the transaction.
        let ids = entry.topic_ids.get(&one.topic).zip(one.topic_id.as_ref());
        let other = ids.is_some_and(|(known, asked)| known != asked);
        let known = entry.partitions.get(&one.topic);
        let known = known.is_some_and(|known| known.contains(&one.partition));
        entry.state == TxnState::Ongoing && known && !other
    };
    Decision::Answer(Verified {
        txn_seq: entry.txn_seq,
        missing: partitions_of(asked.iter().filter(|one| !is_in(one))),
    })
}

/// Whether a group is in the open transaction, for TxnOffsetCommit below version 5: the number of
/// the transaction, or `None`.
pub fn verify_group(
    entry: Option<&TxnEntry>,
    session: Session,
    group: &str,
) -> Decision<Option<u64>> {
    let entry = match open(entry, session, true) {
        Ok(entry) => entry,
        Err(refusal) => return refusal.into(),
    };
    let inside = entry.state == TxnState::Ongoing && entry.groups.contains(group);
    Decision::Answer(inside.then_some(entry.txn_seq))
}

/// Why a request finds no transaction that it may join or begin.
enum Shut {
    Refuse(TxnError),
    Wait,
}

impl<R> From<Shut> for Decision<R> {
    fn from(shut: Shut) -> Self {
        match shut {
            Shut::Refuse(error) => Self::Refuse(error),
            Shut::Wait => Self::Wait(GATE_WAIT_MS, TxnError::ConcurrentTransactions),
        }
    }
}

fn open(entry: Option<&TxnEntry>, session: Session, old: bool) -> Result<&TxnEntry, Shut> {
    let entry = entry.ok_or(Shut::Refuse(TxnError::InvalidProducerIdMapping))?;
    if is_next(entry, session) {
        return Err(Shut::Wait);
    }
    check_session(entry, session.pid, session.epoch, old).map_err(Shut::Refuse)?;
    // Records of a transaction must never precede the marker of the one before.
    if entry.state.prepared().is_some() || entry.is_gated() {
        return Err(Shut::Wait);
    }
    Ok(entry)
}

fn count(partitions: &TopicPartitions) -> usize {
    partitions.values().map(BTreeSet::len).sum()
}

/// The partitions of what a request names, by topic.
pub fn partitions_of<'a>(named: impl Iterator<Item = &'a Named>) -> TopicPartitions {
    let mut partitions = TopicPartitions::new();
    for one in named {
        let known = partitions.entry(one.topic.clone()).or_default();
        known.insert(one.partition);
    }
    partitions
}
