//! What waits for a shard's writer.
//!
//! A command is taken while less than `max_bytes` wait, and refused as unavailable otherwise: the
//! queue holds at most `max_bytes` and one command. Closing it refuses what waits and all that
//! comes.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use uuid::Uuid;

use super::file::FileId;
use super::join::Joined;
use crate::ids::{LeaderEpoch, LogId};
use crate::store::{LogState, Op, StoreError};

/// Bytes that a command counts besides its batches.
const COMMAND_BYTES: usize = 128;

/// Where an outcome goes.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// Something for the writer to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// A group.
    Group(Vec<Op>, Reply<()>),
    /// Create a log.
    Create(LogId, String, Reply<()>),
    /// Delete the logs of a topic.
    Delete(Uuid, Reply<()>),
    /// Acquire a log.
    Acquire(LogId, LeaderEpoch, Reply<LogState>),
    /// Replace batches by others.
    #[cfg(feature = "sled")]
    Replace(Box<crate::kv::Replace>, Reply<()>),
    /// Close the file that is being written and begin the next one.
    Roll(Reply<()>),
    /// Count one more use of a closed file.
    Keep(FileId, Reply<()>),
    /// Take that use away, and go by what became of the file.
    Join(Joined, Reply<()>),
    /// Finish what is queued and close the shard.
    Close(Reply<()>),
}

impl Command {
    fn bytes(&self) -> usize {
        let ops = match self {
            Self::Group(ops, _) => ops.len(),
            _ => 0,
        };
        self.append_bytes() + (ops + 1) * COMMAND_BYTES
    }

    /// Bytes of the batches that it appends.
    pub(crate) fn append_bytes(&self) -> usize {
        #[cfg(feature = "sled")]
        if let Self::Replace(replace, _) = self {
            return replace.bytes();
        }
        let Self::Group(ops, _) = self else {
            return 0;
        };
        let appends = ops.iter().map(|op| match op {
            Op::Append(append) => append.batch.total_len(),
            Op::Trim { .. } => 0,
        });
        appends.sum()
    }

    /// Whether nothing else is taken with it.
    pub(crate) fn comes_alone(&self) -> bool {
        match self {
            #[cfg(feature = "sled")]
            Self::Replace(..) => true,
            Self::Close(_) | Self::Roll(_) | Self::Keep(..) | Self::Join(..) => true,
            _ => false,
        }
    }

    /// Whether it is taken however much waits: there is one at most, and nothing could go on
    /// without it.
    fn is_never_too_much(&self) -> bool {
        matches!(self, Self::Close(_) | Self::Join(..))
    }

    /// Answers that it did not happen.
    pub(crate) fn refuse(self, error: StoreError) {
        match self {
            Self::Group(_, reply)
            | Self::Create(_, _, reply)
            | Self::Delete(_, reply)
            | Self::Roll(reply)
            | Self::Keep(_, reply)
            | Self::Join(_, reply)
            | Self::Close(reply) => answer(reply, Err(error)),
            #[cfg(feature = "sled")]
            Self::Replace(_, reply) => answer(reply, Err(error)),
            Self::Acquire(_, _, reply) => answer(reply, Err(error)),
        }
    }
}

/// Sends an outcome. The asker may have gone: nothing hangs on its hearing it.
pub(crate) fn answer<T>(reply: Reply<T>, outcome: Result<T, StoreError>) {
    if reply.send(outcome).is_err() {
        tracing::trace!("nobody waits for this outcome");
    }
}

/// A command and its number in the order of the queue.
#[derive(Debug)]
pub(crate) struct Queued {
    /// Its number, from 1.
    pub(crate) number: u64,
    /// What to do.
    pub(crate) command: Command,
    bytes: usize,
}

#[derive(Debug)]
struct Inner {
    waiting: VecDeque<Queued>,
    bytes: usize,
    last_number: u64,
    closed: Option<StoreError>,
}

/// The queue of one shard.
#[derive(Debug)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    pushed: Notify,
    max_bytes: usize,
}

