//! Carries the bytes that the reader admitted: they stay counted until the answer is written, and
//! longer if a handler holds on to bytes of the request. An answer that is parked keeps none: what
//! waits for other requests must not be what they wait for.
//!
//! The waiting is done by the reader, before the body is read; that is what makes it
//! back-pressure.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tower::{Layer, Service};

use crate::admitted::Admitted;
use crate::api::Staged;
use crate::stack::{Ordered, RawRequest};

/// See the module.
#[derive(Debug, Clone, Copy)]
pub struct AdmitLayer;

impl<S> Layer<S> for AdmitLayer {
    type Service = Admit<S>;
    fn layer(&self, inner: S) -> Admit<S> {
        Admit { inner }
    }
}

/// The service of [`AdmitLayer`].
#[derive(Debug, Clone)]
pub struct Admit<S> {
    inner: S,
}

impl<S> Service<RawRequest> for Admit<S>
where
    S: Service<RawRequest, Response = Ordered, Future: Unpin>,
{
    type Response = Ordered;
    type Error = S::Error;
    type Future = AdmitFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: RawRequest) -> Self::Future {
        let admitted = request.admitted.clone();
        AdmitFuture {
            inner: self.inner.call(request),
            admitted,
        }
    }
}

/// The first stage, holding the bytes.
#[derive(Debug)]
pub struct AdmitFuture<F> {
    inner: F,
    admitted: Admitted,
}

impl<F, E> Future for AdmitFuture<F>
where
    F: Future<Output = Result<Ordered, E>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let outcome = ready!(Pin::new(&mut self.inner).poll(cx));
        let admitted = std::mem::take(&mut self.admitted);
        Poll::Ready(outcome.map(|mut ordered| {
            if !matches!(ordered.answer, Staged::Parked(_)) {
                ordered.admitted = admitted;
            }
            ordered
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;
    use tower_test::mock;

    use super::*;
    use crate::layers::testing::{raw, silent};

    #[tokio::test]
    async fn the_answer_holds_the_bytes_of_the_request() {
        let (mut stack, mut handle) = mock::spawn_layer::<RawRequest, Ordered, _>(AdmitLayer);
        handle.allow(1);
        assert!(stack.poll_ready().is_ready());
        let budget = Arc::new(Semaphore::new(10));
        let mut request = raw(3, 1);
        let permit = Arc::clone(&budget).try_acquire_many_owned(4).unwrap();
        request.admitted = permit.into();

        let first_stage = stack.call(request);
        let (inner, reply) = handle.next_request().await.unwrap();
        let kept = inner.admitted.clone();
        drop(inner);
        assert_eq!(budget.available_permits(), 6);
        reply.send_response(silent());
        let ordered = first_stage.await.unwrap();
        assert_eq!(
            budget.available_permits(),
            6,
            "held until the answer is written"
        );
        drop(ordered);
        assert_eq!(budget.available_permits(), 6, "a handler keeps bytes");
        drop(kept);
        assert_eq!(budget.available_permits(), 10);
    }

    #[tokio::test]
    async fn an_answer_that_is_parked_holds_none() {
        let (mut stack, mut handle) = mock::spawn_layer::<RawRequest, Ordered, _>(AdmitLayer);
        handle.allow(1);
        assert!(stack.poll_ready().is_ready());
        let budget = Arc::new(Semaphore::new(10));
        let mut request = raw(11, 1);
        let permit = Arc::clone(&budget).try_acquire_many_owned(4).unwrap();
        request.admitted = permit.into();
        let first_stage = stack.call(request);
        let (inner, reply) = handle.next_request().await.unwrap();
        drop(inner);
        let parked = Staged::Parked(Box::pin(std::future::pending()));
        reply.send_response(Ordered::new(parked, 1, 7));
        let ordered = first_stage.await.unwrap();
        assert_eq!(budget.available_permits(), 10);
        drop(ordered);
    }

    #[tokio::test]
    async fn an_error_gives_the_bytes_back() {
        let (mut stack, mut handle) = mock::spawn_layer::<RawRequest, Ordered, _>(AdmitLayer);
        handle.allow(1);
        assert!(stack.poll_ready().is_ready());
        let budget = Arc::new(Semaphore::new(10));
        let mut request = raw(3, 1);
        let permit = Arc::clone(&budget).try_acquire_many_owned(4).unwrap();
        request.admitted = permit.into();
        let first_stage = stack.call(request);
        let (_, reply) = handle.next_request().await.unwrap();
        reply.send_error("refused");
        assert!(first_stage.await.is_err());
        assert_eq!(budget.available_permits(), 10);
    }
}
