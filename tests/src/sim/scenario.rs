//! From a seed to a verdict: brings brokers and clients up, plays the plan's acts, waits until
//! everything is quiet, and checks.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use store_adapter::runtime::Env;

use super::admin;
use super::check;
use super::clients::{Client, Target};
use super::disk::{Disk, DiskRates, Trap};
use super::executor::{NodeId, World};
use super::groups::{self, Share};
use super::instance::{Cluster, Instance, Role};
use super::plan::{Act, Plan};
use super::producer::Producer;
use super::reader::Reader;
use super::txns::{self, CommittedReader, Transactor};

mod pair;

/// Scheduling steps of one run.
const STEPS_MAX: u64 = 5_000_000;
/// Starts in a row that may fail.
const STARTS_MAX: u32 = 30;
/// Starts in a row after which the disk is left alone.
const TROUBLED_STARTS_MAX: u32 = 5;
/// How long clients may get nowhere before an operator restarts the broker.
const QUIET: Duration = Duration::from_secs(10);

/// What became of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// What the seed stands for.
    pub plan: String,
    /// Rules that were broken; none in a good run.
    pub violations: Vec<String>,
    /// Every event, in order.
    pub log: Vec<String>,
    /// What was done, in numbers.
    pub summary: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.summary)?;
        for violation in &self.violations {
            writeln!(f, "  {violation}")?;
        }
        if !self.violations.is_empty() {
            writeln!(f, "  plan: {}", self.plan)?;
            writeln!(f, "  repeat with: scripts/sim.sh {}", self.seed)?;
        }
        Ok(())
    }
}

/// Runs a seed.
pub fn run(seed: u64) -> Report {
    let world = World::new(seed);
    let plan = Plan::of(seed);
    let described = format!("{plan:?}");
    let node = world.node("director");
    let cluster = Arc::new(Cluster::new(&world, plan));
    let director = Director {
        env: world.env(node),
        clients: world.node("clients"),
        cluster: cluster.clone(),
        working: Arc::default(),
    };
    let outcome = world.run(node, STEPS_MAX, async move { director.direct().await });
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(why)) => cluster.history.violation(&why),
        Err(error) => cluster.history.violation(&error.to_string()),
    }
    let summary = format!(
        "{}, {}, {}, {} steps, {:?}",
        cluster.history.summary(),
        cluster.ledger.summary(),
        cluster.txns.summary(),
        world.steps(),
        world.now()
    );
    cluster.net.route(None, None);
    world.shut_down();
    Report {
        seed,
        plan: described,
        violations: cluster.history.violations(),
        log: world.log(),
        summary,
    }
}

struct Director {
    env: Env,
    clients: NodeId,
    cluster: Arc<Cluster>,
    /// Producers that are not done.
    working: Arc<AtomicU32>,
}

impl Director {
    async fn direct(&self) -> Result<(), String> {
        if !self.cluster.plan.pair.is_empty() {
            return self.direct_pair().await;
        }
        let mut up = self.first_start().await?;
        let targets = self.lasting_topics().await?;
        self.start_clients(&targets);
        let transactions = self.start_transactions().await?;
        for act in self.cluster.plan.acts.clone() {
            if self.cluster.history.failed() {
                return Ok(());
            }
            self.cluster.world.note(&format!("act {act:?}"));
            self.cluster.run_late();
            up = self.act(up, act).await?;
        }
        up = self.quiet(up).await?;
        if self.cluster.history.failed() {
            return Ok(());
        }
        self.cluster.net.route(None, None);
        self.cluster.kill(up.number);
        self.verify(transactions).await
    }

    fn world(&self) -> &World {
        &self.cluster.world
    }

    async fn sleep(&self, ms: u64) {
        self.env.clock.sleep(Duration::from_millis(ms)).await;
    }

    fn client(&self, node: NodeId) -> Client {
        Client {
            world: self.world().clone(),
            env: self.world().env(node),
            net: self.cluster.net.clone(),
            history: self.cluster.history.clone(),
        }
    }

    /// Brings a process up, again and again if need be, and shows clients the way to it.
    async fn start(&self) -> Result<Instance, String> {
        let rates = self.cluster.plan.disk;
        let up = self.start_beside(Role::Lone, rates, None).await?;
        self.cluster.net.route(Some(up.server()), None);
        Ok(up)
    }

