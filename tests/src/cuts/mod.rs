//! Power cuts under a whole broker on a real file system: whatever was acknowledged or shown is
//! there afterwards, once, and nothing that was never sent.
//!
//! A lane is one disk after the other. Each cycle mounts it, starts a broker on it, checks what was
//! promised before against what it now serves, lets clients work, cuts the power at a moment that
//! the seed decides, and kills the broker. In some cycles the broker is killed and started again in
//! between, and works on; in some the power goes while it starts. The same seed does the same with
//! the same bytes; how far the broker has come at a given moment is the machine's.

pub mod disk;

mod book;
mod compacted;
mod load;

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::book::Book;
use self::disk::CutDisk;
use self::load::Desk;
use crate::gatewayproc::{Gateway, GatewayOptions, binary};
use crate::process::Process;
use crate::raw::fetch::{self, Stored};
use crate::raw::txn::{self, Dialect};
use crate::raw::{RawClient, group, ops};
use crate::wallclock::pause;

/// Bytes of a batch, by partition.
const SIZES: [usize; 4] = [1 << 10, 16 << 10, 256 << 10, 1 << 20];
/// A topic with a partition for each of [`SIZES`].
const DATA: &str = "data";
/// A topic of one partition, written in transactions.
const DECIDED: &str = "decided";
const TRANSACTIONAL_ID: &str = "cut-transactions";
const GROUP: &str = "cut-group";
/// Cycles on one disk before there is a fresh one.
const CYCLES_OF_A_DISK: u32 = 5;
/// How long clients may take to be promised what the plan of a cycle asks for.
const WORK: Duration = Duration::from_mins(2);

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Plan {
    /// `--store` of the broker.
    pub store: String,
    /// Further settings of the broker.
    pub settings: Vec<String>,
    /// Decides everything.
    pub seed: u64,
    /// How often the power is cut.
    pub cuts: u32,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Done {
    /// Power cuts.
    pub cuts: u32,
    /// Those of them that came while a broker started.
    pub at_start: u32,
    /// Kills followed by a restart and, later, a cut.
    pub kills: u32,
    /// Promises that were made.
    pub promises: u64,
    /// Records that were promised and then went by compaction.
    pub compacted: u64,
}

impl std::ops::AddAssign for Done {
    fn add_assign(&mut self, other: Self) {
        self.cuts += other.cuts;
        self.at_start += other.at_start;
        self.kills += other.kills;
        self.promises += other.promises;
        self.compacted += other.compacted;
    }
}

/// Runs a plan on a thread of its own per lane; an error says with which seed.
pub fn run(plan: &Plan, lanes: u32) -> Result<Done> {
    let outcomes: Vec<Result<Done>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..lanes)
            .map(|lane| {
                let cuts = plan.cuts / lanes + u32::from(lane < plan.cuts % lanes);
                let seed = plan.seed.wrapping_add(u64::from(lane));
                scope.spawn(move || run_lane(plan, seed, cuts))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| match thread.join() {
                Ok(outcome) => outcome,
                Err(_) => bail!("a lane panicked"),
            })
            .collect()
    });
    let mut done = Done::default();
    for outcome in outcomes {
        done += outcome?;
    }
    Ok(done)
}

fn run_lane(plan: &Plan, seed: u64, cuts: u32) -> Result<Done> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut lane = Lane::new(plan, seed)?;
    for cycle in 0..cuts {
        let outcome = runtime.block_on(lane.cycle(cycle));
        outcome.with_context(|| lane.place(&format!("cycle {cycle}")))?;
    }
    let last = runtime.block_on(lane.settle());
    last.with_context(|| lane.place("the last check"))?;
    Ok(lane.done)
}

#[derive(Debug)]
struct Lane {
    plan: Plan,
    seed: u64,
    random: fastrand::Rng,
    disk: CutDisk,
    /// A name of the data directory beside the disk, so that the broker's log is not on it.
    data_dir: PathBuf,
    book: Arc<Mutex<Book>>,
    done: Done,
}

impl Lane {
    fn new(plan: &Plan, seed: u64) -> Result<Self> {
        let disk = CutDisk::new()?;
        let data_dir = disk.beside().join("data");
        symlink(disk.beside().join("disk/volume"), &data_dir)?;
        Ok(Self {
            plan: plan.clone(),
            seed,
            random: fastrand::Rng::with_seed(seed),
            disk,
            data_dir,
            book: Arc::default(),
            done: Done::default(),
        })
    }

