//! InitProducerId (key 22), versions 0 to 5. v3 a session that goes on says who it was (KIP-360);
//! v4 knows fencing (90, before 47).
//!
//! Without a transactional id: a fresh producer id at epoch 0. Any producer id, epoch and timeout
//! in the request are ignored then, as Kafka does.
//!
//! With one, what is open of an earlier session is aborted first. That is waited for up to 100 ms
//! before the client is told to come again (51); Kafka tells it at once.

use std::sync::Arc;

use coordinator::machine::txn::{InitProducerId, Session};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse, ProducerId};
use store_adapter::ids::ProducerEpoch;

use super::txn_request;
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &InitProducerIdRequest,
) -> Staged<ApiResponse> {
    if is_half_a_claim(request) {
        return Staged::Now(answer(Err(ResponseError::InvalidRequest)));
    }
    let broker = broker.clone();
    let Some(id) = &request.transactional_id else {
        return Staged::Later(Box::pin(async move {
            let fresh = broker.producer_ids().next_id().await.map(|pid| Session {
                pid,
                epoch: ProducerEpoch(0),
            });
            answer(fresh.map_err(|_| ResponseError::CoordinatorLoadInProgress))
        }));
    };
    let id = txn_request::shared_id(id);
    let request = InitProducerId {
        version: context.version,
        id_is_empty: id.is_empty(),
        timeout_ms: request.transaction_timeout_ms,
        claimed: txn_request::session(request.producer_id, request.producer_epoch),
        client: Some(txn_request::client(context)),
    };
    txn_request::begun(async move {
        let begun = broker.txns().init_producer_id(&id, &request).await;
        answer(begun.map_err(error_code::txn))
    })
}

/// Whether only one of producer id and epoch is claimed; before v3 neither can be.
fn is_half_a_claim(request: &InitProducerIdRequest) -> bool {
    (request.producer_id.0 == -1) != (request.producer_epoch == -1)
}

fn answer(outcome: Result<Session, ResponseError>) -> ApiResponse {
    let mut response = InitProducerIdResponse::default();
    match outcome {
        Ok(session) => {
            response.producer_id = ProducerId(session.pid.0);
            response.producer_epoch = session.epoch.0;
        }
        Err(code) => {
            response.error_code = code.code();
            response.producer_id = ProducerId(-1);
            response.producer_epoch = -1;
        }
    }
    ApiResponse::InitProducerId(Box::new(response))
}
