//! `fencepost group describe`.

use std::collections::BTreeMap;

use clap::Args;
use kafka_protocol::messages::ConsumerProtocolAssignment;
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::protocol::Decodable;
use serde::Serialize;

use super::super::client::{Client, Key};
use super::super::output::{Failure, Format, Row, render};
use super::offsets::{self, LATEST, Place};

/// Arguments of `fencepost group describe`.
#[derive(Debug, Clone, Args)]
pub(super) struct Describe {
    /// The groups
    #[arg(required_unless_present = "all_groups", conflicts_with = "all_groups")]
    groups: Vec<String>,
    /// Every group of the cluster
    #[arg(long)]
    all_groups: bool,
    /// The members instead of the offsets
    #[arg(long, conflicts_with = "state")]
    members: bool,
    /// The state instead of the offsets
    #[arg(long)]
    state: bool,
}

impl Describe {
    pub(super) async fn run(&self, client: &mut Client, format: Format) -> Result<String, Failure> {
        let groups = if self.all_groups {
            let listed = super::list(client, &[], &[]).await?;
            listed.into_iter().map(|row| row.group).collect()
        } else {
            self.groups.clone()
        };
        let (mut of_offsets, mut of_members, mut of_states) = (vec![], vec![], vec![]);
        for group in &groups {
            let described = offsets::describe(client, group).await?;
            if described.group_state.as_str() == "Dead" {
                return Err(Failure::Refused(format!("group {group} does not exist")));
            }
            if self.members {
                of_members.extend(described.members.iter().map(|m| member(group, m)));
            } else if self.state {
                of_states.push(state(client, group, &described).await?);
            } else {
                of_offsets.extend(lags(client, group, &described).await?);
            }
        }
        if self.members {
            render(&of_members, format)
        } else if self.state {
            render(&of_states, format)
        } else {
            render(&of_offsets, format)
        }
    }
}

/// A partition of a group, in the columns of `kafka-consumer-groups --describe`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Progress {
    group: String,
    topic: String,
    partition: i32,
    current_offset: Option<i64>,
    log_end_offset: Option<i64>,
    lag: Option<i64>,
    consumer_id: Option<String>,
    host: Option<String>,
    client_id: Option<String>,
}

impl Row for Progress {
    const HEADINGS: &'static [&'static str] = &[
        "GROUP",
        "TOPIC",
        "PARTITION",
        "CURRENT-OFFSET",
        "LOG-END-OFFSET",
        "LAG",
        "CONSUMER-ID",
        "HOST",
        "CLIENT-ID",
    ];

    fn cells(&self) -> Vec<String> {
        let number = |value: Option<i64>| value.map_or("-".to_owned(), |value| value.to_string());
        let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        vec![
            self.group.clone(),
            self.topic.clone(),
            self.partition.to_string(),
            number(self.current_offset),
            number(self.log_end_offset),
            number(self.lag),
            word(&self.consumer_id),
            word(&self.host),
            word(&self.client_id),
        ]
    }
}

async fn lags(
    client: &mut Client,
    group: &str,
    described: &DescribedGroup,
) -> Result<Vec<Progress>, Failure> {
    let committed = offsets::committed(client, group).await?;
    let mut owners: BTreeMap<Place, &DescribedGroupMember> = BTreeMap::new();
    for member in &described.members {
        owners.extend(assigned(member).into_iter().map(|place| (place, member)));
    }
    let mut places: Vec<Place> = committed.keys().chain(owners.keys()).cloned().collect();
    places.sort();
    places.dedup();
    let mut topics: Vec<String> = places.iter().map(|(topic, _)| topic.clone()).collect();
    topics.dedup();
    let leaders = offsets::leaders(client, Some(&topics)).await?;
    let ends = offsets::at(client, &leaders, &places, LATEST).await?;
    let rows = places.into_iter().map(|place| {
        let current = committed.get(&place).copied();
        let end = ends.get(&place).copied().flatten();
        let owner = owners.get(&place);
        Progress {
            group: group.to_owned(),
            current_offset: current,
            log_end_offset: end,
            lag: current
                .zip(end)
                .map(|(current, end)| (end - current).max(0)),
            consumer_id: owner.map(|member| member.member_id.to_string()),
            host: owner.map(|member| member.client_host.to_string()),
            client_id: owner.map(|member| member.client_id.to_string()),
            topic: place.0,
            partition: place.1,
        }
    });
    Ok(rows.collect())
}

