//! What the batches of a Produce mean for all of it.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::ProduceRequest;
use store_adapter::ids::ProducerId;

use crate::handlers::shared_text;
use crate::partition::validate;
use crate::turns::{Key, Keys};

/// Whose batches a request has.
#[derive(Default)]
pub(super) struct BatchesOf {
    /// The producer of those that are of a transaction.
    pub(super) producer: Option<ProducerId>,
    /// Some are of no transaction.
    pub(super) others: bool,
}

impl BatchesOf {
    /// What must not be overtaken while they wait for their coordinator.
    pub(super) fn keys(&self, request: &ProduceRequest) -> Keys {
        let Some(producer) = self.producer else {
            return Keys::new();
        };
        let id = request.transactional_id.as_ref();
        let id = id.map(|id| Key::Transaction(shared_text(id)));
        let producer = (producer.0 >= 0).then_some(Key::Producer(producer));
        let others = self.others.then_some(Key::OtherBatches);
        id.into_iter().chain(producer).chain(others).collect()
    }
}

/// Refusals that concern every partition of the request (rows 2, 6 and 10); otherwise whose batches
/// it has.
pub(super) fn judge(request: &ProduceRequest) -> Result<BatchesOf, ResponseError> {
    let mut transactional = None;
    let mut others = false;
    for data in request
        .topic_data
        .iter()
        .flat_map(|topic| &topic.partition_data)
    {
        let Some(records) = &data.records else {
            continue;
        };
        match validate::peek(records) {
            validate::Peek::Corrupt => return Err(ResponseError::CorruptMessage),
            validate::Peek::Transactional {
                producer_id,
                producer_epoch,
            } => {
                if request.transactional_id.is_none() {
                    return Err(ResponseError::TransactionalIdAuthorizationFailed);
                }
                let seen = *transactional.get_or_insert((producer_id, producer_epoch));
                if seen != (producer_id, producer_epoch) {
                    return Err(ResponseError::InvalidProducerIdMapping);
                }
            }
            validate::Peek::Plain => others = true,
        }
    }
    let producer = transactional.map(|(producer_id, _)| ProducerId(producer_id));
    Ok(BatchesOf { producer, others })
}
