//! `fencepost topic alter`: everything is tried before anything is done.

use clap::Args;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::{
    CreatePartitionsRequest, IncrementalAlterConfigsRequest, TopicName,
};
use serde::Serialize;

use super::super::client::Client;
use super::super::output::{Failure, Row, check_said};
use super::super::topics::text;
use super::configs::OF_TOPIC;
use super::{Outcome, pair, unanswered};

/// Arguments of `fencepost topic alter`.
#[derive(Debug, Clone, Args)]
pub(super) struct Alter {
    /// The topics
    #[arg(required = true)]
    topics: Vec<String>,
    /// So many partitions from now on; never fewer than before
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    partitions: Option<i32>,
    /// Set a config; can be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// Give a config up, so that the broker's holds again; can be repeated
    #[arg(short, long, value_name = "KEY")]
    delete: Vec<String>,
    /// Add to a config that is a list; can be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    append: Vec<(String, String)>,
    /// Take from a config that is a list; can be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    subtract: Vec<(String, String)>,
    /// Only say whether it could be done
    #[arg(long)]
    dry_run: bool,
}

/// A change of a topic.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Alteration {
    topic: String,
    change: String,
    altered: bool,
}

impl Row for Alteration {
    const HEADINGS: &'static [&'static str] = &["TOPIC", "CHANGE", "ALTERED"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.topic.clone(),
            self.change.clone(),
            self.altered.to_string(),
        ]
    }
}

/// A change of a config, by the number of the wire.
#[derive(Debug, Clone, Copy)]
struct Op<'a> {
    code: i8,
    word: &'static str,
    key: &'a str,
    value: Option<&'a str>,
}

impl Alter {
    pub(super) async fn run(self, client: &mut Client) -> Result<Outcome<Alteration>, Failure> {
        if self.partitions.is_none() && self.ops().is_empty() {
            let allowed = "--partitions, --set, --delete, --append, --subtract";
            let why = format!("nothing to alter: allowed are {allowed}");
            return Err(Failure::Usage(why));
        }
        let mut outcome = Outcome::new();
        for topic in &self.topics {
            if let Err(failure) = self.change(client, topic, true).await {
                outcome.refused.push(failure);
            }
        }
        if !outcome.refused.is_empty() {
            return Ok(outcome);
        }
        for topic in &self.topics {
            let done = if self.dry_run {
                Ok(())
            } else {
                self.change(client, topic, false).await
            };
            match done {
                Ok(()) => outcome.done.extend(self.rows(topic)),
                Err(failure) => outcome.refused.push(failure),
            }
        }
        Ok(outcome)
    }

    fn ops(&self) -> Vec<Op<'_>> {
        let mut ops: Vec<Op<'_>> = Vec::new();
        let delete = self.delete.iter();
        ops.extend(delete.map(|key| Op {
            code: 1,
            word: "delete",
            key,
            value: None,
        }));
        for (code, word, pairs) in [
            (0, "set", &self.set),
            (2, "append", &self.append),
            (3, "subtract", &self.subtract),
        ] {
            ops.extend(pairs.iter().map(|(key, value)| Op {
                code,
                word,
                key,
                value: Some(value),
            }));
        }
        ops
    }

    fn rows(&self, topic: &str) -> Vec<Alteration> {
        let configs = self.ops().into_iter().map(|op| match op.value {
            Some(value) => format!("{} {}={value}", op.word, op.key),
            None => format!("{} {}", op.word, op.key),
        });
        let partitions = self.partitions.map(|count| format!("partitions {count}"));
        let changes = configs.chain(partitions);
        let rows = changes.map(|change| Alteration {
            topic: topic.to_owned(),
            change,
            altered: !self.dry_run,
        });
        rows.collect()
    }

    /// Changes configs, then partitions; or finds out whether that could be done.
    async fn change(&self, client: &mut Client, topic: &str, dry: bool) -> Result<(), Failure> {
        let ops = self.ops();
        if !ops.is_empty() {
            change_configs(client, topic, &ops, dry).await?;
        }
        match self.partitions {
            Some(count) => add_partitions(client, topic, count, dry).await,
            None => Ok(()),
        }
    }
}

async fn change_configs(
    client: &mut Client,
    topic: &str,
    ops: &[Op<'_>],
    dry: bool,
) -> Result<(), Failure> {
    let configs = ops.iter().map(|op| {
        AlterableConfig::default()
            .with_name(text(op.key))
            .with_config_operation(op.code)
            .with_value(op.value.map(text))
    });
    let resource = AlterConfigsResource::default()
        .with_resource_type(OF_TOPIC)
        .with_resource_name(text(topic))
        .with_configs(configs.collect());
    let request = IncrementalAlterConfigsRequest::default()
        .with_resources(vec![resource])
        .with_validate_only(dry);
    let answer = client.call(None, |_| request).await?;
    let what = || format!("configs of topic {topic}");
    let result = answer.responses.first();
    let result = result.ok_or_else(|| unanswered(&what()))?;
    check_said(result.error_code, result.error_message.as_ref(), what)
}

async fn add_partitions(
    client: &mut Client,
    topic: &str,
    count: i32,
    dry: bool,
) -> Result<(), Failure> {
    let asked = CreatePartitionsTopic::default()
        .with_name(TopicName(text(topic)))
        .with_count(count)
        .with_assignments(None);
    let request = CreatePartitionsRequest::default()
        .with_topics(vec![asked])
        .with_timeout_ms(client.patience_ms())
        .with_validate_only(dry);
    let answer = client.call(None, |_| request).await?;
    let what = || format!("partitions of topic {topic}");
    let result = answer.results.first();
    let result = result.ok_or_else(|| unanswered(&what()))?;
    check_said(result.error_code, result.error_message.as_ref(), what)
}
