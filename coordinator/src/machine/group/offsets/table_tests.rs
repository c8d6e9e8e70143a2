//! Rules of single changes: commit numbers, transactions, retention, topics that went.

use std::collections::BTreeSet;

use store_adapter::ids::{ProducerEpoch, ProducerId};

use super::*;

pub(super) fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

pub(super) fn new(topic: &str, partition: i32, offset: i64) -> NewOffset {
    NewOffset {
        topic: topic.into(),
        topic_id: id(1),
        partition,
        offset,
        leader_epoch: Some(3),
        metadata: "m".into(),
    }
}

fn facts(now_ms: i64) -> CommitFacts {
    CommitFacts {
        now_ms,
        ..CommitFacts::default()
    }
}

pub(super) fn txn(producer: i64, epoch: i16, txn_seq: u64) -> NewTxn {
    NewTxn {
        producer_id: ProducerId(producer),
        producer_epoch: ProducerEpoch(epoch),
        transactional_id: "tx".into(),
        txn_seq,
    }
}

pub(super) fn end(producer: i64, epoch: i16, txn_seq: u64, commit: bool) -> TxnEnd {
    TxnEnd {
        producer_id: ProducerId(producer),
        number: TxnNumber {
            epoch: ProducerEpoch(epoch),
            txn_seq,
        },
        commit,
    }
}

fn all(_: &str, _: Option<Uuid>) -> bool {
    true
}

pub(super) fn write(book: &mut OffsetBook) {
    if let Some(image) = book.image() {
        book.written(&image);
    }
}

fn committed(book: &OffsetBook, topic: &str, partition: i32, stable: bool) -> Option<i64> {
    match book.fetch(topic, partition, stable, all) {
        Fetched::Committed(committed) => Some(committed.offset),
        Fetched::None => None,
        Fetched::Unstable => Some(-88),
    }
}

const NOBODY: Membership = Membership {
    protocol_type: None,
    empty_since_ms: None,
};

#[test]
fn a_commit_is_seen_when_it_is_durable() {
    let mut book = OffsetBook::default();
    let change = book.commit(vec![new("t", 0, 5)], &facts(9)).unwrap();
    assert_eq!(committed(&book, "t", 0, false), None);
    assert!(!book.is_concluded(change));
    let image = book.image().unwrap();
    let behind = book.commit(vec![new("t", 0, 6)], &facts(9)).unwrap();
    book.written(&image);
    assert!(book.is_concluded(change) && !book.is_concluded(behind));
    assert_eq!(committed(&book, "t", 0, false), Some(5));
    write(&mut book);
    assert!(book.is_concluded(behind) && book.image().is_none());
    let Fetched::Committed(found) = book.fetch("t", 0, true, all) else {
        panic!("nothing");
    };
    assert_eq!(
        (found.offset, found.leader_epoch, &*found.metadata),
        (6, Some(3), "m")
    );
    assert_eq!((found.commit_ms, found.seq), (Some(9), Some(1)));
}

#[test]
fn a_write_that_did_not_happen_drops_what_was_prepared_behind_it() {
    let mut book = OffsetBook::default();
    book.commit(vec![new("t", 0, 5)], &facts(9)).unwrap();
    write(&mut book);
    book.commit(vec![new("t", 0, 6)], &facts(9)).unwrap();
    let last = book.commit(vec![new("t", 1, 1)], &facts(9)).unwrap();
    assert_eq!(book.not_written(), last);
    assert_eq!(book.image().map(|image| image.change), None);
    assert_eq!(book.ahead(), book.durable());
    assert_eq!(committed(&book, "t", 0, false), Some(5));
}

#[test]
fn after_a_write_of_unknown_outcome_the_file_is_read_and_written_again() {
    let mut book = OffsetBook::default();
    book.commit(vec![new("t", 0, 5)], &facts(9)).unwrap();
    let image = book.image().unwrap();
    book.maybe_written();
    assert!(book.must_read() && book.image().is_none());
    let refused = book.commit(vec![new("t", 0, 6)], &facts(9));
    assert_eq!(refused, Err(PrepareError::Unsettled));
    // It had happened.
    book.reloaded(OffsetTable::clone(&image.table));
    assert!(!book.is_settled());
    let again = book.image().unwrap();
    book.not_written();
    assert!(book.must_write() && !book.is_settled());
    book.written(&again);
    assert!(book.is_settled());
    assert_eq!(committed(&book, "t", 0, false), Some(5));
}

