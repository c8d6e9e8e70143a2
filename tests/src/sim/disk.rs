//! Faults of the volume, and the points at which a process is killed or paused.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use store_adapter::runtime::{BoxFuture, Env};
use store_adapter::volume::memory::{Step, StepAnswer, StepFault, StepHook, StepOp, StepOutcome};
use tokio::sync::oneshot;

use super::executor::{NodeId, World};
use super::history::History;

/// How often a disk misbehaves.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DiskRates {
    /// Syncs that take 200 ms, in a hundred.
    pub(crate) slow_sync: u64,
    /// Syncs that fail, in a thousand.
    pub(crate) fail_sync: u64,
    /// Writes that fail, some of them half done, in a thousand.
    pub(crate) fail_write: u64,
    /// Other steps that fail, done or not, in a thousand.
    pub(crate) fail_other: u64,
    /// Renames and removals that answer an error and are executed later, in a thousand.
    pub(crate) late: u64,
    /// Longest usual step, microseconds.
    pub(crate) latency_us: u64,
}

/// How long an instance waits before it names itself owner of an area, at most.
const CLAIM_WAITS: u32 = 600;
const CLAIM_WAIT: Duration = Duration::from_micros(500);

/// What happens at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trap {
    /// The process is killed before the step.
    KillBefore,
    /// The process is killed behind the step.
    KillBehind,
    /// The process is paused before the step.
    Pause,
}

struct Armed {
    left: u64,
    trap: Trap,
    sprung: oneshot::Sender<()>,
}

struct State {
    rates: DiskRates,
    armed: Option<Armed>,
    /// Who is paused when this instance names itself owner of an area, and of which.
    victim: Option<(Arc<Disk>, String)>,
    /// Tickets that this instance has made, and the area of the one that it has checked the owner
    /// for and not renamed yet.
    tickets: u64,
    replacing: Option<String>,
    /// Nothing fails any more.
    calm: bool,
}

/// One instance's view of the disk.
pub(crate) struct Disk {
    world: World,
    env: Env,
    node: NodeId,
    server: u64,
    history: Arc<History>,
    state: Mutex<State>,
}

