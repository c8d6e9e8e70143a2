//! The request stack: the page to read first.
//!
//! Outer to inner, one push a line. A layer either ends the request early, changes it, or brackets
//! what is inside; everything else is a function. Layers are composed statically and boxed at two
//! seams: the entry ([`Stack`]) and the call of the service. No layer may wait for anything
//! unbounded, and `poll_ready` is always ready: back-pressure is the reader that stops reading.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use store_adapter::runtime::Clock;
use tower::ServiceBuilder;
use tower::util::BoxCloneSyncService;

use crate::admitted::Admitted;
use crate::api::{ApiRequest, ApiResponse, ApiService, ConnectionContext, RequestContext, Staged};
use crate::layers::admit::AdmitLayer;
use crate::layers::dispatch::Dispatch;
use crate::layers::guard_decode::GuardDecodeLayer;
use crate::layers::observe::{ObserveLayer, Timing};
use crate::layers::rescue::RescueLayer;
use crate::layers::version_gate::VersionGateLayer;
use crate::metrics::Metrics;

/// A whole frame with its header read and its body untouched.
#[derive(Debug)]
pub struct RawRequest {
    /// The connection.
    pub connection: Arc<ConnectionContext>,
    /// Api key, any value.
    pub key: i16,
    /// Request version, any value.
    pub version: i16,
    /// Echoed in the answer, any value.
    pub correlation_id: i32,
    /// The frame behind its length: header and body.
    pub frame: Bytes,
    /// When the frame was complete, on the monotonic clock.
    pub received: Duration,
    /// The bytes of the frame in the budget for requests in memory.
    pub admitted: Admitted,
}

/// A request between decoding and dispatch.
#[derive(Debug)]
pub struct DecodedRequest {
    /// What the handler knows besides the body.
    pub context: RequestContext,
    /// Echoed in the answer.
    pub correlation_id: i32,
    /// The body.
    pub request: ApiRequest,
}

/// The outcome of the first stage, with what the writer needs for the second.
#[derive(Debug)]
pub struct Ordered {
    /// The answer, or the promise of one.
    pub answer: Staged<ApiResponse>,
    /// Version in which the answer is encoded: not always that of the request (KIP-511).
    pub version: i16,
    /// Correlation id of the request.
    pub correlation_id: i32,
    /// Gives the bytes of the request back once the answer is written.
    pub admitted: Admitted,
    /// Stops the watch once the answer is there.
    pub timing: Option<Timing>,
}

impl Ordered {
    /// An outcome that holds nothing yet.
    pub fn new(answer: Staged<ApiResponse>, version: i16, correlation_id: i32) -> Self {
        Self {
            answer,
            version,
            correlation_id,
            admitted: Admitted::default(),
            timing: None,
        }
    }
}

/// The composed stack: cloned per connection, shared state inside.
pub type Stack = BoxCloneSyncService<RawRequest, Ordered, Infallible>;

/// Composes the stack around `service`.
pub fn compose(service: impl ApiService, metrics: &Arc<Metrics>, clock: &Arc<dyn Clock>) -> Stack {
    BoxCloneSyncService::new(
        ServiceBuilder::new()
            // Outermost, so that refusals and panics are counted and timed too.
            .layer(ObserveLayer::new(Arc::clone(metrics), Arc::clone(clock)))
            // Nothing below can end more than its own connection: errors and panics stop here.
            .layer(RescueLayer)
            // No byte of a body is looked at for a key or version that is not offered.
            .layer(VersionGateLayer::new())
            // Authentication goes here: it must see SASL requests and hide everything below from
            // strangers. Only plaintext listeners exist, on which everyone is anonymous.
            // The bytes were admitted by the reader; from here on the answer holds them.
            .layer(AdmitLayer)
            // The guard walks every byte before the decoder does: the decoder trusts its input.
            .layer(GuardDecodeLayer)
            // Authorization and the coordinator gate go here: both need the decoded names.
            .service(Dispatch::new(service)),
    )
}
