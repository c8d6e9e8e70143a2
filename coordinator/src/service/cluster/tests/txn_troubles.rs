//! Transactional ids while something around them fails: fences, a write of unknown outcome, damage.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use store_adapter::ids::BrokerId;
use store_adapter::volume::memory::{StepFault, StepOutcome};
use uuid::Uuid;

use super::txns::{Outside, Running, ids, path, session, site, slot_of};
use super::world::{How, Interrupt, Site};
use crate::machine::txn::{AddClass, Added, Named, Session, TxnError, TxnState};
use crate::service::txns::{SlotState, Txns};
use crate::volume::layout::Place;

#[test]
fn a_decision_whose_fence_is_not_published_at_once_is_finished_soon() {
    let site = site(20);
    let outside = Arc::new(Outside::default());
    let [id, ..] = ids();
    let running = Running::start(&site, &outside, 1);
    let begun = running.init(&id).unwrap().unwrap();
    running.add(&id, begun).unwrap().unwrap();
    outside.failing_fences.store(3, Ordering::Relaxed);
    let told = running.init(&id).unwrap();
    assert_eq!(told, Err(TxnError::CoordinatorNotAvailable));
    // No pass comes by.
    site.world.pass(Duration::from_secs(2));
    assert_eq!(running.state(&id).0, TxnState::CompleteAbort);
    assert_eq!(outside.fences.lock()[&1_000], 1);
}

#[test]
fn a_session_costs_no_epoch_while_none_can_be_fenced() {
    let site = site(21);
    let outside = Arc::new(Outside::default());
    let [id, other, _] = ids();
    let running = Running::start(&site, &outside, 1);
    running.init(&id).unwrap().unwrap();
    outside.unready.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        let told = running.init(&id).unwrap();
        assert_eq!(told, Err(TxnError::CoordinatorNotAvailable));
    }
    assert_eq!(running.state(&id).1, session(1_000, 0));
    // Who is new fences nobody.
    assert_eq!(running.init(&other).unwrap(), Ok(session(1_001, 0)));
    outside.unready.store(false, Ordering::Relaxed);
    assert_eq!(running.init(&id).unwrap(), Ok(session(1_000, 1)));
}

#[test]
fn nothing_is_aborted_for_a_client_while_none_can_be_fenced() {
    let site = site(29);
    let outside = Arc::new(Outside::default());
    let [id, ..] = ids();
    let running = Running::start(&site, &outside, 1);
    let begun = running.init(&id).unwrap().unwrap();
    running.add(&id, begun).unwrap().unwrap();
    site.world.pass(Duration::from_secs(61));
    outside.unready.store(true, Ordering::Relaxed);
    let (txns, of) = (running.txns.clone(), id.clone());
    let tried = async move { (txns.reap(&of).await, txns.abort(&of, None, None).await) };
    let refused = TxnError::CoordinatorNotAvailable;
    let told = site.world.run(tried).unwrap();
    assert_eq!(told, (Err(refused), Err(refused)));
    assert_eq!(running.state(&id).0, TxnState::Ongoing);
    // Its client is alive.
    let ended = running.end(&id, begun, true).unwrap();
    assert_eq!(ended, Ok(Some(session(1_000, 1))));
    assert_eq!(running.state(&id).0, TxnState::CompleteCommit);
}

#[test]
fn why_a_decision_is_not_carried_out_is_known_until_it_is() {
    let site = site(30);
    let outside = Arc::new(Outside::default());
    let [id, ..] = ids();
    let running = Running::start(&site, &outside, 1);
    let begun = running.init(&id).unwrap().unwrap();
    running.add(&id, begun).unwrap().unwrap();
    assert_eq!(running.txns.why_stuck(&id), None);
    outside.no_markers.store(true, Ordering::Relaxed);
    running.end(&id, begun, true).unwrap().unwrap_err();
    let why = || running.txns.why_stuck(&id);
    assert_eq!(why().as_deref(), Some("no marker can be written"));
    // Another thing by now.
    outside.remote.store(true, Ordering::Relaxed);
    *outside.shut.lock() = Some(BrokerId(1));
    site.world.pass(Duration::from_secs(2));
    assert_eq!(why().as_deref(), Some("its queue takes nothing"));
    *outside.shut.lock() = None;
    site.world.pass(Duration::from_secs(2));
    assert_eq!(running.state(&id).0, TxnState::CompleteCommit);
    assert_eq!(why(), None);
}

/// A broker that has committed a transaction, which its slot's file does not say yet.
fn committed(site: &Site, outside: &Arc<Outside>, hook: &Arc<Interrupt>) -> (Running, Session) {
    let [id, ..] = ids();
    let running = Running::try_start(site, outside, 1, hook.clone()).unwrap();
    let begun = running.init(&id).unwrap().unwrap();
    assert_eq!(running.add(&id, begun), Some(Ok(Added::InTxn(1))));
    let ended = running.end(&id, begun, true).unwrap();
    (running, ended.unwrap().unwrap())
}

