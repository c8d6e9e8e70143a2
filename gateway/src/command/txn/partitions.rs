//! What is asked of leaders: `describe-producers`, `abort`.

use clap::Args;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::describe_producers_response::ProducerState;
use kafka_protocol::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic,
};
use kafka_protocol::messages::{
    DescribeProducersRequest, ProducerId, TopicName, WriteTxnMarkersRequest,
};
use serde::Serialize;

use super::super::client::{Client, RETRY_PAUSE};
use super::super::output::{Failure, Row, check};
use super::super::topics::{Cluster, Place, text};
use super::or_none;

/// Codes of an abort that pass, with nothing done: NOT_LEADER_OR_FOLLOWER, and of coordinators that
/// have to be asked, COORDINATOR_LOAD_IN_PROGRESS and COORDINATOR_NOT_AVAILABLE. Not
/// CONCURRENT_TRANSACTIONS: the coordinator ends it, and perhaps with a commit.
const PASSES: [i16; 3] = [6, 14, 15];

/// Arguments of `fencepost txn describe-producers`.
#[derive(Debug, Clone, Args)]
pub(super) struct DescribeProducers {
    /// The broker that is asked; the leader, if none is given
    #[arg(long, value_name = "N")]
    broker_id: Option<i32>,
    /// The topic
    #[arg(long)]
    topic: String,
    /// The partition
    #[arg(long, value_name = "N")]
    partition: i32,
}

/// A producer, in the columns of `kafka-transactions describe-producers`.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Writer {
    pub(super) producer_id: i64,
    pub(super) producer_epoch: i32,
    pub(super) latest_coordinator_epoch: i32,
    last_sequence: i32,
    pub(super) last_timestamp: i64,
    pub(super) current_transaction_start_offset: Option<i64>,
}

impl Row for Writer {
    const HEADINGS: &'static [&'static str] = &[
        "PRODUCER-ID",
        "PRODUCER-EPOCH",
        "LATEST-COORDINATOR-EPOCH",
        "LAST-SEQUENCE",
        "LAST-TIMESTAMP",
        "CURRENT-TRANSACTION-START-OFFSET",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.producer_id.to_string(),
            self.producer_epoch.to_string(),
            self.latest_coordinator_epoch.to_string(),
            self.last_sequence.to_string(),
            self.last_timestamp.to_string(),
            or_none(self.current_transaction_start_offset),
        ]
    }
}

impl Writer {
    fn of(state: &ProducerState) -> Self {
        let start = state.current_txn_start_offset;
        Self {
            producer_id: state.producer_id.0,
            producer_epoch: state.producer_epoch,
            latest_coordinator_epoch: state.coordinator_epoch,
            last_sequence: state.last_sequence,
            last_timestamp: state.last_timestamp,
            current_transaction_start_offset: (start >= 0).then_some(start),
        }
    }

    /// The coordinator epoch that an abort carries: 0 where no coordinator was heard of.
    pub(super) fn coordinator_epoch(&self) -> i32 {
        self.latest_coordinator_epoch.max(0)
    }
}

impl DescribeProducers {
    pub(super) async fn run(self, client: &mut Client) -> Result<Vec<Writer>, Failure> {
        let place = (self.topic.clone(), self.partition);
        let cluster = Cluster::ask(client, Some(&[self.topic])).await?;
        let address = match self.broker_id {
            Some(id) => cluster.broker(id)?,
            None => cluster.leader(&place)?,
        };
        producers(client, address, &place).await
    }
}

/// Producers that a broker knows of a partition, by their ids.
pub(super) async fn producers(
    client: &mut Client,
    address: &str,
    place: &Place,
) -> Result<Vec<Writer>, Failure> {
    let (topic, partition) = place;
    let asked = TopicRequest::default()
        .with_name(TopicName(text(topic)))
        .with_partition_indexes(vec![*partition]);
    let request = DescribeProducersRequest::default().with_topics(vec![asked]);
    let answer = client.call(Some(address), |_| request).await?;
    let mut rows = Vec::new();
    for one in answer.topics.iter().flat_map(|topic| &topic.partitions) {
        check(one.error_code, || {
            format!("producers of {topic}-{partition}")
        })?;
        rows.extend(one.active_producers.iter().map(Writer::of));
    }
    rows.sort_by_key(|producer| producer.producer_id);
    Ok(rows)
}

