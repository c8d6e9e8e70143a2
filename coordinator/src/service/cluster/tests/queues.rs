//! Marker queues between two brokers on one volume in memory: broker 0 coordinates, broker 1 leads.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use store_adapter::ids::{BrokerId, ProducerEpoch, ProducerId};
use store_adapter::local::MemoryIdentity;
use store_adapter::volume::Volume as _;

use super::txns::{Outside, Running, ids, session, site};
use super::world::{Group, Site, config, host};
use crate::machine::txn::{Added, Session, TxnError};
use crate::service::marker_queue::{MarkerQueues, QueueName, Received};
use crate::service::txns::Txns;
use crate::volume::format::{MarkerQueueFile, decode};
use crate::volume::layout::Place;

const GATED: Result<Added, TxnError> = Err(TxnError::ConcurrentTransactions);

/// Broker 0 as the process 1, whose transactions are queued for broker 1.
struct Pair {
    site: Site,
    outside: Arc<Outside>,
    running: Running,
    queues: MarkerQueues,
    /// Broker 1, as the process 2.
    receiver: MarkerQueues,
    id: String,
}

pub(super) fn queues(site: &Site, process: Group, running: &Running) -> MarkerQueues {
    MarkerQueues::start(&site.world.env(process), running.node.queue_files())
}

impl Pair {
    /// One transaction of `id` is committed; its next session.
    fn start(seed: u64) -> (Self, Session) {
        let site = site(seed);
        let outside = Arc::new(Outside::default());
        outside.remote.store(true, Ordering::Relaxed);
        let running = Running::start(&site, &outside, 1);
        let queues = queues(&site, 1, &running);
        *outside.queue.lock() = Some(queues.clone());
        let [id, ..] = ids();
        let begun = running.init(&id).unwrap().unwrap();
        running.add(&id, begun).unwrap().unwrap();
        let next = running.end(&id, begun, true).unwrap().unwrap().unwrap();
        let receiver = receiver(&site, 1, 2);
        let pair = Self {
            site,
            outside,
            running,
            queues,
            receiver,
            id,
        };
        (pair, next)
    }

    fn received(&self) -> Vec<Received> {
        let receiver = self.receiver.clone();
        let received = self
            .site
            .world
            .run(async move { receiver.received().await });
        received.unwrap().unwrap()
    }

    fn done(&self, one: &Received) {
        let (receiver, one) = (self.receiver.clone(), one.clone());
        let done = self
            .site
            .world
            .run(async move { receiver.done(&one).await });
        done.unwrap().unwrap();
    }

    fn settle(&self) {
        settle(&self.site, &self.queues, &self.running.txns);
    }

    fn sweep(&self) {
        let (queues, txns) = (self.queues.clone(), self.running.txns.clone());
        let swept = self
            .site
            .world
            .run(async move { queues.sweep(&txns).await });
        swept.unwrap().unwrap();
    }

    /// Names in all queues.
    fn names(&self) -> Vec<String> {
        let files = self.site.files();
        let queued = files.keys().filter_map(|path| {
            let name = path.strip_prefix("__cluster/marker_queue/")?;
            Some(name.to_owned())
        });
        queued.collect()
    }

    fn remove(&self, place: &Place) {
        let (volume, path) = (self.site.volume.clone(), place.path());
        let removed = self
            .site
            .world
            .run(async move { volume.remove(&path).await });
        removed.unwrap().unwrap();
    }
}

fn settle(site: &Site, queues: &MarkerQueues, txns: &Txns) {
    let (queues, txns) = (queues.clone(), txns.clone());
    let settled = site.world.run(async move {
        for id in txns.owed() {
            queues.settle(&txns, &id, BrokerId(0), |_| false).await;
        }
    });
    settled.unwrap();
}

/// Another broker on the same volume.
pub(super) fn receiver(site: &Site, broker: i32, process: Group) -> MarkerQueues {
    let mut other = site.clone();
    // Of this host nobody sees broker 0 run: two brokers that know of each other come later.
    other.host = host("a", process);
    other.identity = Arc::<MemoryIdentity>::default();
    other.config = config(broker);
    let node = other.start(process);
    MarkerQueues::start(&site.world.env(process), node.queue_files())
}

fn entry(to: i32, epoch: i16) -> Place {
    Place::MarkerQueue(BrokerId(to), ProducerId(1_000), ProducerEpoch(epoch))
}

