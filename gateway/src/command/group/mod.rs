//! `fencepost group`: consumer groups, in the words of Kafka's `kafka-consumer-groups`.

mod describe;
mod offsets;
mod reset;

use clap::{Args, Subcommand};
use kafka_protocol::messages::{DeleteGroupsRequest, GroupId, ListGroupsRequest};
use serde::Serialize;

use super::client::{Client, Connect, Key};
use super::output::{Failure, Format, Row, check, render};
use super::topics::text;
use describe::Describe;
use reset::Reset;

/// Arguments of `fencepost group`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Group {
    #[command(flatten)]
    connect: Connect,
    /// How the outcome is printed
    #[arg(long, global = true, value_enum, default_value_t)]
    format: Format,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Clone, Subcommand)]
enum Verb {
    /// Groups of the cluster, with their states
    List(List),
    /// Committed offsets, lag and members of groups
    Describe(Describe),
    /// Delete groups that have no members
    Delete(Delete),
    /// Move the committed offsets of a group that has no members; shows what it would do, unless
    /// --execute is given
    ResetOffsets(Reset),
}

#[derive(Debug, Clone, Args)]
struct List {
    /// Only groups in these states, separated by commas
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    state: Vec<String>,
    /// Only groups of these types (classic, consumer), separated by commas
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
}

#[derive(Debug, Clone, Args)]
struct Delete {
    /// The groups
    #[arg(required = true)]
    groups: Vec<String>,
}

impl Group {
    /// Runs the command.
    pub(crate) async fn run(self) -> Result<String, Failure> {
        let mut client = Client::new(&self.connect);
        match self.verb {
            Verb::List(list) => render(&list.run(&mut client).await?, self.format),
            Verb::Describe(describe) => describe.run(&mut client, self.format).await,
            Verb::Delete(delete) => render(&delete.run(&mut client).await?, self.format),
            Verb::ResetOffsets(reset) => reset.run(&mut client, self.format).await,
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    group: String,
    state: String,
    #[serde(rename = "type")]
    kind: String,
    protocol_type: String,
}

impl Row for Listed {
    const HEADINGS: &'static [&'static str] = &["GROUP", "STATE", "TYPE", "PROTOCOL-TYPE"];
    fn cells(&self) -> Vec<String> {
        [&self.group, &self.state, &self.kind, &self.protocol_type]
            .map(Clone::clone)
            .to_vec()
    }
}

impl List {
    async fn run(&self, client: &mut Client) -> Result<Vec<Listed>, Failure> {
        let mut rows = list(client, &self.state, &self.types).await?;
        rows.sort_by(|a, b| a.group.cmp(&b.group));
        Ok(rows)
    }
}

/// Groups of every broker: each knows its own only.
async fn list(
    client: &mut Client,
    states: &[String],
    types: &[String],
) -> Result<Vec<Listed>, Failure> {
    let mut rows = Vec::new();
    let words = |words: &[String]| words.iter().map(|word| text(word)).collect::<Vec<_>>();
    for broker in client.brokers().await?.into_values() {
        let mut unsupported = None;
        let answer = client
            .call(Some(&broker), |version| {
                let mut request = ListGroupsRequest::default();
                if version >= 4 {
                    request = request.with_states_filter(words(states));
                } else if !states.is_empty() {
                    unsupported = Some("--state");
                }
                if version >= 5 {
                    request = request.with_types_filter(words(types));
                } else if !types.is_empty() {
                    unsupported = Some("--type");
                }
                request
            })
            .await?;
        if let Some(flag) = unsupported {
            return Err(Failure::Refused(format!("{broker} cannot filter: {flag}")));
        }
        check(answer.error_code, || format!("groups of {broker}"))?;
        rows.extend(answer.groups.iter().map(|group| Listed {
            group: group.group_id.to_string(),
            state: group.group_state.to_string(),
            kind: group.group_type.to_string(),
            protocol_type: group.protocol_type.to_string(),
        }));
    }
    Ok(rows)
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Deleted {
    group: String,
    deleted: bool,
}

impl Row for Deleted {
    const HEADINGS: &'static [&'static str] = &["GROUP", "DELETED"];
    fn cells(&self) -> Vec<String> {
        vec![self.group.clone(), self.deleted.to_string()]
    }
}

impl Delete {
    async fn run(&self, client: &mut Client) -> Result<Vec<Deleted>, Failure> {
        let mut rows = Vec::new();
        for group in &self.groups {
            let code =
                |answer: &<DeleteGroupsRequest as kafka_protocol::protocol::Request>::Response| {
                    answer.results.first().map_or(0, |result| result.error_code)
                };
            let answer = client
                .call_coordinator(
                    Key::Group(group),
                    |_| {
                        let names = vec![GroupId(text(group))];
                        DeleteGroupsRequest::default().with_groups_names(names)
                    },
                    code,
                )
                .await?;
            check(code(&answer), || format!("group {group}"))?;
            rows.push(Deleted {
                group: group.clone(),
                deleted: true,
            });
        }
        Ok(rows)
    }
}
