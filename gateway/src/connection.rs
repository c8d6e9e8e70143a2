//! One connection: two tasks, frames in, answers out, strictly in request order.
//!
//! The reader cuts a frame, awaits the first stage of the stack (the request is *ordered*), and
//! puts the outcome into a bounded queue; only then it reads on. A request of a kind that stands
//! alone ([`crate::order`]) begins when everything before it is settled, and the next frame is read
//! when it is settled: what waits long keeps nothing behind it in memory. The writer awaits the
//! answers in that order, adds whatever else is ready, and writes it in one vectored write; what is
//! in files is sent by other threads ([`Senders`]). A full queue stops the reader, and that stops
//! the client. Whatever ends a connection, a first stage that has begun is finished, and nothing
//! that was ordered is cancelled.
//!
//! A request that cannot be answered closes the connection, after the answers to those before it;
//! a half-closed socket still gets the answers it is owed.

mod activity;
mod limit;
mod outgoing;
mod reader;
mod sender;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt;
use futures_util::stream::FuturesUnordered;
use smallvec::SmallVec;
use store_adapter::runtime::{BoxFuture, Clock};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use activity::{Activity, Contended, Eviction};
pub use limit::LogLimit;
pub use sender::Senders;

use self::activity::PROGRESS;
use self::outgoing::Outgoing;
use self::reader::Reader;
use crate::admitted::Admitted;
use crate::answer_budget::{AnswerBudget, AnswerRoom};
use crate::api::{ApiResponse, CloseReason, ConnectionContext, Staged};
use crate::frame::FrameReader;
use crate::layers::observe::Timing;
use crate::layers::rescue::second_stage;
use crate::metrics::Metrics;
use crate::order::{Line, Settled};
use crate::request_budget::{Admission, ByteBudget};
use crate::stack::{Ordered, Stack};
use crate::wire::codec::{self, EncodedReply};

/// Requests of one connection that are ordered and not yet answered; more are not read.
pub const PIPELINE_MAX: usize = 16;
/// The writer adds no further answer to a write of this many bytes.
const WRITE_TARGET: usize = 256 * 1024;

/// What all connections share.
#[derive(Debug, Clone)]
pub struct Shared {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Bytes of requests in memory.
    pub budget: ByteBudget,
    /// Bytes of large answers in memory.
    pub answers: AnswerBudget,
    /// Largest frame, in bytes.
    pub frame_max: usize,
    /// Sends what is in files.
    pub senders: Senders,
    /// Bounds the lines about connections that are closed for what they sent.
    pub log_limit: Arc<LogLimit>,
    /// Readers stop at the next frame boundary.
    pub drain: CancellationToken,
}

/// The two tasks of a connection: reader and writer. The socket closes when both have ended.
pub fn tasks(
    stream: TcpStream,
    context: Arc<ConnectionContext>,
    stack: Stack,
    shared: &Shared,
    activity: &Arc<Activity>,
) -> (BoxFuture<'static, ()>, BoxFuture<'static, ()>) {
    let (read, write) = stream.into_split();
    let (outcomes, queue) = mpsc::channel(PIPELINE_MAX);
    let (line, settled) = Line::new();
    let frames = FrameReader::new(
        read,
        shared.frame_max,
        Admission::new(shared.budget.clone()),
        Arc::clone(&shared.clock),
        Arc::clone(&activity.pace),
    );
    let reader = Reader {
        frames,
        context: Arc::clone(&context),
        stack,
        outcomes,
        line,
        unsaid: FuturesUnordered::new(),
        shared: shared.clone(),
        activity: Arc::clone(activity),
    };
    let writer = Writer {
        half: Arc::new(write),
        context,
        queue,
        settled,
        shared: shared.clone(),
        activity: Arc::clone(activity),
        batch: Batch::default(),
    };
    (Box::pin(reader.run()), Box::pin(writer.run()))
}

impl Shared {
    fn may_log(&self) -> bool {
        self.log_limit.allows(self.clock.monotonic())
    }
}

fn closed(context: &ConnectionContext, shared: &Shared, reason: &CloseReason) {
    shared.metrics.connections_aborted.inc();
    let peer = tracing::field::debug(context.peer);
    if *reason == CloseReason::Internal {
        tracing::error!(conn = context.id, peer, %reason, "connection closed");
    } else if shared.may_log() {
        tracing::info!(conn = context.id, peer, %reason, "connection closed");
    } else {
        tracing::debug!(conn = context.id, peer, %reason, "connection closed");
    }
}

fn is_disconnect(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut};
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset | TimedOut
    )
}

/// An outcome whose answer is owed.
struct Owed {
    ordered: Ordered,
    /// Bytes of the request that stay counted until the answer is written.
    holds: usize,
}

/// The same once its turn has come, and what it holds besides.
struct Pending {
    answer: Answer,
    version: i16,
    correlation_id: i32,
    admitted: Admitted,
    holds: usize,
    timing: Option<Timing>,
}

enum Answer {
    Ready(Result<ApiResponse, CloseReason>),
    Later(BoxFuture<'static, ApiResponse>),
}

impl Pending {
    fn new(Owed { ordered, holds }: Owed) -> Self {
        let answer = match ordered.answer {
            Staged::Now(response) => Answer::Ready(Ok(response)),
            Staged::Later(answer) | Staged::Parked(answer) => Answer::Later(answer),
            Staged::Close(reason) => Answer::Ready(Err(reason)),
            // The reader keeps requests without an answer to itself.
            Staged::Silent | Staged::Unsaid(_) => Answer::Ready(Err(CloseReason::Internal)),
        };
        Self {
            answer,
            version: ordered.version,
            correlation_id: ordered.correlation_id,
            admitted: ordered.admitted,
            holds,
            timing: ordered.timing,
        }
    }