/// What a member was assigned, if it speaks the consumers' protocol.
fn assigned(member: &DescribedGroupMember) -> Vec<Place> {
    let mut bytes = member.member_assignment.clone();
    let Some((version, _)) = bytes.split_first_chunk::<2>() else {
        return Vec::new();
    };
    let version = i16::from_be_bytes(*version).clamp(0, 3);
    bytes = bytes.slice(2..);
    let Ok(assignment) = ConsumerProtocolAssignment::decode(&mut bytes, version) else {
        return Vec::new();
    };
    let topics = assignment.assigned_partitions.iter();
    topics
        .flat_map(|topic| {
            let name = topic.topic.to_string();
            topic.partitions.iter().map(move |p| (name.clone(), *p))
        })
        .collect()
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Member {
    group: String,
    consumer_id: String,
    group_instance_id: Option<String>,
    host: String,
    client_id: String,
    partitions: usize,
    assignment: BTreeMap<String, Vec<i32>>,
}

impl Row for Member {
    const HEADINGS: &'static [&'static str] = &[
        "GROUP",
        "CONSUMER-ID",
        "GROUP-INSTANCE-ID",
        "HOST",
        "CLIENT-ID",
        "#PARTITIONS",
        "ASSIGNMENT",
    ];

    fn cells(&self) -> Vec<String> {
        let assignment: Vec<String> = self
            .assignment
            .iter()
            .map(|(topic, partitions)| {
                let numbers: Vec<String> = partitions.iter().map(i32::to_string).collect();
                format!("{topic}({})", numbers.join(","))
            })
            .collect();
        vec![
            self.group.clone(),
            self.consumer_id.clone(),
            self.group_instance_id
                .clone()
                .unwrap_or_else(|| "-".to_owned()),
            self.host.clone(),
            self.client_id.clone(),
            self.partitions.to_string(),
            if assignment.is_empty() {
                "-".to_owned()
            } else {
                assignment.join(" ")
            },
        ]
    }
}

fn member(group: &str, member: &DescribedGroupMember) -> Member {
    let mut assignment: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    let places = assigned(member);
    let partitions = places.len();
    for (topic, partition) in places {
        assignment.entry(topic).or_default().push(partition);
    }
    for partitions in assignment.values_mut() {
        partitions.sort_unstable();
    }
    Member {
        group: group.to_owned(),
        consumer_id: member.member_id.to_string(),
        group_instance_id: member.group_instance_id.as_ref().map(ToString::to_string),
        host: member.client_host.to_string(),
        client_id: member.client_id.to_string(),
        partitions,
        assignment,
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    group: String,
    coordinator: String,
    assignment_strategy: String,
    state: String,
    members: usize,
}

impl Row for Summary {
    const HEADINGS: &'static [&'static str] = &[
        "GROUP",
        "COORDINATOR",
        "ASSIGNMENT-STRATEGY",
        "STATE",
        "#MEMBERS",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.group.clone(),
            self.coordinator.clone(),
            self.assignment_strategy.clone(),
            self.state.clone(),
            self.members.to_string(),
        ]
    }
}

async fn state(
    client: &mut Client,
    group: &str,
    described: &DescribedGroup,
) -> Result<Summary, Failure> {
    Ok(Summary {
        group: group.to_owned(),
        coordinator: client.coordinator(Key::Group(group)).await?.1,
        assignment_strategy: described.protocol_data.to_string(),
        state: described.group_state.to_string(),
        members: described.members.len(),
    })
}
