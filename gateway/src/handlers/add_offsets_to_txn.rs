//! AddOffsetsToTxn (key 25), versions 0 to 4: the offsets of a group are part of the transaction.
//! v2 knows fencing (90, before 47).

use std::sync::Arc;

use coordinator::machine::txn::{AddClass, TxnError};
use kafka_protocol::messages::{AddOffsetsToTxnRequest, AddOffsetsToTxnResponse};

use super::{shared_text, txn_request};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &AddOffsetsToTxnRequest,
) -> Staged<ApiResponse> {
    let (broker, client) = (broker.clone(), txn_request::client(context));
    let class = AddClass::Client(context.version);
    let id = txn_request::shared_id(&request.transactional_id);
    let session = txn_request::session(request.producer_id, request.producer_epoch);
    let group = shared_text(&request.group_id);
    txn_request::begun(async move {
        let added = if id.is_empty() {
            Err(TxnError::InvalidRequest)
        } else {
            let txns = broker.txns();
            let added = txns.add_groups(&id, session, &group, class, Some(&client));
            added.await.map(drop)
        };
        let code = added.err().map_or(0, |error| error_code::txn(error).code());
        let response = AddOffsetsToTxnResponse::default().with_error_code(code);
        ApiResponse::AddOffsetsToTxn(Box::new(response))
    })
}
