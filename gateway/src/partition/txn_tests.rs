//! Transactions on one partition: markers, guards, fences.

use std::sync::Arc;
use std::time::Duration;

use coordinator::machine::txn::Fence;
use store_adapter::batch::{Batch, BatchHeader};
use store_adapter::control::EndTxnMarker;
use store_adapter::ids::{ProducerEpoch, ProducerId};
use store_adapter::runtime::{BoxFuture, Clock, Env};
use store_adapter::store::Passed;

use super::testing::{created, header, lead, lead_fenced, lead_on};
use super::*;
use crate::admitted::Admitted;

fn txn_batch(pid: i64, epoch: i16, sequence: i32) -> Batch {
    Batch::assemble(
        header(0x10, (pid, epoch, sequence)),
        &[12, 0, 0, 0, 1, 0, 0],
    )
}

fn batch(pid: i64, epoch: i16, sequence: i32) -> Batch {
    Batch::assemble(header(0, (pid, epoch, sequence)), &[12, 0, 0, 0, 1, 0, 0])
}

fn put(led: &Arc<Partition>, batch: &Batch) -> Ticket {
    led.append_opening(batch, Opening::Unverified, Admitted::default())
}

async fn base(ticket: Ticket) -> Result<i64, AppendError> {
    ticket.outcome().await.map(|appended| appended.base_offset)
}

fn marker(pid: i64, epoch: i16, commit: bool, txn_seq: u64) -> Marker {
    Marker {
        producer_id: ProducerId(pid),
        producer_epoch: ProducerEpoch(epoch),
        commit,
        coordinator_epoch: 9,
        txn_seq: Some(txn_seq),
    }
}

/// High watermark and last stable offset.
fn ends(led: &Partition) -> (i64, i64) {
    let visible = led.visible();
    (visible.high_watermark, visible.last_stable)
}

async fn aborted(led: &Partition) -> Vec<(i64, i64)> {
    let read = led.read(0, 1 << 20, Isolation::ReadCommitted).await;
    read.unwrap().aborted.unwrap()
}

#[tokio::test]
async fn a_marker_ends_the_transaction_and_is_what_clients_read() {
    let store = created().await;
    let led = lead(&store, 1).await;
    assert_eq!(base(put(&led, &txn_batch(7, 0, 0))).await, Ok(0));
    assert_eq!(
        base(led.append(&batch(-1, -1, -1), Admitted::default())).await,
        Ok(1)
    );
    assert_eq!(ends(&led), (2, 0));
    let before_ms = led.deps.env.clock.wall_ms();
    assert_eq!(base(led.append_marker(marker(7, 0, false, 1))).await, Ok(2));
    assert_eq!(ends(&led), (3, 3));
    assert_eq!(aborted(&led).await, [(7, 0)]);
    let read = led
        .read(2, 1 << 20, Isolation::ReadCommitted)
        .await
        .unwrap();
    let [Passed::Read(stored)] = &read.batches[..] else {
        panic!("{read:?}");
    };
    let control = EndTxnMarker::read(&stored.bytes).unwrap();
    let expected = EndTxnMarker {
        commit: false,
        coordinator_epoch: 9,
        txn_seq: Some(1),
    };
    assert_eq!(control, expected);
    let header = BatchHeader::read(&stored.bytes).unwrap();
    assert!(header.base_timestamp >= before_ms && header.leader_epoch == 1);
    assert_eq!((header.attributes, header.base_sequence.0), (0x30, -1));
}

