//! The innermost step: hands the decoded request to the service. One of the two boxed seams.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use store_adapter::runtime::BoxFuture;
use tower::Service;

use crate::api::{ApiResponse, ApiService, CloseReason, Staged};
use crate::stack::{DecodedRequest, Ordered};

/// See the module.
#[derive(Debug, Clone)]
pub struct Dispatch<S> {
    service: S,
}

impl<S: ApiService> Dispatch<S> {
    /// Dispatches to `service`.
    pub fn new(service: S) -> Self {
        Self { service }
    }
}

impl<S: ApiService> Service<DecodedRequest> for Dispatch<S> {
    type Response = Ordered;
    type Error = CloseReason;
    type Future = DispatchFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), CloseReason>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: DecodedRequest) -> DispatchFuture {
        DispatchFuture {
            version: request.context.version,
            correlation_id: request.correlation_id,
            inner: self.service.call(request.context, request.request),
        }
    }
}

/// The first stage of the service.
pub struct DispatchFuture {
    inner: BoxFuture<'static, Staged<ApiResponse>>,
    version: i16,
    correlation_id: i32,
}

impl std::fmt::Debug for DispatchFuture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DispatchFuture").finish_non_exhaustive()
    }
}

impl Future for DispatchFuture {
    type Output = Result<Ordered, CloseReason>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(self.inner.as_mut().poll(cx));
        Poll::Ready(Ok(Ordered::new(answer, self.version, self.correlation_id)))
    }
}