    /// The same on a volume that nothing is on, or nothing but ids with a past.
    async fn first_start(&self) -> Result<Instance, String> {
        let up = self.start().await?;
        if !self.cluster.plan.late_epochs || self.cluster.plan.txn_ids == 0 {
            return Ok(up);
        }
        self.cluster.net.route(None, None);
        self.cluster.kill(up.number);
        let volume = &self.cluster.volume;
        txns::leave_ids(volume, self.world(), self.cluster.plan.txn_ids).await?;
        self.start().await
    }

    /// Brings a process up, which pauses `victim` when it has claimed an area, both in one.
    async fn start_beside(
        &self,
        role: Role,
        rates: DiskRates,
        victim: Option<(&Arc<Disk>, &str)>,
    ) -> Result<Instance, String> {
        let mut why = None;
        for start in 0..STARTS_MAX {
            let calm = start >= TROUBLED_STARTS_MAX;
            let booting = self.cluster.begin_boot(role, rates);
            if calm {
                booting.disk.calm();
            } else if self.world().chance(self.cluster.plan.kill_starts) {
                let trap = if self.world().chance(50) {
                    Trap::KillBefore
                } else {
                    Trap::KillBehind
                };
                drop(booting.disk.arm(1 + self.world().below(150), trap));
            }
            if let Some((disk, area)) = victim {
                booting.disk.pause_at_claim(disk, area);
            }
            let number = booting.number;
            match self.cluster.booted(booting).await {
                Ok(up) => {
                    up.disk.disarm();
                    return Ok(up);
                }
                Err(failure) => {
                    self.world()
                        .note(&format!("{number} is not up: {failure:?}"));
                    self.cluster.kill(number);
                    self.cluster.run_late();
                    why = failure.or(why);
                }
            }
            self.sleep(10).await;
        }
        Err(format!("the broker does not come up: {why:?}"))
    }

    /// Creates the topics that last; that of transactions is not among them.
    async fn lasting_topics(&self) -> Result<Vec<Target>, String> {
        let mut targets = Vec::new();
        for (index, partitions) in self.cluster.plan.topics.iter().enumerate() {
            let name = format!("main-{index}-{partitions}");
            targets.push(self.lasting_topic(name, *partitions).await?);
        }
        Ok(targets)
    }

    async fn lasting_topic(&self, name: String, partitions: u32) -> Result<Target, String> {
        let client = self.client(self.clients);
        for _ in 0..200 {
            let connection = client.connect().await;
            // Metadata tells whether it worked.
            let _code = admin::create(&client, &connection, &name).await;
            let listed = client.metadata(&connection, Some(&name), false).await;
            let found = listed.and_then(|topics| topics.into_iter().find(|t| t.error_code == 0));
            if let Some(topic) = found {
                admin::seen(&client, &topic);
                return Ok(Target {
                    id: topic.topic_id,
                    name,
                    partitions: i32::try_from(partitions).unwrap_or(1),
                });
            }
            client.pause(5, 20).await;
        }
        Err(format!("topic {name} can't be created"))
    }

    /// The topic of transactions with its clients and reader, if the plan has any.
    async fn start_transactions(&self) -> Result<Option<Target>, String> {
        let plan = &self.cluster.plan;
        if plan.txn_ids == 0 {
            return Ok(None);
        }
        let name = txns::topic(plan.txn_partitions);
        let on = self.lasting_topic(name, plan.txn_partitions).await?;
        let client = self.client(self.clients);
        let runtime = client.env.runtime.clone();
        let reader = CommittedReader {
            client: client.clone(),
            ledger: self.cluster.txns.clone(),
            on: on.clone(),
            ids: plan.txn_ids,
        };
        drop(runtime.spawn("reader", Box::pin(reader.run())));
        for number in 0..plan.txn_ids * plan.txn_clients {
            let transactor = Transactor {
                client: client.clone(),
                ledger: self.cluster.txns.clone(),
                id: number % plan.txn_ids,
                on: on.clone(),
                total: plan.txns,
                timeout_ms: plan.txn_timeout_ms,
                think_ms: plan.think_ms,
            };
            self.works("transactor", transactor.run());
        }
        Ok(Some(on))
    }

