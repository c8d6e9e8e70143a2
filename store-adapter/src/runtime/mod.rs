//! Time, randomness, tasks and threads come from outside, so that the services of production
//! run unchanged in a deterministic, single-threaded simulation.
//!
//! Two kinds of task: [`Runtime::spawn`] for async work, and [`Runtime::spawn_io`] for loops that
//! await [`crate::volume::Volume`] futures. The real volume blocks the thread that polls it, so in
//! production an io task has an OS thread of its own; in simulation both are tasks of one executor.

mod tokio;
mod told;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use self::tokio::TokioRuntime;
pub use self::told::Told;

/// A boxed future that may move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where time comes from.
pub trait Clock: Send + Sync + Debug + 'static {
    /// Wall-clock time, milliseconds since the Unix epoch. May step in either direction.
    fn wall_ms(&self) -> i64;
    /// Monotonic time since an arbitrary origin.
    fn monotonic(&self) -> Duration;
    /// Completes after `duration`. May be created and polled on any thread.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// Where tasks run. Dropping a returned join future detaches the task; it never cancels it.
pub trait Runtime: Send + Sync + Debug + 'static {
    /// Runs `task` on the async workers. It must never poll a volume future.
    fn spawn(&self, name: &str, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()>;
    /// Runs `task` where it may block: a thread of its own in production.
    fn spawn_io(&self, name: &str, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()>;
}

/// Where random numbers come from; seeded in simulation.
pub trait Random: Send + Sync + Debug + 'static {
    /// The next random number.
    fn next_u64(&self) -> u64;
}

/// The three together, handed to every service.
#[derive(Debug, Clone)]
pub struct Env {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Tasks.
    pub runtime: Arc<dyn Runtime>,
    /// Randomness.
    pub random: Arc<dyn Random>,
}

impl Env {
    /// The real environment, on the tokio runtime that the caller runs in.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn real() -> Self {
        let real = Arc::new(TokioRuntime::current());
        Self {
            clock: real.clone(),
            runtime: real.clone(),
            random: real,
        }
    }

    /// A random version 4 UUID.
    pub fn uuid(&self) -> uuid::Uuid {
        let pair = (u128::from(self.random.next_u64()) << 64) | u128::from(self.random.next_u64());
        uuid::Builder::from_random_bytes(pair.to_be_bytes()).into_uuid()
    }
}