#[test]
fn who_finishes_transactions_is_told_of_a_slot_that_was_read_again() {
    let [id, _, shares] = ids();
    let counted = Interrupt::none();
    committed(&site(22), &Arc::default(), &counted);
    // The last step of the next write: create, write, sync and rename come before it.
    let fails = How::Once(StepOutcome::Fail(StepFault::Io));
    let hook = Interrupt::new(counted.steps() + 4, fails);
    let site = site(22);
    let outside = Arc::new(Outside::default());
    let (running, next) = committed(&site, &outside, &hook);
    let told = running.init(&shares).unwrap();
    assert_eq!(told, Err(TxnError::CoordinatorNotAvailable));
    let txns = running.txns.clone();
    assert_eq!(site.world.run(async move { txns.reread().await }), Some(()));
    // Whatever the file has of the transaction, a pass finishes it.
    let txns = running.txns.clone();
    let passed = async move {
        for id in txns.unfinished() {
            assert_eq!(txns.reconcile(&id).await, Ok(true));
        }
    };
    assert_eq!(site.world.run(passed), Some(()));
    assert_eq!(running.add(&id, next), Some(Ok(Added::InTxn(2))));
}

#[test]
fn what_a_slot_is_repaired_from_is_kept_and_damage_is_looked_at_less_and_less() {
    let site = site(23);
    let outside = Arc::new(Outside::default());
    let [bad, ..] = ids();
    let first = Running::start(&site, &outside, 1);
    first.init(&bad).unwrap().unwrap();
    site.world.kill(1);
    let second = Running::start(&site, &outside, 2);
    let previous = Place::TxnSlotPrevious(slot_of(&bad)).path().to_string();
    let kept = site.files()[&previous].clone();
    assert!(String::from_utf8_lossy(&kept).contains("tx-commit"));
    drop(second);
    site.world.kill(2);
    site.put(&path(&bad), br#"{"tx-abort":{"pid":7,"epoch":4}}"#);
    let hook = Interrupt::none();
    let third = Running::try_start(&site, &outside, 3, hook.clone()).unwrap();
    let refused = third.init(&bad).unwrap();
    assert_eq!(refused, Err(TxnError::CoordinatorNotAvailable));
    let steps_in = |wait: Duration| {
        let before = hook.steps();
        site.world.pass(wait);
        hook.steps() - before
    };
    let early = steps_in(Duration::from_secs(8));
    steps_in(Duration::from_mins(1));
    let late = steps_in(Duration::from_secs(8));
    assert!(late > 0 && 2 * late < early, "{late} steps after {early}");
    assert_eq!(site.files()[&previous], kept);
    let gaps = third.txns.visit(&mut |_, _| {});
    let damaged = gaps.iter().find(|gap| gap.state == SlotState::Damaged);
    assert_eq!(damaged.map(|gap| gap.slot), Some(slot_of(&bad)));
    // A list of everybody is made without it; one from which somebody concludes is not.
    let list = |whole: bool| {
        let txns = third.txns.clone();
        let listed = async move { txns.list(whole, |id, _| Some(id.to_string())).await };
        site.world.run(listed).unwrap()
    };
    assert_eq!(list(false), Ok(Vec::new()));
    assert_eq!(list(true), Err(TxnError::CoordinatorNotAvailable));
}

#[test]
fn what_can_not_be_carried_out_in_one_place_holds_no_other_up() {
    let site = site(24);
    let outside = Arc::new(Outside::default());
    let [id, ..] = ids();
    let running = Running::start(&site, &outside, 1);
    let begun = running.init(&id).unwrap().unwrap();
    running.add_all(&id, begun, &[0, 1, 2]).unwrap().unwrap();
    let (first, second) = (BrokerId(1), BrokerId(2));
    *outside.led.lock() = [(0, first), (1, second)].into();
    // Partition 2 is here.
    outside.no_markers.store(true, Ordering::Relaxed);
    *outside.shut.lock() = Some(first);
    let told = running.end(&id, begun, true).unwrap();
    assert_eq!(told, Err(TxnError::CoordinatorNotAvailable));
    let queued = || -> Vec<BrokerId> {
        let mut to: Vec<_> = outside.queued.lock().iter().map(|(to, _)| *to).collect();
        // Asked for with every try, and written once: see the tests of queues.
        to.dedup();
        to
    };
    assert_eq!(queued(), [second]);
    assert_eq!(running.state(&id).0, TxnState::PrepareCommit);
    // Complete only when all of it is done.
    outside.no_markers.store(false, Ordering::Relaxed);
    site.world.pass(Duration::from_secs(2));
    assert_eq!(running.state(&id).0, TxnState::PrepareCommit);
    *outside.shut.lock() = None;
    site.world.pass(Duration::from_secs(2));
    assert_eq!(running.state(&id).0, TxnState::CompleteCommit);
}

fn named(topic: u128, partition: i32) -> Named {
    Named {
        topic: "a".into(),
        topic_id: Some(Uuid::from_u128(topic)),
        partition,
    }
}

#[test]
fn partitions_of_a_topic_that_is_gone_do_not_replace_those_of_the_new_one() {
    let site = site(25);
    let outside = Arc::new(Outside::default());
    let [id, ..] = ids();
    let running = Running::start(&site, &outside, 1);
    let begun = running.init(&id).unwrap().unwrap();
    let add = |named: Named| {
        let (txns, id) = (running.txns.clone(), id.clone());
        let added = async move {
            let class = AddClass::Implicit;
            txns.add_partitions(&id, begun, &[named], class, None).await
        };
        site.world.run(added).unwrap()
    };
    assert_eq!(add(named(7, 0)), Ok(Added::InTxn(1)));
    *outside.gone.lock() = Some(Uuid::from_u128(7));
    assert_eq!(add(named(8, 0)), Ok(Added::InTxn(1)));
    // It was sent before the topic went.
    let missing = [("a".into(), [1].into())].into();
    assert_eq!(add(named(7, 1)), Ok(Added::Missing(missing)));
    let entry = running.txns.describe(&id).unwrap().unwrap();
    assert_eq!(entry.topic_ids["a"], Uuid::from_u128(8));
    assert_eq!(entry.partitions["a"], [0].into());
}

/// A transaction with partition 0 and the group `g`. The next write of its slot hangs until the
/// hook lets it go.
fn open_and_hung(seed: u64) -> (Site, Running, Session, Arc<Interrupt>) {
    let open = |hook: Arc<Interrupt>| {
        let site = site(seed);
        let [id, ..] = ids();
        let running = Running::try_start(&site, &Arc::default(), 1, hook).unwrap();
        let begun = running.init(&id).unwrap().unwrap();
        running.add(&id, begun).unwrap().unwrap();
        (site, running, begun)
    };
    let counted = Interrupt::none();
    open(counted.clone());
    let hook = Interrupt::new(counted.steps(), How::Hold);
    let (site, running, begun) = open(hook.clone());
    (site, running, begun, hook)
}

/// Whether a partition is in the open transaction.
fn verified(site: &Site, txns: &Txns, begun: Session, partition: i32) -> Result<bool, TxnError> {
    let ([id, ..], txns) = (ids(), txns.clone());
    let asked = [named(7, partition)];
    let verified = async move { txns.verify_partitions(&id, begun, &asked).await };
    let verified = site.world.run(verified).unwrap();
    verified.map(|verified| verified.missing.is_empty())
}

#[test]
fn a_partition_that_is_in_the_transaction_is_verified_beside_a_write() {
    let (site, running, begun, hook) = open_and_hung(26);
    let [id, ..] = ids();
    // It hangs in the write of the slot.
    assert_eq!(running.add_all(&id, begun, &[1]), None);
    let verify = |partition| verified(&site, &running.txns, begun, partition);
    assert_eq!(verify(0), Ok(true));
    let (txns, of) = (running.txns.clone(), id.clone());
    let group = async move { txns.verify_group(&of, begun, "g").await };
    assert_eq!(site.world.run(group).unwrap(), Ok(Some(1)));
    // Of what may come in nothing is said before it is known.
    assert_eq!(verify(1), Err(TxnError::ConcurrentTransactions));
    hook.release();
    assert_eq!(verify(1), Ok(true));
}

/// The partition decides: a marker that overtakes the batch voids the guard, and one behind the
/// batch ends it with the rest.
#[test]
fn beside_the_write_of_its_end_a_transaction_is_verified_and_takes_no_more() {
    let (site, running, begun, hook) = open_and_hung(28);
    let [id, ..] = ids();
    assert_eq!(running.end(&id, begun, true), None);
    let verify = |partition| verified(&site, &running.txns, begun, partition);
    assert_eq!(verify(0), Ok(true));
    assert_eq!(verify(1), Err(TxnError::ConcurrentTransactions));
    let add = |class| {
        let (txns, id, named) = (running.txns.clone(), id.clone(), [named(7, 1)]);
        let added = async move { txns.add_partitions(&id, begun, &named, class, None).await };
        site.world.run(added).unwrap()
    };
    for class in [AddClass::Implicit, AddClass::Client(3)] {
        assert_eq!(add(class), Err(TxnError::ConcurrentTransactions));
    }
    hook.release();
    site.world.pass(Duration::from_secs(2));
    assert_eq!(
        running.state(&id),
        (TxnState::CompleteCommit, session(1_000, 1), 1)
    );
    // The session has the next epoch now.
    assert_eq!(verify(0), Err(TxnError::InvalidProducerEpoch));
    assert_eq!(add(AddClass::Implicit), Err(TxnError::InvalidProducerEpoch));
    assert_eq!(add(AddClass::Client(3)), Err(TxnError::ProducerFenced));
}

#[test]
fn what_is_complete_is_written_when_a_broker_stops() {
    let site = site(27);
    let outside = Arc::new(Outside::default());
    let (first, _) = committed(&site, &outside, &Interrupt::none());
    let [id, ..] = ids();
    let txns = first.txns.clone();
    let flushed = async move { txns.flushed(Duration::from_secs(30)).await };
    site.world.run(flushed).unwrap();
    site.world.kill(1);
    let second = Running::start(&site, &outside, 2);
    assert_eq!(second.state(&id).0, TxnState::CompleteCommit);
}
