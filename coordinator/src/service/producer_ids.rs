//! Hands out producer ids from blocks.
//!
//! INV-I1: the end of a block is durable before any id of it is used, so that no crash can make an
//! id come twice; ids of a block that was not used up are lost. A file that cannot be read or
//! written is an error that the client may retry, never a reason to count in memory.
//!
//! The file work is one io task, asked through a channel of one place. Callers take ids under a
//! lock that is never held across an await; those that find no id wait for the reservation that is
//! under way, whoever asked for it. At 90 % of a block the next one is reserved in the background.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use store_adapter::fault::{Fault, planted};
use store_adapter::ids::{BrokerId, ProducerId};
use store_adapter::runtime::{BoxFuture, Env};
use tokio::sync::{mpsc, watch};

use crate::machine::producer::id_block::{IdBlock, IdBlockError, IdBlocks};

/// Longest wait for a reservation that is under way; the reservation goes on behind it.
pub const WAIT_MAX: Duration = Duration::from_secs(5);
/// Reservations that one caller may see used up by others before it gives up.
const ROUNDS_MAX: usize = 64;

/// Why the block file could not be read or replaced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockFileError {
    /// Not reached, full, or owned by a later instance of this broker by now. A replacement may
    /// have happened.
    #[error("producer id file: {0}")]
    Unavailable(String),
    /// What the file says is not to be believed.
    #[error("producer id file is damaged: {0}")]
    Damaged(String),
}

/// The durable end of the reserved blocks: `producer_ids/kaas-<id>.json`. Its futures are awaited
/// in an io task only.
pub trait BlockFile: Send + Sync + Debug + 'static {
    /// The first local value not yet reserved; 0 when the file was never written.
    fn read(&self) -> BoxFuture<'_, Result<i64, BlockFileError>>;
    /// Makes `next_block` durable as the first local value not yet reserved. After an error it may
    /// be there or not; it does not appear later.
    fn reserve(&self, next_block: i64) -> BoxFuture<'_, Result<(), BlockFileError>>;
}

/// Why there is no producer id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProducerIdError {
    /// The file failed; retriable.
    #[error(transparent)]
    File(#[from] BlockFileError),
    /// No block yet, within [`WAIT_MAX`] or behind too many other callers; retriable.
    #[error("no producer id block is ready")]
    NotReady,
    /// The service has stopped; retriable elsewhere.
    #[error("the producer id service has stopped")]
    Stopped,
    /// This broker has no ids left, or a number that cannot have any; not retriable.
    #[error(transparent)]
    Exhausted(#[from] IdBlockError),
}

/// The outcome of the last reservation.
#[derive(Debug, Clone, Default)]
struct Round {
    number: u64,
    failed: Option<ProducerIdError>,
}

#[derive(Debug, Default)]
struct State {
    blocks: IdBlocks,
    /// A reservation is under way: its round is the published one plus one.
    reserving: bool,
}

/// The service. Dropping it ends its io task.
#[derive(Debug)]
pub struct ProducerIds {
    env: Env,
    state: Arc<Mutex<State>>,
    ask: mpsc::Sender<()>,
    rounds: watch::Receiver<Round>,
}

impl ProducerIds {
    /// Starts the service of `broker`. Touches the file when an id is first asked for.
    pub fn start(env: &Env, broker: BrokerId, file: Arc<dyn BlockFile>) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let (ask, asked) = mpsc::channel(1);
        let (publish, rounds) = watch::channel(Round::default());
        let worker = Worker {
            broker,
            file,
            state: Arc::clone(&state),
            next_block: None,
            publish,
        };
        let detached = env
            .runtime
            .spawn_io("producer-ids", Box::pin(worker.run(asked)));
        drop(detached);
        Self {
            env: env.clone(),
            state,
            ask,
            rounds,
        }
    }

    /// A producer id that nobody ever had.
    pub async fn next_id(&self) -> Result<ProducerId, ProducerIdError> {
        if let Some(id) = self.take()? {
            return Ok(id);
        }
        let late = self.env.clock.sleep(WAIT_MAX);
        tokio::select! {
            biased;
            id = self.take_or_wait() => id,
            () = late => Err(ProducerIdError::NotReady),
        }
    }

    async fn take_or_wait(&self) -> Result<ProducerId, ProducerIdError> {
        let mut rounds = self.rounds.clone();
        for _ in 0..ROUNDS_MAX {
            // Read before looking for an id: a round that ends in between is then not waited for.
            let seen = rounds.borrow_and_update().number;
            if let Some(id) = self.take()? {
                return Ok(id);
            }
            let round = rounds.wait_for(|round| round.number > seen).await;
            let round = round.map_err(|_| ProducerIdError::Stopped)?.clone();
            if let Some(error) = round.failed {
                return Err(error);
            }
        }
        Err(ProducerIdError::NotReady)
    }

    /// An id if there is one. Asks for a reservation where one is due and none is under way.
    fn take(&self) -> Result<Option<ProducerId>, ProducerIdError> {
        let mut state = self.state.lock();
        let id = state.blocks.take();
        if !state.reserving && state.blocks.wants_block() {
            match self.ask.try_send(()) {
                // The one place is taken only while a reservation is asked for.
                Ok(()) | Err(mpsc::error::TrySendError::Full(())) => state.reserving = true,
                Err(mpsc::error::TrySendError::Closed(())) if id.is_none() => {
                    return Err(ProducerIdError::Stopped);
                }
                Err(mpsc::error::TrySendError::Closed(())) => {}
            }
        }
        Ok(id)
    }
}

/// The io task.
#[derive(Debug)]
struct Worker {
    broker: BrokerId,
    file: Arc<dyn BlockFile>,
    state: Arc<Mutex<State>>,
    /// What the file is known to hold; `None` before the first read and after a failure.
    next_block: Option<i64>,
    publish: watch::Sender<Round>,
}

impl Worker {
    async fn run(mut self, mut asked: mpsc::Receiver<()>) {
        while asked.recv().await.is_some() {
            let outcome = self.reserve().await;
            if let Err(error) = &outcome {
                tracing::warn!(%error, broker = self.broker.0, "no producer id block");
            }
            let (block, failed) = match outcome {
                Ok(block) => (block, None),
                Err(error) => (None, Some(error)),
            };
            self.end_round(block, failed, false);
        }
    }

    /// Publishes under the lock: who finds `reserving` false finds this round too.
    fn end_round(&self, block: Option<IdBlock>, failed: Option<ProducerIdError>, reserving: bool) {
        let mut state = self.state.lock();
        state.reserving = reserving;
        if let Some(block) = block {
            state.blocks.add(block);
        }
        self.publish.send_modify(|round| {
            round.number += 1;
            round.failed = failed;
        });
    }

    /// Reserves one block. `None` when it was handed out already.
    async fn reserve(&mut self) -> Result<Option<IdBlock>, ProducerIdError> {
        // Taken, so that after a failure the file is read again: it may have changed or not.
        let next_block = match self.next_block.take() {
            Some(next_block) => next_block,
            None => self.file.read().await?,
        };
        let (block, behind) = IdBlock::reserve(self.broker, next_block)?;
        let block = if planted(Fault::BlockBeforeDurable) {
            self.end_round(Some(block), None, true);
            None
        } else {
            Some(block)
        };
        self.file.reserve(behind).await?;
        self.next_block = Some(behind);
        Ok(block)
    }
}

#[cfg(test)]
#[path = "producer_ids_tests.rs"]
mod tests;
