use coordinator::machine::txn::{Cause, Groups, TopicPartitions};
use store_adapter::ids::{ProducerEpoch, ProducerId};
use store_adapter::runtime::BoxFuture;
use store_adapter::volume::MemoryVolume;
use store_adapter::volume::memory::{Step, StepFault, StepHook, StepOp, StepOutcome};

use super::*;

const SLOT: u32 = 9;

fn transition(txn_seq: u64, topic: &str) -> Transition {
    Transition {
        at_ms: 5,
        pid: ProducerId(7),
        epoch: ProducerEpoch(1),
        txn_seq,
        from: TxnState::Ongoing,
        to: TxnState::PrepareAbort,
        cause: Cause::Reaper,
        client: None,
        partitions: TopicPartitions::from([(topic.into(), [0].into())]),
        groups: Groups::new(),
    }
}

fn start(volume: &MemoryVolume, instance: u64) -> Arc<History> {
    let epoch = OwnerEpoch {
        assignment: 1,
        instance,
    };
    History::start(&Env::real(), Arc::new(volume.clone()), vec![(SLOT, epoch)])
}

async fn read(history: &History, id: &str) -> (Vec<u64>, usize) {
    let read = history.read(SLOT, id).await.unwrap();
    let seqs = read.lines.iter().map(|line| line.txn_seq).collect();
    (seqs, read.unreadable)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_recorded_is_read_by_id_over_restarts() {
    let volume = MemoryVolume::new();
    let first = start(&volume, 1);
    assert_eq!(read(&first, "tx").await, (vec![], 0));
    first.record(SLOT, "tx", &transition(1, "a"));
    first.record(SLOT, "a/b: \u{1f980}\n\"", &transition(2, "a"));
    first.record(SLOT, "tx", &transition(3, "a"));
    assert_eq!(read(&first, "tx").await, (vec![1, 3], 0));
    assert_eq!(read(&first, "a/b: \u{1f980}\n\"").await, (vec![2], 0));
    drop(first);
    // A torn end loses its line, and no other.
    let torn = Place::TxnHistory(SLOT, "1.1".parse().unwrap(), 0).path();
    let file = volume.open_write(&torn).await.unwrap();
    let size = file.size().await.unwrap();
    let half = [Bytes::from_static(b"{\"ts\":5,\"transac")];
    file.write_at(size, &half).await.unwrap();
    let second = start(&volume, 2);
    second.record(SLOT, "tx", &transition(4, "a"));
    assert_eq!(read(&second, "tx").await, (vec![1, 3, 4], 1));
    assert_eq!(second.counters().failed.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_keeps_its_newest_files_only() {
    let volume = MemoryVolume::new();
    let history = start(&volume, 1);
    let long = "t".repeat(200 << 10);
    for seq in 1..=40 {
        history.record(SLOT, "tx", &transition(seq, &long));
        // Each in a round of its own.
        history.read(SLOT, "tx").await.unwrap();
    }
    let (seqs, unreadable) = read(&history, "tx").await;
    assert_eq!((seqs.last(), unreadable), (Some(&40), 0));
    assert!(seqs.len() < 12, "{} are kept", seqs.len());
    let is_whole = seqs.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    assert!(is_whole, "{seqs:?}");
    for instance in 2..90 {
        let history = start(&volume, instance);
        history.record(SLOT, "tx", &transition(instance, "a"));
        history.read(SLOT, "tx").await.unwrap();
    }
    let files = volume.list(&history_dir(SLOT)).await.unwrap();
    assert_eq!(files.len(), 64);
}

/// Refuses writes to the history.
#[derive(Debug)]
struct Full;

impl StepHook for Full {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let outcome = if step.op == StepOp::WriteAt {
            StepOutcome::Fail(StepFault::NoSpace)
        } else {
            StepOutcome::Proceed
        };
        Box::pin(std::future::ready(outcome))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_volume_does_not_take_is_counted_and_stops_nobody() {
    let volume = MemoryVolume::new();
    let full = volume.mount(Arc::new(Full), None);
    let history = start(&full, 1);
    for seq in 1..=3 {
        history.record(SLOT, "tx", &transition(seq, "a"));
    }
    assert_eq!(read(&history, "tx").await, (vec![], 0));
    assert_eq!(history.counters().failed.load(Ordering::Relaxed), 3);
}

/// Holds every listing until it is let go.
#[derive(Debug)]
struct Stuck(Arc<Semaphore>);

impl StepHook for Stuck {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let (go, waits) = (Arc::clone(&self.0), step.op == StepOp::List);
        Box::pin(async move {
            if waits {
                drop(go.acquire().await);
            }
            StepOutcome::Proceed
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_drops_and_counts() {
    let go = Arc::new(Semaphore::new(0));
    let volume = MemoryVolume::new();
    let slow = volume.mount(Arc::new(Stuck(Arc::clone(&go))), None);
    let history = start(&slow, 1);
    let sent = u64::try_from(QUEUE_MAX).unwrap() + 10;
    let record = async {
        // The task is stuck in the listing of the read, or comes to it first.
        for seq in 1..=sent {
            history.record(SLOT, "tx", &transition(seq, "a"));
        }
        go.close();
    };
    let (stuck, ()) = tokio::join!(history.read(SLOT, "tx"), record);
    stuck.unwrap();
    let dropped = history.counters().dropped.load(Ordering::Relaxed);
    let kept = u64::try_from(read(&history, "tx").await.0.len()).unwrap();
    assert!(dropped > 0);
    assert_eq!(kept + dropped, sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_grows_pushes_nobody_out() {
    let volume = MemoryVolume::new();
    let history = start(&volume, 1);
    history.record(SLOT, "other", &transition(1, "a"));
    let mut grown = transition(1, "a");
    (grown.from, grown.to) = (TxnState::Empty, TxnState::Ongoing);
    history.record(SLOT, "tx", &grown);
    (grown.from, grown.to) = (TxnState::Ongoing, TxnState::Ongoing);
    for partition in 1..2_000 {
        grown.partitions.get_mut("a").unwrap().insert(partition);
        history.record(SLOT, "tx", &grown);
    }
    grown.to = TxnState::PrepareCommit;
    history.record(SLOT, "tx", &grown);
    assert_eq!(read(&history, "other").await, (vec![1], 0));
    let lines = history.read(SLOT, "tx").await.unwrap().lines;
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[1].partitions[0].partitions.len(), 2_000);
    assert_eq!(history.counters().dropped.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_transactions_fill_the_queue_sooner() {
    let go = Arc::new(Semaphore::new(0));
    let volume = MemoryVolume::new();
    let slow = volume.mount(Arc::new(Stuck(Arc::clone(&go))), None);
    let history = start(&slow, 1);
    let mut large = transition(1, "a");
    let half = i32::try_from(QUEUE_NAMES_MAX / 2).unwrap();
    large.partitions = TopicPartitions::from([("a".into(), (0..half).collect())]);
    let record = async {
        for _ in 0..3 {
            history.record(SLOT, "tx", &large);
        }
        go.close();
    };
    let (stuck, ()) = tokio::join!(history.read(SLOT, "tx"), record);
    stuck.unwrap();
    assert_eq!(history.counters().dropped.load(Ordering::Relaxed), 1);
}