/// An entry without partitions, as a file.
fn entry_bytes(id: &str, producer: (i64, i16), commit: bool, txn_seq: Option<u64>) -> Vec<u8> {
    let (pid, epoch) = producer;
    let number = txn_seq.map(|txn_seq| format!(r#","txnSeq":{txn_seq}"#));
    let end = format!(
        r#""commit":{commit},"partitions":[]{}}}"#,
        number.unwrap_or_default()
    );
    let text =
        format!(r#"{{"transactionalId":"{id}","producerId":{pid},"producerEpoch":{epoch},{end}"#);
    text.into_bytes()
}

#[test]
fn an_entry_is_confirmed_by_its_done_file() {
    let (pair, next) = Pair::start(1);
    assert_eq!(pair.names(), ["to-kaas-1/1000-0.json"]);
    let received = pair.received();
    let [one] = &received[..] else {
        panic!("{received:?}");
    };
    assert_eq!(
        (one.pid, one.record_epoch),
        (ProducerId(1_000), ProducerEpoch(0))
    );
    let file = &one.file;
    assert_eq!(
        (file.producer_epoch, file.commit, file.txn_seq),
        (1, true, Some(1))
    );
    assert_eq!(
        (&*file.transactional_id, file.coordinator_epoch),
        (&*pair.id, 1)
    );
    assert_eq!(file.partitions[0].topic, "a");
    // Nobody has said that it is done.
    pair.settle();
    assert_eq!(pair.running.add(&pair.id, next).unwrap(), GATED);
    pair.done(one);
    pair.done(one);
    assert_eq!(pair.names(), ["to-kaas-1/1000-0.1.done"]);
    assert_eq!(pair.received(), []);
    pair.settle();
    assert_eq!(pair.names(), [""; 0]);
    assert_eq!(
        pair.running.add(&pair.id, next).unwrap(),
        Ok(Added::InTxn(2))
    );
    // What others rename is not missed by anybody.
    let files = pair.site.files();
    assert!(
        !files
            .keys()
            .any(|path| path.contains("w-") && path.contains("marker_queue"))
    );
}

#[test]
fn an_entry_that_is_put_again_is_written_and_carried_out_once() {
    let (pair, _) = Pair::start(8);
    let [one] = &pair.received()[..] else {
        panic!("not one");
    };
    // The same decision is carried out anew as long as something of it failed.
    let again = |queues: &MarkerQueues, asked_ms: i64| {
        let name = QueueName {
            to: BrokerId(1),
            pid: one.pid,
            record_epoch: one.record_epoch,
        };
        let file = MarkerQueueFile {
            enqueued_ms: Some(asked_ms),
            ..one.file.clone()
        };
        let queues = queues.clone();
        let put = async move { queues.put(name, file).await };
        pair.site.world.run(put).unwrap()
    };
    assert_eq!(again(&pair.queues, 1), Ok(()));
    assert_eq!(pair.received()[0].file, one.file);
    pair.done(one);
    assert_eq!(again(&pair.queues, 2), Ok(()));
    assert_eq!(pair.names(), ["to-kaas-1/1000-0.1.done"]);
    pair.settle();
    assert_eq!(pair.names(), [""; 0]);
    // A process that has not put it can't know that it is durable.
    assert_eq!(again(&pair.queues, 3), Ok(()));
    pair.site.world.kill(1);
    let next = Running::start(&pair.site, &pair.outside, 3);
    let other = queues(&pair.site, 3, &next);
    assert_eq!(again(&other, 4), Ok(()));
    assert_eq!(pair.received()[0].file.enqueued_ms, Some(4));
}

#[test]
fn a_new_coordinator_goes_on_where_the_old_one_was() {
    for cut in [false, true] {
        let (pair, next) = Pair::start(2);
        let received = pair.received();
        pair.done(&received[0]);
        pair.site.world.kill(1);
        pair.site.world.kill(2);
        if cut {
            pair.site.volume.power_cut(5);
        }
        let again = Running::start(&pair.site, &pair.outside, 3);
        let queues = queues(&pair.site, 3, &again);
        *pair.outside.queue.lock() = Some(queues.clone());
        for id in again.txns.unfinished() {
            let txns = again.txns.clone();
            let reconciled = pair
                .site
                .world
                .run(async move { txns.reconcile(&id).await });
            assert_eq!(reconciled, Some(Ok(true)));
        }
        assert_eq!(again.add(&pair.id, next).unwrap(), GATED);
        settle(&pair.site, &queues, &again.txns);
        assert_eq!(again.add(&pair.id, next).unwrap(), Ok(Added::InTxn(2)));
    }
}

#[test]
fn an_entry_that_is_missing_or_damaged_is_put_again() {
    let (pair, next) = Pair::start(3);
    let [before] = &pair.received()[..] else {
        panic!("not one");
    };
    pair.remove(&entry(1, 0));
    assert_eq!(pair.received(), []);
    pair.settle();
    let again = pair.received();
    assert_eq!(again.len(), 1);
    let same = MarkerQueueFile {
        enqueued_ms: before.file.enqueued_ms,
        ..again[0].file.clone()
    };
    assert_eq!(same, before.file);
    pair.site.put(&entry(1, 0).path(), b"{\"transactionalId\"");
    assert_eq!(pair.received(), []);
    pair.settle();
    assert_eq!(pair.received().len(), 1);
    let damage = pair.running.node.damage();
    assert_eq!(damage[0].path, entry(1, 0).path().to_string());
    assert!(damage[0].copy.is_some());
    // A done file must say so inside and out.
    let wrong = Place::MarkerDone(BrokerId(1), ProducerId(1_000), ProducerEpoch(0), 1);
    let other = entry_bytes("tx-commit", (1000, 1), true, Some(2));
    pair.site.put(&wrong.path(), &other);
    pair.settle();
    assert_eq!(pair.names(), ["to-kaas-1/1000-0.json"]);
    assert_eq!(pair.running.add(&pair.id, next).unwrap(), GATED);
    // Nor is one of this transaction that went the other way, of another epoch, or of another id.
    for (id, epoch, commit) in [
        ("tx-commit", 1, false),
        ("tx-commit", 2, true),
        ("tx-bare", 1, true),
    ] {
        let other = entry_bytes(id, (1000, epoch), commit, Some(1));
        pair.site.put(&wrong.path(), &other);
        pair.settle();
        assert_eq!(pair.names(), ["to-kaas-1/1000-0.json"]);
        assert_eq!(pair.running.add(&pair.id, next).unwrap(), GATED);
    }
}

#[test]
fn what_moved_goes_to_its_new_leader_before_the_old_entry_goes() {
    let (pair, next) = Pair::start(4);
    pair.outside.moved.store(1, Ordering::Relaxed);
    pair.settle();
    assert_eq!(
        pair.names(),
        ["to-kaas-1/1000-0.json", "to-kaas-2/1000-0.json"]
    );
    pair.sweep();
    assert_eq!(pair.names(), ["to-kaas-2/1000-0.json"]);
    pair.sweep();
    // The old leader's word counts no more.
    assert_eq!(pair.received(), []);
    let receiver = receiver(&pair.site, 2, 3);
    let done = pair.site.world.run(async move {
        let received = receiver.received().await.unwrap();
        receiver.done(&received[0]).await
    });
    done.unwrap().unwrap();
    pair.settle();
    assert_eq!(
        pair.running.add(&pair.id, next).unwrap(),
        Ok(Added::InTxn(2))
    );
}

#[test]
fn an_entry_of_another_transaction_is_in_the_way_and_is_not_replaced() {
    let (pair, next) = Pair::start(5);
    let received = pair.received();
    pair.done(&received[0]);
    pair.settle();
    let stray = entry_bytes("tx-commit", (1000, 2), false, Some(1));
    pair.site.put(&entry(1, 1).path(), &stray);
    pair.running.add(&pair.id, next).unwrap().unwrap();
    let late = pair.running.end(&pair.id, next, true).unwrap();
    assert_eq!(late, Err(TxnError::CoordinatorNotAvailable));
    assert_eq!(pair.site.files()[&entry(1, 1).path().to_string()], stray);
    // Nobody is owed it: the sweep makes way, and the decision is finished.
    pair.sweep();
    let (txns, id) = (pair.running.txns.clone(), pair.id.clone());
    let finished = pair
        .site
        .world
        .run(async move { txns.reconcile(&id).await });
    assert_eq!(finished, Some(Ok(true)));
    let bytes = pair.site.files()[&entry(1, 1).path().to_string()].clone();
    let file: MarkerQueueFile = decode(&bytes).unwrap();
    assert_eq!((file.txn_seq, file.commit), (Some(2), true));
    // What is owed is not swept, and neither is what another broker coordinates.
    let foreign = entry_bytes("tx-bare", (1000, 9), false, Some(1));
    pair.site.put(&entry(1, 8).path(), &foreign);
    pair.sweep();
    assert_eq!(
        pair.names(),
        ["to-kaas-1/1000-1.json", "to-kaas-1/1000-8.json"]
    );
    // In the order of producer, epoch and number.
    let order: Vec<i16> = pair
        .received()
        .iter()
        .map(|one| one.record_epoch.0)
        .collect();
    assert_eq!(order, [1, 8]);
    assert_eq!(session(1_000, 1), next);
}

#[test]
fn an_entry_of_an_older_volume_is_removed_when_it_is_done() {
    let (pair, _) = Pair::start(6);
    let received = pair.received();
    pair.done(&received[0]);
    let old = entry_bytes("x", (7, 2), false, None);
    let place = Place::MarkerQueue(BrokerId(1), ProducerId(7), ProducerEpoch(2));
    pair.site.put(&place.path(), &old);
    let received = pair.received();
    assert_eq!(received[0].file.txn_seq, None);
    pair.done(&received[0]);
    assert_eq!(pair.names(), ["to-kaas-1/1000-0.1.done"]);
}

#[test]
fn entries_that_wait_hold_no_others_up() {
    let (pair, _) = Pair::start(7);
    for pid in 0..1_200 {
        let place = Place::MarkerQueue(BrokerId(1), ProducerId(pid), ProducerEpoch(3));
        let bytes = entry_bytes("x", (pid, 4), false, Some(1));
        pair.site.put(&place.path(), &bytes);
    }
    let mut seen = BTreeSet::new();
    for _ in 0..2 {
        let received = pair.received();
        assert_eq!(received.len(), 1_000);
        seen.extend(received.iter().map(|one| (one.pid, one.record_epoch)));
    }
    assert_eq!(seen.len(), 1_201);
}
