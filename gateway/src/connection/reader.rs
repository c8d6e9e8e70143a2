//! The reading side of a connection: frames in, requests ordered one after the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use store_adapter::runtime::BoxFuture;
use tokio::sync::mpsc;
use tower::{Service, ServiceExt};

use super::activity::Holds;
use super::{Activity, Owed, Shared, closed, is_disconnect};
use crate::api::{CloseReason, ConnectionContext, Staged};
use crate::frame::{Frame, FrameError, FrameReader};
use crate::order::{self, Line};
use crate::stack::{RawRequest, Stack};

/// What the reader waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The next request may be read.
    Free,
    /// A request that stands alone may begin.
    Settled,
}

pub(super) struct Reader {
    pub(super) frames: FrameReader,
    pub(super) context: Arc<ConnectionContext>,
    pub(super) stack: Stack,
    pub(super) outcomes: mpsc::Sender<Owed>,
    pub(super) line: Line,
    /// Requests without an answer that may fail yet; as many as the budget of bytes admits.
    pub(super) unsaid: FuturesUnordered<BoxFuture<'static, Option<CloseReason>>>,
    pub(super) shared: Shared,
    pub(super) activity: Arc<Activity>,
}

impl Reader {
    pub(super) async fn run(mut self) {
        loop {
            match self.frame().await {
                Ok(Some(frame)) => {
                    if !self.order(frame).await {
                        break;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    self.report(&error);
                    break;
                }
            }
        }
        self.activity.read_ended.store(true, Ordering::Relaxed);
    }

    /// The next frame; `None` when there are to be no more.
    async fn frame(&mut self) -> Result<Option<Frame>, FrameError> {
        if !self.begun().await? {
            return Ok(None);
        }
        if !self.line.is_free() {
            self.frames.stand();
            let free = self.wait(Until::Free).await;
            self.frames.go_on();
            if !free {
                return Ok(None);
            }
        }
        tokio::select! {
            biased;
            () = self.activity.kill.cancelled() => Ok(None),
            // A part of a frame is no request yet.
            () = self.shared.drain.cancelled() => Ok(None),
            frame = self.frames.next() => frame.map(Some),
        }
    }

    /// Waits until a frame has begun; false when there are to be no more.
    async fn begun(&mut self) -> Result<bool, FrameError> {
        loop {
            let is_next = self.line.is_free();
            tokio::select! {
                biased;
                () = self.activity.kill.cancelled() => return Ok(false),
                () = self.shared.drain.cancelled() => return Ok(false),
                Some(outcome) = self.unsaid.next() => if !self.is_well(outcome.as_ref()) {
                    return Ok(false);
                },
                begun = self.frames.begun(is_next) => return Ok(begun?),
            }
        }
    }

    /// Waits for requests that came before; false when the connection is over.
    async fn wait(&mut self, until: Until) -> bool {
        loop {
            let line = &mut self.line;
            let reached = match until {
                Until::Free => line.is_free(),
                Until::Settled => self.unsaid.is_empty() && line.is_settled(),
            };
            if reached {
                return true;
            }
            let answered = async {
                match until {
                    Until::Free => line.free().await,
                    // What has no answer is waited for beside it.
                    Until::Settled if line.is_settled() => std::future::pending().await,
                    Until::Settled => line.settled().await,
                }
            };
            tokio::select! {
                biased;
                () = self.activity.kill.cancelled() => return false,
                () = self.shared.drain.cancelled(), if until == Until::Free => return false,
                Some(outcome) = self.unsaid.next() => if !self.is_well(outcome.as_ref()) {
                    return false;
                },
                answering = answered => if !answering {
                    return false;
                },
            }
        }
    }

    /// Whether the connection goes on behind a request without an answer.
    fn is_well(&self, outcome: Option<&CloseReason>) -> bool {
        if let Some(reason) = outcome {
            closed(&self.context, &self.shared, reason);
        }
        outcome.is_none()
    }

    /// Runs the first stage and queues its outcome; false when the connection is over.
    async fn order(&mut self, frame: Frame) -> bool {
        let received = self.shared.clock.monotonic();
        self.activity.touch(received);
        let bytes = frame.bytes.len();
        let overlaps = order::overlaps(frame.peek.key, frame.peek.version);
        if !overlaps {
            let holds = Holds::new(bytes, &frame.admitted);
            self.activity.hold(holds);
            let settled = self.wait(Until::Settled).await;
            self.activity.release(holds);
            if !settled {
                return false;
            }
        }
        let length = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.shared.metrics.bytes_in.inc_by(length);
        let request = RawRequest {
            connection: Arc::clone(&self.context),
            key: frame.peek.key,
            version: frame.peek.version,
            correlation_id: frame.peek.correlation_id,
            frame: frame.bytes,
            received,
            admitted: frame.admitted,
        };
        let Ok(stack) = self.stack.ready().await;
        let Ok(ordered) = stack.call(request).await;
        match ordered.answer {
            Staged::Silent => true,
            Staged::Unsaid(outcome) => {
                self.unsaid.push(outcome);
                true
            }
            Staged::Close(reason) => {
                closed(&self.context, &self.shared, &reason);
                false
            }
            Staged::Now(_) | Staged::Later(_) | Staged::Parked(_) => {
                let holds = Holds::new(bytes, &ordered.admitted);
                let later = !matches!(ordered.answer, Staged::Now(_));
                self.line.add(overlaps, later);
                self.activity.owed.fetch_add(1, Ordering::Relaxed);
                self.activity.hold(holds);
                self.outcomes.send(Owed { ordered, holds }).await.is_ok()
            }
        }
    }

    fn report(&self, error: &FrameError) {
        match error {
            FrameError::Io(error) if is_disconnect(error) => {
                tracing::debug!(conn = self.context.id, %error, "connection lost");
            }
            _ => {
                self.shared.metrics.connections_aborted.inc();
                let (conn, peer) = (self.context.id, self.context.peer);
                let peer = peer.map(tracing::field::display);
                if self.shared.may_log() {
                    tracing::info!(conn, peer, %error, "connection closed");
                } else {
                    tracing::debug!(conn, peer, %error, "connection closed");
                }
            }
        }
    }
}