#[tokio::test]
async fn a_marker_is_written_once_and_stands_behind_the_batch_that_it_ends() {
    let store = created().await;
    let led = lead(&store, 1).await;
    // Nothing is awaited: all of it is queued.
    let opened = put(&led, &txn_batch(7, 0, 0));
    let first = led.append_marker(marker(7, 0, true, 1));
    let again = led.append_marker(marker(7, 0, true, 1));
    let next = put(&led, &txn_batch(7, 0, 1));
    assert!(matches!(again, Ticket::Queued(_)), "{again:?}");
    assert_eq!(base(opened).await, Ok(0));
    assert_eq!(base(first).await, Ok(1));
    assert_eq!(base(again).await, Ok(-1));
    assert_eq!(base(next).await, Ok(2));
    assert_eq!(ends(&led), (3, 2));
    // Durable now; one of an earlier transaction comes too late to end this one.
    for late in [marker(7, 0, true, 1), marker(7, 0, false, 0)] {
        assert_eq!(base(led.append_marker(late)).await, Ok(-1));
    }
    assert_eq!(ends(&led), (3, 2));
    // The log alone says so too.
    let replayed = lead(&store, 2).await;
    assert_eq!(ends(&replayed), (3, 2));
    assert_eq!(
        base(replayed.append_marker(marker(7, 0, true, 1))).await,
        Ok(-1)
    );
    assert_eq!(
        base(replayed.append_marker(marker(7, 0, false, 2))).await,
        Ok(3)
    );
    assert_eq!(ends(&replayed), (4, 4));
    assert_eq!(aborted(&replayed).await, [(7, 2)]);
}

#[tokio::test]
async fn markers_are_judged_by_epoch_then_by_coordinator() {
    let store = created().await;
    let led = lead(&store, 1).await;
    let admin = |epoch, coordinator_epoch| Marker {
        producer_id: ProducerId(7),
        producer_epoch: ProducerEpoch(epoch),
        commit: false,
        coordinator_epoch,
        txn_seq: None,
    };
    // T43: it makes an unknown producer known.
    assert_eq!(base(led.append_marker(admin(3, 9))).await, Ok(0));
    assert_eq!(
        led.snapshot().image.entries[&ProducerId(7)].epoch,
        ProducerEpoch(3)
    );
    // T40.
    let fenced = base(led.append_marker(admin(3, 8))).await;
    assert_eq!(fenced, Err(AppendError::CoordinatorFenced));
    let stale = base(led.append_marker(admin(2, 9))).await;
    assert_eq!(stale, Err(AppendError::StaleEpoch));
    // One without a number is written every time.
    assert_eq!(base(led.append_marker(admin(3, 9))).await, Ok(1));
    // A coordinator whose transaction has nothing here that is still open is done.
    assert_eq!(base(led.append_marker(marker(7, 2, true, 1))).await, Ok(-1));
    put(&led, &txn_batch(7, 3, 0)).outcome().await.unwrap();
    let stale = base(led.append_marker(marker(7, 2, true, 1))).await;
    assert_eq!(stale, Err(AppendError::StaleEpoch));
    assert_eq!(ends(&led), (3, 2));
    // T32: a marker raises the epoch.
    assert_eq!(base(led.append_marker(marker(7, 4, false, 1))).await, Ok(3));
    let old = base(put(&led, &txn_batch(7, 3, 1))).await;
    assert_eq!(old, Err(AppendError::StaleEpoch));
    assert_eq!(ends(&led), (4, 4));
}

#[tokio::test]
async fn what_an_administrator_put_in_for_a_coordinator_stops_no_coordinator() {
    let store = created().await;
    let led = lead(&store, 1).await;
    let admin = Marker {
        coordinator_epoch: 99,
        txn_seq: None,
        ..marker(7, 0, false, 0)
    };
    assert_eq!(base(led.append_marker(admin)).await, Ok(0));
    assert_eq!(base(put(&led, &txn_batch(7, 0, 0))).await, Ok(1));
    assert_eq!(ends(&led), (2, 1));
    assert_eq!(base(led.append_marker(marker(7, 0, true, 1))).await, Ok(2));
    assert_eq!(ends(&led), (3, 3));
}

