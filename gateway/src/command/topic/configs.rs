//! `fencepost topic configs`.

use clap::Args;
use kafka_protocol::messages::DescribeConfigsRequest;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResourceResult;
use serde::Serialize;

use super::super::client::Client;
use super::super::output::{Failure, Row, check_said, or_dash};
use super::super::topics::text;

/// A topic, as the kind of a thing that has configs.
pub(super) const OF_TOPIC: i8 = 2;

/// Arguments of `fencepost topic configs`.
#[derive(Debug, Clone, Args)]
pub(super) struct Configs {
    /// The topics
    #[arg(required = true)]
    topics: Vec<String>,
    /// Also what is not set on the topic
    #[arg(long)]
    all: bool,
}

/// Where a value comes from, in Kafka's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(super) enum Source {
    #[serde(rename = "DYNAMIC_TOPIC_CONFIG")]
    Topic,
    #[serde(rename = "DYNAMIC_BROKER_CONFIG")]
    Broker,
    #[serde(rename = "DYNAMIC_DEFAULT_BROKER_CONFIG")]
    EveryBroker,
    #[serde(rename = "STATIC_BROKER_CONFIG")]
    File,
    #[serde(rename = "DEFAULT_CONFIG")]
    Default,
    #[default]
    #[serde(rename = "UNKNOWN")]
    Unknown,
}

impl Source {
    fn new(code: i8) -> Self {
        match code {
            1 => Self::Topic,
            2 => Self::Broker,
            3 => Self::EveryBroker,
            4 => Self::File,
            5 => Self::Default,
            _ => Self::Unknown,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Topic => "DYNAMIC_TOPIC_CONFIG",
            Self::Broker => "DYNAMIC_BROKER_CONFIG",
            Self::EveryBroker => "DYNAMIC_DEFAULT_BROKER_CONFIG",
            Self::File => "STATIC_BROKER_CONFIG",
            Self::Default => "DEFAULT_CONFIG",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// A config of a topic.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Config {
    pub(super) topic: String,
    pub(super) key: String,
    /// Not there if it is a secret.
    pub(super) value: Option<String>,
    pub(super) source: Source,
    read_only: bool,
    documentation: Option<String>,
}

impl Row for Config {
    const HEADINGS: &'static [&'static str] = &["TOPIC", "KEY", "VALUE", "SOURCE"];
    const WIDE: &'static [&'static str] = &["READ-ONLY", "DOCUMENTATION"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.topic.clone(),
            self.key.clone(),
            or_dash(self.value.as_ref()),
            self.source.name().to_owned(),
        ]
    }

    fn wide_cells(&self) -> Vec<String> {
        vec![
            self.read_only.to_string(),
            or_dash(self.documentation.as_ref()),
        ]
    }
}

impl Configs {
    pub(super) async fn run(self, client: &mut Client) -> Result<Vec<Config>, Failure> {
        let mut rows = of(client, &self.topics, true).await?;
        rows.retain(|row| self.all || row.source == Source::Topic);
        Ok(rows)
    }
}

/// Every config of `topics`, in order of topics as given and of keys.
pub(super) async fn of(
    client: &mut Client,
    topics: &[String],
    documented: bool,
) -> Result<Vec<Config>, Failure> {
    if topics.is_empty() {
        return Ok(Vec::new());
    }
    let resources = topics.iter().map(|topic| {
        DescribeConfigsResource::default()
            .with_resource_type(OF_TOPIC)
            .with_resource_name(text(topic))
            .with_configuration_keys(None)
    });
    let request = DescribeConfigsRequest::default().with_resources(resources.collect());
    let build = |version| request.with_include_documentation(documented && version >= 3);
    let answer = client.call(None, build).await?;
    let mut rows = Vec::new();
    for result in &answer.results {
        let topic = result.resource_name.as_str();
        let what = || format!("configs of topic {topic}");
        check_said(result.error_code, result.error_message.as_ref(), what)?;
        let mut configs: Vec<Config> = result.configs.iter().map(|c| row(topic, c)).collect();
        configs.sort_by(|a, b| a.key.cmp(&b.key));
        rows.extend(configs);
    }
    Ok(rows)
}

fn row(topic: &str, config: &DescribeConfigsResourceResult) -> Config {
    let shown = config.value.as_ref().filter(|_| !config.is_sensitive);
    Config {
        topic: topic.to_owned(),
        key: config.name.to_string(),
        value: shown.map(ToString::to_string),
        source: Source::new(config.config_source),
        read_only: config.read_only,
        documentation: config.documentation.as_ref().map(ToString::to_string),
    }
}
