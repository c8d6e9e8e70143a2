//! Counts and times every request, and gives it a span.
//!
//! The watch runs from the last byte of the frame to the answer, which may be long after the
//! first stage: the outcome carries it to the writer. One layer, not three: they would read the
//! same clock.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use store_adapter::runtime::Clock;
use tower::{Layer, Service};
use tracing::Span;

use crate::api::Staged;
use crate::metrics::{ApiMetrics, Metrics};
use crate::stack::{Ordered, RawRequest};

/// A running watch. Dropped unfinished, it only stops counting the request as in flight.
#[derive(Debug)]
pub struct Timing {
    api: Arc<ApiMetrics>,
    received: Duration,
}

impl Timing {
    /// Starts for a request whose frame was complete at `received`.
    fn start(api: &Arc<ApiMetrics>, received: Duration) -> Self {
        api.requests.inc();
        api.inflight.inc();
        Self {
            api: Arc::clone(api),
            received,
        }
    }

    /// Records the time until `now`, on the clock of [`RawRequest::received`].
    pub fn finish(self, now: Duration) {
        let seconds = now.saturating_sub(self.received).as_secs_f64();
        self.api.seconds.observe(seconds);
    }
}

impl Drop for Timing {
    fn drop(&mut self) {
        self.api.inflight.dec();
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct ObserveLayer {
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
}

impl ObserveLayer {
    /// Observes into `metrics`, by `clock`.
    pub fn new(metrics: Arc<Metrics>, clock: Arc<dyn Clock>) -> Self {
        Self { metrics, clock }
    }
}

impl<S> Layer<S> for ObserveLayer {
    type Service = Observe<S>;
    fn layer(&self, inner: S) -> Observe<S> {
        Observe {
            inner,
            metrics: Arc::clone(&self.metrics),
            clock: Arc::clone(&self.clock),
        }
    }
}

/// The service of [`ObserveLayer`].
#[derive(Debug, Clone)]
pub struct Observe<S> {
    inner: S,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
}

impl<S> Service<RawRequest> for Observe<S>
where
    S: Service<RawRequest, Response = Ordered, Future: Unpin>,
{
    type Response = Ordered;
    type Error = S::Error;
    type Future = ObserveFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: RawRequest) -> Self::Future {
        let span = tracing::debug_span!(
            "request",
            conn = request.connection.id,
            key = request.key,
            version = request.version,
            corr = request.correlation_id,
        );
        let timing = Timing::start(self.metrics.api(request.key), request.received);
        let inner = span.in_scope(|| self.inner.call(request));
        ObserveFuture {
            inner,
            timing: Some(timing),
            clock: Arc::clone(&self.clock),
            span,
        }
    }
}

/// The first stage, watched.
#[derive(Debug)]
pub struct ObserveFuture<F> {
    inner: F,
    timing: Option<Timing>,
    clock: Arc<dyn Clock>,
    span: Span,
}

impl<F, E> Future for ObserveFuture<F>
where
    F: Future<Output = Result<Ordered, E>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let polled = this.span.in_scope(|| Pin::new(&mut this.inner).poll(cx));
        let mut outcome = ready!(polled);
        if let (Ok(ordered), Some(timing)) = (&mut outcome, this.timing.take()) {
            match ordered.answer {
                Staged::Now(_) | Staged::Later(_) | Staged::Parked(_) => {
                    ordered.timing = Some(timing);
                }
                Staged::Silent | Staged::Unsaid(_) | Staged::Close(_) => {
                    timing.finish(this.clock.monotonic());
                }
            }
        }
        Poll::Ready(outcome)
    }
}

#[cfg(test)]
mod tests {
    use store_adapter::runtime::Env;
    use tower_test::mock;

    use super::*;
    use crate::api::{ApiResponse, CloseReason};
    use crate::handlers::api_versions;
    use crate::layers::testing::{raw, silent};
    use crate::metrics::Sources;

    /// How many requests of `api` were timed.
    fn timed(metrics: &Metrics, api: &str) -> u64 {
        let prefix = format!("fencepost_request_seconds_count{{api=\"{api}\"}} ");
        let text = metrics.encode().unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
        line.unwrap().parse().unwrap()
    }

    #[tokio::test]
    async fn a_request_is_in_flight_until_its_answer() {
        let metrics = Arc::new(Metrics::new(&Sources::none()));
        let layer = ObserveLayer::new(Arc::clone(&metrics), Env::real().clock);
        let (mut stack, mut handle) = mock::spawn_layer::<RawRequest, Ordered, _>(layer);
        handle.allow(1);
        assert!(stack.poll_ready().is_ready());
        let first_stage = stack.call(raw(18, 3));
        let api = metrics.api(18);
        assert_eq!((api.requests.get(), api.inflight.get()), (1, 1));
        let (_, reply) = handle.next_request().await.unwrap();
        let response = ApiResponse::ApiVersions(Box::new(api_versions::step_down()));
        reply.send_response(Ordered::new(Staged::Now(response), 0, 7));
        let ordered = first_stage.await.unwrap();
        assert_eq!((api.inflight.get(), timed(&metrics, "ApiVersions")), (1, 0));
        ordered.timing.unwrap().finish(Duration::from_secs(2));
        assert_eq!((api.inflight.get(), timed(&metrics, "ApiVersions")), (0, 1));
    }

    #[tokio::test]
    async fn without_an_answer_the_watch_stops_at_once() {
        let metrics = Arc::new(Metrics::new(&Sources::none()));
        let layer = ObserveLayer::new(Arc::clone(&metrics), Env::real().clock);
        let (mut stack, mut handle) = mock::spawn_layer::<RawRequest, Ordered, _>(layer);
        for (done, answer) in [
            (1, silent().answer),
            (2, Staged::Close(CloseReason::Internal)),
        ] {
            handle.allow(1);
            assert!(stack.poll_ready().is_ready());
            let first_stage = stack.call(raw(0, 3));
            let (_, reply) = handle.next_request().await.unwrap();
            reply.send_response(Ordered::new(answer, 3, 7));
            assert!(first_stage.await.unwrap().timing.is_none());
            assert_eq!(
                (metrics.api(0).inflight.get(), timed(&metrics, "Produce")),
                (0, done)
            );
        }
    }
}
