//! `fencepost group describe`.

use std::collections::BTreeMap;

use clap::Args;
use kafka_protocol::messages::ConsumerProtocolAssignment;
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::protocol::Decodable;
use serde::Serialize;

use super::super::client::{Client, Key};
use super::super::output::{Failure, Format, Row, help, render};
use super::super::topics::Cluster;
use super::offsets::{self, LATEST, Place};
use super::{Chosen, partly, scope};

/// Arguments of `fencepost group describe`.
#[derive(Debug, Clone, Args)]
#[allow(clippy::struct_excessive_bools, reason = "flags")]
pub(super) struct Describe {
    #[command(flatten)]
    groups: Chosen,
    /// The offsets, which are shown when nothing else is asked for
    #[arg(long, conflicts_with_all = ["members", "state"])]
    offsets: bool,
    /// The members instead of the offsets
    #[arg(long, conflicts_with = "state")]
    members: bool,
    /// The state instead of the offsets
    #[arg(long)]
    state: bool,
    /// More columns: the leader epochs of offsets
    #[arg(long)]
    verbose: bool,
}

/// What is shown, of one kind.
#[derive(Debug, Default)]
struct Found {
    offsets: Vec<Progress>,
    members: Vec<Member>,
    states: Vec<Summary>,
}

impl Describe {
    pub(super) fn help(&self) -> Result<String, Failure> {
        if self.members {
            help::<Member>()
        } else if self.state {
            help::<Summary>()
        } else if self.verbose {
            help::<Verbose>()
        } else {
            help::<Progress>()
        }
    }

    pub(super) async fn run(&self, client: &mut Client, format: Format) -> Result<String, Failure> {
        let mut found = Found::default();
        let mut failed = None;
        for group in self.groups.names(client).await? {
            let described = offsets::describe(client, &group).await?;
            if described.group_state.as_str() != "Dead" {
                self.look(client, &group, &described, &mut found).await?;
            } else if !self.groups.all_groups {
                // Of all groups, it has gone meanwhile.
                let gone = Failure::Refused(format!("group {group} does not exist"));
                failed = failed.or(Some(gone));
            }
        }
        let output = if self.members {
            render(&found.members, format)?
        } else if self.state {
            render(&found.states, format)?
        } else if self.verbose {
            let rows: Vec<Verbose> = found.offsets.into_iter().map(Verbose).collect();
            render(&rows, format)?
        } else {
            render(&found.offsets, format)?
        };
        match failed {
            Some(failure) if self.groups.groups.len() == 1 => Err(failure),
            failed => partly(output, failed),
        }
    }

    async fn look(
        &self,
        client: &mut Client,
        group: &str,
        described: &DescribedGroup,
        found: &mut Found,
    ) -> Result<(), Failure> {
        if self.members {
            let members = described.members.iter();
            found.members.extend(members.map(|m| member(group, m)));
        } else if self.state {
            found.states.push(state(client, group, described).await?);
        } else {
            found.offsets.extend(lags(client, group, described).await?);
        }
        Ok(())
    }
}

/// A partition of a group, in the columns of `kafka-consumer-groups --describe`.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Progress {
    group: String,
    topic: String,
    partition: i32,
    leader_epoch: Option<i32>,
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

/// The same with the leader epochs.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
struct Verbose(Progress);

impl Row for Verbose {
    const HEADINGS: &'static [&'static str] = &[
        "GROUP",
        "TOPIC",
        "PARTITION",
        "LEADER-EPOCH",
        "CURRENT-OFFSET",
        "LOG-END-OFFSET",
        "LAG",
        "CONSUMER-ID",
        "HOST",
        "CLIENT-ID",
    ];

    fn cells(&self) -> Vec<String> {
        let epoch = self.0.leader_epoch;
        let epoch = epoch.map_or("-".to_owned(), |epoch| epoch.to_string());
        let mut cells = self.0.cells();
        cells.insert(3, epoch);
        cells
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
    let topics = scope::topics(&places);
    // Nobody knows the end of a log without a leader, or of a topic that is gone.
    let leaders = Cluster::look(client, Some(&topics), false).await?.leaders();
    let led = places.iter().filter(|place| leaders.contains_key(*place));
    let ends = offsets::at(client, &leaders, led, LATEST).await?;
    let rows = places.into_iter().map(|place| {
        let stored = committed.get(&place);
        let current = stored.map(|stored| stored.offset);
        let end = ends.get(&place).copied().flatten();
        let owner = owners.get(&place);
        Progress {
            group: group.to_owned(),
            leader_epoch: stored.and_then(|stored| stored.leader_epoch),
            current_offset: current,
            log_end_offset: end,
            // Negative where more is committed than there is.
            lag: current.zip(end).map(|(current, end)| end - current),
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

#[derive(Debug, Default, Serialize)]
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

#[derive(Debug, Default, Serialize)]
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
