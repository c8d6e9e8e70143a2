//! The io task of a broker: everything it does to its files on the volume, one thing at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use store_adapter::ids::LogId;
use store_adapter::runtime::{Env, Told};
use store_adapter::volume::VolumeError;
use store_adapter::volume::owned::{Claim, OwnedError};
use tokio::sync::{mpsc, oneshot, watch};
use uuid::Uuid;

use super::boot::Booted;
use super::controller::Controller;
use super::error::{NodeError, TopicError};
use super::features::{Configs, Levels};
use super::files::Files;
use super::partition_files::{PartitionContent, PartitionFile, PartitionStore};
use super::registration::Heartbeat;
use super::view::{ClusterView, Topic};
use super::{NewTopic, NodeStatus};
use crate::volume::format::Health;

/// How often the heartbeat's counter is raised.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);
/// Commands that may share one write of the assignment, and delay a heartbeat.
const BATCH_MAX: usize = 64;

/// Where an answer goes. Nobody may wait for it any more.
pub(super) type Reply<T> = oneshot::Sender<T>;

/// What the io task is asked for.
#[derive(Debug)]
pub(super) enum Command {
    Create(NewTopic, Reply<Result<Arc<Topic>, TopicError>>),
    Delete(Uuid, Reply<Result<(), TopicError>>),
    AlterConfigs(
        Uuid,
        BTreeMap<String, String>,
        Reply<Result<Arc<Topic>, TopicError>>,
    ),
    AddPartitions(Uuid, u32, Reply<Result<Arc<Topic>, TopicError>>),
    Finalize(Levels, Reply<Result<(), NodeError>>),
    AlterBroker(String, Configs, Reply<Result<(), NodeError>>),
    ReadPartition(LogId, Reply<Result<PartitionContent, NodeError>>),
    WritePartition(LogId, Box<PartitionFile>, Reply<Result<(), NodeError>>),
    Damaged(String, String, Reply<()>),
    Drain(Reply<Result<(), NodeError>>),
    Stop(Reply<Result<(), NodeError>>),
}

/// A change whose answer waits for the assignment: what it changes is shown with that.
#[derive(Debug)]
enum Pending {
    Changed(
        Result<Arc<Topic>, TopicError>,
        Reply<Result<Arc<Topic>, TopicError>>,
    ),
    Deleted(Result<(), TopicError>, Reply<Result<(), TopicError>>),
    OfCluster(Result<(), NodeError>, Reply<Result<(), NodeError>>),
}

/// The io task.
#[derive(Debug)]
pub(super) struct Node {
    env: Env,
    files: Files,
    claim: Arc<Claim>,
    heartbeat: Heartbeat,
    controller: Controller,
    partitions: PartitionStore,
    view: watch::Sender<Arc<ClusterView>>,
    status: watch::Sender<NodeStatus>,
    /// What the volume does not take, while it does not.
    refused: watch::Sender<Option<String>>,
    refusal: Told,
}

impl Node {
    pub(super) fn new(
        env: Env,
        booted: Booted,
        view: watch::Sender<Arc<ClusterView>>,
        status: watch::Sender<NodeStatus>,
        refused: watch::Sender<Option<String>>,
    ) -> Self {
        let owner = booted.claim.owner();
        Self {
            env,
            partitions: PartitionStore::new(booted.owned, owner.broker, owner.instance),
            files: booted.files,
            claim: booted.claim,
            heartbeat: booted.heartbeat,
            controller: booted.controller,
            view,
            status,
            refused,
            refusal: Told::default(),
        }
    }

