//! Two brokers on one volume. The assignment says who has which partition, transaction slot and
//! group slot; a third party, the controller of the simulation, writes it and moves things at any
//! moment. A broker takes over what it has when it starts; from what it lost it learns by its
//! heartbeat, or when the volume refuses it.

use std::collections::BTreeMap;
use std::sync::Arc;

use coordinator::machine::group::GroupError;
use coordinator::machine::txn::TxnError;
use coordinator::service::groups::Route;
use coordinator::slot_hash::fnv1a32;
use coordinator::volume::format::{self, AssignmentFile, BrokerEntry, Format, SlotEntry};
use coordinator::volume::layout::Place;
use store_adapter::ids::{BrokerId, ShardId};
use store_adapter::volume::Volume;
use store_adapter::volume::owned::{Area, OwnedFiles};

use super::super::clients::Target;
use super::super::disk::Trap;
use super::super::groups;
use super::super::instance::{Instance, Role};
use super::super::net::Duty;
use super::super::plan::PairAct;
use super::super::txns;
use super::{Director, QUIET};

/// The broker that is the controller: none of the two.
const CONTROLLER: BrokerId = BrokerId(2);
/// How often it is asked whether everything is decided: 100 ms apart.
const TRIES: u32 = 1_200;

/// The two brokers, as far as they are up.
struct Pair {
    up: [Option<Instance>; 2],
    on: Target,
    /// The shard of each partition.
    shards: Vec<ShardId>,
}

/// What the assignment gives to brokers, and clients use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    /// A shard, with the partition that is in it.
    Shard(u32),
    TxnSlot(u32),
    GroupSlot(u32),
}

fn member(broker: usize) -> BrokerId {
    BrokerId(i32::try_from(broker).unwrap_or(0))
}

fn slot(file: &mut AssignmentFile, thing: Thing) -> Option<&mut SlotEntry> {
    let (slots, number) = match thing {
        Thing::Shard(number) => (&mut file.shards, number),
        Thing::TxnSlot(number) => (&mut file.txn_slots, number),
        Thing::GroupSlot(number) => (&mut file.group_slots, number),
    };
    slots.get_mut(usize::try_from(number).ok()?)
}

/// Lists both brokers; the lone one of the beginning has listed itself.
fn list_both(file: &mut AssignmentFile) {
    let known = file.brokers.first().cloned();
    if let ([_], Some(known)) = (&file.brokers[..], known) {
        file.brokers.push(BrokerEntry {
            id: member(1),
            ..known
        });
    }
}

impl Director {
    pub(super) async fn direct_pair(&self) -> Result<(), String> {
        // A lone broker makes the volume and the topic, and is gone.
        let lone = self.first_start().await?;
        let transactions = self.start_transactions().await?;
        let on = transactions.clone().ok_or("no transactions")?;
        self.start_groups(std::slice::from_ref(&on));
        let view = lone.running.node.view();
        let shards = view.topics.by_id(on.id).map(|topic| topic.shards.clone());
        self.sleep(self.world().below(300)).await;
        self.cluster.net.route(None, None);
        self.cluster.kill(lone.number);
        let mut pair = Pair {
            up: [None, None],
            on,
            shards: shards.unwrap_or_default(),
        };
        self.assign(&pair, |world, _| Some(world.index(2))).await?;
        self.start_member(&mut pair, 0).await?;
        self.start_member(&mut pair, 1).await?;
        for act in self.cluster.plan.pair.clone() {
            if self.cluster.history.failed() {
                return Ok(());
            }
            self.world().note(&format!("act {act:?}"));
            self.cluster.run_late();
            self.pair_act(&mut pair, act).await?;
        }
        self.pair_quiet(&mut pair).await?;
        if self.cluster.history.failed() {
            return Ok(());
        }
        self.stop_member(&mut pair, 0);
        self.stop_member(&mut pair, 1);
        self.cluster.net.route(None, None);
        self.verify(transactions).await
    }

