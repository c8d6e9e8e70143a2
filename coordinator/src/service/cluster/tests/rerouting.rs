//! Markers of partitions that move between two leaders while they are queued, by a coordinator that
//! another takes over from and that does not know it yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use store_adapter::ids::{BrokerId, ProducerEpoch, ProducerId};
use store_adapter::volume::Volume as _;

use super::queues::{queues, receiver};
use super::txns::{Outside, Running, ids, site};
use super::world::{Group, Site, host};
use crate::machine::txn::{Added, Session, TxnError};
use crate::service::marker_queue::{MarkerQueues, Received};
use crate::volume::format::{MarkerQueueFile, decode};
use crate::volume::layout::Place;

/// The number that stands for the group.
const GROUP: i32 = -1;

struct Seeded(u64);

impl Seeded {
    /// SplitMix64.
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = self.0;
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    fn leader(&mut self) -> BrokerId {
        BrokerId(1 + i32::try_from(self.next(2)).unwrap())
    }
}

/// A coordinator with its queues.
struct Coordinator {
    running: Running,
    queues: MarkerQueues,
}

impl Coordinator {
    fn settle(&self, site: &Site) {
        let (queues, txns) = (self.queues.clone(), self.running.txns.clone());
        let settled = site.world.run(async move {
            for id in txns.owed() {
                queues.settle(&txns, &id, BrokerId(0), |_| false).await;
            }
        });
        settled.unwrap();
    }

    fn sweep(&self, site: &Site) {
        let (queues, txns) = (self.queues.clone(), self.running.txns.clone());
        let swept = site.world.run(async move { queues.sweep(&txns).await });
        swept.unwrap().unwrap();
    }
}

/// Two leaders, and coordinators one after the other.
struct Scene {
    site: Site,
    outside: Arc<Outside>,
    present: Coordinator,
    /// Another has taken over from it, which it has not noticed.
    past: Option<Coordinator>,
    process: Group,
    receivers: BTreeMap<BrokerId, MarkerQueues>,
    /// Transactions whose marker a partition has.
    logs: BTreeMap<i32, BTreeSet<u64>>,
    /// Carried out, and not said yet.
    unsaid: Vec<(BrokerId, Received)>,
    id: String,
    seed: u64,
}

/// What keeps a coordinator alive besides its transactions is in the process `process`; those are
/// in the one of this number more.
const BESIDE: Group = 1_000;

impl Scene {
    fn start(seed: u64) -> Self {
        let site = site(seed);
        let outside = Arc::new(Outside::default());
        let present = Self::coordinator(&site, &outside, 1);
        let receivers = [1, 2].map(|number| {
            let process = 100 + Group::try_from(number).unwrap();
            (BrokerId(number), receiver(&site, number, process))
        });
        let [id, ..] = ids();
        Self {
            site,
            outside,
            present,
            past: None,
            process: 1,
            receivers: receivers.into(),
            logs: BTreeMap::new(),
            unsaid: Vec::new(),
            id,
            seed,
        }
    }

    fn coordinator(site: &Site, outside: &Arc<Outside>, process: Group) -> Coordinator {
        let node = site.start(process);
        let running = Running::serve(site, outside, node, process + BESIDE);
        assert!(running.ready());
        let queues = queues(site, process + BESIDE, &running);
        *outside.queue.lock() = Some(queues.clone());
        Coordinator { running, queues }
    }

    /// Another process takes over; the one before goes on with what it remembers.
    fn take_over(&mut self) {
        if self.past.take().is_some() {
            self.site.world.kill(self.process - 1 + BESIDE);
        }
        self.site.world.kill(self.process);
        self.process += 1;
        self.site.host = host("a", self.process);
        let next = Self::coordinator(&self.site, &self.outside, self.process);
        self.past = Some(std::mem::replace(&mut self.present, next));
        self.finish();
    }

    fn finish(&self) {
        let txns = self.present.running.txns.clone();
        let finished = self.site.world.run(async move {
            for id in txns.unfinished() {
                // Its first entry may have to wait for a leader.
                txns.reconcile(&id).await.unwrap_or_default();
            }
        });
        finished.unwrap();
    }