    /// Where something happened, with the end of the broker's log.
    fn place(&self, what: &str) -> String {
        let log = std::fs::read_to_string(self.disk.beside().join("data.log"));
        let log = log.unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(40)..].join("\n");
        format!("seed {}, {what}, {:?}\n{tail}", self.seed, self.done)
    }

    fn options(&self) -> GatewayOptions {
        let mut overrides = vec![
            "log.retention.ms=-1".to_owned(),
            "auto.create.topics.enable=false".to_owned(),
            "group.initial.rebalance.delay.ms=0".to_owned(),
            // Small, so that files are closed and begun between cuts.
            "journal.segment.bytes=4194304".to_owned(),
            // Always at it, so that cuts come in the middle of compaction.
            "log.cleaner.backoff.ms=20".to_owned(),
        ];
        overrides.extend(self.plan.settings.iter().cloned());
        GatewayOptions {
            overrides,
            args: vec!["--store".to_owned(), self.plan.store.clone()],
            ..GatewayOptions::default()
        }
    }

    fn mount(&mut self) -> Result<()> {
        let at = self.disk.mount()?;
        let made = std::fs::create_dir(at.join("volume"));
        match made {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn start(&self) -> Result<Gateway> {
        Gateway::start(&self.data_dir, &self.options())
    }

    /// One cut.
    async fn cycle(&mut self, cycle: u32) -> Result<()> {
        if cycle > 0 && cycle.is_multiple_of(CYCLES_OF_A_DISK) {
            self.settle().await?;
            self.disk.format()?;
            self.book = Arc::default();
        }
        self.mount()?;
        self.done.cuts += 1;
        if self.random.u8(..6) == 0 {
            self.done.at_start += 1;
            return self.cut_a_start();
        }
        let mut gateway = self.start()?;
        self.check(&gateway).await?;
        if self.random.u8(..3) == 0 {
            self.done.kills += 1;
            self.work(&mut gateway, cycle * 2, false).await?;
            gateway = self.start()?;
            self.check(&gateway).await?;
        }
        self.work(&mut gateway, cycle * 2 + 1, true).await?;
        self.disk.unmount()
    }

    /// Cuts the power while a broker starts.
    fn cut_a_start(&mut self) -> Result<()> {
        let mut command = Command::new(binary()?);
        command.arg("serve").arg("--data-dir").arg(&self.data_dir);
        command.args(["--override", "listeners=PLAINTEXT://127.0.0.1:0"]);
        command.args(["--admin-listen", "127.0.0.1:0"]);
        for setting in self.options().overrides {
            command.args(["--override", &setting]);
        }
        command.args(self.options().args);
        for name in ["FENCEPOST_BIN", "FENCEPOST_CACHE", "FENCEPOST_WIRE_TARGET"] {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null());
        let mut process = Process::new(command.spawn().context("fencepost")?);
        pause(Duration::from_micros(self.random.u64(..150_000)));
        self.disk.cut()?;
        process.kill()?;
        self.disk.unmount()
    }

    /// Lets clients work until they were promised as much as the seed says, then cuts the power
    /// or only kills the broker.
    async fn work(&mut self, gateway: &mut Gateway, round: u32, cut: bool) -> Result<()> {
        let (acks, mut promised) = watch::channel(0);
        let desk = Desk {
            address: gateway.address(),
            book: Arc::clone(&self.book),
            acks,
        };
        let dialect = [Dialect::V1, Dialect::V2][self.random.usize(..2)];
        let mut client = RawClient::connect(&desk.address).await?;
        let session = self.session(&mut client).await?;
        let ends = ops::list_offsets(&mut client, DATA, partitions()?, ops::LATEST).await?;
        let mut clients = JoinSet::new();
        for partition in 0..SIZES.len() {
            clients.spawn(load::produce(desk.clone(), self.seed, partition));
        }
        clients.spawn(load::consume(desk.clone(), (0..).zip(ends).collect()));
        clients.spawn(load::transact(desk.clone(), session, dialect));
        clients.spawn(load::commit(desk.clone()));
        clients.spawn(compacted::produce(desk.clone()));
        clients.spawn(load::administer(desk, round));
        let wanted = self.random.u64(..150);
        let jitter = Duration::from_micros(self.random.u64(..4_000));
        let enough = promised.wait_for(|promised| *promised >= wanted);
        let waited = tokio::time::timeout(WORK, enough).await;
        // When all have ended before, it is as good a moment.
        waited.ok().context("the clients are stuck")?.ok();
        tokio::time::sleep(jitter).await;
        if cut {
            self.disk.cut()?;
            // What is acknowledged now was durable before, or is a lie.
            let linger = Duration::from_micros(self.random.u64(..10_000));
            tokio::time::sleep(linger).await;
        }
        gateway.process().kill()?;
        while let Some(ended) = clients.join_next().await {
            // Its connection is gone; what matters is in the book.
            drop(ended.context("a client panicked")?);
        }
        self.done.promises += *promised.borrow();
        match &self.book.lock().problem {
            None => Ok(()),
            Some(problem) => bail!("{problem}"),
        }
    }

    async fn session(&self, client: &mut RawClient) -> Result<txn::Session> {
        let ids = [TRANSACTIONAL_ID.to_owned()];
        let sessions = txn::begin_all(client, &ids, 900_000).await?;
        sessions.first().copied().context("no session")
    }

    /// Checks what is there at the end of a disk's life.
    async fn settle(&mut self) -> Result<()> {
        self.mount()?;
        let mut gateway = self.start()?;
        self.check(&gateway).await?;
        self.done.compacted += u64::try_from(self.book.lock().compacted.gone())?;
        gateway.process().kill()?;
        let log = gateway.log()?;
        // sled panics by itself when its disk is gone; layout=kv catches that.
        let panics = log
            .lines()
            .filter(|line| line.contains("\"message\":\"panic"));
        let ours: Vec<&str> = panics.filter(|line| !line.contains("/sled-")).collect();
        ensure!(ours.is_empty(), "the broker panicked: {ours:?}");
        self.disk.unmount()
    }

    /// Compares what was promised with what is served, and creates what is missing.
    async fn check(&self, gateway: &Gateway) -> Result<()> {
        let mut client = RawClient::connect(gateway.address()).await?;
        let (made, gone) = {
            let book = self.book.lock();
            (book.made.clone(), book.gone.clone())
        };
        for name in gone {
            let found = ops::metadata(&mut client, &name).await?;
            let code = found.topics.first().map(|topic| topic.error_code);
            ensure!(code == Some(3), "{name} was deleted: {code:?}");
        }
        for (name, id) in made {
            let found = ops::metadata(&mut client, &name).await?;
            let found = found.topics.first().map(|topic| topic.topic_id);
            ensure!(found == Some(id), "{name} was {id}, now {found:?}");
        }
        self.create(&mut client, DATA, partitions()?, &[]).await?;
        self.create(&mut client, DECIDED, 1, &[]).await?;
        self.create(&mut client, compacted::TOPIC, 1, &compacted::CONFIGS)
            .await?;
        txn::await_coordinator(&mut client, TRANSACTIONAL_ID).await?;
        self.session(&mut client).await?;
        group::await_coordinator(&mut client, GROUP).await?;
        for index in 0..SIZES.len() {
            let (found, end) = whole(&mut client, DATA, i32::try_from(index)?).await?;
            let kept = self.book.lock().logs[index].check(&found, end);
            kept.with_context(|| format!("{DATA}-{index}"))?;
        }
        await_decided(&mut client).await?;
        let (found, _) = whole(&mut client, DECIDED, 0).await?;
        self.book.lock().transactions.check(&found)?;
        let (found, end) = whole(&mut client, compacted::TOPIC, 0).await?;
        let kept = self.book.lock().compacted.check(&found, end);
        kept.context(compacted::TOPIC)?;
        let offsets = group::committed(&mut client, GROUP, DATA, 1).await?;
        let offset = offsets.first().copied().unwrap_or(-1).max(0);
        let mut book = self.book.lock();
        let (acknowledged, sent) = book.committed;
        ensure!(
            (acknowledged..=sent).contains(&offset),
            "offset {offset} is committed, {acknowledged} was acknowledged, {sent} sent"
        );
        book.committed.0 = offset;
        Ok(())
    }

    /// Creates a topic that is not there; one whose creation was acknowledged is.
    async fn create(
        &self,
        client: &mut RawClient,
        name: &str,
        partitions: i32,
        configs: &[(&str, &str)],
    ) -> Result<()> {
        let found = ops::metadata(client, name).await?;
        let code = found.topics.first().map(|topic| topic.error_code);
        let answer = match code {
            Some(3) => ops::create_topic(client, name, partitions, configs).await?,
            _ => ops::await_topic(client, name, partitions).await?,
        };
        let id = answer.topics.first().context("no topic")?.topic_id;
        self.book.lock().made.insert(name.to_owned(), id);
        Ok(())
    }
}

fn partitions() -> Result<i32> {
    Ok(i32::try_from(SIZES.len())?)
}

/// All batches of a partition, and its end.
async fn whole(client: &mut RawClient, topic: &str, partition: i32) -> Result<(Vec<Stored>, i64)> {
    let ends = ops::list_offsets(client, topic, partition + 1, ops::LATEST).await?;
    let end = *ends.last().context("no end")?;
    let mut found: Vec<Stored> = Vec::new();
    let mut next = 0;
    while next < end {
        let answers = fetch::fetch(client, topic, &[(partition, next)], 0, 8 << 20).await?;
        let answer = answers.first().context("no answer")?;
        ensure!(
            answer.error_code == 0,
            "{topic}-{partition} at {next}: {}",
            answer.error_code
        );
        let batches = fetch::batches(&answer.records)?;
        ensure!(
            !batches.is_empty(),
            "{topic}-{partition}: nothing at {next}"
        );
        next = batches.last().map_or(next, |last| last.last + 1);
        found.extend(batches);
    }
    Ok((found, end))
}

/// Awaits that no transaction is open: the one of the session before is being aborted. At most 2400
/// times, 50 ms apart.
async fn await_decided(client: &mut RawClient) -> Result<()> {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..2400 {
        pace.tick().await;
        let stable = ops::stable_offsets(client, DECIDED, 1).await?;
        if stable == ops::list_offsets(client, DECIDED, 1, ops::LATEST).await? {
            return Ok(());
        }
    }
    bail!("a transaction stays open")
}
