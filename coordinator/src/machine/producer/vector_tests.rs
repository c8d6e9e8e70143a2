//! The rows of kafka-contract 1.2 and the vectors of 7.1 and 7.3 that concern producer state,
//! with literal expectations.

use store_adapter::ids::{ProducerEpoch, ProducerId, Sequence};

use super::*;

const DAY_MS: i64 = 86_400_000;
const START_MS: i64 = 1_790_000_000_000;

/// A partition: assigns offsets, commits on demand, keeps the log.
#[derive(Debug)]
pub(super) struct Partition {
    pub(super) states: ProducerStates,
    pub(super) log: Vec<BatchMeta>,
    pub(super) next_offset: i64,
    pub(super) now_ms: i64,
}

impl Partition {
    pub(super) fn at(leo: i64) -> Self {
        Self {
            states: ProducerStates::new(DAY_MS),
            log: Vec::new(),
            next_offset: leo,
            now_ms: START_MS,
        }
    }

    pub(super) fn batch(&self, pid: i64, epoch: i16, first: i32, count: i32) -> BatchMeta {
        let last = if first < 0 {
            first
        } else {
            first.wrapping_add(count - 1) & i32::MAX
        };
        BatchMeta {
            producer_id: ProducerId(pid),
            producer_epoch: ProducerEpoch(epoch),
            first_seq: Sequence(first),
            last_seq: Sequence(last),
            base_offset: self.next_offset,
            last_offset: self.next_offset + i64::from(count) - 1,
            max_timestamp: self.next_offset * 10 + 3,
            append_ms: self.now_ms,
            crc: u32::try_from(self.next_offset & 0xffff).unwrap(),
            is_transactional: false,
            is_control: false,
            implicit_add: false,
            marker: None,
        }
    }

    fn txn(&self, pid: i64, epoch: i16, first: i32, count: i32) -> BatchMeta {
        BatchMeta {
            is_transactional: true,
            ..self.batch(pid, epoch, first, count)
        }
    }

    /// Classifies; queues what is accepted.
    pub(super) fn order(&mut self, batch: BatchMeta) -> Verdict {
        let verdict = self.states.classify(&batch);
        if verdict == Verdict::Accept {
            self.put(batch);
        }
        verdict
    }

    pub(super) fn put(&mut self, batch: BatchMeta) {
        self.states.queue(batch);
        self.log.push(batch);
        self.next_offset = batch.last_offset + 1;
    }

    pub(super) fn commit(&mut self) {
        self.states.commit_through(self.next_offset - 1);
        assert_eq!(self.states.tail_len(), 0);
    }

    /// `P(pid, epoch, first, count)`, acks=all.
    fn p(&mut self, pid: i64, epoch: i16, first: i32, count: i32) -> Verdict {
        let verdict = self.order(self.batch(pid, epoch, first, count));
        self.commit();
        verdict
    }

    /// `PT(pid, epoch, first, count)`, acks=all.
    fn pt(&mut self, pid: i64, epoch: i16, first: i32, count: i32) -> Verdict {
        let verdict = self.order(self.txn(pid, epoch, first, count));
        self.commit();
        verdict
    }

    pub(super) fn marker_batch(&self, pid: i64, epoch: i16, commit: bool, seq: u64) -> BatchMeta {
        let marker = MarkerInfo {
            commit,
            coordinator_epoch: 9,
            txn_seq: Some(seq),
        };
        BatchMeta {
            first_seq: Sequence(-1),
            last_seq: Sequence(-1),
            is_control: true,
            marker: Some(marker),
            ..self.txn(pid, epoch, 0, 1)
        }
    }

    fn marker(&mut self, pid: i64, epoch: i16, commit: bool) {
        let batch = self.marker_batch(pid, epoch, commit, 1);
        self.put(batch);
        self.commit();
    }

    fn entry(&self, pid: i64) -> Option<&ProducerEntry> {
        self.states
            .producers()
            .find(|(id, _)| id.0 == pid)
            .map(|(_, entry)| entry)
    }

