//! Turns bytes into a request: header, frame guard, decoder, in that order.
//!
//! The guard refuses whatever the decoder could not survive; what it refuses closes the
//! connection, as Kafka does. The version is already one that is served.

use std::future::{Future, Ready, ready};
use std::task::{Context, Poll};

use futures_util::future::Either;
use tower::{Layer, Service};

use crate::api::{CloseReason, RequestContext};
use crate::stack::{DecodedRequest, Ordered, RawRequest};
use crate::wire::{codec, header};

/// See the module.
#[derive(Debug, Clone, Copy)]
pub struct GuardDecodeLayer;

impl<S> Layer<S> for GuardDecodeLayer {
    type Service = GuardDecode<S>;
    fn layer(&self, inner: S) -> GuardDecode<S> {
        GuardDecode { inner }
    }
}

/// The service of [`GuardDecodeLayer`].
#[derive(Debug, Clone)]
pub struct GuardDecode<S> {
    inner: S,
}

impl<S> Service<RawRequest> for GuardDecode<S>
where
    S: Service<DecodedRequest, Response = Ordered, Error: From<CloseReason>>,
    S::Future: Future<Output = Result<Ordered, S::Error>>,
{
    type Response = Ordered;
    type Error = S::Error;
    type Future = Either<Ready<Result<Ordered, S::Error>>, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, raw: RawRequest) -> Self::Future {
        match decode(raw) {
            Ok(request) => Either::Right(self.inner.call(request)),
            Err(reason) => Either::Left(ready(Err(reason.into()))),
        }
    }
}

fn decode(raw: RawRequest) -> Result<DecodedRequest, CloseReason> {
    let (header, body) = header::decode(&raw.frame)?;
    let request = codec::decode(header.key, header.version, body)?;
    Ok(DecodedRequest {
        context: RequestContext {
            connection: raw.connection,
            version: header.version,
            client_id: header.client_id,
            received: raw.received,
            admitted: raw.admitted,
        },
        correlation_id: header.correlation_id,
        request,
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tower_test::mock;

    use super::*;
    use crate::api::{ApiRequest, Staged};
    use crate::layers::testing::{raw, silent};

    #[tokio::test]
    async fn a_request_arrives_decoded() {
        let (mut stack, mut handle) =
            mock::spawn_layer::<DecodedRequest, Ordered, _>(GuardDecodeLayer);
        handle.allow(1);
        assert!(stack.poll_ready().is_ready());
        let mut request = raw(3, 1);
        // Metadata v1 of client "me" for no topics at all.
        request.frame = Bytes::from_static(b"\0\x03\0\x01\0\0\0\x07\0\x02me\0\0\0\0");
        let outcome = stack.call(request);
        let (decoded, reply) = handle.next_request().await.unwrap();
        assert_eq!(decoded.correlation_id, 7);
        assert_eq!(decoded.context.client_id.as_deref(), Some("me"));
        assert!(matches!(decoded.request, ApiRequest::Metadata(_)));
        reply.send_response(silent());
        assert!(matches!(outcome.await.unwrap().answer, Staged::Silent));
    }

    #[tokio::test]
    async fn bytes_that_are_no_request_are_refused() {
        let (mut stack, mut handle) =
            mock::spawn_layer::<DecodedRequest, Ordered, _>(GuardDecodeLayer);
        handle.allow(1);
        assert!(stack.poll_ready().is_ready());
        for frame in [
            &b"\0\x03\0\x01\0\0\0\x07"[..],
            b"\0\x03\0\x01\0\0\0\x07\0\x09me",
            b"\0\x03\0\x01\0\0\0\x07\0\x02me\x7f\xff\xff\xff",
            b"\0\x03\0\x01\0\0\0\x07\0\x02me\0\0\0\x01\0\x09x",
        ] {
            let mut request = raw(3, 1);
            request.frame = Bytes::from_static(frame);
            let error = stack.call(request).await.unwrap_err();
            let reason = error.downcast::<CloseReason>().unwrap();
            assert!(matches!(*reason, CloseReason::Malformed(_)), "{reason}");
        }
    }
}