    /// Serves until it is stopped or nobody can ask any more.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let clock = self.env.clock.clone();
        let mut next_beat = clock.monotonic();
        loop {
            let wait = next_beat.saturating_sub(clock.monotonic());
            if wait.is_zero() {
                self.tick().await;
                next_beat = clock.monotonic() + HEARTBEAT;
                continue;
            }
            let command = tokio::select! {
                biased;
                command = commands.recv() => command,
                () = clock.sleep(wait) => continue,
            };
            let Some(command) = command else {
                return;
            };
            if self.batch(command, &mut commands).await {
                return;
            }
        }
    }

    /// Once a heartbeat: raises the counter, notices a later process, and goes on with what a
    /// failure left undone.
    async fn tick(&mut self) {
        let beat = self.heartbeat.beat(&self.files).await;
        let claim = self.claim.check().await;
        let controller = self.controller.check().await;
        let mut refused = None;
        for error in [beat, claim, controller]
            .into_iter()
            .filter_map(Result::err)
        {
            self.note(&error);
            refused.get_or_insert(error);
        }
        self.controller.settle_all().await;
        match self.controller.follow().await {
            Ok(true) => self.show(),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "the assignment is not read"),
        }
        if let Err(error) = self.commit().await {
            tracing::debug!(%error, "the assignment is still behind");
            refused.get_or_insert(error);
        }
        self.show_refused(refused.as_ref());
    }

    /// Shows what the volume did not take, but for what is told elsewhere: that another process has
    /// taken over, and a full disk.
    fn show_refused(&mut self, refused: Option<&OwnedError>) {
        let refused = refused.filter(|error| !is_full(error) && **error != OwnedError::Stale);
        if refused.is_none() && self.refusal.end() {
            tracing::info!("the volume takes heartbeats and the assignment again");
        }
        let refused = refused.map(ToString::to_string);
        self.refused.send_if_modified(|held| {
            let changed = *held != refused;
            *held = refused;
            changed
        });
    }

    /// Takes commands as long as there are some, and writes the assignment once for all of them.
    /// Whether the node has stopped.
    async fn batch(&mut self, first: Command, commands: &mut mpsc::Receiver<Command>) -> bool {
        self.controller.settle_all().await;
        let mut pending = Vec::new();
        let mut next = Some(first);
        let mut stop = None;
        let mut taken = 0;
        while let Some(command) = next.take() {
            taken += 1;
            match command {
                Command::Create(new, reply) => {
                    let outcome = self.controller.create(new).await;
                    pending.push(Pending::Changed(outcome, reply));
                }
                Command::AlterConfigs(id, configs, reply) => {
                    let outcome = self.controller.alter_configs(id, configs).await;
                    pending.push(Pending::Changed(outcome, reply));
                }
                Command::AddPartitions(id, total, reply) => {
                    let outcome = self.controller.add_partitions(id, total).await;
                    pending.push(Pending::Changed(outcome, reply));
                }
                Command::Finalize(levels, reply) => {
                    let outcome = self.controller.finalize(levels).await;
                    pending.push(Pending::OfCluster(outcome, reply));
                }
                Command::AlterBroker(broker, configs, reply) => {
                    let outcome = self.controller.alter_broker(broker, configs).await;
                    pending.push(Pending::OfCluster(outcome, reply));
                }
                Command::Delete(id, reply) => {
                    let outcome = self.controller.delete(id).await;
                    pending.push(Pending::Deleted(outcome, reply));
                }
                Command::ReadPartition(log, reply) => {
                    let view = self.view.borrow().clone();
                    answer(reply, self.partitions.read(&self.files, &view, log).await);
                }
                Command::WritePartition(log, file, reply) => {
                    let view = self.view.borrow().clone();
                    let wrote = self.partitions.write(&self.files, &view, log, *file);
                    answer(reply, wrote.await);
                }
                Command::Damaged(path, why, reply) => {
                    self.files.damaged_in_store(&path, why).await;
                    answer(reply, ());
                }
                Command::Drain(reply) => {
                    self.controller.set_health(Health::Draining);
                    let outcome = self.commit().await.map_err(NodeError::from);
                    answer(reply, outcome);
                }
                Command::Stop(reply) => stop = Some(reply),
            }
            if stop.is_none() && taken < BATCH_MAX {
                next = commands.try_recv().ok();
            }
        }
        let outcome = self.commit().await;
        for pending in pending {
            self.conclude(pending, outcome.as_ref().err());
        }
        if let Some(reply) = stop {
            let outcome = self.stop().await;
            answer(reply, outcome.map_err(NodeError::from));
            return true;
        }
        false
    }

    fn conclude(&mut self, pending: Pending, failure: Option<&OwnedError>) {
        let stale = |outcome: &TopicError| *outcome == TopicError::NotController;
        match pending {
            Pending::Changed(outcome, reply) => {
                let outcome = outcome.and_then(|topic| match failure {
                    None => Ok(topic),
                    Some(error) => Err(behind(error)),
                });
                if outcome.as_ref().err().is_some_and(stale) {
                    self.note(&OwnedError::Stale);
                }
                answer(reply, outcome);
            }
            Pending::Deleted(outcome, reply) => {
                let outcome = outcome.and_then(|()| match failure {
                    None => Ok(()),
                    Some(error) => Err(behind(error)),
                });
                if outcome.as_ref().err().is_some_and(stale) {
                    self.note(&OwnedError::Stale);
                }
                answer(reply, outcome);
            }
            Pending::OfCluster(outcome, reply) => {
                let outcome = outcome.and_then(|()| match failure {
                    None => Ok(()),
                    Some(error) => Err(NodeError::from(error.clone())),
                });
                if outcome == Err(NodeError::Fenced) {
                    self.note(&OwnedError::Stale);
                }
                answer(reply, outcome);
            }
        }
    }

    /// Writes the assignment if it is behind, then shows readers what it says.
    async fn commit(&mut self) -> Result<(), OwnedError> {
        let outcome = self.controller.commit().await;
        match &outcome {
            Ok(true) => self.show(),
            Ok(false) => {}
            Err(error) => self.note(error),
        }
        outcome.map(|_| ())
    }

    /// Shows readers what the controller knows.
    fn show(&self) {
        if let Some(view) = self.controller.view() {
            self.view.send_replace(Arc::new(view));
        }
    }

    /// Gives up what this broker owns, so that the next process starts at once.
    async fn stop(&mut self) -> Result<(), OwnedError> {
        self.controller.set_health(Health::Dead);
        let given_up = self.commit().await;
        let stopped = self.heartbeat.stopped(&self.claim).await;
        self.status.send_if_modified(|status| {
            let running = *status == NodeStatus::Running;
            if running {
                *status = NodeStatus::Stopped;
            }
            running
        });
        given_up.and(stopped)
    }

    /// Tells everyone when a later process owns what this one owned.
    fn note(&mut self, error: &OwnedError) {
        match error {
            OwnedError::Stale => {
                let changed = self.status.send_if_modified(|status| {
                    let running = *status == NodeStatus::Running;
                    *status = NodeStatus::Fenced;
                    running
                });
                if changed {
                    // Whoever ends the process for it says so as an error.
                    tracing::warn!("another broker process has taken over; this one is fenced");
                }
            }
            // A full disk is said once.
            error if is_full(error) => {
                tracing::debug!(%error, "the volume did not take a heartbeat or assignment");
            }
            error if self.refusal.is_due(self.env.clock.monotonic()) => tracing::warn!(
                %error,
                "the volume takes no heartbeat or assignment: make the file system writable; \
                 /readyz says when it is"
            ),
            error => {
                tracing::debug!(%error, "the volume did not take a heartbeat or assignment");
            }
        }
    }
}

fn is_full(error: &OwnedError) -> bool {
    use OwnedError::{MaybeApplied, NotApplied};
    matches!(
        error,
        NotApplied(VolumeError::NoSpace { .. }) | MaybeApplied(VolumeError::NoSpace { .. })
    )
}

/// A topic change that took effect while the assignment did not follow.
fn behind(error: &OwnedError) -> TopicError {
    match error {
        OwnedError::Stale => TopicError::NotController,
        error => TopicError::Unavailable(error.to_string()),
    }
}

fn answer<T>(reply: Reply<T>, outcome: T) {
    if reply.send(outcome).is_err() {
        tracing::trace!("nobody waits for this answer any more");
    }
}
