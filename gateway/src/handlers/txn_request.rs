//! What the handlers of transactional ids share.

use std::future::Future;
use std::sync::Arc;

use coordinator::machine::txn::{Client, Session};
use futures_util::FutureExt;
use kafka_protocol::messages::ProducerId;
use store_adapter::ids;
use store_adapter::runtime::BoxFuture;

use crate::api::{ApiResponse, RequestContext, Staged};

/// An answer that is begun at once: what it decides is ordered before the next request of the
/// connection is read, and becomes durable together with that. The rest settles by itself, with the
/// request's turn (`crate::turns`).
pub(super) fn begun(
    answer: impl Future<Output = ApiResponse> + Send + 'static,
) -> Staged<ApiResponse> {
    let mut answer: BoxFuture<'static, ApiResponse> = Box::pin(answer);
    match (&mut answer).now_or_never() {
        Some(answer) => Staged::Now(answer),
        None => Staged::Later(answer),
    }
}

/// Who asks, for people who look at the transaction.
pub(super) fn client(context: &RequestContext) -> Client {
    let connection = &context.connection;
    let software = connection.software.get();
    Client {
        id: context.client_id.as_deref().unwrap_or_default().into(),
        address: connection
            .peer
            .map(|peer| format!("{}:{}", peer.ip().to_canonical(), peer.port()))
            .unwrap_or_default()
            .into(),
        software: software
            .map(|(name, version)| format!("{name} {version}"))
            .unwrap_or_default()
            .into(),
    }
}

/// The session that a request names.
pub(super) fn session(pid: ProducerId, epoch: i16) -> Session {
    Session {
        pid: ids::ProducerId(pid.0),
        epoch: ids::ProducerEpoch(epoch),
    }
}

/// Whether the request may be one of another broker's, or of an administrator: without access rules
/// that is who reaches the broker from its own host. The simulation has no addresses.
pub(super) fn is_from_cluster(context: &RequestContext) -> bool {
    let peer = context.connection.peer;
    peer.is_none_or(|peer| peer.ip().to_canonical().is_loopback())
}

/// A transactional id that outlives its request.
pub(super) fn shared_id(id: &str) -> Arc<str> {
    id.into()
}
