//! Refuses keys and versions that are not offered, before a byte of the body is looked at.
//!
//! Kafka closes the connection, with one exception: ApiVersions of an unknown version (also a
//! negative one) is answered with 35 in a v0 body that names only ApiVersions itself, so that
//! newer clients can step down (KIP-511).

use std::future::{Future, Ready, ready};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::Either;
use kafka_protocol::messages::ApiKey;
use tower::{Layer, Service};

use crate::api::{ApiResponse, CloseReason, Staged, api_table};
use crate::handlers::api_versions;
use crate::stack::{Ordered, RawRequest};

const API_VERSIONS: i16 = ApiKey::ApiVersions as i16;

/// See the module.
#[derive(Debug, Clone)]
pub struct VersionGateLayer {
    /// Served versions by key.
    served: Arc<[Option<RangeInclusive<i16>>]>,
}

impl VersionGateLayer {
    /// Gates by the handler list.
    pub fn new() -> Self {
        let table = api_table();
        let last = table.iter().map(|api| api.key).max().unwrap_or(0);
        let served = (0..=last)
            .map(|key| {
                let row = table.iter().find(|api| api.key == key);
                row.map(|api| api.versions.clone())
            })
            .collect();
        Self { served }
    }
}

impl Default for VersionGateLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for VersionGateLayer {
    type Service = VersionGate<S>;
    fn layer(&self, inner: S) -> VersionGate<S> {
        VersionGate {
            inner,
            served: Arc::clone(&self.served),
        }
    }
}

/// The service of [`VersionGateLayer`].
#[derive(Debug, Clone)]
pub struct VersionGate<S> {
    inner: S,
    served: Arc<[Option<RangeInclusive<i16>>]>,
}

impl<S> VersionGate<S> {
    fn served(&self, key: i16) -> Option<&RangeInclusive<i16>> {
        self.served.get(usize::try_from(key).ok()?)?.as_ref()
    }

    /// `None` lets the request through.
    fn refusal(&self, request: &RawRequest) -> Option<Result<Ordered, CloseReason>> {
        let (key, version) = (request.key, request.version);
        match self.served(key) {
            None => Some(Err(CloseReason::UnsupportedKey(key))),
            Some(versions) if versions.contains(&version) => None,
            Some(_) if key == API_VERSIONS => {
                let response = ApiResponse::ApiVersions(Box::new(api_versions::step_down()));
                let answer = Staged::Now(response);
                Some(Ok(Ordered::new(answer, 0, request.correlation_id)))
            }
            Some(_) => Some(Err(CloseReason::UnsupportedVersion { key, version })),
        }
    }
}

impl<S> Service<RawRequest> for VersionGate<S>
where
    S: Service<RawRequest, Response = Ordered, Error: From<CloseReason>>,
    S::Future: Future<Output = Result<Ordered, S::Error>>,
{
    type Response = Ordered;
    type Error = S::Error;
    type Future = Either<Ready<Result<Ordered, S::Error>>, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: RawRequest) -> Self::Future {
        match self.refusal(&request) {
            Some(outcome) => Either::Left(ready(outcome.map_err(S::Error::from))),
            None => Either::Right(self.inner.call(request)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tower_test::mock;

    use super::*;
    use crate::layers::testing::{raw, silent};

    #[tokio::test]
    async fn what_is_offered_passes() {
        let (mut stack, mut handle) =
            mock::spawn_layer::<RawRequest, Ordered, _>(VersionGateLayer::new());
        handle.allow(1);
        assert!(stack.poll_ready().is_ready());
        let outcome = stack.call(raw(0, 3));
        let (inner, reply) = handle.next_request().await.unwrap();
        assert_eq!((inner.key, inner.version), (0, 3));
        reply.send_response(silent());
        assert!(matches!(outcome.await.unwrap().answer, Staged::Silent));
    }

    #[tokio::test]
    async fn what_is_not_offered_is_closed() {
        let (mut stack, mut handle) =
            mock::spawn_layer::<RawRequest, Ordered, _>(VersionGateLayer::new());
        handle.allow(1);
        assert!(stack.poll_ready().is_ready());
        // Produce 0-2 are advertised (KAFKA-18659) and refused all the same.
        for (key, version) in [(0, 2), (0, 14), (1, 3), (3, 14), (22, 6), (3, -1)] {
            let error = stack.call(raw(key, version)).await.unwrap_err();
            assert_eq!(
                *error.downcast::<CloseReason>().unwrap(),
                CloseReason::UnsupportedVersion { key, version }
            );
        }
        for key in [9999, -1, 4, 52, 56, i16::MIN, i16::MAX] {
            let error = stack.call(raw(key, 0)).await.unwrap_err();
            assert_eq!(
                *error.downcast::<CloseReason>().unwrap(),
                CloseReason::UnsupportedKey(key)
            );
        }
    }

    #[tokio::test]
    async fn unknown_api_versions_steps_down() {
        let (mut stack, mut handle) =
            mock::spawn_layer::<RawRequest, Ordered, _>(VersionGateLayer::new());
        handle.allow(1);
        assert!(stack.poll_ready().is_ready());
        for version in [5, 99, -1] {
            let ordered = stack.call(raw(18, version)).await.unwrap();
            assert_eq!(ordered.version, 0);
            assert_eq!(ordered.correlation_id, 7);
            let Staged::Now(ApiResponse::ApiVersions(response)) = ordered.answer else {
                panic!("not an ApiVersions answer");
            };
            assert_eq!(response.error_code, 35);
            let keys: Vec<_> = response
                .api_keys
                .iter()
                .map(|api| (api.api_key, api.min_version, api.max_version))
                .collect();
            assert_eq!(keys, [(18, 0, 4)]);
        }
    }
}