#[test]
fn staged_offsets_are_unstable_and_win_only_over_earlier_commits() {
    let mut book = OffsetBook::default();
    book.commit(vec![new("t", 0, 5), new("t", 1, 5)], &facts(9))
        .unwrap();
    let stage = |book: &mut OffsetBook, key, offset, seq| {
        book.stage(&txn(7, 0, seq), vec![new("t", key, offset)], &NOBODY)
    };
    stage(&mut book, 0, 8, 1).unwrap();
    stage(&mut book, 1, 8, 1).unwrap();
    write(&mut book);
    assert_eq!(committed(&book, "t", 0, true), Some(-88));
    assert_eq!(committed(&book, "t", 0, false), Some(5));
    // Later than what is staged of partition 0.
    book.commit(vec![new("t", 0, 9)], &facts(9)).unwrap();
    let decided = book.decide(end(7, 0, 1, true), 20).unwrap();
    write(&mut book);
    assert_eq!(committed(&book, "t", 0, true), Some(9));
    assert_eq!(committed(&book, "t", 1, true), Some(8));
    // A repeat changes nothing, also after another commit.
    book.commit(vec![new("t", 1, 2)], &facts(9)).unwrap();
    write(&mut book);
    let again = book.decide(end(7, 0, 1, true), 20).unwrap();
    assert!(matches!(
        (decided, again),
        (Decided::With(_), Decided::With(_))
    ));
    assert!(book.image().is_none());
    assert_eq!(committed(&book, "t", 1, true), Some(2));
    // Of a transaction that has ended nothing is staged any more.
    assert_eq!(stage(&mut book, 1, 3, 1), Err(StageError::Decided));
    assert!(stage(&mut book, 1, 3, 2).is_ok());
    let earlier = stage(&mut book, 1, 3, 3);
    assert_eq!(earlier, Err(StageError::EarlierOpen));
    assert_eq!(
        book.decide(end(7, 0, 3, true), 20),
        Ok(Decided::EarlierOpen)
    );
    // An abort drops.
    book.decide(end(7, 0, 2, false), 20).unwrap();
    write(&mut book);
    assert_eq!(committed(&book, "t", 1, true), Some(2));
}

#[test]
fn a_later_epoch_of_the_producer_fences_what_is_staged() {
    let mut book = OffsetBook::default();
    book.stage(&txn(7, 4, 1), vec![new("t", 0, 1)], &NOBODY)
        .unwrap();
    let old = book.stage(&txn(7, 3, 1), vec![new("t", 0, 2)], &NOBODY);
    assert_eq!(old, Err(StageError::StaleEpoch));
}

/// The slot of a transactional id is repaired from an older file: its epoch is raised, from 5 to 9,
/// and its number may be, or is counted again.
#[test]
fn what_was_staged_before_a_repair_is_dropped_by_what_comes_later() {
    let before = || {
        let mut book = OffsetBook::default();
        book.decide(end(7, 5, 10, true), 20).unwrap();
        book.stage(&txn(7, 5, 11), vec![new("t", 0, 100)], &NOBODY)
            .unwrap();
        write(&mut book);
        book
    };
    // To the number of the old one, to a lower and to a higher one.
    for number in [11, 8, 21] {
        let mut book = before();
        book.stage(&txn(7, 9, number), vec![new("t", 1, 5)], &NOBODY)
            .unwrap();
        write(&mut book);
        assert_eq!(committed(&book, "t", 0, true), None, "{number}");
        assert_eq!(committed(&book, "t", 1, true), Some(-88), "{number}");
        book.decide(end(7, 9, number, true), 20).unwrap();
        write(&mut book);
        assert_eq!(committed(&book, "t", 0, true), None, "{number}");
        assert_eq!(committed(&book, "t", 1, true), Some(5), "{number}");
        // What comes late of before.
        let late = book.stage(&txn(7, 5, 11), vec![new("t", 0, 100)], &NOBODY);
        assert_eq!(late, Err(StageError::Decided), "{number}");
        let next = book.stage(&txn(7, 10, number + 1), vec![new("t", 0, 6)], &NOBODY);
        assert!(next.is_ok(), "{number}");
    }
    // One that has the group, and stages nothing.
    for number in [11, 8, 21] {
        let mut book = before();
        let decided = book.decide(end(7, 9, number, true), 20);
        assert!(matches!(decided, Ok(Decided::With(_))), "{number}");
        write(&mut book);
        assert_eq!(committed(&book, "t", 0, true), None, "{number}");
        assert!(book.durable().topic_ids().is_empty());
    }
    let mut book = before();
    book.stage(&txn(7, 9, 8), vec![new("t", 1, 5)], &NOBODY)
        .unwrap();
    let old = book.stage(&txn(7, 5, 11), vec![new("t", 0, 100)], &NOBODY);
    assert_eq!(old, Err(StageError::StaleEpoch));
}