#[tokio::test]
async fn numbers_that_are_counted_again_under_a_higher_epoch_end_what_is_open() {
    let store = created().await;
    let led = lead(&store, 1).await;
    assert_eq!(base(put(&led, &txn_batch(7, 0, 0))).await, Ok(0));
    assert_eq!(base(led.append_marker(marker(7, 0, true, 50))).await, Ok(1));
    // The slot is restored as it was at number 3; the next session has the next epoch.
    assert_eq!(base(put(&led, &txn_batch(7, 1, 0))).await, Ok(2));
    assert_eq!(ends(&led), (3, 2));
    assert_eq!(base(led.append_marker(marker(7, 1, false, 4))).await, Ok(3));
    assert_eq!(ends(&led), (4, 4));
    // From here on these numbers count: one that is repeated ends nothing.
    for led in [led, lead(&store, 2).await] {
        let again = led.append_marker(marker(7, 1, false, 4));
        assert_eq!(base(again).await, Ok(-1));
    }
    let led = lead(&store, 3).await;
    assert_eq!(base(put(&led, &txn_batch(7, 1, 1))).await, Ok(4));
    for late in [marker(7, 1, false, 4), marker(7, 0, true, 50)] {
        let outcome = base(led.append_marker(late)).await;
        assert!(outcome != Ok(5), "{outcome:?}");
    }
    assert_eq!(ends(&led), (5, 4));
    assert_eq!(base(led.append_marker(marker(7, 1, true, 5))).await, Ok(5));
    assert_eq!(ends(&led), (6, 6));
}

#[tokio::test]
async fn the_word_of_a_coordinator_is_void_for_a_transaction_that_has_its_marker() {
    let store = created().await;
    let led = lead(&store, 1).await;
    assert_eq!(base(put(&led, &txn_batch(7, 0, 0))).await, Ok(0));
    led.append_marker(marker(7, 0, false, 3))
        .outcome()
        .await
        .unwrap();
    // Asked behind the marker, of a coordinator that was taken over before it.
    let next = txn_batch(7, 0, 1);
    let mut guard = led.guard(next.header(), false).unwrap();
    let with = |guard: &Guard| {
        base(led.append_opening(&next, Opening::Verified(guard), Admitted::default()))
    };
    for ended in [2, 3] {
        guard.approved_for(ended);
        assert_eq!(with(&guard).await, Err(AppendError::InvalidTxnState));
    }
    guard.approved_for(4);
    assert_eq!(with(&guard).await, Ok(2));
    drop(guard);
    // A higher epoch has numbers of its own.
    led.append_marker(marker(7, 0, true, 4))
        .outcome()
        .await
        .unwrap();
    let first = txn_batch(7, 1, 0);
    let mut guard = led.guard(first.header(), false).unwrap();
    guard.approved_for(1);
    let ticket = led.append_opening(&first, Opening::Verified(&guard), Admitted::default());
    assert_eq!(base(ticket).await, Ok(4));
}

#[tokio::test]
async fn t38_a_guard_is_void_when_a_marker_of_its_producer_came_between() {
    let store = created().await;
    let led = lead(&store, 1).await;
    let first = txn_batch(7, 0, 0);
    let try_with =
        |guard: &Guard| led.append_opening(&first, Opening::Verified(guard), Admitted::default());
    let guard = led.guard(first.header(), false).unwrap();
    // That of another producer is no matter.
    led.append_marker(marker(8, 0, true, 1))
        .outcome()
        .await
        .unwrap();
    led.append_marker(marker(7, 0, false, 1))
        .outcome()
        .await
        .unwrap();
    assert_eq!(
        base(try_with(&guard)).await,
        Err(AppendError::InvalidTxnState)
    );
    drop(guard);
    let guard = led.guard(first.header(), false).unwrap();
    led.append_marker(marker(8, 0, true, 2))
        .outcome()
        .await
        .unwrap();
    assert_eq!(base(try_with(&guard)).await, Ok(3));
    // It goes on without asking, and so does its repetition.
    assert!(led.guard(first.header(), false).is_none());
    assert!(led.guard(txn_batch(7, 0, 1).header(), false).is_none());
    led.append_marker(marker(7, 0, true, 2))
        .outcome()
        .await
        .unwrap();
    assert!(led.guard(first.header(), false).is_none());
    assert!(led.guard(txn_batch(7, 0, 1).header(), false).is_some());
    assert!(led.guard(batch(7, 0, 1).header(), false).is_none());
    // Behind the epoch, before the sequence.
    drop(guard);
    let guard = led.guard(txn_batch(7, 1, 5).header(), false).unwrap();
    led.append_marker(marker(7, 1, true, 3))
        .outcome()
        .await
        .unwrap();
    let late = txn_batch(7, 1, 5);
    let late = led.append_opening(&late, Opening::Verified(&guard), Admitted::default());
    assert_eq!(base(late).await, Err(AppendError::InvalidTxnState));
    drop(guard);
    assert!(led.state.lock().guards.is_empty());
}

