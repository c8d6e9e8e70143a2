//! `fencepost group`: consumer groups, in the words of Kafka's `kafka-consumer-groups`.

mod delete;
mod describe;
mod offsets;
mod plan;
mod reset;
mod scope;

use std::collections::BTreeSet;

use clap::{Args, Subcommand};
use kafka_protocol::messages::ListGroupsRequest;
use serde::Serialize;

use super::client::{Client, Connect};
use super::output::{Failure, Format, Row, check, help, render};
use super::topics::text;
use delete::{Delete, DeleteOffsets};
use describe::Describe;
use reset::Reset;

/// States of groups, as Kafka names them.
const STATES: &[&str] = &[
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Empty",
    "Assigning",
    "Reconciling",
    "NotReady",
];
/// Types of groups, as Kafka names them.
const TYPES: &[&str] = &["classic", "consumer", "share", "streams"];

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
    /// Delete committed offsets of topics that no member of the group is subscribed to
    DeleteOffsets(DeleteOffsets),
    /// Move the committed offsets of groups that have no members; shows what it would do, unless
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

impl Group {
    /// Runs the command.
    pub(crate) async fn run(self) -> Result<String, Failure> {
        if self.format == Format::Help {
            return self.verb.help();
        }
        let mut client = Client::new(&self.connect);
        match self.verb {
            Verb::List(list) => render(&list.run(&mut client).await?, self.format),
            Verb::Describe(describe) => describe.run(&mut client, self.format).await,
            Verb::Delete(delete) => delete.run(&mut client, self.format).await,
            Verb::DeleteOffsets(delete) => delete.run(&mut client, self.format).await,
            Verb::ResetOffsets(reset) => reset.run(&mut client, self.format).await,
        }
    }
}

impl Verb {
    fn help(&self) -> Result<String, Failure> {
        match self {
            Self::List(_) => help::<Listed>(),
            Self::Describe(describe) => describe.help(),
            Self::Delete(_) => help::<delete::Deleted>(),
            Self::DeleteOffsets(_) => help::<delete::DeletedOffset>(),
            Self::ResetOffsets(_) => help::<reset::Moved>(),
        }
    }
}

#[derive(Debug, Default, Serialize)]
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
        let words = |given: &[String], words: &[&str]| {
            let given = given.iter().map(|word| known(word, words));
            given.collect::<Result<Vec<String>, Failure>>()
        };
        let states = words(&self.state, STATES)?;
        let mut rows = list(client, &states, &words(&self.types, TYPES)?).await?;
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
            .call_loaded(
                &broker,
                |version| {
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
                },
                |answer| answer.error_code,
            )
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

/// Groups that a verb is about.
#[derive(Debug, Clone, Args)]
struct Chosen {
    /// The groups
    #[arg(
        value_name = "GROUP",
        required_unless_present = "all_groups",
        conflicts_with = "all_groups"
    )]
    groups: Vec<String>,
    /// Every consumer group of the cluster
    #[arg(long)]
    all_groups: bool,
}

impl Chosen {
    /// Their names, each once. Of all groups, those of consumers: what other clients use groups
    /// for is theirs.
    async fn names(&self, client: &mut Client) -> Result<Vec<String>, Failure> {
        let mut names = self.groups.clone();
        if self.all_groups {
            let listed = list(client, &[], &[]).await?;
            let of_consumers = |row: &Listed| matches!(&*row.protocol_type, "consumer" | "");
            names.extend(listed.into_iter().filter(of_consumers).map(|row| row.group));
            names.sort();
        }
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        Ok(names)
    }
}

/// The outcome of a verb that did `output`, and perhaps not everything.
fn partly(output: String, failed: Option<Failure>) -> Result<String, Failure> {
    match failed {
        None => Ok(output),
        Some(why) => Err(why.after(output)),
    }
}

/// A word of Kafka's, however it is written; a wrong one would find nothing.
fn known(text: &str, words: &[&str]) -> Result<String, Failure> {
    let found = words.iter().find(|word| word.eq_ignore_ascii_case(text));
    let found = found.map(|word| (*word).to_owned());
    found.ok_or_else(|| Failure::Usage(format!("{text}: not one of {}", words.join(", "))))
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut as _, Bytes, BytesMut};
    use kafka_protocol::messages::api_versions_response::ApiVersion;
    use kafka_protocol::messages::list_groups_response::ListedGroup;
    use kafka_protocol::messages::metadata_response::MetadataResponseBroker;
    use kafka_protocol::messages::{ApiVersionsResponse, ListGroupsResponse, MetadataResponse};
    use kafka_protocol::protocol::Encodable;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    fn body<T: Encodable>(answer: &T, version: i16) -> Bytes {
        let mut bytes = BytesMut::new();
        answer.encode(&mut bytes, version).unwrap();
        bytes.freeze()
    }

    /// A broker that answers one connection; ListGroups with `codes` in turn, and with a group
    /// where there is no error.
    async fn serve(listener: TcpListener, codes: &[i16]) {
        let address = listener.local_addr().unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut codes = codes.iter();
        while let Ok(length) = stream.read_u32().await {
            let mut request = vec![0; usize::try_from(length).unwrap()];
            stream.read_exact(&mut request).await.unwrap();
            let answer = match i16::from_be_bytes([request[0], request[1]]) {
                18 => {
                    let api = |key, version| {
                        let api = ApiVersion::default().with_api_key(key);
                        api.with_min_version(version).with_max_version(version)
                    };
                    let apis = vec![api(3, 1), api(16, 0)];
                    body(&ApiVersionsResponse::default().with_api_keys(apis), 0)
                }
                3 => {
                    let own = MetadataResponseBroker::default();
                    let own = own.with_host(text(&address.ip().to_string()));
                    let own = own.with_port(i32::from(address.port()));
                    body(&MetadataResponse::default().with_brokers(vec![own]), 1)
                }
                _ => {
                    let code = codes.next().copied().unwrap_or_default();
                    let group = ListedGroup::default().with_group_id(text("g").into());
                    let groups = if code == 0 { vec![group] } else { Vec::new() };
                    let answer = ListGroupsResponse::default().with_groups(groups);
                    body(&answer.with_error_code(code), 0)
                }
            };
            let mut frame = BytesMut::new();
            frame.put_u32(u32::try_from(answer.len() + 4).unwrap());
            frame.put_slice(&request[4..8]);
            frame.put_slice(&answer);
            stream.write_all(&frame).await.unwrap();
        }
    }

    /// What is listed by a broker that answers so.
    async fn listed(codes: &[i16]) -> Result<Vec<Listed>, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut client = Client::new(&Connect::to(&address, 30_000));
        tokio::select! {
            listed = list(&mut client, &[], &[]) => listed,
            () = serve(listener, codes) => panic!("it was left"),
        }
    }

    #[tokio::test]
    async fn a_list_waits_for_a_broker_that_loads_its_groups() {
        let listed = listed(&[14, 15, 14]).await.unwrap();
        let names: Vec<&str> = listed.iter().map(|row| &*row.group).collect();
        assert_eq!(names, ["g"]);
        // What does not pass is told at once.
        let refused = self::listed(&[30]).await.unwrap_err();
        assert!(refused.to_string().contains("30"), "{refused}");
    }

    #[test]
    fn words_are_kafkas_in_any_case() {
        assert_eq!(known("stable", STATES), Ok("Stable".to_owned()));
        assert_eq!(known("CLASSIC", TYPES), Ok("classic".to_owned()));
        let refused = known("Stabel", STATES).unwrap_err();
        assert!(matches!(refused, Failure::Usage(_)), "{refused:?}");
    }
}