    /// Runs a client whose end is waited for.
    fn works(&self, name: &str, client: impl Future<Output = ()> + Send + 'static) {
        self.working.fetch_add(1, Ordering::Relaxed);
        let working = self.working.clone();
        let task = Box::pin(async move {
            client.await;
            working.fetch_sub(1, Ordering::Relaxed);
        });
        let runtime = self.world().env(self.clients).runtime;
        drop(runtime.spawn(name, task));
    }

    fn start_clients(&self, targets: &[Target]) {
        let plan = &self.cluster.plan;
        let client = self.client(self.clients);
        let runtime = client.env.runtime.clone();
        for _ in 0..plan.producers {
            let producer = Producer {
                client: client.clone(),
                targets: targets.to_vec(),
                total: plan.batches,
                cautious: self.world().chance(50),
                think_ms: plan.think_ms,
            };
            self.works("producer", producer.run());
        }
        for number in 0..plan.readers {
            let reader = Reader {
                client: client.clone(),
                targets: targets.to_vec(),
                isolation: i8::from(number % 2 == 1),
            };
            drop(runtime.spawn("reader", Box::pin(reader.run())));
        }
        for _ in 0..plan.churn {
            let churn = admin::churn(client.clone(), plan.auto_partitions);
            drop(runtime.spawn("admin", Box::pin(churn)));
        }
        self.start_groups(targets);
        for _ in 0..plan.ids {
            drop(runtime.spawn("ids", Box::pin(admin::ids(client.clone()))));
        }
    }

    fn start_groups(&self, targets: &[Target]) {
        let plan = &self.cluster.plan;
        let client = self.client(self.clients);
        let runtime = client.env.runtime.clone();
        let Some(on) = targets.first() else { return };
        for number in 0..plan.committers {
            let (client, ledger) = (client.clone(), self.cluster.ledger.clone());
            let task = groups::committer(client, ledger, groups::simple(number), on.clone());
            drop(runtime.spawn("committer", Box::pin(task)));
        }
        for number in 0..plan.members {
            let share = Share {
                client: client.clone(),
                ledger: self.cluster.ledger.clone(),
                group: groups::SHARED_GROUP.to_owned(),
                on: on.clone(),
                number,
            };
            drop(runtime.spawn("member", Box::pin(groups::member(share))));
        }
    }

    /// Without faults every member gets somewhere.
    async fn members_are_well(&self) -> Result<(), String> {
        let before = self.cluster.ledger.stable();
        for _ in 0..400 {
            let now = self.cluster.ledger.stable();
            let moved = |number: &u32| now.get(number) > before.get(number);
            if (0..self.cluster.plan.members).all(|number| moved(&number)) {
                return Ok(());
            }
            if self.cluster.history.failed() {
                return Ok(());
            }
            self.sleep(100).await;
        }
        Err("a member of a group gets nowhere without any fault".to_owned())
    }

    async fn act(&self, up: Instance, act: Act) -> Result<Instance, String> {
        match act {
            Act::Work(ms) => {
                self.sleep(ms).await;
                Ok(up)
            }
            Act::Kill { steps, behind } => {
                self.kill_at(&up, steps, behind).await;
                self.start().await
            }
            Act::Cut { steps, behind } => {
                self.kill_at(&up, steps, behind).await;
                self.cluster.power_cut(&self.env).await;
                self.start().await
            }
            Act::TakeOver {
                steps,
                meanwhile,
                hold_ms,
                linger_ms,
            } => {
                self.take_over(up, steps, meanwhile, hold_ms, linger_ms)
                    .await
            }
            Act::Stop { steps, cut } => {
                self.stop(&up, steps).await;
                if cut {
                    self.cluster.power_cut(&self.env).await;
                }
                self.start().await
            }
        }
    }

    /// Waits for a trap, or a while.
    async fn sprung(&self, trap: tokio::sync::oneshot::Receiver<()>, ms: u64) {
        tokio::select! {
            biased;
            _ = trap => {}
            () = self.env.clock.sleep(Duration::from_millis(ms)) => {}
        }
    }

    async fn kill_at(&self, up: &Instance, steps: u64, behind: bool) {
        let trap = if behind {
            Trap::KillBehind
        } else {
            Trap::KillBefore
        };
        let trap = up.disk.arm(steps, trap);
        self.sprung(trap, 1_500).await;
        self.cluster.net.route(None, None);
        self.cluster.kill(up.number);
    }