#[test]
fn a_recreated_topic_inherits_nothing() {
    let mut book = OffsetBook::default();
    book.commit(vec![new("t", 0, 5), new("t", 1, 5)], &facts(9))
        .unwrap();
    book.stage(&txn(7, 0, 1), vec![new("t", 2, 5)], &NOBODY)
        .unwrap();
    write(&mut book);
    let alive = |of: Uuid| move |_: &str, known: Option<Uuid>| known.is_none_or(|id| id == of);
    assert!(matches!(
        book.fetch("t", 0, false, alive(id(2))),
        Fetched::None
    ));
    assert!(matches!(
        book.fetch("t", 2, true, alive(id(2))),
        Fetched::None
    ));
    assert!(matches!(
        book.fetch("t", 0, false, alive(id(1))),
        Fetched::Committed(_)
    ));
    let again = NewOffset {
        topic_id: id(2),
        ..new("t", 1, 3)
    };
    book.commit(vec![again], &facts(9)).unwrap();
    write(&mut book);
    assert_eq!(committed(&book, "t", 0, false), None);
    assert_eq!(committed(&book, "t", 1, true), Some(3));
    assert_eq!(committed(&book, "t", 2, true), None);
}

#[test]
fn deleting_takes_staged_offsets_along() {
    let mut book = OffsetBook::default();
    book.commit(vec![new("t", 0, 5), new("u", 0, 5)], &facts(9))
        .unwrap();
    book.stage(&txn(7, 0, 1), vec![new("t", 0, 6), new("u", 0, 6)], &NOBODY)
        .unwrap();
    book.delete(&[("t".into(), 0), ("x".into(), 0)]).unwrap();
    book.purge(|topic, known| topic == "u" && known == Some(id(1)))
        .unwrap();
    book.decide(end(7, 0, 1, true), 20).unwrap();
    write(&mut book);
    assert_eq!(committed(&book, "t", 0, false), None);
    assert_eq!(committed(&book, "u", 0, false), None);
    assert!(book.durable().topic_ids().is_empty());
}

#[test]
fn a_deleted_group_begins_anew() {
    let mut book = OffsetBook::default();
    book.commit(vec![new("t", 0, 5)], &facts(9)).unwrap();
    book.delete_group().unwrap();
    write(&mut book);
    assert!(book.durable().is_deleted() && book.durable().has_no_offsets());
    book.commit(vec![new("t", 1, 6)], &facts(9)).unwrap();
    write(&mut book);
    assert!(!book.durable().is_deleted());
    assert_eq!(committed(&book, "t", 0, false), None);
    assert_eq!(committed(&book, "t", 1, false), Some(6));
}