    fn lead(&self, number: i32, by: BrokerId) {
        self.outside.led.lock().insert(number, by);
    }

    /// A leader carries out what it leads of its queue.
    fn receive(&mut self, leader: BrokerId) {
        let receiver = self.receivers[&leader].clone();
        let received = self
            .site
            .world
            .run(async move { receiver.received().await });
        for one in received.unwrap().unwrap() {
            let asked = one.file.asked();
            let mut numbers: Vec<i32> = asked.partitions.values().flatten().copied().collect();
            numbers.extend(asked.groups.iter().map(|_| GROUP));
            let led = self.outside.led.lock().clone();
            let txn_seq = one.file.txn_seq.unwrap();
            let mut rest = false;
            for number in numbers {
                if led[&number] == leader {
                    self.logs.entry(number).or_default().insert(txn_seq);
                } else {
                    rest = true;
                }
            }
            if !rest {
                self.unsaid.push((leader, one));
            }
        }
    }

    fn say(&mut self, at: usize) {
        let (leader, one) = self.unsaid.remove(at);
        let receiver = self.receivers[&leader].clone();
        let said = self
            .site
            .world
            .run(async move { receiver.done(&one).await });
        said.unwrap().unwrap();
    }

    fn is_owed(&self) -> bool {
        let txns = &self.present.running.txns;
        !txns.owed().is_empty() || !txns.unfinished().is_empty()
    }

    /// Commits a transaction on partitions; its number and the next session.
    fn commit(&self, session: Session, partitions: &[i32]) -> (u64, Session) {
        let running = &self.present.running;
        let added = running.add_all(&self.id, session, partitions).unwrap();
        let Ok(Added::InTxn(txn_seq)) = added else {
            panic!("seed {}: {added:?}", self.seed);
        };
        let ended = running.end(&self.id, session, true).unwrap();
        (txn_seq, ended.unwrap().unwrap())
    }

    /// What is owed no more is in every log.
    fn check(&self, txn_seq: u64, partitions: &[i32]) {
        if self.is_owed() {
            return;
        }
        for number in partitions.iter().chain([&GROUP]) {
            let log = self.logs.get(number);
            let has = log.is_some_and(|log| log.contains(&txn_seq));
            assert!(
                has,
                "seed {}: {number} has no marker of {txn_seq}",
                self.seed
            );
        }
    }

    fn step(&mut self, random: &mut Seeded, partitions: &[i32]) {
        match random.next(12) {
            0..=2 => {
                let among = u64::try_from(partitions.len() + 1).unwrap();
                let at = usize::try_from(random.next(among)).unwrap();
                let number = partitions.get(at).copied().unwrap_or(GROUP);
                self.lead(number, random.leader());
            }
            3..=5 => self.receive(random.leader()),
            6 | 7 if !self.unsaid.is_empty() => {
                let among = u64::try_from(self.unsaid.len()).unwrap();
                self.say(usize::try_from(random.next(among)).unwrap());
            }
            8 => {
                if let Some(past) = &self.past {
                    past.settle(&self.site);
                    past.sweep(&self.site);
                }
            }
            9 => self.present.sweep(&self.site),
            10 if random.next(4) == 0 => self.take_over(),
            _ => {
                self.finish();
                self.present.settle(&self.site);
            }
        }
    }

    /// Nothing moves any more.
    fn settle(&mut self) {
        for _ in 0..8 {
            for leader in [BrokerId(1), BrokerId(2)] {
                self.receive(leader);
            }
            while !self.unsaid.is_empty() {
                self.say(0);
            }
            self.finish();
            self.present.settle(&self.site);
            if !self.is_owed() {
                return;
            }
        }
        panic!("seed {}: it is never confirmed", self.seed);
    }

    /// What the entry of a leader asks for.
    fn queued(&self, to: i32) -> Option<Vec<i32>> {
        let place = Place::MarkerQueue(BrokerId(to), ProducerId(1_000), ProducerEpoch(0));
        let (volume, path) = (self.site.volume.clone(), place.path());
        let read = self
            .site
            .world
            .run(async move { volume.read(&path, u64::MAX).await });
        let file: MarkerQueueFile = decode(&read.unwrap().ok()?).unwrap();
        let asked = file.asked();
        Some(asked.partitions.into_values().flatten().collect())
    }
}

