//! Offsets of logs by time, start and end: ListOffsets.

use std::collections::BTreeMap;

use clap::ValueEnum;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::{BrokerId, ListOffsetsRequest, TopicName};

use super::client::Client;
use super::output::{Failure, check};
use super::topics::{Place, text};

/// ListOffsets timestamp: the end of the log.
pub(super) const LATEST: i64 = -1;
/// ListOffsets timestamp: its start.
pub(super) const EARLIEST: i64 = -2;

/// What a reader sees of transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Isolation {
    /// Everything.
    #[value(name = "read_uncommitted", alias = "uncommitted")]
    ReadUncommitted,
    /// What was committed, up to the last stable offset.
    #[value(name = "read_committed", alias = "committed")]
    ReadCommitted,
}

impl Isolation {
    /// The number on the wire.
    pub(super) fn level(self) -> i8 {
        match self {
            Self::ReadUncommitted => 0,
            Self::ReadCommitted => 1,
        }
    }
}

/// The offset at a time (or [`EARLIEST`], [`LATEST`]) of each place; `None` where no record is so
/// late.
pub(super) async fn at(
    client: &mut Client,
    leaders: &BTreeMap<Place, String>,
    places: impl IntoIterator<Item = &Place>,
    timestamp: i64,
) -> Result<BTreeMap<Place, Option<i64>>, Failure> {
    let answers = ask(
        client,
        leaders,
        places,
        timestamp,
        Isolation::ReadUncommitted,
    )
    .await?;
    let offsets = answers.into_iter().map(|(place, (code, offset))| {
        check(code, || format!("{}-{}", place.0, place.1))?;
        Ok((place, offset))
    });
    offsets.collect()
}

/// The same as a reader of `isolation` sees it, with the error code of each place.
pub(super) async fn ask(
    client: &mut Client,
    leaders: &BTreeMap<Place, String>,
    places: impl IntoIterator<Item = &Place>,
    timestamp: i64,
    isolation: Isolation,
) -> Result<BTreeMap<Place, (i16, Option<i64>)>, Failure> {
    let mut by_leader: BTreeMap<&str, BTreeMap<&str, Vec<ListOffsetsPartition>>> = BTreeMap::new();
    for place in places {
        let leader = leaders
            .get(place)
            .ok_or_else(|| Failure::Refused(format!("{}-{} has no leader", place.0, place.1)))?;
        let topics = by_leader.entry(leader).or_default();
        topics.entry(&place.0).or_default().push(
            ListOffsetsPartition::default()
                .with_partition_index(place.1)
                .with_current_leader_epoch(-1)
                .with_timestamp(timestamp),
        );
    }
    let mut found = BTreeMap::new();
    for (leader, topics) in by_leader {
        let topics: Vec<ListOffsetsTopic> = topics
            .into_iter()
            .map(|(name, partitions)| {
                ListOffsetsTopic::default()
                    .with_name(TopicName(text(name)))
                    .with_partitions(partitions)
            })
            .collect();
        let request = ListOffsetsRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_topics(topics);
        let build = |version| {
            // Before, every reader sees everything.
            let level = if version >= 2 { isolation.level() } else { 0 };
            request.with_isolation_level(level)
        };
        let answer = client.call(Some(leader), build).await?;
        for topic in &answer.topics {
            for p in &topic.partitions {
                let place = (topic.name.to_string(), p.partition_index);
                let offset = (p.offset >= 0).then_some(p.offset);
                found.insert(place, (p.error_code, offset));
            }
        }
    }
    Ok(found)
}