#[test]
fn expiry_follows_the_group() {
    let mut book = OffsetBook::default();
    book.commit(vec![new("t", 0, 5)], &facts(1000)).unwrap();
    book.commit(vec![new("u", 0, 5)], &facts(2000)).unwrap();
    let keys = |book: &OffsetBook, now, group| -> Vec<String> {
        let keys = book.expired(now, 100, group).into_iter();
        keys.map(|(topic, _)| topic.to_string()).collect()
    };
    let simple = Retention::Simple;
    assert!(keys(&book, 1099, simple).is_empty());
    assert_eq!(keys(&book, 1100, simple), ["t"]);
    assert_eq!(keys(&book, 2100, simple), ["t", "u"]);
    assert!(keys(&book, 9000, Retention::EmptySince(8901)).is_empty());
    assert_eq!(keys(&book, 9000, Retention::EmptySince(8900)), ["t", "u"]);
    let subscribed: BTreeSet<Arc<str>> = ["t".into()].into();
    assert_eq!(
        keys(&book, 9000, Retention::Stable(Some(&subscribed))),
        ["u"]
    );
    assert!(keys(&book, 9000, Retention::Stable(None)).is_empty());
    assert!(keys(&book, 9000, Retention::Changing).is_empty());
    // Not while a transaction is open.
    book.stage(&txn(7, 0, 1), vec![new("t", 0, 6)], &NOBODY)
        .unwrap();
    assert_eq!(keys(&book, 9000, simple), ["u"]);
    book.decide(end(7, 0, 1, false), 9000).unwrap();
    // With the last offset of a group without members the group goes.
    assert!(book.expire(9000, 100, simple).unwrap().is_some());
    write(&mut book);
    // Of the group nothing is left but the decision.
    assert!(book.is_blank() && book.remembers());
    assert_eq!(book.expire(9000, 100, simple), Ok(None));
}

#[test]
fn what_the_client_asked_for_expires_then() {
    let mut book = OffsetBook::default();
    let asked = CommitFacts {
        retention_ms: Some(10),
        ..facts(1000)
    };
    book.commit(vec![new("t", 0, 5)], &asked).unwrap();
    assert!(book.expired(1009, 5, Retention::Simple).is_empty());
    assert_eq!(
        book.expired(1010, 5000, Retention::EmptySince(1009)).len(),
        1
    );
}

#[test]
fn members_are_remembered() {
    let members = Membership {
        protocol_type: Some("consumer".into()),
        empty_since_ms: None,
    };
    let mut book = OffsetBook::default();
    let committed = CommitFacts {
        membership: members.clone(),
        ..facts(9)
    };
    book.commit(vec![new("t", 0, 5)], &committed).unwrap();
    assert_eq!(book.note_membership(&members), None);
    let empty = Membership {
        empty_since_ms: Some(77),
        ..members
    };
    assert!(book.note_membership(&empty).is_some());
    assert_eq!(book.ahead().empty_since_ms(), Some(77));
    // A commit of somebody else, who knows of no members, forgets nothing.
    book.commit(vec![new("t", 0, 6)], &facts(80)).unwrap();
    assert_eq!(book.ahead().empty_since_ms(), Some(77));
    assert_eq!(book.ahead().protocol_type().map(|p| &**p), Some("consumer"));
}

#[test]
fn a_group_that_no_file_can_take_is_refused() {
    // Six bytes each in the file.
    let metadata: Arc<str> = "\u{1}".repeat((1 << 20) / 6).into();
    let long = |n: i32| NewOffset {
        metadata: metadata.clone(),
        ..new("t", n, 1)
    };
    let mut book = OffsetBook::default();
    for n in 0..63 {
        book.commit(vec![long(n)], &facts(9)).unwrap();
    }
    let before = book.ahead().clone();
    assert_eq!(
        book.commit(vec![long(63)], &facts(9)),
        Err(PrepareError::TooLarge)
    );
    assert_eq!(book.ahead(), &before);
    assert!(book.delete(&[("t".into(), 0)]).is_ok());
    assert!(book.commit(vec![long(63)], &facts(9)).is_ok());
}

#[test]
fn a_commit_copies_the_table_once_a_write() {
    let mut book = OffsetBook::default();
    let table = |book: &OffsetBook| std::ptr::from_ref(book.ahead());
    book.commit(vec![new("t", 0, 5)], &facts(9)).unwrap();
    let first = table(&book);
    for partition in 1..100 {
        book.commit(vec![new("t", partition, 5)], &facts(9))
            .unwrap();
        assert_eq!(table(&book), first, "copied for partition {partition}");
    }
    let image = book.image().unwrap();
    book.commit(vec![new("t", 0, 6)], &facts(9)).unwrap();
    let second = table(&book);
    assert_ne!(second, first, "what is being written stays as it is");
    assert_eq!(image.table.get("t", 0).unwrap().offset, 5);
    book.delete(&[("t".into(), 0)]).unwrap();
    book.purge(|_, _| true).unwrap();
    assert_eq!(table(&book), second);
    assert_eq!(book.ahead().bytes(), OffsetTable::default().bytes());
}