/// Arguments of `fencepost txn abort`.
#[derive(Debug, Clone, Args)]
pub(super) struct Abort {
    /// The topic
    #[arg(long)]
    topic: String,
    /// The partition
    #[arg(long, value_name = "N")]
    partition: i32,
    /// Where the transaction begins on the partition
    #[arg(
        long,
        value_name = "OFFSET",
        required_unless_present = "producer_id",
        conflicts_with_all = ["producer_id", "producer_epoch", "coordinator_epoch"]
    )]
    start_offset: Option<i64>,
    /// Its producer, for brokers that can't be asked
    #[arg(long, value_name = "N", requires_all = ["producer_epoch", "coordinator_epoch"])]
    producer_id: Option<i64>,
    /// The epoch of its producer
    #[arg(long, value_name = "N", requires = "producer_id")]
    producer_epoch: Option<i16>,
    /// The epoch of the coordinator that the partition has last heard of; -1 for none
    #[arg(
        long,
        value_name = "N",
        requires = "producer_id",
        allow_negative_numbers = true
    )]
    coordinator_epoch: Option<i32>,
}

/// What became of it.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Aborted {
    topic: String,
    partition: i32,
    producer_id: i64,
    producer_epoch: i16,
    coordinator_epoch: i32,
}

impl Row for Aborted {
    const HEADINGS: &'static [&'static str] = &[
        "TOPIC",
        "PARTITION",
        "PRODUCER-ID",
        "PRODUCER-EPOCH",
        "COORDINATOR-EPOCH",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.topic.clone(),
            self.partition.to_string(),
            self.producer_id.to_string(),
            self.producer_epoch.to_string(),
            self.coordinator_epoch.to_string(),
        ]
    }
}

impl Abort {
    /// Asks again while the answer passes by itself: for whom leads the partition, and whether the
    /// transaction is open, too.
    pub(super) async fn run(self, client: &mut Client) -> Result<Vec<Aborted>, Failure> {
        let late = client.monotonic() + client.patience();
        loop {
            let (aborted, code) = self.once(client).await?;
            if !PASSES.contains(&code) || client.monotonic() >= late {
                check(code, || {
                    format!("abort on {}-{}", aborted.topic, aborted.partition)
                })?;
                return Ok(vec![aborted]);
            }
            client.pause(RETRY_PAUSE).await;
        }
    }

    /// The transaction, and the first code that is none of success.
    async fn once(&self, client: &mut Client) -> Result<(Aborted, i16), Failure> {
        let topics = [self.topic.clone()];
        let cluster = Cluster::ask(client, Some(&topics)).await?;
        let leader = cluster.leader(&(self.topic.clone(), self.partition))?;
        let aborted = self.named(client, leader).await?;
        let topic = WritableTxnMarkerTopic::default()
            .with_name(TopicName(text(&aborted.topic)))
            .with_partition_indexes(vec![aborted.partition]);
        let marker = WritableTxnMarker::default()
            .with_producer_id(ProducerId(aborted.producer_id))
            .with_producer_epoch(aborted.producer_epoch)
            .with_transaction_result(false)
            .with_coordinator_epoch(aborted.coordinator_epoch)
            .with_topics(vec![topic]);
        let request = WriteTxnMarkersRequest::default().with_markers(vec![marker]);
        let answer = client.call(Some(leader), |_| request).await?;
        let topics = answer.markers.iter().flat_map(|marker| &marker.topics);
        let mut codes = topics.flat_map(|topic| &topic.partitions);
        let failed = codes.find(|partition| partition.error_code != 0);
        Ok((aborted, failed.map_or(0, |partition| partition.error_code)))
    }

    /// The transaction that the arguments name.
    async fn named(&self, client: &mut Client, leader: &str) -> Result<Aborted, Failure> {
        let place = (self.topic.clone(), self.partition);
        let (producer_id, producer_epoch, coordinator_epoch) = match self.start_offset {
            Some(start) => {
                let open = producers(client, leader, &place).await?;
                let mut open = open.iter();
                let begun = open.find(|one| one.current_transaction_start_offset == Some(start));
                let begun = begun.ok_or_else(|| {
                    let (topic, partition) = &place;
                    Failure::Refused(format!(
                        "no transaction is open that begins at {start} on {topic}-{partition}"
                    ))
                })?;
                let epoch = i16::try_from(begun.producer_epoch);
                let epoch = epoch.map_err(|error| Failure::Refused(error.to_string()))?;
                (begun.producer_id, epoch, begun.coordinator_epoch())
            }
            None => match (
                self.producer_id,
                self.producer_epoch,
                self.coordinator_epoch,
            ) {
                (Some(id), Some(epoch), Some(coordinator)) => (id, epoch, coordinator.max(0)),
                _ => return Err(Failure::Usage("which transaction?".to_owned())),
            },
        };
        Ok(Aborted {
            topic: place.0,
            partition: place.1,
            producer_id,
            producer_epoch,
            coordinator_epoch,
        })
    }
}