#[test]
fn markers_of_partitions_that_move_are_written_and_confirmed() {
    let one = std::env::var("REROUTE_SEED")
        .ok()
        .map(|seed| seed.parse().unwrap());
    let seeds = one.map_or(0..60, |seed: u64| seed..seed + 1);
    for seed in seeds {
        let mut random = Seeded(seed);
        let mut scene = Scene::start(seed);
        let partitions = [0, 1, 2];
        for number in partitions.into_iter().chain([GROUP]) {
            scene.lead(number, random.leader());
        }
        let mut session = scene.present.running.init(&scene.id).unwrap().unwrap();
        for _ in 0..3 {
            let (txn_seq, next) = scene.commit(session, &partitions);
            for _ in 0..25 {
                scene.step(&mut random, &partitions);
                scene.check(txn_seq, &partitions);
            }
            scene.settle();
            scene.check(txn_seq, &partitions);
            session = next;
        }
    }
}

#[test]
fn an_entry_that_waits_is_never_made_to_ask_for_more() {
    let mut scene = Scene::start(1);
    let (one, two) = (BrokerId(1), BrokerId(2));
    for (number, leader) in [(0, one), (1, two), (2, two), (GROUP, two)] {
        scene.lead(number, leader);
    }
    let session = scene.present.running.init(&scene.id).unwrap().unwrap();
    let (txn_seq, next) = scene.commit(session, &[0, 1, 2]);
    assert_eq!(scene.queued(1), Some(vec![0]));
    assert_eq!(scene.queued(2), Some(vec![1, 2]));
    // The leader has carried out what it read. What moved to it since is not in that.
    scene.receive(one);
    scene.lead(1, one);
    scene.present.settle(&scene.site);
    assert_eq!(scene.queued(1), Some(vec![0]));
    assert_eq!(scene.queued(2), Some(vec![2]));
    scene.say(0);
    scene.present.settle(&scene.site);
    assert_eq!(scene.queued(1), Some(vec![1]));
    scene.check(txn_seq, &[0, 1, 2]);
    // What it does not lead any more is taken out, all of it too, so that it can say so.
    scene.lead(1, two);
    scene.lead(2, one);
    scene.present.settle(&scene.site);
    assert_eq!(
        (scene.queued(1), scene.queued(2)),
        (Some(vec![]), Some(vec![]))
    );
    let gated = Err(TxnError::ConcurrentTransactions);
    assert_eq!(scene.present.running.add(&scene.id, next).unwrap(), gated);
    scene.settle();
    scene.check(txn_seq, &[0, 1, 2]);
    assert_eq!(
        scene.present.running.add(&scene.id, next).unwrap(),
        Ok(Added::InTxn(2))
    );
}

#[test]
fn a_queue_that_cannot_be_written_holds_no_other_up() {
    let mut scene = Scene::start(2);
    let (one, two) = (BrokerId(1), BrokerId(2));
    for (number, leader) in [(0, one), (1, two), (GROUP, two)] {
        scene.lead(number, leader);
    }
    let session = scene.present.running.init(&scene.id).unwrap().unwrap();
    let (_, next) = scene.commit(session, &[0, 1]);
    // Something else lies in the way of the first.
    let place = Place::MarkerQueue(one, ProducerId(1_000), ProducerEpoch(0));
    let other = concat!(
        r#"{"transactionalId":"tx-bare","producerId":1000,"producerEpoch":1,"#,
        r#""commit":false,"partitions":[],"txnSeq":9}"#
    );
    scene.site.put(&place.path(), other.as_bytes());
    scene.receive(two);
    scene.say(0);
    scene.present.settle(&scene.site);
    let left = scene.present.running.txns.owed_entries(&scene.id).unwrap();
    let left: Vec<BrokerId> = left.iter().map(|owed| owed.broker).collect();
    assert_eq!(left, [one]);
    let gated = Err(TxnError::ConcurrentTransactions);
    assert_eq!(scene.present.running.add(&scene.id, next).unwrap(), gated);
}