#[test]
fn a_group_with_members_is_there_without_offsets() {
    let members = Membership {
        protocol_type: Some("consumer".into()),
        empty_since_ms: None,
    };
    let mut book = OffsetBook::default();
    assert!(book.is_blank());
    assert!(book.begin(&members).is_some());
    assert!(book.begin(&members).is_none(), "prepared once");
    write(&mut book);
    assert!(!book.is_blank());
    assert!(book.begin(&members).is_none(), "written once");
    // It is gone with its members, at the next look.
    assert_eq!(book.expire(9, 1_000, Retention::Changing), Ok(None));
    assert_eq!(book.expire(9, 1_000, Retention::Stable(None)), Ok(None));
    let gone = book.expire(9, 1_000, Retention::EmptySince(9)).unwrap();
    assert!(gone.is_some());
    write(&mut book);
    assert!(book.is_blank() && book.durable().is_deleted());
    let empty = book.expire(9, 1_000, Retention::EmptySince(9));
    assert_eq!(empty, Ok(None), "deleted once");
    // A deleted group begins anew.
    assert!(book.begin(&members).is_some());
    write(&mut book);
    assert!(!book.durable().is_deleted() && !book.is_blank());
}

#[test]
fn what_was_staged_fits_when_it_is_committed() {
    let mut book = OffsetBook::default();
    let rest = NewOffset {
        // Six bytes each in the file.
        metadata: "\u{1}".repeat((BYTES_MAX - 8_192) / 6).into(),
        ..new("t", 0, 1)
    };
    book.commit(vec![rest], &facts(9)).unwrap();
    let (mut taken, mut refused) = (0, 0);
    for filling in (0..8_192).step_by(16) {
        let mut full = book.clone();
        let last = NewOffset {
            metadata: "x".repeat(filling).into(),
            ..new("a-topic-whose-name-is-a-key-in-six-maps", 0, 1)
        };
        match full.stage(&txn(7, 0, 1), vec![last], &NOBODY) {
            Ok(_) => taken += 1,
            Err(error) => {
                assert_eq!(error, StageError::Prepare(PrepareError::TooLarge));
                refused += 1;
            }
        }
        // With something staged, and with nothing.
        for commit in [true, false] {
            let decided = full.clone().decide(end(7, 0, 1, commit), 9);
            assert!(decided.is_ok(), "{filling} {commit}: {decided:?}");
        }
    }
    assert!(taken > 100 && refused > 10, "{taken} {refused}");
}

#[test]
fn a_decision_is_remembered_by_a_group_that_is_not_there() {
    let facts = facts(9);
    let mut deleted = OffsetBook::default();
    deleted.commit(vec![new("t", 0, 5)], &facts).unwrap();
    deleted.delete_group().unwrap();
    // One that was staged before the group went.
    let mut staged = OffsetBook::default();
    staged
        .stage(&txn(7, 0, 1), vec![new("t", 0, 5)], &NOBODY)
        .unwrap();
    staged.delete_group().unwrap();
    for mut book in [OffsetBook::default(), deleted, staged] {
        write(&mut book);
        assert!(book.is_blank() && !book.remembers());
        book.decide(end(7, 0, 1, false), 100).unwrap();
        write(&mut book);
        // There is still no group to be seen.
        assert!(book.is_blank() && book.remembers());
        let late = book.stage(&txn(7, 0, 1), vec![new("t", 0, 5)], &NOBODY);
        assert_eq!(late, Err(StageError::Decided));
        // Nor does it forget because it is deleted once more, or for the first time.
        book.commit(vec![new("t", 0, 6)], &facts).unwrap();
        book.delete_group().unwrap();
        write(&mut book);
        assert!(book.is_blank() && book.remembers());
        let late = book.stage(&txn(7, 0, 1), vec![new("t", 0, 5)], &NOBODY);
        assert_eq!(late, Err(StageError::Decided));
        assert!(book.forget_decisions(100).is_none());
        assert!(book.forget_decisions(101).is_some());
        write(&mut book);
        assert!(book.durable().is_deleted() && !book.remembers());
    }
}