    /// Waits until the answer is there. May be dropped.
    async fn settle(&mut self) {
        if let Answer::Later(answer) = &mut self.answer {
            self.answer = Answer::Ready(second_stage(answer).await);
        }
    }
}

/// Answers that go out in one write, and the bytes of both budgets that they give back.
#[derive(Default)]
struct Batch {
    out: Outgoing,
    admitted: SmallVec<[Admitted; PIPELINE_MAX]>,
    rooms: SmallVec<[AnswerRoom; PIPELINE_MAX]>,
    bytes: usize,
    answers: usize,
    holds: usize,
}

impl Batch {
    fn push(&mut self, reply: EncodedReply, room: AnswerRoom, admitted: Admitted, holds: usize) {
        self.bytes += reply.len();
        self.answers += 1;
        self.holds += holds;
        self.out.extend(reply.segments);
        self.admitted.push(admitted);
        self.rooms.push(room);
    }

    fn clear(&mut self) {
        self.out.clear();
        self.admitted.clear();
        self.rooms.clear();
        self.bytes = 0;
        self.answers = 0;
        self.holds = 0;
    }
}

struct Writer {
    half: Arc<OwnedWriteHalf>,
    context: Arc<ConnectionContext>,
    queue: mpsc::Receiver<Owed>,
    settled: Settled,
    shared: Shared,
    activity: Arc<Activity>,
    batch: Batch,
}

impl Writer {
    async fn run(mut self) {
        let kill = self.activity.kill.clone();
        let ended = tokio::select! {
            biased;
            () = kill.cancelled() => Ok(()),
            ended = self.answer_all() => ended,
        };
        match ended {
            Ok(()) => {}
            Err(error) if is_disconnect(&error) => {
                tracing::debug!(conn = self.context.id, %error, "connection lost");
            }
            Err(error) => {
                let peer = tracing::field::debug(self.context.peer);
                tracing::info!(conn = self.context.id, peer, %error, "connection closed");
            }
        }
        // The reader must not wait for a frame that nobody would answer.
        kill.cancel();
    }

    /// Answers until the reader has ended and nothing is owed, or the connection fails.
    async fn answer_all(&mut self) -> io::Result<()> {
        let mut held: Option<Pending> = None;
        loop {
            let mut first = match held.take() {
                Some(pending) => pending,
                None => match self.queue.recv().await {
                    Some(owed) => Pending::new(owed),
                    None => return self.shutdown().await,
                },
            };
            first.settle().await;
            self.settled.add();
            let mut going = self.encode(first);
            while going && self.batch.bytes < WRITE_TARGET && self.batch.answers < PIPELINE_MAX {
                let Ok(owed) = self.queue.try_recv() else {
                    break;
                };
                let mut next = Pending::new(owed);
                if next.settle().now_or_never().is_none() {
                    held = Some(next);
                    break;
                }
                self.settled.add();
                going = self.encode(next);
            }
            self.write().await?;
            if !going {
                return self.shutdown().await;
            }
        }
    }

    /// Adds an answer to the batch; false if the connection is over.
    fn encode(&mut self, settled: Pending) -> bool {
        let now = self.shared.clock.monotonic();
        if let Some(timing) = settled.timing {
            timing.finish(now);
        }
        let Answer::Ready(answer) = settled.answer else {
            return false;
        };
        let encoded = answer.and_then(|mut response| {
            self.shared.metrics.count_errors(&response);
            let room = response.take_room();
            let reply = codec::encode(&response, settled.version, settled.correlation_id);
            let reply = reply.map_err(|error| {
                tracing::error!(%error, "a response cannot be encoded");
                CloseReason::Internal
            })?;
            Ok((reply, room))
        });
        match encoded {
            Ok((reply, room)) => {
                self.batch
                    .push(reply, room, settled.admitted, settled.holds);
                true
            }
            Err(reason) => {
                closed(&self.context, &self.shared, &reason);
                false
            }
        }
    }

    /// Writes the batch and gives back what it held.
    async fn write(&mut self) -> io::Result<()> {
        let mut progress = 0;
        self.activity.slow(Some(self.shared.clock.monotonic()));
        while !self.batch.out.is_done() {
            let now = self.shared.clock.monotonic();
            self.activity.blocked(Some(now));
            if progress >= PROGRESS {
                progress = 0;
                self.activity.slow(Some(now));
            }
            progress += if self.batch.out.is_in_file() {
                self.send().await?
            } else {
                let socket: &TcpStream = (*self.half).as_ref();
                self.batch.out.write(socket).await?
            };
            self.activity.touch(now);
        }
        self.activity.blocked(None);
        self.activity.slow(None);
        self.activity.touch(self.shared.clock.monotonic());
        let bytes = u64::try_from(self.batch.bytes).unwrap_or(u64::MAX);
        self.shared.metrics.bytes_out.inc_by(bytes);
        self.activity
            .owed
            .fetch_sub(self.batch.answers, Ordering::Relaxed);
        self.activity
            .holds
            .fetch_sub(self.batch.holds, Ordering::Relaxed);
        self.batch.clear();
        Ok(())
    }

    /// Has sent what the socket takes at once, something at least.
    async fn send(&mut self) -> io::Result<usize> {
        loop {
            self.half.writable().await?;
            let out = std::mem::take(&mut self.batch.out);
            let (out, sent) = self.shared.senders.send(&self.half, out).await?;
            self.batch.out = out;
            let from_files = std::mem::take(&mut self.batch.out.from_files);
            self.shared.metrics.bytes_from_files.inc_by(from_files);
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return sent,
            }
        }
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        match Arc::get_mut(&mut self.half) {
            Some(half) => half.shutdown().await,
            // Dropping the half does the same.
            None => Ok(()),
        }
    }
}
