//! Config resources: what DescribeConfigs, AlterConfigs and IncrementalAlterConfigs are about.

use kafka_protocol::error::ResponseError;

use crate::broker::Broker;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// A resource whose configs are served here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Resource {
    /// A topic, by name.
    Topic(String),
    /// This broker.
    Broker,
    /// What holds for every broker unless it says otherwise: nothing is set there.
    EveryBroker,
}

/// Why a resource was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: ResponseError,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(code: ResponseError, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// The resource of a type and a name.
pub(super) fn find(broker: &Broker, kind: i8, name: &str) -> Result<Resource, Refusal> {
    let invalid = |message: String| Refusal::new(ResponseError::InvalidRequest, message);
    match kind {
        TOPIC => Ok(Resource::Topic(name.to_owned())),
        BROKER if name.is_empty() => Ok(Resource::EveryBroker),
        BROKER => match name.parse::<i32>() {
            Ok(id) if id == broker.id().0 => Ok(Resource::Broker),
            Ok(id) => Err(invalid(format!(
                "Unexpected broker id, expected {} or empty string, but received {id}",
                broker.id().0
            ))),
            Err(_) => Err(invalid(format!(
                "Broker id must be an integer, but it is: {name}"
            ))),
        },
        other => Err(invalid(format!(
            "Configs of resource type {other} are not served"
        ))),
    }
}