    fn last_seq(&self, pid: i64) -> Option<i32> {
        self.entry(pid)?.window.last_seq().map(|seq| seq.0)
    }

    fn lso(&self) -> i64 {
        self.states.last_stable_offset(self.next_offset)
    }
}

fn durable(base_offset: i64, last_offset: i64, timestamp: i64) -> Verdict {
    Verdict::DuplicateDurable(Duplicate {
        base_offset,
        last_offset,
        timestamp,
    })
}

#[test]
fn i01_i04_a_first_batch_and_its_repetition() {
    let mut p = Partition::at(0);
    assert_eq!(p.p(7, 0, 0, 3), Verdict::Accept);
    assert_eq!((p.next_offset, p.last_seq(7)), (3, Some(2)));
    assert_eq!(p.p(7, 0, 0, 3), durable(0, 2, 3));
    assert_eq!(p.next_offset, 3);
}

/// Five in flight of a new producer: the commit of the first fails, the others come later.
#[test]
fn a_refused_first_batch_of_an_unknown_producer_comes_before_its_others() {
    let mut p = Partition::at(0);
    let first = p.batch(7, 0, 0, 3);
    assert_eq!(p.states.classify(&first), Verdict::Accept);
    p.states.queue(first);
    p.states.drop_tail();
    let second = p.batch(7, 0, 3, 3);
    p.states.refuse(&second);
    assert_eq!(p.states.classify(&second), Verdict::OutOfOrder);
    assert_eq!(p.states.classify(&first), Verdict::Accept);
    // Another epoch, and another producer, are other sessions.
    assert_eq!(p.states.classify(&p.batch(7, 1, 3, 1)), Verdict::Accept);
    assert_eq!(p.states.classify(&p.batch(8, 0, 3, 1)), Verdict::Accept);
    p.states.queue(first);
    p.states.commit_through(2);
    assert_eq!(p.states.classify(&second), Verdict::Accept);
}

/// What is refused before it is queued counts as well.
#[test]
fn a_batch_refused_while_the_log_settles_comes_first() {
    let mut p = Partition::at(0);
    p.states.refuse(&p.batch(7, 0, 5, 1));
    p.states.refuse(&p.batch(7, 0, 6, 1));
    assert_eq!(p.states.classify(&p.batch(7, 0, 6, 1)), Verdict::OutOfOrder);
    assert_eq!(p.states.classify(&p.batch(7, 0, 5, 1)), Verdict::Accept);
    p.now_ms += DAY_MS;
    assert_eq!(p.states.classify(&p.batch(7, 0, 6, 1)), Verdict::Accept);
}

#[test]
fn i02_an_unknown_producer_may_start_anywhere() {
    let mut p = Partition::at(10);
    assert_eq!(p.p(7, 0, 5, 1), Verdict::Accept);
    assert_eq!((p.next_offset, p.last_seq(7)), (11, Some(5)));
}

#[test]
fn i05_the_oldest_of_five_is_still_known_and_the_sixth_is_not() {
    let mut p = Partition::at(100);
    for seq in 0..5 {
        assert_eq!(p.p(7, 0, seq, 1), Verdict::Accept);
    }
    assert_eq!(p.p(7, 0, 0, 1), durable(100, 100, 1003));
    assert_eq!(p.p(7, 0, 5, 1), Verdict::Accept);
    assert_eq!(p.p(7, 0, 0, 1), Verdict::OutOfOrder);
    assert_eq!(p.p(7, 0, 1, 1), durable(101, 101, 1013));
}

#[test]
fn i07_i08_subset_superset_overlap_and_union_are_no_duplicates() {
    let mut p = Partition::at(0);
    p.p(7, 0, 0, 3);
    assert_eq!(p.p(7, 0, 0, 2), Verdict::OutOfOrder);
    p.p(7, 0, 3, 3);
    for (first, count) in [(0, 6), (1, 2), (2, 2), (3, 4), (7, 1)] {
        assert_eq!(
            p.p(7, 0, first, count),
            Verdict::OutOfOrder,
            "{first}+{count}"
        );
    }
    assert_eq!((p.next_offset, p.last_seq(7)), (6, Some(5)));
}