impl Disk {
    /// The disk of one instance.
    pub(crate) fn new(
        world: &World,
        node: NodeId,
        server: u64,
        history: &Arc<History>,
        rates: DiskRates,
    ) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            env: world.env(node),
            node,
            server,
            history: history.clone(),
            state: Mutex::new(State {
                rates,
                armed: None,
                victim: None,
                tickets: 0,
                replacing: None,
                calm: false,
            }),
        })
    }

    /// Sets a trap at the `steps`th step from now; completes when it has sprung.
    pub(crate) fn arm(&self, steps: u64, trap: Trap) -> oneshot::Receiver<()> {
        let (sprung, wait) = oneshot::channel();
        self.state.lock().armed = Some(Armed {
            left: steps,
            trap,
            sprung,
        });
        wait
    }

    /// Pauses `victim` when this instance names itself owner of `area`: in the middle of a replace
    /// that the victim has begun since this instance looked for such, if it does any in time.
    pub(crate) fn pause_at_claim(&self, victim: &Arc<Self>, area: &str) {
        self.state.lock().victim = Some((victim.clone(), area.to_owned()));
    }

    /// Holds the naming of an owner back until the victim is where it hurts.
    async fn wait_for_victim(&self, target: &str) {
        let victim = self.state.lock().victim.clone();
        let Some((victim, area)) = victim.filter(|(_, area)| names_owner(target, area)) else {
            return;
        };
        let tickets = victim.state.lock().tickets;
        for _ in 0..CLAIM_WAITS {
            let in_the_middle = {
                let state = victim.state.lock();
                state.tickets > tickets && state.replacing.as_ref() == Some(&area)
            };
            if in_the_middle || !self.world.is_alive(victim.node) {
                return;
            }
            self.env.clock.sleep(CLAIM_WAIT).await;
        }
    }

    fn named_owner(&self, target: &str) {
        let victim = {
            let mut state = self.state.lock();
            state.victim.take_if(|(_, area)| names_owner(target, area))
        };
        if let Some((victim, _)) = victim {
            self.world.pause(victim.node);
        }
    }

    /// Follows the replaces of this instance.
    fn follow(&self, step: &Step) {
        let mut state = self.state.lock();
        match step.op {
            StepOp::CreateNew if step.path.file_name().starts_with("t-") => {
                state.tickets += 1;
                state.replacing = None;
            }
            StepOp::Read if step.path.file_name() == "current.json" => {
                let dir = step.path.parent();
                state.replacing = Some(dir.file_name().to_owned());
            }
            StepOp::Rename | StepOp::Remove => state.replacing = None,
            _ => {}
        }
    }

    /// Takes the trap away.
    pub(crate) fn disarm(&self) {
        self.state.lock().armed = None;
    }

    /// Ends every fault.
    pub(crate) fn calm(&self) {
        let mut state = self.state.lock();
        state.calm = true;
        state.armed = None;
    }

    /// Whether an event of probability `rate` in a thousand happens; never once calm.
    pub(crate) fn unlucky(&self, rate: u64) -> bool {
        !self.state.lock().calm && self.world.below(1000) < rate
    }

    /// The rates.
    pub(crate) fn rates(&self) -> DiskRates {
        self.state.lock().rates
    }

    /// A step of something that is not a volume.
    pub(crate) async fn point(&self, name: &str, slow: bool) {
        let op = if slow {
            StepOp::SyncData
        } else {
            StepOp::ReadAt
        };
        self.latency(op).await;
        self.world.note(&format!("{} {name}", self.server));
        if let Some(Trap::KillBefore | Trap::KillBehind) = self.spring().await {
            // Killed: this task is dropped with the others.
            std::future::pending::<()>().await;
        }
    }

    async fn decide(&self, step: &Step) -> StepOutcome {
        self.latency(step.op).await;
        if let Some(to) = &step.to {
            self.wait_for_victim(to.as_str()).await;
        }
        let line = match &step.to {
            Some(to) => format!("{} {:?} {} -> {to}", self.server, step.op, step.path),
            None => format!(
                "{} {:?} {} {}+{}",
                self.server, step.op, step.path, step.offset, step.len
            ),
        };
        self.world.note(&line);
        match self.spring().await {
            Some(Trap::KillBefore) => return StepOutcome::Stop,
            Some(Trap::KillBehind) => return StepOutcome::StopAfter,
            Some(Trap::Pause) | None => {}
        }
        let outcome = self.fault(step);
        if outcome != StepOutcome::Proceed {
            self.world.note(&format!("{} {outcome:?}", self.server));
        }
        outcome
    }

    /// Counts a step, and springs the trap when its time has come.
    async fn spring(&self) -> Option<Trap> {
        let armed = {
            let mut state = self.state.lock();
            let armed = state.armed.as_mut()?;
            armed.left = armed.left.saturating_sub(1);
            if armed.left > 0 {
                return None;
            }
            state.armed.take()?
        };
        let trap = armed.trap;
        match trap {
            Trap::KillBefore | Trap::KillBehind => self.world.kill(self.node),
            Trap::Pause => self.world.pause(self.node),
        }
        // Nobody may wait for it any more.
        armed.sprung.send(()).unwrap_or_default();
        if trap == Trap::Pause {
            // Not scheduled again before it is resumed.
            YieldOnce(false).await;
        }
        Some(trap)
    }

    async fn latency(&self, op: StepOp) {
        let (rates, calm) = {
            let state = self.state.lock();
            (state.rates, state.calm)
        };
        let us = match op {
            StepOp::SyncData if !calm && self.world.chance(rates.slow_sync) => 200_000,
            StepOp::SyncData => 100 + self.world.below(10 * rates.latency_us + 1),
            _ => self.world.below(rates.latency_us + 1),
        };
        if us > 0 {
            self.env.clock.sleep(Duration::from_micros(us)).await;
        }
    }

    fn fault(&self, step: &Step) -> StepOutcome {
        let rates = self.rates();
        let fault = if self.world.chance(50) {
            StepFault::Io
        } else {
            StepFault::NoSpace
        };
        match step.op {
            StepOp::SyncData if self.unlucky(rates.fail_sync) => StepOutcome::Fail(StepFault::Io),
            StepOp::Allocate if self.unlucky(rates.fail_write) => StepOutcome::Fail(fault),
            StepOp::WriteAt if self.unlucky(rates.fail_write) => {
                let bytes = self.world.below(step.len + 1);
                StepOutcome::FailPartly { bytes, fault }
            }
            StepOp::Rename | StepOp::Remove if self.unlucky(rates.late) => {
                StepOutcome::Late(StepFault::Io)
            }
            StepOp::SyncData | StepOp::Allocate | StepOp::WriteAt => StepOutcome::Proceed,
            _ if self.unlucky(rates.fail_other) => {
                if step.op.changes() && self.world.chance(50) {
                    StepOutcome::FailAfter(StepFault::Io)
                } else {
                    StepOutcome::Fail(StepFault::Io)
                }
            }
            _ => StepOutcome::Proceed,
        }
    }
}

/// The hook of one mount.
#[derive(Clone)]
pub(crate) struct Hook(pub(crate) Arc<Disk>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hook({})", self.0.server)
    }
}

impl StepHook for Hook {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let (disk, step) = (self.0.clone(), step.clone());
        Box::pin(async move { disk.decide(&step).await })
    }

    fn after(&self, step: &Step, answer: StepAnswer<'_>) {
        let disk = &self.0;
        disk.follow(step);
        disk.history.step(disk.server, step.path.as_str());
        match (step.op, answer) {
            (StepOp::Read, StepAnswer::Bytes(bytes)) => {
                if let Some(shard) = claimed_shard(step.path.as_str())
                    && let Some(instance) = instance_of(bytes)
                {
                    disk.history.claim_checked(disk.server, shard, instance);
                }
            }
            (StepOp::Rename, StepAnswer::Done) => {
                if let Some(to) = &step.to {
                    disk.named_owner(to.as_str());
                    let from = step.path.as_str();
                    disk.history.renamed(Some(disk.server), from, to.as_str());
                }
                let to = step.to.as_ref().and_then(|to| claimed_shard(to.as_str()));
                if let Some(shard) = to {
                    disk.history.claimed(disk.server, shard);
                }
            }
            _ => {}
        }
    }
}

/// Whether `target` names the owner of `area`.
fn names_owner(target: &str, area: &str) -> bool {
    target == format!("__cluster/owners/{area}/current.json")
}

/// The shard whose owner is named in this file.
fn claimed_shard(path: &str) -> Option<u32> {
    let area = path.strip_prefix("__cluster/owners/shard-")?;
    area.strip_suffix("/current.json")?.parse().ok()
}

fn instance_of(current: &[u8]) -> Option<u64> {
    let owner: serde_json::Value = serde_json::from_slice(current).ok()?;
    owner.get("instance")?.as_u64()
}

/// Pending once.
struct YieldOnce(bool);

impl Future for YieldOnce {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.0 {
            return Poll::Ready(());
        }
        self.0 = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
