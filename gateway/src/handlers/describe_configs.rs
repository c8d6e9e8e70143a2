//! DescribeConfigs (key 32), versions 1 to 4. v1 synonyms; v3 types and documentation.
//!
//! Topics show every config that Kafka lists; one whose mechanism is not there shows Kafka's
//! default, which is the only value that it accepts. The broker shows its own table of keys, and
//! those of Kafka's that have no effect here with Kafka's default; read-only are all but the
//! defaults of topics. Every broker has what was set of all while they ran. Loggers,
//! client metrics and groups are refused with 42.
//!
//! Difference from Kafka: a resource that is named twice is answered once.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_protocol::messages::{DescribeConfigsRequest, DescribeConfigsResponse};
use kafka_protocol::protocol::StrBytes;

use super::bounded;
use super::config_resource::{self, Refusal, Resource};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::config::keys::kafka::{self, KAFKA_KEYS, KafkaKey};
use crate::config::keys::{self, Effect, Key, Kind};
use crate::topic_config::TOPIC_KEYS;
use crate::topic_config::keys::{ConfigType, TopicKey, find_dynamic};

/// Where a value comes from, by Kafka's codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i8)]
enum Source {
    Topic = 1,
    Broker = 2,
    EveryBroker = 3,
    StaticBroker = 4,
    Default = 5,
}

/// What the client wants to know beside values.
#[derive(Debug, Clone, Copy)]
struct Wish {
    synonyms: bool,
    documentation: bool,
}

/// A config with everything that may be told of it.
struct Described {
    name: &'static str,
    config_type: ConfigType,
    documentation: Cow<'static, str>,
    read_only: bool,
    /// Every value that is set, the one in force first.
    values: Vec<(&'static str, String, Source)>,
    /// Whether the broker has no key for the default, which then is no synonym.
    bare_default: bool,
}

/// A resource that is asked about.
#[derive(Debug)]
struct Asked {
    kind: i8,
    name: StrBytes,
    /// The configs that are wanted; `None` for all.
    keys: Option<BTreeSet<StrBytes>>,
}

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: DescribeConfigsRequest,
) -> Staged<ApiResponse> {
    let wish = Wish {
        synonyms: request.include_synonyms,
        documentation: request.include_documentation,
    };
    let asked = each_once(request.resources);
    bounded(broker, context, move |broker| {
        let mut response = DescribeConfigsResponse::default();
        let results = asked.iter().map(|asked| result(broker, asked, wish));
        response.results = results.collect();
        ApiResponse::DescribeConfigs(Box::new(response.into()))
    })
}

/// A resource is answered once, with the configs of every time that it is named.
fn each_once(resources: Vec<DescribeConfigsResource>) -> Vec<Asked> {
    let mut all: Vec<Asked> = Vec::new();
    let mut places = BTreeMap::new();
    for resource in resources {
        let (kind, name) = (resource.resource_type, resource.resource_name);
        // No keys, or none at all, are all of them.
        let keys = resource.configuration_keys.filter(|keys| !keys.is_empty());
        let keys = keys.map(BTreeSet::from_iter);
        let place = *places.entry((kind, name.clone())).or_insert(all.len());
        match all.get_mut(place) {
            None => all.push(Asked { kind, name, keys }),
            Some(asked) => {
                let both = asked.keys.take().zip(keys);
                asked.keys = both.map(|(mut all, more)| {
                    all.extend(more);
                    all
                });
            }
        }
    }
    all
}

fn result(broker: &Broker, asked: &Asked, wish: Wish) -> DescribeConfigsResult {
    let mut result = DescribeConfigsResult::default();
    result.resource_type = asked.kind;
    result.resource_name = asked.name.clone();
    match describe(broker, asked) {
        Ok(described) => {
            result.error_message = Some(StrBytes::default());
            let keys = asked.keys.as_ref();
            let is_wanted =
                |one: &Described| keys.is_none_or(|keys| keys.contains(one.name.as_bytes()));
            let wanted = described.into_iter().filter(is_wanted);
            result.configs = wanted.map(|one| entry(one, wish)).collect();
        }
        Err(refusal) => {
            result.error_code = refusal.code.code();
            result.error_message = Some(StrBytes::from_string(refusal.message));
        }
    }
    result
}

fn describe(broker: &Broker, asked: &Asked) -> Result<Vec<Described>, Refusal> {
    match config_resource::find(broker, asked.kind, &asked.name)? {
        Resource::Topic(name) => {
            if !broker.valid_topic_name(&name) {
                let message = format!("Topic name is invalid: {name:?}");
                return Err(Refusal::new(ResponseError::InvalidTopicException, message));
            }
            let topic = broker.topic_by_name(&asked.name).ok_or_else(|| {
                let message = "This server does not host this topic-partition.";
                Refusal::new(ResponseError::UnknownTopicOrPartition, message)
            })?;
            let rows = TOPIC_KEYS.iter();
            Ok(rows
                .map(|key| of_topic(broker, &topic.configs, key))
                .collect())
        }
        Resource::EveryBroker => {
            let configs = broker.broker_configs();
            let set = configs.get("").into_iter().flatten();
            Ok(set.filter_map(of_every_broker).collect())
        }
        Resource::Broker => {
            let used = keys::all().filter(|key| key.effect == Effect::Used);
            let used = used.map(|key| of_broker(broker, key.name, key));
            let others = KAFKA_KEYS.iter().filter_map(|key| of_kafka(broker, key));
            Ok(used.chain(others).collect())
        }
    }
}