impl Queue {
    /// An empty queue.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self {
            inner: Mutex::new(Inner {
                waiting: VecDeque::new(),
                bytes: 0,
                last_number: 0,
                closed: None,
            }),
            pushed: Notify::new(),
            max_bytes,
        }
    }

    /// Queues `command`, or refuses it at once.
    pub(crate) fn push(&self, command: Command) {
        let bytes = command.bytes();
        let refused = {
            let mut inner = self.inner.lock();
            let full = inner.bytes >= self.max_bytes && !command.is_never_too_much();
            match &inner.closed {
                Some(error) => Some((command, error.clone())),
                None if full => Some((
                    command,
                    StoreError::Unavailable("the journal's queue is full".to_owned()),
                )),
                None => {
                    inner.last_number += 1;
                    inner.bytes += bytes;
                    let number = inner.last_number;
                    inner.waiting.push_back(Queued {
                        number,
                        command,
                        bytes,
                    });
                    None
                }
            }
        };
        match refused {
            Some((command, error)) => command.refuse(error),
            None => self.pushed.notify_one(),
        }
    }

    /// Waits until something is queued, and takes commands in order: at most `max_count`, and no
    /// more once they hold `max_bytes`. What is no part of a round comes alone.
    /// Empty once the queue is closed.
    pub(crate) async fn take(&self, max_count: usize, max_bytes: usize) -> Vec<Queued> {
        loop {
            {
                let mut inner = self.inner.lock();
                if !inner.waiting.is_empty() || inner.closed.is_some() {
                    return inner.take(max_count, max_bytes);
                }
            }
            self.pushed.notified().await;
        }
    }

    /// The number of the command that was queued last.
    pub(crate) fn last_number(&self) -> u64 {
        self.inner.lock().last_number
    }

    /// Why nothing is taken any more.
    pub(crate) fn closed(&self) -> Option<StoreError> {
        self.inner.lock().closed.clone()
    }

    /// Takes nothing any more; refuses with `error` what waits and what comes.
    pub(crate) fn close(&self, error: &StoreError) {
        let waiting = {
            let mut inner = self.inner.lock();
            inner.closed.get_or_insert_with(|| error.clone());
            inner.bytes = 0;
            std::mem::take(&mut inner.waiting)
        };
        for queued in waiting {
            queued.command.refuse(error.clone());
        }
        self.pushed.notify_one();
    }
}

impl Inner {
    fn take(&mut self, max_count: usize, max_bytes: usize) -> Vec<Queued> {
        let mut taken = Vec::with_capacity(self.waiting.len().min(max_count));
        let mut bytes = 0;
        while taken.len() < max_count && bytes < max_bytes {
            let alone = |queued: &Queued| queued.command.comes_alone();
            if self.waiting.front().is_some_and(alone) && !taken.is_empty() {
                break;
            }
            let Some(queued) = self.waiting.pop_front() else {
                break;
            };
            bytes += queued.bytes;
            self.bytes = self.bytes.saturating_sub(queued.bytes);
            let last = alone(&queued);
            taken.push(queued);
            if last {
                break;
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::block_on;

    fn create(queue: &Queue) -> oneshot::Receiver<Result<(), StoreError>> {
        let (reply, outcome) = oneshot::channel();
        let log = super::super::frame::NO_LOG;
        queue.push(Command::Create(log, String::new(), reply));
        outcome
    }

    #[test]
    fn the_queue_refuses_when_it_is_full_and_takes_again_when_it_is_not() {
        let queue = Queue::new(2 * COMMAND_BYTES);
        let mut waiting = vec![create(&queue), create(&queue)];
        let refused = block_on(create(&queue)).unwrap();
        assert!(matches!(refused, Err(StoreError::Unavailable(_))));
        assert_eq!(block_on(queue.take(1, usize::MAX)).len(), 1);
        waiting.push(create(&queue));
        let numbers: Vec<u64> = block_on(queue.take(9, usize::MAX))
            .iter()
            .map(|queued| queued.number)
            .collect();
        assert_eq!(numbers, [2, 3]);
    }

    #[test]
    fn closing_refuses_what_waits_and_what_comes() {
        let queue = Queue::new(1 << 20);
        let waiting = create(&queue);
        queue.close(&StoreError::Fenced);
        assert_eq!(block_on(waiting).unwrap(), Err(StoreError::Fenced));
        assert_eq!(block_on(create(&queue)).unwrap(), Err(StoreError::Fenced));
        assert!(block_on(queue.take(9, usize::MAX)).is_empty());
    }
}
