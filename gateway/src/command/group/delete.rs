//! `fencepost group delete` and `delete-offsets`.

use std::collections::BTreeMap;

use clap::Args;
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::{
    DeleteGroupsRequest, DeleteGroupsResponse, GroupId, OffsetDeleteRequest, TopicName,
};
use serde::Serialize;

use super::super::client::{Client, Key};
use super::super::output::{Failure, Format, Row, check, render};
use super::offsets;
use super::scope::{self, Topics};
use super::{Chosen, partly, text};

/// Arguments of `fencepost group delete`.
#[derive(Debug, Clone, Args)]
pub(super) struct Delete {
    #[command(flatten)]
    groups: Chosen,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(clippy::struct_field_names, reason = "the names of the document")]
pub(super) struct Deleted {
    group: String,
    deleted: bool,
    error: Option<String>,
}

impl Row for Deleted {
    const HEADINGS: &'static [&'static str] = &["GROUP", "DELETED", "ERROR"];
    fn cells(&self) -> Vec<String> {
        let error = self.error.clone();
        vec![
            self.group.clone(),
            self.deleted.to_string(),
            error.unwrap_or_else(|| "-".to_owned()),
        ]
    }
}

impl Delete {
    /// Deletes what can be deleted: a group that can't does not keep the others.
    pub(super) async fn run(&self, client: &mut Client, format: Format) -> Result<String, Failure> {
        let mut rows = Vec::new();
        let mut failed = None;
        for group in self.groups.names(client).await? {
            let outcome = delete(client, &group).await;
            let error = outcome.as_ref().err().map(ToString::to_string);
            rows.push(Deleted {
                group,
                deleted: error.is_none(),
                error,
            });
            failed = failed.or(outcome.err());
            if failed.as_ref().is_some_and(Failure::is_of_the_connection) {
                break;
            }
        }
        partly(render(&rows, format)?, failed)
    }
}

async fn delete(client: &mut Client, group: &str) -> Result<(), Failure> {
    let code = |answer: &DeleteGroupsResponse| {
        let result = answer.results.first();
        result.map_or(0, |result| result.error_code)
    };
    let answer = client
        .call_coordinator(
            Key::Group(group),
            |_| DeleteGroupsRequest::default().with_groups_names(vec![GroupId(text(group))]),
            code,
        )
        .await?;
    check(code(&answer), || format!("group {group}"))
}

/// Arguments of `fencepost group delete-offsets`.
#[derive(Debug, Clone, Args)]
pub(super) struct DeleteOffsets {
    /// The group
    group: String,
    #[command(flatten)]
    topics: Topics,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeletedOffset {
    group: String,
    topic: String,
    partition: i32,
    deleted: bool,
    error: Option<String>,
}

impl Row for DeletedOffset {
    const HEADINGS: &'static [&'static str] = &["GROUP", "TOPIC", "PARTITION", "DELETED", "ERROR"];
    fn cells(&self) -> Vec<String> {
        let error = self.error.clone();
        vec![
            self.group.clone(),
            self.topic.clone(),
            self.partition.to_string(),
            self.deleted.to_string(),
            error.unwrap_or_else(|| "-".to_owned()),
        ]
    }
}

impl DeleteOffsets {
    pub(super) async fn run(&self, client: &mut Client, format: Format) -> Result<String, Failure> {
        if self.topics.is_empty() {
            return Err(Failure::Usage("--topic is needed".to_owned()));
        }
        let wanted = self.topics.wanted()?;
        let topics = scope::topics(&wanted);
        let present = offsets::leaders(client, Some(&topics)).await?;
        let mut partitions: BTreeMap<String, Vec<i32>> = BTreeMap::new();
        for (topic, partition) in scope::expand(&wanted, &present) {
            partitions.entry(topic).or_default().push(partition);
        }
        let request = request(&self.group, &partitions);
        let answer = client
            .call_coordinator(
                Key::Group(&self.group),
                |_| request.clone(),
                |answer| answer.error_code,
            )
            .await?;
        check(answer.error_code, || format!("group {}", self.group))?;
        let mut failed = None;
        let mut rows = Vec::new();
        for topic in &answer.topics {
            for partition in &topic.partitions {
                let (name, number) = (topic.name.to_string(), partition.partition_index);
                let outcome = check(partition.error_code, || format!("{name}-{number}"));
                rows.push(DeletedOffset {
                    group: self.group.clone(),
                    deleted: outcome.is_ok(),
                    error: outcome.as_ref().err().map(ToString::to_string),
                    topic: name,
                    partition: number,
                });
                failed = failed.or(outcome.err());
            }
        }
        rows.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
        partly(render(&rows, format)?, failed)
    }
}

fn request(group: &str, partitions: &BTreeMap<String, Vec<i32>>) -> OffsetDeleteRequest {
    let topics = partitions.iter().map(|(topic, partitions)| {
        let one =
            |number: &i32| OffsetDeleteRequestPartition::default().with_partition_index(*number);
        OffsetDeleteRequestTopic::default()
            .with_name(TopicName(text(topic)))
            .with_partitions(partitions.iter().map(one).collect())
    });
    OffsetDeleteRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_topics(topics.collect())
}
