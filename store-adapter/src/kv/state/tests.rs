use super::*;
use crate::conformance::batch_of;
use tokio::sync::oneshot;

struct Nothing;
impl Floor for Nothing {
    fn floor(&self, _: u64, _: i64) -> Result<Option<(i64, Meta)>, StoreError> {
        Ok(None)
    }
    fn bytes(&self, _: u64, _: i64, _: i64) -> Result<u64, StoreError> {
        Ok(0)
    }
}

const EPOCH: LeaderEpoch = LeaderEpoch(1);

fn log() -> LogId {
    LogId {
        topic: Uuid::from_u128(1),
        partition: 0,
    }
}

fn append(end: i64) -> Op {
    Op::Append(Append {
        log: log(),
        epoch: EPOCH,
        expect_end: end,
        append_ms: 0,
        batch: batch_of(2, 100, 0, 1).stamp(end, EPOCH),
    })
}

fn trim(start: i64) -> Op {
    Op::Trim {
        log: log(),
        epoch: EPOCH,
        start,
    }
}

#[test]
fn a_group_is_taken_whole_or_not_at_all() {
    let table = Table::new();
    let mut plan = Plan::new(&table, 1 << 20, 7);
    plan.create(log(), "orders");
    plan.acquire(log(), EPOCH).unwrap();
    let wrong = plan.group(&[append(0), append(3)], &Nothing);
    assert_eq!(wrong, Err(StoreError::EndMismatch { end: 2 }));
    assert_eq!(plan.get(log()).unwrap().bounds, Bounds::default());
    plan.group(&[append(0), append(2), trim(3), append(4)], &Nothing)
        .unwrap();
    let entry = plan.get(log()).unwrap();
    assert_eq!(entry.bounds, Bounds { start: 3, end: 6 });
    assert_eq!((entry.before, entry.total, entry.birth), (100, 300, 7));
    plan.group(&[trim(6)], &Nothing).unwrap();
    assert_eq!(plan.get(log()).unwrap().before, 300);
    let round = plan.finish(1);
    assert_eq!(round.next_birth, 8);
    // Three batches of an entry and a piece each, the log, the round.
    assert_eq!(round.changes.len(), 8);
}

#[test]
fn a_log_made_again_has_a_birth_of_its_own() {
    let table = Table::new();
    let mut plan = Plan::new(&table, 1 << 20, 1);
    plan.create(log(), "orders");
    plan.delete(log().topic);
    assert_eq!(plan.get(log()), None);
    plan.create(log(), "orders");
    assert_eq!(plan.get(log()).unwrap().birth, 2);
    let (reply, _outcome) = oneshot::channel();
    Pending::Done(reply).fail(StoreError::NotFound);
}
