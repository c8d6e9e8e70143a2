//! InitProducerId (key 22), versions 0 to 5, without a transactional id: a fresh producer id at
//! epoch 0. Any producer id, epoch and timeout in the request are ignored then, as Kafka does.
//!
//! With a transactional id: "" is 42; otherwise there is no transaction coordinator yet and the
//! answer is the retriable 15, as FindCoordinator's is.

use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse, ProducerId};

use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &InitProducerIdRequest,
) -> Staged<ApiResponse> {
    if let Some(code) = refusal(request, context.version) {
        return Staged::Now(answer(Err(code)));
    }
    let broker = broker.clone();
    Staged::Later(Box::pin(async move {
        answer(
            broker
                .producer_ids()
                .next_id()
                .await
                .map_err(|_| ResponseError::CoordinatorLoadInProgress),
        )
    }))
}

fn refusal(request: &InitProducerIdRequest, version: i16) -> Option<ResponseError> {
    let one_without_other =
        (request.producer_id.0 == -1) != (request.producer_epoch == -1) && version >= 3;
    if one_without_other {
        return Some(ResponseError::InvalidRequest);
    }
    match request.transactional_id.as_ref().map(|id| id.as_str()) {
        None => None,
        Some("") => Some(ResponseError::InvalidRequest),
        Some(_) => Some(ResponseError::CoordinatorNotAvailable),
    }
}

fn answer(outcome: Result<store_adapter::ids::ProducerId, ResponseError>) -> ApiResponse {
    let mut response = InitProducerIdResponse::default();
    match outcome {
        Ok(id) => {
            response.producer_id = ProducerId(id.0);
            response.producer_epoch = 0;
        }
        Err(code) => {
            response.error_code = code.code();
            response.producer_id = ProducerId(-1);
            response.producer_epoch = -1;
        }
    }
    ApiResponse::InitProducerId(Box::new(response))
}