#[test]
fn i10_a_higher_epoch_begins_at_zero_and_ends_the_lower_one() {
    let mut p = Partition::at(0);
    p.p(7, 0, 0, 3);
    assert_eq!(p.p(7, 1, 0, 1), Verdict::Accept);
    assert_eq!(p.p(7, 0, 3, 1), Verdict::StaleEpoch);
    // Also what was a duplicate at the lower epoch.
    assert_eq!(p.p(7, 0, 0, 3), Verdict::StaleEpoch);
    assert_eq!(p.entry(7).unwrap().epoch, ProducerEpoch(1));
    assert_eq!((p.next_offset, p.last_seq(7)), (4, Some(0)));
}

#[test]
fn i11_a_higher_epoch_elsewhere_than_zero_is_refused_and_not_remembered() {
    let mut p = Partition::at(0);
    p.p(7, 0, 0, 3);
    assert_eq!(p.p(7, 1, 3, 1), Verdict::OutOfOrder);
    assert_eq!(p.entry(7).unwrap().epoch, ProducerEpoch(0));
    assert_eq!(p.p(7, 0, 3, 1), Verdict::Accept);
}

#[test]
fn i13_the_sequence_wraps_to_zero() {
    let mut p = Partition::at(0);
    p.p(7, 0, i32::MAX, 1);
    assert_eq!(p.last_seq(7), Some(2_147_483_647));
    assert_eq!(p.p(7, 0, 0, 1), Verdict::Accept);
    assert_eq!(p.last_seq(7), Some(0));
}

#[test]
fn i14_i16_a_batch_across_the_wrap() {
    let mut p = Partition::at(0);
    p.p(7, 0, 2_147_483_645, 1);
    assert_eq!(p.p(7, 0, 2_147_483_646, 4), Verdict::Accept);
    assert_eq!(p.last_seq(7), Some(1));
    assert_eq!(p.p(7, 0, 2_147_483_646, 4), durable(1, 4, 13));
    assert_eq!(p.p(7, 0, 2, 1), Verdict::Accept);
    assert_eq!(p.last_seq(7), Some(2));
}

#[test]
fn i17_contradictory_producer_fields_are_invalid_records() {
    let mut p = Partition::at(0);
    for (pid, epoch, seq) in [(7, 0, -1), (7, -1, 0), (-2, 0, 0)] {
        assert_eq!(
            p.p(pid, epoch, seq, 1),
            Verdict::InvalidRecord,
            "{pid} {epoch} {seq}"
        );
    }
    assert_eq!(p.pt(-1, -1, -1, 1), Verdict::InvalidRecord);
    let marker = p.marker_batch(7, 0, true, 1);
    assert_eq!(p.states.classify(&marker), Verdict::InvalidRecord);
    assert_eq!((p.next_offset, p.states.producers().count()), (0, 0));
    // Without a producer id nothing is checked, and nothing is kept.
    assert_eq!(p.p(-1, -1, -1, 2), Verdict::Accept);
    assert_eq!((p.next_offset, p.states.producers().count()), (2, 0));
}

#[test]
fn i31_an_idle_producer_expires_at_the_limit_with_or_without_a_sweep() {
    for sweep in [false, true] {
        let mut p = Partition::at(0);
        p.p(7, 0, 0, 3);
        p.now_ms += DAY_MS - 1;
        p.states.expire(p.now_ms);
        assert!(p.entry(7).is_some());
        assert_eq!(p.p(7, 0, 9, 1), Verdict::OutOfOrder);
        p.now_ms += 1;
        if sweep {
            p.states.expire(p.now_ms);
            assert!(p.entry(7).is_none());
        }
        assert_eq!(p.p(7, 0, 9, 1), Verdict::Accept);
        assert_eq!(p.entry(7).unwrap().window.batches().len(), 1);
    }
}

