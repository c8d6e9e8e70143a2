//! Config resources: what DescribeConfigs, AlterConfigs and IncrementalAlterConfigs are about.

use std::collections::{BTreeMap, BTreeSet};

use kafka_protocol::error::ResponseError;
use kafka_protocol::protocol::StrBytes;

use crate::broker::{Broker, TopicError};
use crate::error_code;
use crate::topic_config::keys::{self, TopicKey};
use crate::topic_config::{self, ConfigOp};

/// Topics.
pub(super) const TOPIC: i8 = 2;
/// Brokers.
pub(super) const BROKER: i8 = 4;

/// A resource whose configs are served here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Resource {
    /// A topic, by name.
    Topic(String),
    /// This broker.
    Broker,
    /// What holds for every broker unless it says otherwise.
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

/// What a request wants of the configs of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// These and no others.
    Replace(BTreeMap<String, String>),
    /// One after the other.
    Operations(Vec<(String, ConfigOp)>),
}

impl Change {
    /// `find` finds the keys of the resource.
    fn apply(
        self,
        current: &BTreeMap<String, String>,
        find: fn(&str) -> Option<&'static TopicKey>,
    ) -> Result<BTreeMap<String, String>, TopicError> {
        match self {
            Self::Replace(configs) => Ok(configs),
            Self::Operations(operations) => topic_config::change(current, &operations, find),
        }
    }
}

/// Changes the configs of a resource, or with `validate_only` checks whether that could be done.
pub(super) async fn alter(
    broker: &Broker,
    kind: i8,
    name: &str,
    change: Change,
    validate_only: bool,
) -> Result<(), Refusal> {
    // One that is refused waits for nothing, and a request has many.
    tokio::task::yield_now().await;
    match find(broker, kind, name)? {
        Resource::Topic(name) => alter_topic(broker, &name, change, validate_only).await,
        Resource::Broker => alter_broker(broker, false, change, validate_only).await,
        Resource::EveryBroker => alter_broker(broker, true, change, validate_only).await,
    }
}

async fn alter_broker(
    broker: &Broker,
    of_all: bool,
    change: Change,
    validate_only: bool,
) -> Result<(), Refusal> {
    let change = move |current: &_| change.apply(current, keys::find_dynamic);
    let altered = broker.alter_broker_configs(of_all, change, validate_only);
    altered.await.map_err(|error| refuse(&error))
}

fn refuse(error: &TopicError) -> Refusal {
    Refusal::new(error_code::topic(error), error.to_string())
}

/// In Kafka's order: the name, the configs, whether there is such a topic.
async fn alter_topic(
    broker: &Broker,
    name: &str,
    change: Change,
    validate_only: bool,
) -> Result<(), Refusal> {
    if name.is_empty() {
        return Err(Refusal::new(
            ResponseError::InvalidRequest,
            "There are no configs of all topics; the broker's settings are their defaults.",
        ));
    }
    if !broker.valid_topic_name(name) {
        let message = format!("Topic name is invalid: {name:?}");
        return Err(Refusal::new(ResponseError::InvalidTopicException, message));
    }
    let Some(topic) = broker.topic_by_name(&StrBytes::from_string(name.to_owned())) else {
        let configs = change
            .apply(&BTreeMap::new(), keys::find)
            .map_err(|error| refuse(&error))?;
        broker
            .check_topic_configs(&configs)
            .map_err(|error| refuse(&error))?;
        return Err(Refusal::new(
            ResponseError::UnknownTopicOrPartition,
            format!("The topic {name} does not exist."),
        ));
    };
    let altered = broker.alter_topic_configs(
        topic.id,
        move |current| change.apply(current, keys::find),
        validate_only,
    );
    altered.await.map_err(|error| refuse(&error))
}

/// Resources that a request names more than once.
pub(super) fn repeated<'a>(
    resources: impl Iterator<Item = (i8, &'a StrBytes)>,
) -> BTreeSet<(i8, StrBytes)> {
    let mut seen = BTreeSet::new();
    let mut repeated = BTreeSet::new();
    for (kind, name) in resources {
        if !seen.insert((kind, name)) {
            repeated.insert((kind, name.clone()));
        }
    }
    repeated
}

/// The answer to a resource that is named more than once.
pub(super) fn once_only() -> Refusal {
    Refusal::new(
        ResponseError::InvalidRequest,
        "A resource can be named only once in a request.",
    )
}

/// Refuses configs of one resource that are named more than once, or have no value but need one.
pub(super) fn check_entries<'a>(
    entries: impl Iterator<Item = (&'a StrBytes, bool)>,
) -> Result<(), Refusal> {
    let mut seen = BTreeSet::new();
    let mut without_value = Vec::new();
    let mut twice = false;
    for (name, has_value) in entries {
        twice |= !seen.insert(name);
        if !has_value {
            without_value.push(name.as_str());
        }
    }
    let why = if twice {
        "A config can be named only once in a resource.".to_owned()
    } else if without_value.is_empty() {
        return Ok(());
    } else {
        format!("These configs need a value: {}", without_value.join(", "))
    };
    Err(Refusal::new(ResponseError::InvalidRequest, why))
}