#[tokio::test]
async fn where_epochs_grow_the_marker_of_the_transaction_before_voids_no_guard() {
    let store = created().await;
    let led = lead(&store, 1).await;
    let first = txn_batch(7, 2, 0);
    let guard = led.guard(first.header(), true).unwrap();
    led.append_marker(marker(7, 2, true, 1))
        .outcome()
        .await
        .unwrap();
    let ticket = led.append_opening(&first, Opening::Verified(&guard), Admitted::default());
    assert_eq!(base(ticket).await, Ok(1));
    // One that was added by its batch begins at 0, known or not.
    let later = txn_batch(8, 0, 3);
    let guard = led.guard(later.header(), true).unwrap();
    let ticket = led.append_opening(&later, Opening::Verified(&guard), Admitted::default());
    assert_eq!(base(ticket).await, Err(AppendError::OutOfOrderSequence));
    let guard = led.guard(later.header(), false).unwrap();
    let ticket = led.append_opening(&later, Opening::Verified(&guard), Admitted::default());
    assert_eq!(base(ticket).await, Ok(2));
}

#[tokio::test]
async fn what_nobody_verified_comes_again_and_first() {
    let store = created().await;
    let led = lead(&store, 1).await;
    let unasked = |batch: &Batch| led.append(batch, Admitted::default());
    let first = base(unasked(&txn_batch(7, 0, 0))).await;
    assert_eq!(first, Err(AppendError::Unverified));
    // What was in flight behind it does not take its place.
    assert_eq!(
        base(put(&led, &txn_batch(7, 0, 1))).await,
        Err(AppendError::OutOfOrderSequence)
    );
    assert_eq!(base(put(&led, &txn_batch(7, 0, 0))).await, Ok(0));
    assert_eq!(base(unasked(&txn_batch(7, 0, 1))).await, Ok(1));
}

#[tokio::test]
async fn a_fence_refuses_data_and_never_a_marker() {
    let store = created().await;
    let fences = Arc::<FenceTable>::default();
    let led = lead_fenced(&store, 1, fences.clone()).await;
    assert_eq!(base(put(&led, &txn_batch(7, 1, 0))).await, Ok(0));
    fences.raise([Fence {
        pid: ProducerId(7),
        epoch: ProducerEpoch(3),
    }]);
    for refused in [txn_batch(7, 1, 1), txn_batch(7, 1, 0), batch(7, 2, 0)] {
        assert_eq!(
            base(put(&led, &refused)).await,
            Err(AppendError::StaleEpoch)
        );
    }
    assert_eq!(base(put(&led, &txn_batch(8, 0, 0))).await, Ok(1));
    assert_eq!(
        led.snapshot().image.entries[&ProducerId(7)].epoch,
        ProducerEpoch(1)
    );
    // The transaction that is open is ended under its own epoch.
    assert_eq!(base(led.append_marker(marker(7, 1, false, 1))).await, Ok(2));
    assert_eq!(base(put(&led, &txn_batch(7, 3, 0))).await, Ok(3));
    assert_eq!(ends(&led), (4, 1));
}

/// A clock that says when somebody asks it for the time of day.
#[derive(Debug)]
struct Telling {
    inner: Arc<dyn Clock>,
    asked: std::sync::mpsc::SyncSender<()>,
}