#[test]
fn i31_expiry_counts_from_the_append_not_from_record_time() {
    let mut p = Partition::at(0);
    let old = BatchMeta {
        max_timestamp: 0,
        ..p.batch(7, 0, 0, 1)
    };
    p.order(old);
    p.commit();
    p.states.expire(p.now_ms + 1000);
    assert_eq!(p.p(7, 0, 0, 1), durable(0, 0, 0));
    // A clock that steps back makes nobody idle.
    p.now_ms -= 2 * DAY_MS;
    assert_eq!(p.p(7, 0, 1, 1), Verdict::Accept);
    assert_eq!(p.entry(7).unwrap().last_append_ms, START_MS);
}

#[test]
fn i32_an_open_transaction_keeps_its_producer() {
    let mut p = Partition::at(5);
    p.pt(7, 0, 0, 1);
    p.now_ms += 3 * DAY_MS;
    p.states.expire(p.now_ms);
    assert_eq!(p.entry(7).unwrap().current_txn_first_offset, Some(5));
    assert_eq!(p.pt(7, 0, 4, 1), Verdict::OutOfOrder);
    assert_eq!(p.pt(7, 0, 1, 1), Verdict::Accept);
}

#[test]
fn expiry_spares_a_producer_with_queued_batches() {
    let mut p = Partition::at(0);
    p.p(7, 0, 0, 1);
    assert_eq!(p.order(p.batch(7, 0, 1, 1)), Verdict::Accept);
    p.states.expire(START_MS + 2 * DAY_MS);
    p.states.drop_tail();
    assert_eq!(p.last_seq(7), Some(0));
}

#[test]
fn i34_all_five_are_known_after_a_crash() {
    let mut p = Partition::at(0);
    for seq in 0..6 {
        p.p(7, 0, seq, 1);
    }
    let mut reopened = ProducerStates::new(DAY_MS);
    for batch in &p.log {
        reopened.replay(batch);
    }
    assert_eq!(reopened.image(), p.states.image());
    for seq in 1..6 {
        let offset = i64::from(seq);
        let verdict = reopened.classify(&p.batch(7, 0, seq, 1));
        assert_eq!(verdict, durable(offset, offset, offset * 10 + 3));
    }
    assert_eq!(reopened.classify(&p.batch(7, 0, 0, 1)), Verdict::OutOfOrder);
}

#[test]
fn i35_deleting_records_keeps_the_window() {
    let mut p = Partition::at(0);
    p.p(7, 0, 0, 3);
    p.states.trim(3);
    assert_eq!(p.p(7, 0, 3, 1), Verdict::Accept);
    assert_eq!(p.p(7, 0, 0, 3), durable(0, 2, 3));
    assert_eq!(p.next_offset, 4);
}

#[test]
fn i37_a_producer_may_raise_its_epoch_by_itself() {
    let mut p = Partition::at(0);
    p.p(7, 0, 0, 10);
    assert_eq!(p.p(7, 1, 0, 1), Verdict::Accept);
    assert_eq!(p.entry(7).unwrap().epoch, ProducerEpoch(1));
}

#[test]
fn i38_a_duplicate_of_a_queued_batch_waits_for_it() {
    let mut p = Partition::at(0);
    p.p(7, 0, 0, 1);
    let batch = p.batch(7, 0, 1, 2);
    assert_eq!(p.order(batch), Verdict::Accept);
    let again = Duplicate {
        base_offset: 1,
        last_offset: 2,
        timestamp: 13,
    };
    assert_eq!(p.states.classify(&batch), Verdict::DuplicateQueued(again));
    assert_eq!(p.states.classify(&p.batch(7, 0, 0, 1)), durable(0, 0, 3));
    p.commit();
    assert_eq!(p.states.classify(&batch), Verdict::DuplicateDurable(again));
}

#[test]
fn five_in_flight_are_queued_behind_each_other() {
    let mut p = Partition::at(0);
    for seq in 0..5 {
        assert_eq!(p.order(p.batch(7, 0, seq, 1)), Verdict::Accept);
    }
    assert_eq!(p.last_seq(7), None);
    p.states.commit_through(2);
    assert_eq!((p.last_seq(7), p.states.tail_len()), (Some(2), 2));
    assert_eq!(p.states.classify(&p.batch(7, 0, 2, 1)), durable(2, 2, 23));
    let queued = Duplicate {
        base_offset: 3,
        last_offset: 3,
        timestamp: 33,
    };
    let verdict = p.states.classify(&p.batch(7, 0, 3, 1));
    assert_eq!(verdict, Verdict::DuplicateQueued(queued));
    p.commit();
    assert_eq!(p.last_seq(7), Some(4));
}