    async fn take_over(
        &self,
        up: Instance,
        steps: u64,
        meanwhile: bool,
        hold_ms: u64,
        linger_ms: u64,
    ) -> Result<Instance, String> {
        let mut victim = None;
        if meanwhile {
            let area = ["broker-0", "controller", "shard-0"];
            let area = area.get(usize::try_from(steps % 3).unwrap_or(0));
            victim = area.map(|area| (&up.disk, *area));
        } else {
            self.sprung(up.disk.arm(steps, Trap::Pause), 500).await;
        }
        let rates = self.cluster.plan.disk;
        let second = self.start_beside(Role::Lone, rates, victim).await?;
        up.disk.disarm();
        if !meanwhile {
            self.world().pause(up.node);
        }
        self.cluster
            .net
            .route(Some(second.server()), Some(up.server()));
        self.sleep(hold_ms).await;
        self.world().resume(up.node);
        self.sleep(linger_ms).await;
        self.cluster.net.route(Some(second.server()), None);
        self.cluster.kill(up.number);
        Ok(second)
    }

    /// A clean stop: requests drain, then everything is given up; killed after `steps` of that.
    async fn stop(&self, up: &Instance, steps: u64) {
        self.cluster.net.route(None, None);
        up.stop.cancel();
        up.running.broker.begin_stop();
        self.sleep(400).await;
        let running = up.running.clone();
        let stopping = up
            .env
            .runtime
            .spawn("stop", Box::pin(async move { running.stop().await }));
        if steps > 0 {
            drop(up.disk.arm(steps, Trap::KillBefore));
        }
        tokio::select! {
            biased;
            () = stopping => {}
            () = self.env.clock.sleep(Duration::from_secs(20)) => {
                self.world().note("the stop takes too long");
            }
        }
        self.cluster.kill(up.number);
    }

    /// Ends all faults and waits until every producer is done.
    async fn quiet(&self, mut up: Instance) -> Result<Instance, String> {
        self.world().note("calm");
        self.cluster.net.calm();
        up.disk.calm();
        let mut restarts = 0;
        let mut progress = self.cluster.history.progress();
        let began = self.env.clock.monotonic();
        let mut since = began;
        while self.working.load(Ordering::Relaxed) > 0 {
            self.sleep(20).await;
            if self.cluster.history.failed() {
                break;
            }
            let now = self.env.clock.monotonic();
            let present = self.cluster.history.progress();
            if present != progress {
                (progress, since) = (present, now);
            }
            let stuck = now.saturating_sub(since) > QUIET;
            let long = now.saturating_sub(began) > 10 * QUIET;
            if !self.cluster.history.durable() && (stuck || long) {
                // Without syncs a power cut may take what was acknowledged: a producer whose past
                // is gone gets 45 for ever, and nothing is promised.
                break;
            }
            if stuck {
                if restarts == 2 {
                    return Err("producers get nowhere without any fault".to_owned());
                }
                restarts += 1;
                since = now;
                self.world().note("an operator restarts the broker");
                self.cluster.net.route(None, None);
                self.cluster.kill(up.number);
                up = self.start().await?;
                up.disk.calm();
            }
        }
        self.members_are_well().await?;
        self.world().kill(self.clients);
        Ok(up)
    }

    /// Starts once more, and compares the log with the history.
    async fn verify(&self, transactions: Option<Target>) -> Result<(), String> {
        self.world().note("verify");
        if self.cluster.plan.last_cut {
            self.cluster.power_cut(&self.env).await;
        }
        let booting = self.cluster.begin_boot(Role::Lone, DiskRates::default());
        booting.disk.calm();
        let up = self.cluster.booted(booting).await;
        let up = up.map_err(|why| format!("the last start failed: {why:?}"))?;
        self.cluster.net.route(Some(up.server()), None);
        let node = self.world().node("verifier");
        check::check(&self.client(node)).await?;
        if let Some(on) = transactions {
            let (client, ledger) = (self.client(node), &self.cluster.txns);
            txns::check(&client, ledger, &on, self.cluster.plan.txn_ids).await?;
        }
        groups::check(&self.client(node), &self.cluster.ledger).await
    }
}
