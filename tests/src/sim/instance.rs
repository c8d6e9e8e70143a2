//! Broker instances on one volume: brought up as production does, killed, cut off.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use gateway::boot::{BootConfig, Outside, Running};
use parking_lot::Mutex;
use store_adapter::ids::BrokerId;
use store_adapter::journal::{
    FlushPolicy, IndexChange, IndexStore, JournalConfig, JournalStore, MemoryIndex,
};
use store_adapter::local::{FixedHost, MemoryIdentity};
use store_adapter::memory::MemoryStore;
use store_adapter::runtime::Env;
use store_adapter::store::LogStore;
use store_adapter::volume::memory::Staleness;
use store_adapter::volume::{MemoryVolume, Volume};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::disk::{Disk, DiskRates, Hook};
use super::executor::{NodeId, World};
use super::groups::Ledger;
use super::history::History;
use super::http;
use super::net::{Network, Server};
use super::peers::OtherBroker;
use super::plan::{Mode, Plan};
use super::store::SlowStore;
use super::txns::TxnLedger;
use crate::lone;

/// Everything that outlives a process.
pub(crate) struct Cluster {
    pub(crate) world: World,
    pub(crate) plan: Plan,
    pub(crate) history: Arc<History>,
    pub(crate) net: Arc<Network>,
    /// What groups were told.
    pub(crate) ledger: Arc<Ledger>,
    /// What became of transactions.
    pub(crate) txns: Arc<TxnLedger>,
    pub(crate) volume: MemoryVolume,
    records: MemoryStore,
    identity: Arc<MemoryIdentity>,
    /// The local index of the newest instance, and an older copy of it.
    index: Mutex<(Arc<MemoryIndex>, Arc<MemoryIndex>)>,
    /// Nodes of instances that may be alive.
    nodes: Mutex<BTreeMap<u64, NodeId>>,
    next: Mutex<u64>,
}

/// A broker process.
pub(crate) struct Instance {
    pub(crate) number: u64,
    pub(crate) node: NodeId,
    pub(crate) disk: Arc<Disk>,
    pub(crate) running: Arc<Running>,
    admin: Router,
    pub(crate) env: Env,
    pub(crate) stop: CancellationToken,
}

/// As what a process comes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The one broker, which owns everything.
    Lone,
    /// One of two, which owns what the assignment gives it.
    Member(BrokerId),
}

impl Role {
    fn broker(self) -> BrokerId {
        match self {
            Self::Lone => BrokerId(0),
            Self::Member(broker) => broker,
        }
    }
}

/// A process that is coming up.
pub(crate) struct Booting {
    pub(crate) number: u64,
    pub(crate) node: NodeId,
    pub(crate) disk: Arc<Disk>,
    env: Env,
    outcome: oneshot::Receiver<Result<Running, String>>,
}

impl Instance {
    /// What clients connect to.
    pub(crate) fn server(&self) -> Server {
        Server {
            number: self.number,
            env: self.env.clone(),
            broker: self.running.broker.clone(),
            admin: self.admin.clone(),
            stop: self.stop.clone(),
        }
    }
}

impl Cluster {
    /// A cluster that was never started.
    pub(crate) fn new(world: &World, plan: Plan) -> Self {
        let history = Arc::new(History::new(world.clone(), &plan));
        Self {
            world: world.clone(),
            net: Network::new(world, &history, plan.net),
            history,
            ledger: Arc::default(),
            txns: Arc::new(TxnLedger::new(&plan)),
            volume: MemoryVolume::new(),
            records: MemoryStore::new(),
            identity: Arc::default(),
            index: Mutex::default(),
            nodes: Mutex::default(),
            next: Mutex::new(0),
            plan,
        }
    }