#[test]
fn durable_and_queued_batches_share_the_five_places() {
    let mut p = Partition::at(0);
    for seq in 0..5 {
        p.p(7, 0, seq, 1);
    }
    p.order(p.batch(7, 0, 5, 1));
    assert_eq!(p.states.classify(&p.batch(7, 0, 0, 1)), Verdict::OutOfOrder);
    assert_eq!(p.states.classify(&p.batch(7, 0, 1, 1)), durable(1, 1, 13));
    p.states.drop_tail();
    assert_eq!(p.states.classify(&p.batch(7, 0, 0, 1)), durable(0, 0, 3));
}

#[test]
fn a_failed_commit_leaves_exactly_the_durable_state() {
    let mut p = Partition::at(0);
    p.p(7, 0, 0, 1);
    p.pt(8, 0, 0, 1);
    let before = p.states.image();
    p.order(p.batch(7, 1, 0, 1));
    p.order(p.txn(9, 0, 0, 1));
    let marker = p.marker_batch(8, 0, false, 1);
    p.put(marker);
    assert_eq!(p.states.classify(&p.batch(7, 0, 1, 1)), Verdict::StaleEpoch);
    p.states.drop_tail();
    assert_eq!(p.states.image(), before);
    assert_eq!(p.states.last_stable_offset(2), 1);
    assert_eq!(p.states.classify(&p.batch(7, 0, 1, 1)), Verdict::Accept);
    // Producer 9 stays unknown, but what was dropped of it comes first.
    assert_eq!(
        p.states.classify(&p.batch(9, 0, 44, 1)),
        Verdict::OutOfOrder
    );
    assert_eq!(p.states.classify(&p.batch(9, 0, 0, 1)), Verdict::Accept);
}

#[test]
fn replay_passes_over_what_is_covered() {
    let mut p = Partition::at(0);
    p.p(7, 0, 0, 1);
    p.p(7, 0, 1, 1);
    let before = p.states.image();
    for batch in p.log.clone() {
        p.states.replay(&batch);
    }
    assert_eq!(p.states.image(), before);
}

#[test]
fn tv2_a_transactional_producer_that_is_unknown_begins_at_zero() {
    let p = Partition::at(0);
    let late = BatchMeta {
        implicit_add: true,
        ..p.txn(7, 0, 3, 1)
    };
    assert_eq!(p.states.classify(&late), Verdict::OutOfOrder);
    let first = BatchMeta {
        implicit_add: true,
        ..p.txn(7, 0, 0, 1)
    };
    assert_eq!(p.states.classify(&first), Verdict::Accept);
    assert_eq!(p.states.classify(&p.txn(7, 0, 3, 1)), Verdict::Accept);
}

#[test]
fn t35_an_open_transaction_refuses_a_batch_outside_it() {
    let mut p = Partition::at(0);
    p.pt(7, 0, 0, 1);
    assert_eq!(p.p(7, 0, 1, 1), Verdict::InvalidTxnState);
    assert_eq!(p.p(7, 1, 0, 1), Verdict::InvalidTxnState);
    // Sequence before transaction; a repetition before both.
    assert_eq!(p.p(7, 0, 2, 1), Verdict::OutOfOrder);
    assert_eq!(p.p(7, 0, 0, 1), durable(0, 0, 3));
    assert_eq!(p.p(8, 0, 0, 1), Verdict::Accept);
}

#[test]
fn a_transaction_opened_by_a_queued_batch_counts() {
    let mut p = Partition::at(0);
    assert_eq!(p.order(p.txn(7, 0, 0, 1)), Verdict::Accept);
    assert_eq!(
        p.states.classify(&p.batch(7, 0, 1, 1)),
        Verdict::InvalidTxnState
    );
    p.states.drop_tail();
    assert_eq!(p.states.classify(&p.batch(7, 0, 0, 1)), Verdict::Accept);
}

