//! The real clock, threads and tasks.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ::tokio::runtime::Handle;
use ::tokio::sync::oneshot;

use super::{BoxFuture, Clock, Random, Runtime};

/// Real time, tokio tasks, and one OS thread per io task.
#[derive(Debug)]
pub struct TokioRuntime {
    handle: Handle,
    origin: Instant,
}

impl TokioRuntime {
    /// The runtime that the caller runs in.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[allow(clippy::disallowed_methods, reason = "this is the real clock")]
    pub fn current() -> Self {
        Self {
            handle: Handle::current(),
            origin: Instant::now(),
        }
    }
}

impl Clock for TokioRuntime {
    #[allow(clippy::disallowed_methods, reason = "this is the real clock")]
    fn wall_ms(&self) -> i64 {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    fn monotonic(&self) -> Duration {
        self.origin.elapsed()
    }

    #[allow(clippy::disallowed_methods, reason = "this is the real clock")]
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let _context = self.handle.enter();
        Box::pin(::tokio::time::sleep(duration))
    }
}

impl Runtime for TokioRuntime {
    fn spawn(&self, _name: &str, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        let join = self.handle.spawn(task);
        Box::pin(async move {
            if let Err(error) = join.await {
                tracing::error!(%error, "a task ended by a panic");
            }
        })
    }

    fn spawn_io(&self, name: &str, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        let (ended, wait) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let started = thread.spawn(move || {
            block_on(task);
            drop(ended);
        });
        if let Err(error) = started {
            tracing::error!(%error, name, "cannot start a thread");
        }
        Box::pin(async move {
            // Resolved by the sender's drop, at the end of the task or by its panic.
            wait.await.unwrap_or_default();
        })
    }
}

impl Random for TokioRuntime {
    fn next_u64(&self) -> u64 {
        fastrand::u64(..)
    }
}

/// Runs `task` on this thread, parking it while the task waits.
fn block_on(mut task: BoxFuture<'static, ()>) {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
        fn wake_by_ref(self: &std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    while task.as_mut().poll(&mut context).is_pending() {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[::tokio::test]
    async fn an_io_task_has_its_own_thread_and_can_be_joined() {
        let runtime = TokioRuntime::current();
        let (tx, rx) = oneshot::channel();
        let sleep = runtime.sleep(Duration::from_millis(1));
        let done = runtime.spawn_io(
            "worker",
            Box::pin(async move {
                sleep.await;
                let name = std::thread::current().name().map(str::to_owned);
                tx.send(name).unwrap();
            }),
        );
        done.await;
        assert_eq!(rx.await.unwrap().as_deref(), Some("worker"));
    }
}
