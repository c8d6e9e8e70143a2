//! Nothing below can end more than its own connection.
//!
//! An error of an inner layer becomes a closed connection, as Kafka does for what it cannot
//! answer; a panic too, in either stage. Domain errors never come here: handlers answer them in
//! the response of their version. The error type of the stack ends here: the connection handles
//! outcomes only.

use std::convert::Infallible;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use store_adapter::runtime::BoxFuture;
use tower::{BoxError, Layer, Service};

use crate::api::{ApiResponse, CloseReason, Staged};
use crate::stack::{Ordered, RawRequest};

/// See the module.
#[derive(Debug, Clone, Copy)]
pub struct RescueLayer;

impl<S> Layer<S> for RescueLayer {
    type Service = Rescue<S>;
    fn layer(&self, inner: S) -> Rescue<S> {
        Rescue {
            inner,
            failed: None,
        }
    }
}

/// The service of [`RescueLayer`].
#[derive(Debug, Clone)]
pub struct Rescue<S> {
    inner: S,
    /// Why the inner service will not take the next call.
    failed: Option<CloseReason>,
}

impl<S> Service<RawRequest> for Rescue<S>
where
    S: Service<RawRequest, Response = Ordered, Error: Into<BoxError>, Future: Unpin>,
{
    type Response = Ordered;
    type Error = Infallible;
    type Future = RescueFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        let ready = ready!(self.inner.poll_ready(cx));
        self.failed = ready.err().map(|error| reason(error.into()));
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: RawRequest) -> Self::Future {
        let (version, correlation_id) = (request.version, request.correlation_id);
        let inner = match self.failed.take() {
            Some(reason) => Err(reason),
            None => catch_unwind(AssertUnwindSafe(|| self.inner.call(request)))
                .map_err(|_| CloseReason::Internal),
        };
        RescueFuture {
            inner,
            version,
            correlation_id,
        }
    }
}

/// The first stage, unable to fail.
#[derive(Debug)]
pub struct RescueFuture<F> {
    inner: Result<F, CloseReason>,
    version: i16,
    correlation_id: i32,
}

impl<F, E> Future for RescueFuture<F>
where
    F: Future<Output = Result<Ordered, E>> + Unpin,
    E: Into<BoxError>,
{
    type Output = Result<Ordered, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match &mut self.inner {
            Ok(inner) => {
                let poll = || Pin::new(inner).poll(cx);
                match catch_unwind(AssertUnwindSafe(poll)) {
                    Ok(polled) => ready!(polled).map_err(|error| reason(error.into())),
                    Err(_) => Err(CloseReason::Internal),
                }
            }
            Err(reason) => Err(reason.clone()),
        };
        Poll::Ready(Ok(outcome.unwrap_or_else(|reason| {
            Ordered::new(Staged::Close(reason), self.version, self.correlation_id)
        })))
    }
}

fn reason(error: BoxError) -> CloseReason {
    match error.downcast::<CloseReason>() {
        Ok(reason) => *reason,
        Err(error) => {
            tracing::error!(%error, "a layer failed");
            CloseReason::Internal
        }
    }
}

/// Awaits the second stage; a panic in it closes the connection. May be dropped and called again.
///
/// # Errors
/// [`CloseReason::Internal`] after a panic.
pub async fn second_stage(
    answer: &mut BoxFuture<'static, ApiResponse>,
) -> Result<ApiResponse, CloseReason> {
    AssertUnwindSafe(answer)
        .catch_unwind()
        .await
        .map_err(|_| CloseReason::Internal)
}

#[cfg(test)]
mod tests {
    use tower::{ServiceExt, service_fn};
    use tower_test::mock;

    use super::*;
    use crate::layers::testing::raw;

    #[tokio::test]
    async fn errors_become_closed_connections() {
        let (mut stack, mut handle) = mock::spawn_layer::<RawRequest, Ordered, _>(RescueLayer);
        for (error, expected) in [
            (
                BoxError::from(CloseReason::UnsupportedKey(4)),
                CloseReason::UnsupportedKey(4),
            ),
            (BoxError::from("something else"), CloseReason::Internal),
        ] {
            handle.allow(1);
            assert!(stack.poll_ready().is_ready());
            let outcome = stack.call(raw(4, 0));
            let (_, reply) = handle.next_request().await.unwrap();
            reply.send_error(error);
            let Staged::Close(reason) = outcome.await.unwrap().answer else {
                panic!("not closed");
            };
            assert_eq!(reason, expected);
        }
        handle.send_error("not ready any more");
        assert!(stack.poll_ready().is_ready());
        let outcome = stack.call(raw(4, 0)).await.unwrap();
        assert!(matches!(
            outcome.answer,
            Staged::Close(CloseReason::Internal)
        ));
    }

    #[tokio::test]
    async fn panics_of_both_stages_become_closed_connections() {
        type Never = std::future::Ready<Result<Ordered, BoxError>>;
        let in_call = service_fn(|_: RawRequest| -> Never { panic!("in call") });
        let outcome = RescueLayer.layer(in_call).oneshot(raw(3, 1)).await.unwrap();
        assert!(matches!(
            outcome.answer,
            Staged::Close(CloseReason::Internal)
        ));

        let in_future = service_fn(|_: RawRequest| {
            let lazy: fn() -> Result<Ordered, BoxError> = || panic!("in the future");
            Box::pin(async move { lazy() })
        });
        let outcome = RescueLayer
            .layer(in_future)
            .oneshot(raw(3, 1))
            .await
            .unwrap();
        assert!(matches!(
            outcome.answer,
            Staged::Close(CloseReason::Internal)
        ));

        let mut late: BoxFuture<'static, ApiResponse> = Box::pin(async {
            let lazy: fn() -> ApiResponse = || panic!("in the second stage");
            lazy()
        });
        let late = second_stage(&mut late).await;
        assert_eq!(late.unwrap_err(), CloseReason::Internal);
    }
}