    /// Everything that can be moved.
    fn things(&self, on: &Target) -> Vec<Thing> {
        let shards = (0..on.partitions.unsigned_abs()).map(Thing::Shard);
        let slot = |name: String| fnv1a32(name.as_bytes()) % 50;
        let mut things: Vec<Thing> = shards.collect();
        things.extend(self.ids().map(slot).map(Thing::TxnSlot));
        things.extend(self.groups().map(slot).map(Thing::GroupSlot));
        things.sort_unstable();
        things.dedup();
        things
    }

    /// Writes the next assignment, as a controller does. `choose` names the broker that gets a
    /// thing, from the one that has it; `None`: it stays. Who got something.
    async fn assign(
        &self,
        pair: &Pair,
        choose: impl Fn(&super::World, usize) -> Option<usize>,
    ) -> Result<[bool; 2], String> {
        let volume: Arc<dyn Volume> = Arc::new(self.cluster.volume.clone());
        let path = Place::Assignment.path();
        let bytes = volume.read(&path, AssignmentFile::LEN_MAX).await;
        let bytes = bytes.map_err(|error| format!("the assignment: {error}"))?;
        let file: Result<AssignmentFile, _> = format::decode(&bytes);
        let mut file = file.map_err(|error| format!("the assignment: {error}"))?;
        list_both(&mut file);
        let mut got = [false, false];
        for thing in self.things(&pair.on) {
            let Some(entry) = slot(&mut file, thing) else {
                return Err(format!("{thing:?} is not assigned"));
            };
            let has = usize::from(entry.broker == member(1));
            let gets = choose(self.world(), has).unwrap_or(has);
            if gets == has {
                continue;
            }
            entry.broker = member(gets);
            entry.epoch += 1;
            if let Some(one) = got.get_mut(gets) {
                *one = true;
            }
            self.world().note(&format!("{thing:?} goes to {gets}"));
            self.moves(&mut file, pair, thing);
        }
        let owned = OwnedFiles::new(volume, self.env.random.clone());
        let claim = owned.claim_next(Area::Controller, CONTROLLER, None).await;
        let claim = claim.map_err(|error| format!("the controller's claim: {error}"))?;
        file.controller_epoch = claim.epoch().instance;
        file.controller = CONTROLLER;
        file.assignment_version += 1;
        let bytes = format::encode(&file).map_err(|error| error.to_string())?;
        let written = claim.replace(&path, bytes).await;
        written.map_err(|error| format!("the assignment: {error}"))?;
        Ok(got)
    }

    /// What goes with a thing: the partition of a shard, and who is trusted.
    fn moves(&self, file: &mut AssignmentFile, pair: &Pair, thing: Thing) {
        let net = &self.cluster.net;
        let owner = slot(file, thing).map(|entry| entry.broker);
        match (thing, owner) {
            (Thing::Shard(shard), Some(owner)) => {
                let numbered = (0_i32..).zip(&pair.shards);
                for (partition, _) in numbered.filter(|(_, of)| of.0 == shard) {
                    let number = partition.unsigned_abs();
                    let mut entries = file.partitions.iter_mut();
                    let entry = entries.find(|p| p.topic == pair.on.name && p.partition == number);
                    if let Some(entry) = entry {
                        entry.broker = owner;
                        entry.epoch += 1;
                    }
                    net.takes(Duty::Partition((pair.on.id, partition)), None);
                }
            }
            (Thing::GroupSlot(slot), _) => {
                for group in self.groups().filter(|group| is_of(group, slot)) {
                    net.takes(Duty::Group(group), None);
                }
            }
            (Thing::TxnSlot(slot), _) => {
                for id in self.ids().filter(|id| is_of(id, slot)) {
                    net.takes(Duty::Txn(id), None);
                }
            }
            (Thing::Shard(_), None) => {}
        }
    }