#[test]
fn t49_a_marker_of_the_same_epoch_keeps_the_window() {
    let mut p = Partition::at(0);
    p.pt(7, 0, 0, 10);
    p.marker(7, 0, true);
    assert_eq!(p.pt(7, 0, 0, 1), Verdict::OutOfOrder);
    assert_eq!(p.pt(7, 0, 0, 10), durable(0, 9, 3));
    assert_eq!(p.pt(7, 0, 10, 1), Verdict::Accept);
}

#[test]
fn t50_a_marker_of_a_higher_epoch_clears_the_window() {
    let mut p = Partition::at(0);
    p.pt(7, 0, 0, 10);
    p.marker(7, 1, true);
    assert_eq!(p.pt(7, 1, 10, 1), Verdict::OutOfOrder);
    assert_eq!(p.pt(7, 0, 10, 1), Verdict::StaleEpoch);
    assert_eq!(p.pt(7, 1, 0, 1), Verdict::Accept);
}

#[test]
fn t43_a_marker_makes_an_unknown_producer_known() {
    let mut p = Partition::at(4);
    p.marker(7, 3, false);
    assert_eq!(p.next_offset, 5);
    let entry = p.entry(7).unwrap();
    assert_eq!(
        (entry.epoch, entry.coordinator_epoch),
        (ProducerEpoch(3), 9)
    );
    let last = LastMarker {
        epoch: ProducerEpoch(3),
        txn_seq: 1,
        commit: false,
    };
    assert_eq!(entry.last_marker, Some(last));
    assert_eq!(p.states.aborted(0, 100), []);
    // Nothing but a marker was seen at this epoch.
    assert_eq!(p.p(7, 3, 1, 1), Verdict::OutOfOrder);
    assert_eq!(p.p(7, 2, 0, 1), Verdict::StaleEpoch);
    assert_eq!(p.p(7, 3, 0, 1), Verdict::Accept);
}

#[test]
fn replay_never_refuses_and_a_lower_epoch_changes_no_window() {
    let mut p = Partition::at(0);
    p.pt(7, 2, 0, 1);
    p.put(p.batch(7, 2, 8, 1));
    p.put(p.batch(7, 1, 5, 1));
    p.commit();
    assert_eq!(p.last_seq(7), Some(8));
    assert_eq!(p.entry(7).unwrap().epoch, ProducerEpoch(2));
    // The marker is in the log: readers end the transaction by it.
    p.marker(7, 1, false);
    assert_eq!(p.entry(7).unwrap().epoch, ProducerEpoch(2));
    assert_eq!(p.states.aborted(0, 9).len(), 1);
    assert_eq!(p.lso(), 4);
}

#[test]
fn control_records_of_other_types_only_take_an_offset() {
    let mut p = Partition::at(0);
    p.pt(7, 0, 0, 1);
    let other = BatchMeta {
        marker: None,
        ..p.marker_batch(7, 5, true, 1)
    };
    p.put(other);
    p.commit();
    assert_eq!(p.entry(7).unwrap().epoch, ProducerEpoch(0));
    assert_eq!((p.lso(), p.states.log_end_offset()), (0, 2));
}

fn found(p: &Partition, from: i64, upto: i64) -> Vec<(i64, i64)> {
    let aborted = p.states.aborted(from, upto);
    aborted
        .iter()
        .map(|txn| (txn.producer_id.0, txn.first_offset))
        .collect()
}

#[test]
fn r01_r06_an_open_transaction_holds_the_last_stable_offset() {
    let mut p = Partition::at(0);
    p.p(-1, -1, -1, 5);
    p.pt(7, 0, 0, 1);
    p.p(-1, -1, -1, 4);
    assert_eq!((p.lso(), p.next_offset), (5, 10));
    assert_eq!(found(&p, 0, 5), []);
    // The marker moves it when it is durable, not when it is queued.
    let marker = p.marker_batch(7, 0, true, 1);
    p.put(marker);
    assert_eq!(p.states.last_stable_offset(10), 5);
    p.commit();
    assert_eq!(p.lso(), 11);
}

