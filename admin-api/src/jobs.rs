//! Where requests are carried out: not on the thread that answers `/livez`, and not by a future
//! that is dropped when its caller goes away.

use tokio::sync::oneshot;

use crate::{App, Problem};

impl App {
    /// Does what may take long beside the thread that answers, one job after the other. One that
    /// nobody waits for any more is not begun.
    pub(crate) async fn beside<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let (done, wait) = oneshot::channel();
        let app = self.clone();
        let job = move || {
            if !done.is_closed() && done.send(job(&app)).is_err() {
                tracing::debug!("nobody waits for this answer any more");
            }
        };
        if !self.txns.work(Box::new(job)) {
            return Err(Problem::later("too many requests wait to be worked on"));
        }
        wait.await.map_err(|_| stopping())
    }

    /// Carries out what must end once it has begun, its line in the audit log too.
    pub(crate) async fn to_the_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Problem> {
        let (done, wait) = oneshot::channel();
        let task = async move {
            if done.send(work.await).is_err() {
                tracing::debug!("nobody waits for what was carried out any more");
            }
        };
        self.txns.spawn(Box::pin(task));
        wait.await.map_err(|_| stopping())
    }
}

fn stopping() -> Problem {
    Problem::later("the broker stops")
}
