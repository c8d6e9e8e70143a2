//! `fencepost topic create`.

use clap::Args;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::{CreateTopicsRequest, TopicName};
use serde::Serialize;

use super::super::client::Client;
use super::super::output::{Failure, Row, check_said, or_dash};
use super::super::topics::text;
use super::{Outcome, pair};

/// TOPIC_ALREADY_EXISTS.
const EXISTS: i16 = 36;

/// Arguments of `fencepost topic create`.
#[derive(Debug, Clone, Args)]
pub(super) struct Create {
    /// The topics
    #[arg(required = true)]
    topics: Vec<String>,
    /// Partitions of each [default: num.partitions of the broker]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    partitions: Option<i32>,
    /// Replicas of each partition [default: the broker's]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(i16).range(1..))]
    replication_factor: Option<i16>,
    /// A config of each; can be repeated
    #[arg(short, long = "config", value_name = "KEY=VALUE", value_parser = pair)]
    configs: Vec<(String, String)>,
    /// A topic that is there already is no error
    #[arg(long)]
    if_not_exists: bool,
    /// Only say whether it could be done
    #[arg(long)]
    dry_run: bool,
}

/// What became of a topic.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Creation {
    topic: String,
    partitions: Option<i32>,
    replication_factor: Option<i16>,
    topic_id: Option<String>,
    created: bool,
}

impl Row for Creation {
    const HEADINGS: &'static [&'static str] =
        &["TOPIC", "PARTITIONS", "REPLICATION-FACTOR", "CREATED"];
    const WIDE: &'static [&'static str] = &["TOPIC-ID"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.topic.clone(),
            or_dash(self.partitions),
            or_dash(self.replication_factor),
            self.created.to_string(),
        ]
    }

    fn wide_cells(&self) -> Vec<String> {
        vec![or_dash(self.topic_id.as_ref())]
    }
}

impl Create {
    pub(super) async fn run(self, client: &mut Client) -> Result<Outcome<Creation>, Failure> {
        let configs = self.configs.iter().map(|(key, value)| {
            CreatableTopicConfig::default()
                .with_name(text(key))
                .with_value(Some(text(value)))
        });
        let configs: Vec<_> = configs.collect();
        let topics = self.topics.iter().map(|topic| {
            CreatableTopic::default()
                .with_name(TopicName(text(topic)))
                .with_num_partitions(self.partitions.unwrap_or(-1))
                .with_replication_factor(self.replication_factor.unwrap_or(-1))
                .with_configs(configs.clone())
        });
        let request = CreateTopicsRequest::default()
            .with_topics(topics.collect())
            .with_timeout_ms(client.patience_ms())
            .with_validate_only(self.dry_run);
        let answer = client.call(None, |_| request).await?;
        let mut outcome = Outcome::new();
        for result in &answer.topics {
            let topic = result.name.to_string();
            let is_there = result.error_code == EXISTS && self.if_not_exists;
            let code = if is_there { 0 } else { result.error_code };
            let what = || format!("topic {topic}");
            let checked = check_said(code, result.error_message.as_ref(), what);
            outcome.put(checked.map(|()| Creation {
                partitions: (result.num_partitions > 0).then_some(result.num_partitions),
                replication_factor:
                    (result.replication_factor > 0).then_some(result.replication_factor),
                topic_id: (!result.topic_id.is_nil()).then(|| result.topic_id.to_string()),
                created: !is_there && !self.dry_run,
                topic,
            }));
        }
        Ok(outcome)
    }
}