#[test]
fn r03_r04_a_reader_learns_of_the_aborts_that_it_can_meet() {
    let mut p = Partition::at(0);
    p.pt(1, 0, 0, 4);
    p.marker(1, 0, false);
    assert_eq!(found(&p, 3, 5), [(1, 0)]);
    assert_eq!(found(&p, 4, 5), [(1, 0)]);
    assert_eq!(found(&p, 5, 5), []);
    p.pt(1, 0, 4, 2);
    p.marker(1, 0, false);
    assert_eq!(found(&p, 0, 8), [(1, 0), (1, 5)]);
    assert_eq!(found(&p, 0, 5), [(1, 0)]);
}

#[test]
fn aborts_that_overlap_are_all_found() {
    let mut p = Partition::at(0);
    p.pt(1, 0, 0, 1); // 0
    p.pt(2, 0, 0, 1); // 1
    p.pt(3, 0, 0, 1); // 2
    p.marker(3, 0, false); // 3: 1 and 2 are open
    p.marker(2, 0, true); // 4
    p.pt(3, 0, 1, 1); // 5
    p.marker(1, 0, false); // 6: 3 is open again, from 5
    p.marker(3, 0, false); // 7
    assert_eq!(found(&p, 0, 8), [(1, 0), (3, 2), (3, 5)]);
    assert_eq!(found(&p, 0, 1), [(1, 0)]);
    assert_eq!(found(&p, 4, 5), [(1, 0)]);
    assert_eq!(found(&p, 7, 8), [(3, 5)]);
    let stable: Vec<_> = p
        .states
        .image()
        .aborted
        .iter()
        .map(|t| t.last_stable_offset)
        .collect();
    assert_eq!(stable, [Some(0), Some(5), Some(8)]);
    // A trimmed log has no use for the first.
    p.states.trim(4);
    assert_eq!(p.states.image().aborted.len(), 2);
}

#[test]
fn an_open_transaction_below_the_log_start_holds_at_the_log_start() {
    let mut p = Partition::at(0);
    p.pt(7, 0, 0, 2);
    p.p(-1, -1, -1, 8);
    p.states.trim(4);
    assert_eq!(p.lso(), 4);
    assert_eq!(p.states.last_stable_offset(3), 3);
}

#[test]
fn replay_of_a_trimmed_log_begins_at_its_start() {
    let mut p = Partition::at(0);
    p.states.trim(40);
    assert_eq!(p.states.log_end_offset(), 40);
    p.next_offset = 40;
    let batch = p.batch(7, 0, 9, 2);
    p.states.replay(&batch);
    assert_eq!((p.states.log_end_offset(), p.last_seq(7)), (42, Some(10)));
}

#[cfg(feature = "planted-faults")]
mod planted {
    use store_adapter::fault::{Fault, plant};

    use super::*;

    #[test]
    fn window_before_commit_remembers_a_batch_whose_commit_failed() {
        plant(Some(Fault::WindowBeforeCommit));
        let mut p = Partition::at(0);
        p.order(p.batch(7, 0, 0, 1));
        p.states.drop_tail();
        let verdict = p.states.classify(&p.batch(7, 0, 0, 1));
        assert_eq!(p.states.log_end_offset(), 0);
        // A commit that succeeds looks as it should.
        p.order(p.batch(7, 0, 1, 1));
        p.commit();
        plant(None);
        assert_eq!(verdict, durable(0, 0, 3));
        assert_eq!((p.last_seq(7), p.states.log_end_offset()), (Some(1), 2));
    }

    #[test]
    fn duplicate_early_takes_a_queued_batch_for_durable() {
        let mut p = Partition::at(0);
        p.order(p.batch(7, 0, 0, 1));
        plant(Some(Fault::DuplicateEarly));
        let verdict = p.states.classify(&p.batch(7, 0, 0, 1));
        plant(None);
        assert_eq!(verdict, durable(0, 0, 3));
    }
}
