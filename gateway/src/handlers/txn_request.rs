//! What the handlers of transactional ids share.

use std::future::Future;
use std::net::IpAddr;
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
    let connection = &context.connection;
    let peer = connection.peer.map(|peer| peer.ip());
    let local = connection.local.map(|local| local.ip());
    peer.is_none_or(|peer| is_own_host(peer, local))
}

/// Whether a client is on the broker's own host. Who connects there to another address than
/// loopback, such as the one that Metadata tells, comes from that very address.
fn is_own_host(peer: IpAddr, local: Option<IpAddr>) -> bool {
    let peer = peer.to_canonical();
    peer.is_loopback() || local.is_some_and(|local| local.to_canonical() == peer)
}

/// A transactional id that outlives its request.
pub(super) fn shared_id(id: &str) -> Arc<str> {
    id.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_from_the_address_it_connects_to_is_on_the_own_host() {
        for (peer, local, own) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("::1", "::1", true),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1", true),
            ("10.0.0.5", "10.0.0.5", true),
            ("::ffff:10.0.0.5", "10.0.0.5", true),
            ("fd00::5", "fd00::5", true),
            ("10.0.0.6", "10.0.0.5", false),
            ("10.0.0.5", "127.0.0.1", false),
            ("fd00::6", "fd00::5", false),
        ] {
            let (peer, local) = (peer.parse().unwrap(), local.parse().ok());
            assert_eq!(is_own_host(peer, local), own, "{peer} to {local:?}");
        }
        assert!(!is_own_host("10.0.0.5".parse().unwrap(), None));
    }
}