impl Clock for Telling {
    fn wall_ms(&self) -> i64 {
        self.asked.try_send(()).unwrap_or_default();
        self.inner.wall_ms()
    }

    fn monotonic(&self) -> Duration {
        self.inner.monotonic()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.inner.sleep(duration)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(
    clippy::disallowed_methods,
    reason = "a thread that waits for a lock is what is tested"
)]
async fn a_fence_that_is_published_before_a_batch_is_ordered_refuses_it() {
    let store = created().await;
    let (asked, is_asked) = std::sync::mpsc::sync_channel(1);
    let mut env = Env::real();
    env.clock = Arc::new(Telling {
        inner: env.clock,
        asked,
    });
    let fences = Arc::<FenceTable>::default();
    let led = lead_on(store.clone(), env, 1, fences.clone()).await;
    while is_asked.try_recv().is_ok() {}
    let held = led.state.lock();
    let appending = std::thread::spawn({
        let (led, runtime) = (led.clone(), tokio::runtime::Handle::current());
        move || {
            let _inside = runtime.enter();
            put(&led, &txn_batch(7, 0, 0))
        }
    });
    // It has begun, and comes to wait for the partition while this thread gives way.
    is_asked.recv().unwrap();
    for _ in 0..1000 {
        std::thread::yield_now();
    }
    fences.raise([Fence {
        pid: ProducerId(7),
        epoch: ProducerEpoch(1),
    }]);
    drop(held);
    let ticket = appending.join().unwrap();
    assert_eq!(base(ticket).await, Err(AppendError::StaleEpoch));
}

#[tokio::test]
async fn a_long_poll_is_woken_by_a_marker() {
    let store = created().await;
    let led = lead(&store, 1).await;
    put(&led, &txn_batch(7, 0, 0)).outcome().await.unwrap();
    let mut watch = led.watch();
    watch.mark_unchanged();
    let ticket = led.append_marker(marker(7, 0, true, 1));
    watch.changed().await.unwrap();
    assert_eq!(watch.borrow().last_stable, 2);
    ticket.outcome().await.unwrap();
}

#[tokio::test]
async fn aborted_transactions_are_listed_for_every_reader_that_can_meet_them() {
    let store = created().await;
    let led = lead(&store, 1).await;
    // 1 at 0, 2 at 1, 3 at 2; 3 aborts at 3, 2 commits at 4, 3 again at 5, 1 and 3 abort at 6, 7.
    for pid in [1, 2, 3] {
        put(&led, &txn_batch(pid, 0, 0)).outcome().await.unwrap();
    }
    led.append_marker(marker(3, 0, false, 1))
        .outcome()
        .await
        .unwrap();
    led.append_marker(marker(2, 0, true, 1))
        .outcome()
        .await
        .unwrap();
    put(&led, &txn_batch(3, 0, 1)).outcome().await.unwrap();
    assert_eq!(ends(&led), (6, 0));
    led.append_marker(marker(1, 0, false, 1))
        .outcome()
        .await
        .unwrap();
    assert_eq!(ends(&led), (7, 5));
    led.append_marker(marker(3, 0, false, 2))
        .outcome()
        .await
        .unwrap();
    assert_eq!(ends(&led), (8, 8));
    for led in [led, lead(&store, 2).await] {
        let from = async |from: i64| {
            let read = led.read(from, 1 << 20, Isolation::ReadCommitted).await;
            read.unwrap().aborted.unwrap()
        };
        assert_eq!(from(0).await, [(1, 0), (3, 2), (3, 5)]);
        assert_eq!(from(4).await, [(1, 0), (3, 5)]);
        assert_eq!(from(7).await, [(3, 5)]);
        assert_eq!(from(8).await, []);
        // One batch only: what begins behind it is of no use.
        let read = led.read(0, 1, Isolation::ReadCommitted).await.unwrap();
        assert_eq!(read.aborted.unwrap(), [(1, 0)]);
        let read = led.read(0, 1, Isolation::ReadUncommitted).await.unwrap();
        assert_eq!(read.aborted, None);
    }
}
