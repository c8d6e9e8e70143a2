//! States and requests for the tests of this machine.

use std::collections::BTreeSet;

use super::*;
use crate::machine::txn::dispatch::Home;

pub(super) const PID: i64 = 100;
pub(super) const SPARE: i64 = 900;
pub(super) const NOW: i64 = 1_000_000;

pub(super) fn ctx(version: i8) -> Ctx {
    Ctx {
        now_ms: NOW,
        slot_epoch: 7,
        version,
        max_timeout_ms: 900_000,
        spare: Some(ProducerId(SPARE)),
    }
}

pub(super) fn session(pid: i64, epoch: i16) -> Session {
    Session {
        pid: ProducerId(pid),
        epoch: ProducerEpoch(epoch),
    }
}

pub(super) const NONE: (i64, i16) = (-1, -1);

pub(super) fn init(version: i16, claimed: (i64, i16)) -> InitProducerId {
    InitProducerId {
        version,
        id_is_empty: false,
        timeout_ms: 60_000,
        claimed: session(claimed.0, claimed.1),
        client: None,
    }
}

pub(super) fn end(version: i16, pid: i64, epoch: i16, commit: bool) -> EndTxn {
    EndTxn {
        version,
        session: session(pid, epoch),
        commit,
        client: None,
    }
}

pub(super) fn topic_id() -> Uuid {
    Uuid::from_u128(1)
}

pub(super) fn named(topic: &str, partition: i32) -> Named {
    Named {
        topic: topic.into(),
        topic_id: (topic != "missing").then(topic_id),
        partition,
    }
}

pub(super) fn partitions(topic: &str, list: &[i32]) -> TopicPartitions {
    let partitions: BTreeSet<i32> = list.iter().copied().collect();
    TopicPartitions::from([(topic.into(), partitions)])
}

pub(super) fn empty(epoch: i16) -> TxnEntry {
    TxnEntry {
        epoch: ProducerEpoch(epoch),
        ..TxnEntry::new(ProducerId(PID), 60_000, 0)
    }
}

pub(super) fn ongoing(epoch: i16) -> TxnEntry {
    TxnEntry {
        state: TxnState::Ongoing,
        partitions: partitions("A", &[0]),
        topic_ids: TopicIds::from([("A".into(), topic_id())]),
        groups: Groups::from(["g".into()]),
        start_ms: Some(NOW - 1_000),
        txn_seq: 5,
        ..empty(epoch)
    }
}

/// The entry afterwards: what a decision persists, or what was.
pub(super) fn after<R>(before: &TxnEntry, decision: &Decision<R>) -> TxnEntry {
    match decision {
        Decision::Persist(change, _) => change.next.clone().unwrap(),
        _ => before.clone(),
    }
}

pub(super) fn local(entry: &TxnEntry) -> Plan {
    plan(
        &owed_by(entry).unwrap(),
        |_, _, _| Home::Here,
        |_| Home::Here,
    )
}

/// Carries a decision out, all of it here.
pub(super) fn finish(entry: &TxnEntry, ctx: &Ctx) -> TxnEntry {
    let change = complete(entry, &local(entry), ctx).unwrap();
    change.next.unwrap()
}

pub(super) fn prepared(epoch: i16, version: i16, commit: bool) -> TxnEntry {
    let entry = ongoing(epoch);
    let level = if version >= 5 { 2 } else { 1 };
    after(
        &entry,
        &end_txn(Some(&entry), &end(version, PID, epoch, commit), &ctx(level)),
    )
}

pub(super) fn completed(epoch: i16, version: i16, commit: bool) -> TxnEntry {
    let level = if version >= 5 { 2 } else { 1 };
    finish(&prepared(epoch, version, commit), &ctx(level))
}

/// Completed here, and owed by broker 1.
pub(super) fn owed(epoch: i16, version: i16, commit: bool) -> TxnEntry {
    let entry = prepared(epoch, version, commit);
    let remote = |_: &str, _: Option<Uuid>, _: i32| Home::Broker(store_adapter::ids::BrokerId(1));
    let plan = plan(&owed_by(&entry).unwrap(), remote, |_| Home::Here);
    let level = if version >= 5 { 2 } else { 1 };
    complete(&entry, &plan, &ctx(level)).unwrap().next.unwrap()
}

pub(super) fn code(error: TxnError) -> i16 {
    match error {
        TxnError::UnknownServerError => -1,
        TxnError::CoordinatorLoading => 14,
        TxnError::CoordinatorNotAvailable => 15,
        TxnError::NotCoordinator => 16,
        TxnError::InvalidRequest => 42,
        TxnError::InvalidProducerEpoch => 47,
        TxnError::InvalidTxnState => 48,
        TxnError::InvalidProducerIdMapping => 49,
        TxnError::TooLarge => 120,
        TxnError::InvalidTransactionTimeout => 50,
        TxnError::ConcurrentTransactions => 51,
        TxnError::ProducerFenced => 90,
    }
}

/// A decision in one word: an answer, a code, `wait 51` or `finish`.
pub(super) fn told<R: Clone>(decision: &Decision<R>, show: impl Fn(&R) -> String) -> String {
    match decision {
        Decision::Answer(reply) | Decision::Persist(_, Then::Answer(reply)) => {
            format!("0 {}", show(reply))
        }
        Decision::Refuse(error) => code(*error).to_string(),
        Decision::Wait(ms, error) => format!("waits {ms} ms, then {}", code(*error)),
        Decision::NeedsId => "needs a producer id".to_owned(),
        Decision::Persist(_, Then::Finish(reply, late)) => {
            format!("0 {} when finished, {} if late", show(reply), code(*late))
        }
        Decision::Persist(_, Then::AskAgain(late)) => {
            format!("as after the abort, {} if late", code(*late))
        }
    }
}

pub(super) fn show_session(session: &Session) -> String {
    format!("({}, {})", session.pid.0, session.epoch.0)
}

pub(super) fn show_end(reply: &EndReply) -> String {
    reply.as_ref().map_or("(-1, -1)".to_owned(), show_session)
}

pub(super) fn show_added(added: &Added) -> String {
    match added {
        Added::InTxn(seq) => format!("in #{seq}"),
        Added::Missing(missing) => format!("55, but 3 for {missing:?}"),
    }
}