    /// The transactional ids.
    fn ids(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.cluster.plan.txn_ids).map(txns::name)
    }

    /// The groups: one of each transactional id, and those of other clients.
    fn groups(&self) -> impl Iterator<Item = String> + use<> {
        let committed = (0..self.cluster.plan.committers).map(groups::simple);
        let shared = (self.cluster.plan.members > 0).then(|| groups::SHARED_GROUP.to_owned());
        self.ids().chain(committed).chain(shared)
    }

    /// Brings a broker up on what it is assigned.
    async fn start_member(&self, pair: &mut Pair, broker: usize) -> Result<(), String> {
        let role = Role::Member(member(broker));
        let up = self
            .start_beside(role, self.cluster.plan.disk, None)
            .await?;
        self.take_duties(pair, &up);
        if let Some(place) = pair.up.get_mut(broker) {
            *place = Some(up);
        }
        self.reroute(pair);
        Ok(())
    }

    /// From now on this instance is the one that knows best.
    fn take_duties(&self, pair: &Pair, up: &Instance) {
        let (net, broker) = (&self.cluster.net, &up.running.broker);
        for partition in 0..pair.on.partitions {
            let hosted = broker.topic_by_id(pair.on.id);
            let led = hosted.and_then(|topic| topic.partition(partition));
            if let Some(Ok(_)) = led {
                net.takes(Duty::Partition((pair.on.id, partition)), Some(up.number));
            }
        }
        for group in self.groups() {
            let here = matches!(broker.groups().route(&group), Route::Here { .. });
            if here && broker.groups().admit(&group) != Err(GroupError::NotCoordinator) {
                net.takes(Duty::Group(group), Some(up.number));
            }
        }
        for id in self.ids() {
            if broker.txns().describe(&id) != Err(TxnError::NotCoordinator) {
                net.takes(Duty::Txn(id), Some(up.number));
            }
        }
    }

    fn reroute(&self, pair: &Pair) {
        let members = pair.up.iter().flatten().map(Instance::server);
        self.cluster.net.route_members(members.collect());
    }

    /// Kills a broker, if it is up.
    fn stop_member(&self, pair: &mut Pair, broker: usize) {
        let up = pair.up.get_mut(broker).and_then(Option::take);
        self.reroute(pair);
        if let Some(up) = up {
            self.cluster.kill(up.number);
        }
    }

    /// Kills a broker at a step, or after a while.
    async fn kill_member(&self, pair: &mut Pair, broker: usize, steps: u64, trap: Trap) {
        if let Some(Some(up)) = pair.up.get(broker) {
            let trap = up.disk.arm(steps, trap);
            self.sprung(trap, 1_500).await;
        }
        self.stop_member(pair, broker);
    }

    async fn pair_act(&self, pair: &mut Pair, act: PairAct) -> Result<(), String> {
        match act {
            PairAct::Work(ms) => self.sleep(ms).await,
            PairAct::Move { after_ms, steps } => {
                let got = self.assign(pair, some_of).await?;
                self.sleep(after_ms).await;
                for (broker, _) in (0..).zip(got).filter(|(_, got)| *got) {
                    self.kill_member(pair, broker, steps, Trap::KillBehind)
                        .await;
                    self.start_member(pair, broker).await?;
                }
            }
            PairAct::Kill {
                broker,
                steps,
                behind,
                moving,
            } => {
                let trap = if behind {
                    Trap::KillBehind
                } else {
                    Trap::KillBefore
                };
                self.kill_member(pair, broker, steps, trap).await;
                if moving {
                    // What the other one gets it takes over with its next start.
                    self.assign(pair, some_of).await?;
                    self.sleep(self.world().below(1_500)).await;
                }
                self.start_member(pair, broker).await?;
            }
            PairAct::Cut { broker, steps } => {
                self.kill_member(pair, broker, steps, Trap::KillBehind)
                    .await;
                self.sleep(self.world().below(100)).await;
                self.stop_member(pair, 1 - broker);
                self.cluster.power_cut(&self.env).await;
                self.start_member(pair, 0).await?;
                self.start_member(pair, 1).await?;
            }
            PairAct::Pause {
                broker,
                steps,
                hold_ms,
                linger_ms,
            } => {
                self.pause_member(pair, broker, steps, hold_ms, linger_ms)
                    .await?;
            }
        }
        Ok(())
    }

    /// A broker stops in the middle of something, all that it has goes to the other, and it goes
    /// on as if nothing had happened.
    async fn pause_member(
        &self,
        pair: &mut Pair,
        broker: usize,
        steps: u64,
        hold_ms: u64,
        linger_ms: u64,
    ) -> Result<(), String> {
        let other = 1 - broker;
        let Some(Some(up)) = pair.up.get(broker) else {
            return Ok(());
        };
        let (disk, node) = (up.disk.clone(), up.node);
        self.sprung(disk.arm(steps, Trap::Pause), 500).await;
        disk.disarm();
        self.world().pause(node);
        self.assign(pair, |_, _| Some(other)).await?;
        self.stop_member(pair, other);
        self.start_member(pair, other).await?;
        self.sleep(hold_ms).await;
        self.world().resume(node);
        self.sleep(linger_ms).await;
        Ok(())
    }

    /// Ends all faults, waits until every client is done and everything is decided.
    async fn pair_quiet(&self, pair: &mut Pair) -> Result<(), String> {
        self.world().note("calm");
        self.cluster.net.calm();
        // A look at a queue may be a minute old.
        let patience = if self.cluster.plan.stale { 7 } else { 2 } * QUIET;
        let mut restarts = 0;
        self.restart(pair).await?;
        let mut progress = self.cluster.history.progress();
        let mut since = self.env.clock.monotonic();
        while self.working.load(std::sync::atomic::Ordering::Relaxed) > 0 {
            self.sleep(20).await;
            if self.cluster.history.failed() {
                return Ok(());
            }
            let (now, present) = (self.env.clock.monotonic(), self.cluster.history.progress());
            if present != progress {
                (progress, since) = (present, now);
            }
            if now.saturating_sub(since) > patience {
                if restarts == 2 {
                    return Err("transactors get nowhere without any fault".to_owned());
                }
                (restarts, since) = (restarts + 1, now);
                self.world().note("an operator restarts the brokers");
                self.restart(pair).await?;
            }
        }
        self.decided(pair).await?;
        self.members_are_well().await?;
        self.world().kill(self.clients);
        Ok(())
    }

    async fn restart(&self, pair: &mut Pair) -> Result<(), String> {
        for broker in [0, 1] {
            self.stop_member(pair, broker);
            self.start_member(pair, broker).await?;
            if let Some(Some(up)) = pair.up.get(broker) {
                up.disk.calm();
            }
        }
        Ok(())
    }

    /// Between the two brokers alone everything is decided in the end.
    async fn decided(&self, pair: &Pair) -> Result<(), String> {
        let mut open = BTreeMap::new();
        for _ in 0..TRIES {
            open.clear();
            for (number, up) in (0..).zip(&pair.up) {
                let Some(up) = up else { continue };
                open.insert(number, undecided(up, &pair.on));
            }
            if open.values().all(Vec::is_empty) || self.cluster.history.failed() {
                return Ok(());
            }
            self.sleep(100).await;
        }
        Err(format!("two brokers never decide {open:?}"))
    }
}

fn is_of(name: &str, slot: u32) -> bool {
    fnv1a32(name.as_bytes()) % 50 == slot
}

/// Some of everything goes to the other broker.
fn some_of(world: &super::World, has: usize) -> Option<usize> {
    world.chance(40).then_some(1 - has)
}

/// What of a broker's work waits for a decision.
fn undecided(up: &Instance, on: &Target) -> Vec<String> {
    let (broker, mut open) = (&up.running.broker, Vec::new());
    let txns = broker.txns();
    open.extend(
        txns.unfinished()
            .iter()
            .map(|id| format!("{id} is decided")),
    );
    open.extend(txns.owed().iter().map(|id| format!("{id} is owed")));
    for partition in 0..on.partitions {
        let hosted = broker.topic_by_id(on.id);
        if let Some(Ok(led)) = hosted.and_then(|topic| topic.partition(partition)) {
            let visible = led.visible();
            if visible.last_stable < visible.high_watermark {
                open.push(format!("partition {partition}: {visible:?}"));
            }
        }
    }
    open
}