/// Name, value and source, by its code, of every config that a topic with these has.
pub(super) fn in_force(
    broker: &Broker,
    configs: &BTreeMap<String, String>,
) -> Vec<(&'static str, String, i8)> {
    let described = TOPIC_KEYS.iter().map(|key| of_topic(broker, configs, key));
    let in_force = described.filter_map(|one| {
        let (_, value, source) = one.values.into_iter().next()?;
        Some((one.name, value, source.code()))
    });
    in_force.collect()
}

fn of_topic(broker: &Broker, configs: &BTreeMap<String, String>, key: &TopicKey) -> Described {
    let mut values = Vec::new();
    if let Some(value) = configs.get(key.name) {
        values.push((key.name, value.clone(), Source::Topic));
    }
    if let Some(name) = key.broker {
        values.extend(given(broker, name));
    }
    let default = key.broker.unwrap_or(key.name);
    values.push((default, key.default.to_owned(), Source::Default));
    Described {
        name: key.name,
        config_type: key.config_type,
        documentation: Cow::Borrowed(key.doc),
        read_only: false,
        values,
        bare_default: key.broker.is_none(),
    }
}

/// What was given of the broker, what is in force first.
fn given(broker: &Broker, name: &'static str) -> Vec<(&'static str, String, Source)> {
    let configs = broker.broker_configs();
    let own = broker.id().0.to_string();
    let set = [(own.as_str(), Source::Broker), ("", Source::EveryBroker)];
    let set = set.into_iter().filter_map(|(broker, source)| {
        let value = configs.get(broker)?.get(name)?;
        Some((name, value.clone(), source))
    });
    let started = broker.config().settings.given(name);
    let started = started.map(|given| (name, given.value.clone(), Source::StaticBroker));
    set.chain(started).collect()
}

fn of_every_broker((name, value): (&String, &String)) -> Option<Described> {
    let key = find_dynamic(name)?;
    let name = key.broker?;
    Some(Described {
        name,
        config_type: kafka::find(name).map_or(key.config_type, |key| key.config_type),
        documentation: Cow::Borrowed(key.doc),
        read_only: false,
        values: vec![(name, value.clone(), Source::EveryBroker)],
        bare_default: false,
    })
}

/// A key of Kafka's that has no row here, or another name of one that has.
fn of_kafka(broker: &Broker, key: &'static KafkaKey) -> Option<Described> {
    let Some(why) = keys::ignored_because(key.name) else {
        let row = keys::find(key.name).filter(|row| row.name != key.name)?;
        return Some(of_broker(broker, key.name, row));
    };
    let mut values = given(broker, key.name);
    let default = key.default.into_iter();
    values.extend(default.map(|value| (key.name, value.to_owned(), Source::Default)));
    Some(Described {
        name: key.name,
        config_type: key.config_type,
        documentation: Cow::Owned(format!("Without effect here: {why}.")),
        read_only: find_dynamic(key.name).is_none(),
        values,
        bare_default: false,
    })
}

fn of_broker(broker: &Broker, name: &'static str, key: &'static Key) -> Described {
    let mut values = given(broker, key.name);
    values.push((key.name, key.default.to_owned(), Source::Default));
    let own_type = || match key.kind {
        Kind::Int { max, .. } if max > i64::from(i32::MAX) => ConfigType::Long,
        Kind::Int { .. } => ConfigType::Int,
        Kind::Ratio => ConfigType::Double,
        Kind::Bool => ConfigType::Boolean,
        Kind::Text | Kind::Choice(_) | Kind::Any => ConfigType::String,
    };
    Described {
        name,
        config_type: kafka::find(name).map_or_else(own_type, |key| key.config_type),
        documentation: Cow::Borrowed(key.doc),
        read_only: find_dynamic(name).is_none(),
        values,
        bare_default: false,
    }
}

fn entry(described: Described, wish: Wish) -> DescribeConfigsResourceResult {
    let mut entry = DescribeConfigsResourceResult::default();
    entry.name = StrBytes::from_static_str(described.name);
    entry.read_only = described.read_only;
    entry.config_type = described.config_type.code();
    entry.value = None;
    entry.is_sensitive = described.config_type == ConfigType::Password;
    entry.config_source = Source::Default.code();
    entry.documentation = None;
    if wish.documentation {
        entry.documentation = Some(StrBytes::from_string(described.documentation.into_owned()));
    }
    if let Some((_, value, source)) = described.values.first() {
        entry.value = Some(StrBytes::from_string(value.clone()));
        entry.config_source = source.code();
    }
    if wish.synonyms {
        let bare = described.bare_default;
        let shown = described.values.into_iter();
        let shown = shown.filter(|(.., source)| !(bare && *source == Source::Default));
        entry.synonyms = shown
            .map(|(name, value, source)| {
                let mut synonym = DescribeConfigsSynonym::default();
                synonym.name = StrBytes::from_static_str(name);
                synonym.value = Some(StrBytes::from_string(value));
                synonym.source = source.code();
                synonym
            })
            .collect();
    }
    entry
}

impl Source {
    fn code(self) -> i8 {
        match self {
            Self::Topic => 1,
            Self::Broker => 2,
            Self::EveryBroker => 3,
            Self::StaticBroker => 4,
            Self::Default => 5,
        }
    }
}
