//! `fencepost topic delete-records`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::{DeleteRecordsRequest, TopicName};
use serde::{Deserialize, Serialize};

use super::super::client::Client;
use super::super::ends::{EARLIEST, LATEST, at};
use super::super::output::{Failure, Row, check};
use super::super::topics::{Cluster, Place, text};
use super::{Outcome, unanswered};

/// Instead of an offset: the high watermark.
const EVERYTHING: i64 = -1;
/// Longest file that is read, bytes.
const FILE_LEN_MAX: u64 = 16 << 20;

/// Arguments of `fencepost topic delete-records`.
#[derive(Debug, Clone, Args)]
pub(super) struct DeleteRecords {
    /// The topic
    #[arg(required_unless_present = "offset_json_file", requires = "before")]
    topic: Option<String>,
    /// This partition; can be repeated
    #[arg(
        short,
        long = "partition",
        value_name = "N",
        conflicts_with = "all_partitions"
    )]
    partitions: Vec<i32>,
    /// Every partition
    #[arg(long)]
    all_partitions: bool,
    /// Records below this offset; end for all of them
    #[arg(long, value_name = "OFFSET", value_parser = before, allow_hyphen_values = true)]
    before: Option<i64>,
    /// What kafka-delete-records reads: {"partitions": [{"topic", "partition", "offset"}]}
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["topic", "partitions", "all_partitions"]
    )]
    offset_json_file: Option<PathBuf>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

fn before(given: &str) -> Result<i64, String> {
    match given {
        "end" | "-1" => Ok(EVERYTHING),
        number => match number.parse() {
            Ok(offset) if offset >= 0 => Ok(offset),
            _ => Err("allowed is an offset from 0 on, or end".to_owned()),
        },
    }
}

/// Where a partition begins, before and after.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Trimmed {
    topic: String,
    partition: i32,
    log_start_offset: i64,
    low_watermark: i64,
    deleted: bool,
}

impl Row for Trimmed {
    const HEADINGS: &'static [&'static str] = &[
        "TOPIC",
        "PARTITION",
        "LOG-START-OFFSET",
        "LOW-WATERMARK",
        "DELETED",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.topic.clone(),
            self.partition.to_string(),
            self.log_start_offset.to_string(),
            self.low_watermark.to_string(),
            self.deleted.to_string(),
        ]
    }
}

impl DeleteRecords {
    pub(super) async fn run(self, client: &mut Client) -> Result<Outcome<Trimmed>, Failure> {
        let (cluster, wanted) = self.wanted(client).await?;
        let leaders = cluster.leaders();
        for place in wanted.keys() {
            cluster.leader(place)?;
        }
        let starts = at(client, &leaders, wanted.keys(), EARLIEST).await?;
        let ends = at(client, &leaders, wanted.keys(), LATEST).await?;
        let mut outcome = Outcome::new();
        for (place, offset) in &wanted {
            let found = |offsets: &BTreeMap<Place, Option<i64>>| {
                offsets.get(place).copied().flatten().unwrap_or(0)
            };
            let (start, end) = (found(&starts), found(&ends));
            let trimmed = if *offset > end {
                let (topic, partition) = place;
                Err(Failure::Refused(format!(
                    "{topic}-{partition} ends at {end}: it has no records up to {offset}"
                )))
            } else if self.dry_run {
                let low = if *offset == EVERYTHING { end } else { *offset };
                Ok(low.max(start))
            } else {
                delete(client, cluster.leader(place)?, place, *offset).await
            };
            outcome.put(trimmed.map(|low_watermark| Trimmed {
                topic: place.0.clone(),
                partition: place.1,
                log_start_offset: start,
                low_watermark,
                deleted: !self.dry_run,
            }));
        }
        Ok(outcome)
    }

    /// The offset below which records go, by partition.
    async fn wanted(
        &self,
        client: &mut Client,
    ) -> Result<(Cluster, BTreeMap<Place, i64>), Failure> {
        if let Some(path) = &self.offset_json_file {
            let wanted = read(path)?;
            let mut topics: Vec<String> = wanted.keys().map(|(topic, _)| topic.clone()).collect();
            topics.dedup();
            return Ok((Cluster::ask(client, Some(&topics)).await?, wanted));
        }
        let (Some(topic), Some(offset)) = (&self.topic, self.before) else {
            return Err(Failure::Usage("TOPIC and --before are needed".to_owned()));
        };
        if !self.all_partitions && self.partitions.is_empty() {
            return Err(Failure::Usage(
                "which partitions? --partition N, or --all-partitions".to_owned(),
            ));
        }
        let cluster = Cluster::ask(client, Some(std::slice::from_ref(topic))).await?;
        let places: Vec<Place> = if self.all_partitions {
            cluster.of(topic).map(|(place, _)| place.clone()).collect()
        } else {
            let partitions = self.partitions.iter();
            partitions.map(|p| (topic.clone(), *p)).collect()
        };
        let wanted = places.into_iter().map(|place| (place, offset));
        Ok((cluster, wanted.collect()))
    }
}

async fn delete(
    client: &mut Client,
    leader: &str,
    place: &Place,
    offset: i64,
) -> Result<i64, Failure> {
    let partition = DeleteRecordsPartition::default()
        .with_partition_index(place.1)
        .with_offset(offset);
    let topic = DeleteRecordsTopic::default()
        .with_name(TopicName(text(&place.0)))
        .with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(client.patience_ms());
    let answer = client.call(Some(leader), |_| request).await?;
    let what = || format!("{}-{}", place.0, place.1);
    let result = answer
        .topics
        .first()
        .and_then(|topic| topic.partitions.first());
    let result = result.ok_or_else(|| unanswered(&what()))?;
    check(result.error_code, what)?;
    Ok(result.low_watermark)
}

#[derive(Debug, Deserialize)]
struct Asked {
    partitions: Vec<AskedPartition>,
}

#[derive(Debug, Deserialize)]
struct AskedPartition {
    topic: String,
    partition: i32,
    offset: i64,
}

fn read(path: &Path) -> Result<BTreeMap<Place, i64>, Failure> {
    let refuse = |why: &dyn std::fmt::Display| {
        Failure::Usage(format!("--offset-json-file {}: {why}", path.display()))
    };
    let file = File::open(path).map_err(|error| refuse(&error))?;
    let mut json = String::new();
    let read = file.take(FILE_LEN_MAX).read_to_string(&mut json);
    read.map_err(|error| refuse(&error))?;
    let asked: Asked = serde_json::from_str(&json).map_err(|error| refuse(&error))?;
    let mut wanted = BTreeMap::new();
    for one in asked.partitions {
        if one.offset < EVERYTHING {
            return Err(refuse(&format!(
                "offset {} of {}-{}: allowed is one from 0 on, or -1 for the end",
                one.offset, one.topic, one.partition
            )));
        }
        let place = (one.topic, one.partition);
        if wanted.contains_key(&place) {
            let (topic, partition) = place;
            return Err(refuse(&format!("{topic}-{partition} comes twice")));
        }
        wanted.insert(place, one.offset);
    }
    Ok(wanted)
}
