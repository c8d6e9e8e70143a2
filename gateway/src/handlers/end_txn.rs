//! EndTxn (key 26), versions 0 to 5. v2 knows fencing (90, before 47); v5 begins the next
//! transaction at another epoch, and tells it (KIP-890).
//!
//! Answered when the markers and the decisions on offsets are durable, here or queued; Kafka
//! answers before and has clients wait with the next transaction. If it takes longer than 2 s the
//! answer is 15: it is decided all the same, and a repeat waits for the same decision.

use std::sync::Arc;

use coordinator::machine::txn::{EndReply, EndTxn, TxnError};
use kafka_protocol::messages::{EndTxnRequest, EndTxnResponse, ProducerId};

use super::txn_request;
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &EndTxnRequest,
) -> Staged<ApiResponse> {
    let broker = broker.clone();
    let id = txn_request::shared_id(&request.transactional_id);
    let request = EndTxn {
        version: context.version,
        session: txn_request::session(request.producer_id, request.producer_epoch),
        commit: request.committed,
        client: Some(txn_request::client(context)),
    };
    txn_request::begun(async move {
        let ended = if id.is_empty() {
            Err(TxnError::InvalidRequest)
        } else {
            broker.txns().end_txn(&id, &request).await
        };
        answer(ended)
    })
}

fn answer(ended: Result<EndReply, TxnError>) -> ApiResponse {
    let mut response = EndTxnResponse::default();
    match ended {
        Ok(Some(next)) => {
            response.producer_id = ProducerId(next.pid.0);
            response.producer_epoch = next.epoch.0;
        }
        Ok(None) => {}
        Err(error) => response.error_code = error_code::txn(error).code(),
    }
    ApiResponse::EndTxn(Box::new(response))
}
