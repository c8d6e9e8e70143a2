//! `find-hanging`: transactions that are open on a partition and that no coordinator will end.

use std::collections::{BTreeMap, BTreeSet};

use clap::{ArgGroup, Args};
use serde::Serialize;

use super::super::client::Client;
use super::super::output::{Failure, Format, Row, check, render};
use super::super::topics::{Cluster, Place};
use super::ids;
use super::partitions::{self, Writer};

/// Milliseconds of a minute.
const MINUTE_MS: i64 = 60_000;

/// Arguments of `fencepost txn find-hanging`.
#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("where").args(["broker_id", "topic"]).required(true).multiple(true)))]
pub(super) struct FindHanging {
    /// Look at the partitions of this broker
    #[arg(long, value_name = "N")]
    broker_id: Option<i32>,
    /// Look at the partitions of this topic
    #[arg(long)]
    topic: Option<String>,
    /// Look at this partition of the topic
    #[arg(long, value_name = "N", requires = "topic")]
    partition: Option<i32>,
    /// Transactions that wrote something in the last minutes do not hang
    #[arg(long, value_name = "MINUTES", default_value_t = 15)]
    max_transaction_timeout: i64,
}

/// A transaction that hangs, in the columns of `kafka-transactions find-hanging`.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Hanging {
    topic: String,
    partition: i32,
    producer_id: i64,
    producer_epoch: i32,
    coordinator_epoch: i32,
    start_offset: i64,
    last_timestamp: i64,
    duration_minutes: i64,
}

impl Row for Hanging {
    const HEADINGS: &'static [&'static str] = &[
        "TOPIC",
        "PARTITION",
        "PRODUCER-ID",
        "PRODUCER-EPOCH",
        "COORDINATOR-EPOCH",
        "START-OFFSET",
        "LAST-TIMESTAMP",
        "DURATION-MINUTES",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.topic.clone(),
            self.partition.to_string(),
            self.producer_id.to_string(),
            self.producer_epoch.to_string(),
            self.coordinator_epoch.to_string(),
            self.start_offset.to_string(),
            self.last_timestamp.to_string(),
            self.duration_minutes.to_string(),
        ]
    }
}

/// What hangs is printed, and is a finding: who runs this by the clock need not read it.
pub(super) fn found(hanging: &[Hanging], format: Format) -> Result<String, Failure> {
    let output = render(hanging, format)?;
    match hanging.len() {
        0 => Ok(output),
        1 => Err(Failure::Refused("1 transaction hangs".to_owned()).after(output)),
        count => Err(Failure::Refused(format!("{count} transactions hang")).after(output)),
    }
}

impl FindHanging {
    pub(super) async fn run(self, client: &mut Client) -> Result<Vec<Hanging>, Failure> {
        let topics = self.topic.clone().map(|topic| vec![topic]);
        let cluster = Cluster::ask(client, topics.as_deref()).await?;
        let places = self.places(&cluster)?;
        let mut hanging = self.open(client, &cluster, places).await?;
        let producers: BTreeSet<i64> = hanging.iter().map(|open| open.producer_id).collect();
        if producers.is_empty() {
            return Ok(hanging);
        }
        let producers: Vec<i64> = producers.into_iter().collect();
        let mut known: BTreeMap<i64, BTreeSet<Place>> = BTreeMap::new();
        for listed in ids::of_producers(client, &producers).await? {
            let state = ids::describe(client, &listed.transactional_id).await?;
            if ids::is_missing(&state) {
                continue;
            }
            // Of what can't be asked nobody can say that it hangs.
            let id = &listed.transactional_id;
            check(state.error_code, || format!("transactional id {id}"))?;
            let places = known.entry(listed.producer_id).or_default();
            for topic in &state.topics {
                let name = topic.topic.to_string();
                places.extend(topic.partitions.iter().map(|p| (name.clone(), *p)));
            }
        }
        hanging.retain(|open| {
            let place = (open.topic.clone(), open.partition);
            let known = known.get(&open.producer_id);
            !known.is_some_and(|places| places.contains(&place))
        });
        // Coordinators were asked behind the partitions: what has ended in between, of which they
        // know nothing any more, is not open there by now.
        let places: BTreeSet<Place> = hanging.iter().map(Hanging::place).collect();
        let places = places.into_iter().collect();
        let now = self.open(client, &cluster, places).await?;
        hanging.retain(|open| now.iter().any(|one| one.is(open)));
        Ok(hanging)
    }

    /// Open transactions that nothing was written to for longer than the timeout.
    async fn open(
        &self,
        client: &mut Client,
        cluster: &Cluster,
        places: Vec<Place>,
    ) -> Result<Vec<Hanging>, Failure> {
        let mut found = Vec::new();
        for place in places {
            let address = match self.broker_id {
                Some(id) => cluster.broker(id)?,
                None => cluster.leader(&place)?,
            };
            let now_ms = client.now_ms();
            let open = partitions::producers(client, address, &place).await?;
            let open = open.iter().filter_map(|one| one.opened(&place, now_ms));
            let timeout_ms = self.max_transaction_timeout.saturating_mul(MINUTE_MS);
            found.extend(open.filter(|one| now_ms - one.last_timestamp > timeout_ms));
        }
        Ok(found)
    }

    fn places(&self, cluster: &Cluster) -> Result<Vec<Place>, Failure> {
        if let (Some(topic), Some(partition)) = (&self.topic, self.partition) {
            let place = (topic.clone(), partition);
            cluster.leader(&place)?;
            return Ok(vec![place]);
        }
        let here = |replicas: &[i32]| self.broker_id.is_none_or(|id| replicas.contains(&id));
        let places = cluster.partitions.iter();
        let places = places.filter(|(_, held)| here(&held.replicas));
        Ok(places.map(|(place, _)| place.clone()).collect())
    }
}

impl Hanging {
    fn place(&self) -> Place {
        (self.topic.clone(), self.partition)
    }

    /// Whether it is the same transaction.
    fn is(&self, other: &Self) -> bool {
        let of = |one: &Self| (one.partition, one.producer_id, one.start_offset);
        self.topic == other.topic && of(self) == of(other)
    }
}

impl Writer {
    /// The transaction that it has open on a partition.
    fn opened(&self, place: &Place, now_ms: i64) -> Option<Hanging> {
        Some(Hanging {
            topic: place.0.clone(),
            partition: place.1,
            producer_id: self.producer_id,
            producer_epoch: self.producer_epoch,
            coordinator_epoch: self.latest_coordinator_epoch,
            start_offset: self.current_transaction_start_offset?,
            last_timestamp: self.last_timestamp,
            duration_minutes: (now_ms - self.last_timestamp) / MINUTE_MS,
        })
    }
}
