//! What is asked only: `list`, `describe`, `partitions`.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;

use super::super::client::Client;
use super::super::ends::{EARLIEST, Isolation, LATEST, ask};
use super::super::output::{Failure, Row, or_dash};
use super::super::topics::{Cluster, Held, Place};
use super::configs::{self, Source};

/// Arguments of `fencepost topic list`.
#[derive(Debug, Clone, Args)]
pub(super) struct List {
    /// Without the cluster's own topics
    #[arg(long)]
    exclude_internal: bool,
}

/// A topic.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listed {
    topic: String,
    partitions: usize,
    replication_factor: usize,
    topic_id: Option<String>,
    is_internal: bool,
    /// What the cluster says instead of the topic: Kafka's error code.
    error_code: i16,
}

impl Row for Listed {
    const HEADINGS: &'static [&'static str] = &["TOPIC", "PARTITIONS", "REPLICATION-FACTOR"];
    const WIDE: &'static [&'static str] = &["TOPIC-ID", "INTERNAL", "ERROR-CODE"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.topic.clone(),
            self.partitions.to_string(),
            self.replication_factor.to_string(),
        ]
    }

    fn wide_cells(&self) -> Vec<String> {
        vec![
            or_dash(self.topic_id.as_ref()),
            self.is_internal.to_string(),
            self.error_code.to_string(),
        ]
    }
}

impl List {
    pub(super) async fn run(self, client: &mut Client) -> Result<Vec<Listed>, Failure> {
        let cluster = Cluster::look(client, None, false).await?;
        let topics = cluster.topics.iter();
        let shown = topics.filter(|(_, topic)| !(self.exclude_internal && topic.is_internal));
        Ok(shown.map(|(name, _)| listed(&cluster, name)).collect())
    }
}

fn listed(cluster: &Cluster, name: &str) -> Listed {
    let topic = cluster.topics.get(name).cloned().unwrap_or_default();
    let held: Vec<&Held> = cluster.of(name).map(|(_, held)| held).collect();
    Listed {
        topic: name.to_owned(),
        partitions: held.len(),
        replication_factor: held.first().map_or(0, |held| held.replicas.len()),
        topic_id: (!topic.id.is_nil()).then(|| topic.id.to_string()),
        is_internal: topic.is_internal,
        error_code: topic.code,
    }
}

/// Arguments of `fencepost topic describe`.
#[derive(Debug, Clone, Args)]
pub(super) struct Describe {
    /// The topics [default: all]
    topics: Vec<String>,
}

/// A topic and what is set on it.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Described {
    #[serde(flatten)]
    listed: Listed,
    configs: BTreeMap<String, Option<String>>,
}

impl Row for Described {
    const HEADINGS: &'static [&'static str] =
        &["TOPIC", "PARTITIONS", "REPLICATION-FACTOR", "CONFIGS"];
    const WIDE: &'static [&'static str] = Listed::WIDE;

    fn cells(&self) -> Vec<String> {
        let configs = self.configs.iter();
        let configs: Vec<String> = configs
            .map(|(key, value)| format!("{key}={}", or_dash(value.as_ref())))
            .collect();
        let mut cells = self.listed.cells();
        cells.push(if configs.is_empty() {
            "-".to_owned()
        } else {
            configs.join(",")
        });
        cells
    }

    fn wide_cells(&self) -> Vec<String> {
        self.listed.wide_cells()
    }
}

impl Describe {
    pub(super) async fn run(self, client: &mut Client) -> Result<Vec<Described>, Failure> {
        let cluster = Cluster::ask(client, named(&self.topics)).await?;
        let topics: Vec<String> = cluster.topics.keys().cloned().collect();
        let mut set: BTreeMap<String, BTreeMap<String, Option<String>>> = BTreeMap::new();
        for config in configs::of(client, &topics, false).await? {
            if config.source == Source::Topic {
                let of_topic = set.entry(config.topic).or_default();
                of_topic.insert(config.key, config.value);
            }
        }
        let rows = topics.iter().map(|name| Described {
            listed: listed(&cluster, name),
            configs: set.remove(name).unwrap_or_default(),
        });
        Ok(rows.collect())
    }
}

/// The topics that were named; none are all.
fn named(topics: &[String]) -> Option<&[String]> {
    (!topics.is_empty()).then_some(topics)
}

/// Arguments of `fencepost topic partitions`.
#[derive(Debug, Clone, Args)]
pub(super) struct Partitions {
    /// The topics [default: all]
    topics: Vec<String>,
}

/// A partition. Offsets are not there where there is no leader to ask.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PartitionState {
    topic: String,
    partition: i32,
    leader: Option<i32>,
    leader_epoch: Option<i32>,
    replicas: Vec<i32>,
    isr: Vec<i32>,
    log_start_offset: Option<i64>,
    last_stable_offset: Option<i64>,
    high_watermark: Option<i64>,
}

impl Row for PartitionState {
    const HEADINGS: &'static [&'static str] = &[
        "TOPIC",
        "PARTITION",
        "LEADER",
        "REPLICAS",
        "ISR",
        "LOG-START-OFFSET",
        "LAST-STABLE-OFFSET",
        "HIGH-WATERMARK",
    ];
    const WIDE: &'static [&'static str] = &["LEADER-EPOCH"];

    fn cells(&self) -> Vec<String> {
        let list = |ids: &[i32]| {
            let ids: Vec<String> = ids.iter().map(i32::to_string).collect();
            ids.join(",")
        };
        vec![
            self.topic.clone(),
            self.partition.to_string(),
            or_dash(self.leader),
            list(&self.replicas),
            list(&self.isr),
            or_dash(self.log_start_offset),
            or_dash(self.last_stable_offset),
            or_dash(self.high_watermark),
        ]
    }

    fn wide_cells(&self) -> Vec<String> {
        vec![or_dash(self.leader_epoch)]
    }
}

impl Partitions {
    pub(super) async fn run(self, client: &mut Client) -> Result<Vec<PartitionState>, Failure> {
        let cluster = Cluster::ask(client, named(&self.topics)).await?;
        let leaders = cluster.leaders();
        let places: Vec<&Place> = leaders.keys().collect();
        let mut offsets = Vec::new();
        for (time, isolation) in [
            (EARLIEST, Isolation::ReadUncommitted),
            (LATEST, Isolation::ReadCommitted),
            (LATEST, Isolation::ReadUncommitted),
        ] {
            let places = places.iter().copied();
            offsets.push(ask(client, &leaders, places, time, isolation).await?);
        }
        let of = |which: usize, place: &Place| {
            let (code, offset) = offsets.get(which)?.get(place)?;
            offset.filter(|_| *code == 0)
        };
        let rows = cluster
            .partitions
            .iter()
            .map(|(place, held)| PartitionState {
                topic: place.0.clone(),
                partition: place.1,
                leader: (held.leader >= 0).then_some(held.leader),
                leader_epoch: (held.leader_epoch >= 0).then_some(held.leader_epoch),
                replicas: held.replicas.clone(),
                isr: held.in_sync.clone(),
                log_start_offset: of(0, place),
                last_stable_offset: of(1, place),
                high_watermark: of(2, place),
            });
        Ok(rows.collect())
    }
}