    /// Begins to bring a process up.
    pub(crate) fn begin_boot(&self, role: Role, rates: DiskRates) -> Booting {
        let number = {
            let mut next = self.next.lock();
            *next += 1;
            *next
        };
        let node = self.world.node(&format!("broker-{number}"));
        self.nodes.lock().insert(number, node);
        let disk = Disk::new(&self.world, node, number, &self.history, rates);
        let env = self.world.env(node);
        let staleness = self.plan.stale.then(|| Staleness {
            clock: env.clock.clone(),
            age_max: Duration::from_mins(1),
            seed: self.world.below(u64::MAX),
        });
        let hook = Arc::new(Hook(disk.clone()));
        let volume: Arc<dyn Volume> = Arc::new(self.volume.mount(hook, staleness));
        let outside = Outside {
            volume: volume.clone(),
            host: Arc::new(host(number)),
            identity: self.identity.clone(),
            // Not asked for: the store that starts on is made below.
            index: Arc::new(MemoryIndex::new()),
            peers: Arc::new(OtherBroker {
                own: role.broker(),
                env: env.clone(),
                net: self.net.clone(),
            }),
        };
        let store = self.store(&env, volume, &disk, role);
        let mut config = config(&self.plan, role);
        if let Some(rules) = self.plan.retention.filter(|_| !self.net.is_calm()) {
            config.broker.topic_defaults.retention = rules;
            let interval = Duration::from_millis(self.plan.retain_ms);
            config.broker.retention_initial_delay = interval;
            config.broker.retention_check_interval = interval;
        }
        if let Some(rules) = self.plan.compaction {
            let topics = &mut config.broker.topic_defaults;
            (topics.compact, topics.compaction) = (true, rules);
            topics.delete = self.plan.retention.is_some();
            config.broker.cleaner.enable = !self.net.is_calm();
            config.broker.cleaner.backoff = Duration::from_millis(self.plan.clean_ms);
        }
        let boot = Running::start_on(env.clone(), outside, config, store);
        let (done, outcome) = oneshot::channel();
        let task = Box::pin(async move {
            let outcome = boot.await.map_err(|error| error.to_string());
            // Who brought it up may have given up.
            drop(done.send(outcome));
        });
        drop(env.runtime.spawn("boot", task));
        Booting {
            number,
            node,
            disk,
            env,
            outcome,
        }
    }

    fn store(
        &self,
        env: &Env,
        volume: Arc<dyn Volume>,
        disk: &Arc<Disk>,
        role: Role,
    ) -> Arc<dyn LogStore> {
        match self.plan.mode {
            Mode::Memory => {
                let handle = self.records.another_handle();
                Arc::new(SlowStore::start(env, handle, disk.clone()))
            }
            Mode::Journal => {
                let config = JournalConfig {
                    broker: role.broker(),
                    flush: if self.plan.os_flush {
                        FlushPolicy::Os
                    } else {
                        FlushPolicy::Fsync
                    },
                    segment_bytes: self.plan.segment_bytes,
                    join_files: 3,
                    ..JournalConfig::default()
                };
                let index = match role {
                    Role::Lone => self.local_index(),
                    // What moves away and comes back finds nothing.
                    Role::Member(_) => Arc::default(),
                };
                Arc::new(JournalStore::new(env.clone(), volume, index, config))
            }
        }
    }

    /// The index that a new process finds: the last one's, an older copy, one with wrong bytes, or
    /// none. Beside an instance that lives, always none: it has it locked.
    fn local_index(&self) -> Arc<MemoryIndex> {
        let mut index = self.index.lock();
        let (last, older) = (index.0.clone(), index.1.clone());
        let alone = self.nodes.lock().len() < 2;
        let found = match self.world.below(10) {
            _ if !alone => Arc::default(),
            0 => Arc::default(),
            1 => copy_index(&older, |_| {}),
            2 => {
                let at = self.world.below(64);
                copy_index(&last, |bytes| damage(bytes, at))
            }
            _ => last.clone(),
        };
        *index = (found.clone(), copy_index(&last, |_| {}));
        found
    }

    /// Waits until a process is up; the reason when it is not: `None` when it was killed.
    pub(crate) async fn booted(&self, booting: Booting) -> Result<Instance, Option<String>> {
        let running = match booting.outcome.await {
            Ok(Ok(running)) => running,
            Ok(Err(why)) => return Err(Some(why)),
            Err(_) => return Err(None),
        };
        let view = running.node.view();
        let mut logs = Vec::new();
        for topic in running.broker.topics() {
            for (index, partition) in (0_u32..).zip(&topic.partitions) {
                let shard = view.topics.by_id(topic.id).and_then(|t| t.shard(index));
                let closed = partition.unavailable().or_else(|| partition.elsewhere());
                if let (None, Some(shard)) = (closed, shard) {
                    let place = (topic.id, i32::try_from(index).unwrap_or(i32::MAX));
                    logs.push((place, shard.0, partition.visible().high_watermark));
                }
            }
        }
        let instance = running.node.instance();
        self.history.up(booting.number, instance, logs);
        self.world
            .note(&format!("{} is up as instance {instance}", booting.number));
        Ok(Instance {
            number: booting.number,
            node: booting.node,
            disk: booting.disk,
            admin: http::router(&booting.env, &running),
            running: Arc::new(running),
            env: booting.env,
            stop: CancellationToken::new(),
        })
    }

    /// Kills a process.
    pub(crate) fn kill(&self, number: u64) {
        if let Some(node) = self.nodes.lock().remove(&number)
            && self.world.is_alive(node)
        {
            self.world.kill(node);
        }
    }

    /// Kills every process and cuts the power.
    pub(crate) async fn power_cut(&self, env: &Env) {
        let numbers: Vec<u64> = self.nodes.lock().keys().copied().collect();
        self.net.route(None, None);
        for number in numbers {
            self.kill(number);
        }
        // Clients take in what was answered before.
        env.clock.sleep(Duration::from_millis(50)).await;
        self.world.note("power cut");
        self.volume.power_cut(self.world.below(u64::MAX));
        if self.plan.os_flush {
            self.history.forget_promises();
        }
    }

    /// Lets the file server execute some of what it held back.
    pub(crate) fn run_late(&self) {
        while !self.volume.late().is_empty() && self.world.chance(60) {
            let late = self.volume.late();
            let index = self.world.index(late.len());
            let outcome = self.volume.run_late(index);
            if let (Ok(()), Some(step)) = (&outcome, late.get(index))
                && let Some(to) = &step.to
            {
                self.history.renamed(None, step.path.as_str(), to.as_str());
            }
            self.world.note(&format!("late: {outcome:?}"));
        }
    }
}

fn copy_index(from: &MemoryIndex, change: impl Fn(&mut Vec<u8>)) -> Arc<MemoryIndex> {
    let copy = MemoryIndex::new();
    // An index in memory answers.
    let entries = from.scan(b"").unwrap_or_default();
    let put = entries.into_iter().map(|(key, value)| {
        let mut value = value.to_vec();
        change(&mut value);
        IndexChange::Put(key.to_vec(), value)
    });
    copy.apply(&put.collect::<Vec<_>>()).unwrap_or_default();
    Arc::new(copy)
}

fn damage(bytes: &mut [u8], at: u64) {
    let at = usize::try_from(at).unwrap_or(0);
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 0x10;
    }
}

fn host(number: u64) -> FixedHost {
    FixedHost {
        name: "simulated".to_owned(),
        boot_id: "simulated-boot".to_owned(),
        pid: u32::try_from(number).unwrap_or(u32::MAX),
        start_time: number,
        running: Vec::new(),
    }
}

fn config(plan: &Plan, role: Role) -> BootConfig {
    let mut config = lone::config();
    config.broker_id = role.broker();
    if let Role::Member(_) = role {
        config.assigned = true;
        config.broker.txn_reap_interval = Duration::from_secs(1);
        config.broker.txn_reconcile_interval = Duration::from_secs(1);
        config.broker.txn_poll_interval = Duration::from_millis(plan.poll_ms);
    }
    "simulated".clone_into(&mut config.version);
    config.shards = plan.shards;
    config.journal_segment_bytes = plan.segment_bytes;
    let broker = &mut config.broker;
    broker.num_partitions = plan.auto_partitions;
    broker.auto_create_topics = true;
    broker.groups.classic.initial_rebalance_delay_ms = 50;
    broker.groups.classic.min_session_timeout_ms = 10;
    config
}
