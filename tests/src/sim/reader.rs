//! A reader: Fetch with a session and long polls; reads again from the start now and then.

use std::collections::BTreeMap;

use gateway::api::{ApiRequest, ApiResponse};
use gateway::wire::fetch::{FetchPartitionReply, FetchReply};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{BrokerId, FetchRequest};

use super::clients::{Client, ReadBatch, Target, read_batches};
use super::history::Place;
use super::net::Connection;

/// One reader of every partition of its topics.
pub(crate) struct Reader {
    pub(crate) client: Client,
    pub(crate) targets: Vec<Target>,
    /// Kafka's isolation level: 0 or 1.
    pub(crate) isolation: i8,
}

/// A fetch session as the client knows it.
#[derive(Default)]
struct Session {
    id: i32,
    epoch: i32,
    /// Offsets that the broker knows.
    told: BTreeMap<Place, i64>,
}

impl Reader {
    /// Reads for ever.
    pub(crate) async fn run(self) {
        let mut offsets: BTreeMap<Place, i64> = BTreeMap::new();
        for target in &self.targets {
            for partition in 0..target.partitions {
                offsets.insert((target.id, partition), 0);
            }
        }
        loop {
            let connection = self.client.connect().await;
            self.follow(&connection, &mut offsets).await;
            self.client.pause(1, 20).await;
        }
    }

    /// Reads until the connection breaks or is left.
    async fn follow(&self, connection: &Connection, offsets: &mut BTreeMap<Place, i64>) {
        let mut session = Session::default();
        loop {
            if self.client.world.chance(2) {
                return;
            }
            if self.client.world.chance(4) {
                for offset in offsets.values_mut() {
                    *offset = 0;
                }
            }
            let news: BTreeMap<Place, i64> = offsets
                .iter()
                .filter(|(place, offset)| session.told.get(place) != Some(offset))
                .map(|(place, offset)| (*place, *offset))
                .collect();
            let request = fetch_request(&news, session.id, session.epoch, self.isolation, 500);
            let answer = self.client.ask(connection, request, 13).await;
            let Some(ApiResponse::Fetch(reply)) = answer else {
                return;
            };
            if reply.error_code != 0 {
                session = Session::default();
                self.client.pause(1, 20).await;
                continue;
            }
            session.told.extend(news);
            session.id = reply.session_id;
            session.epoch = if session.id == 0 {
                0
            } else {
                session.epoch + 1
            };
            if session.id == 0 {
                session.told.clear();
            }
            if !self.take(connection, &reply, offsets).await {
                return;
            }
        }
    }

    /// Takes an answer in; whether to go on with this connection.
    async fn take(
        &self,
        connection: &Connection,
        reply: &FetchReply,
        offsets: &mut BTreeMap<Place, i64>,
    ) -> bool {
        let mut trouble = false;
        for topic in &reply.topics {
            for partition in &topic.partitions {
                let place = (topic.topic_id, partition.partition);
                let Some(offset) = offsets.get_mut(&place) else {
                    self.client
                        .history
                        .violation("an answer for what was not asked");
                    continue;
                };
                match ResponseError::try_from_code(partition.error_code) {
                    None => match self.records(place, *offset, partition) {
                        Ok(next) => *offset = next,
                        Err(why) => self.client.history.violation(&why),
                    },
                    Some(error) => {
                        trouble = true;
                        let taken_back = !self.client.history.durable();
                        if error == ResponseError::OffsetOutOfRange && taken_back {
                            *offset = 0;
                            continue;
                        }
                        if error == ResponseError::OffsetOutOfRange && self.client.history.trims() {
                            self.catch_up(connection, place, offset).await;
                            continue;
                        }
                        self.trouble(connection, place, *offset, error);
                    }
                }
            }
        }
        if trouble {
            self.client.pause(5, 50).await;
        }
        !trouble
    }

    /// What came next is gone: goes on where the log begins, which is behind it.
    async fn catch_up(&self, connection: &Connection, place: Place, offset: &mut i64) {
        let newest = || self.client.net.current() == Some(connection.server);
        let trusted = newest();
        let Some(start) = self.client.earliest(connection, place).await else {
            return;
        };
        if start <= *offset && trusted && newest() {
            let what =
                format!("{place:?}: {offset} is out of range, and the log begins at {start}");
            self.client.history.violation(&what);
        }
        *offset = start;
    }

    fn trouble(&self, connection: &Connection, place: Place, offset: i64, error: ResponseError) {
        let history = &self.client.history;
        if history.may_be_deleted(place.0) || error.is_retriable() {
            return;
        }
        let newest = self.client.net.current() == Some(connection.server);
        if error == ResponseError::OffsetOutOfRange && !newest {
            return;
        }
        history.violation(&format!(
            "a read of {place:?} from {offset} was answered with {error:?} by {}",
            connection.server
        ));
    }

    /// Checks one partition's records; the next offset.
    fn records(
        &self,
        place: Place,
        offset: i64,
        reply: &FetchPartitionReply,
    ) -> Result<i64, String> {
        let history = &self.client.history;
        let batches = read_batches(&reply.records)?;
        let next = contiguous(offset, &batches, history.compacts());
        let next = next.map_err(|why| format!("{place:?}: {why}"))?;
        for batch in &batches {
            for (offset, record) in batch.placed() {
                history.seen(place, offset, record);
            }
        }
        // An older instance may be behind a reader; then it has nothing to show.
        if !batches.is_empty() && next > reply.high_watermark {
            return Err(format!("{place:?}: read beyond the high watermark"));
        }
        history.shown(place, reply.high_watermark);
        Ok(next)
    }
}

/// Whether batches follow one another from the one that holds `offset` on, or that comes next where
/// compaction leaves gaps; the offset behind them.
pub(crate) fn contiguous(offset: i64, batches: &[ReadBatch], gaps: bool) -> Result<i64, String> {
    let mut next = offset;
    for (index, batch) in batches.iter().enumerate() {
        let (base, last) = (batch.header.base_offset, batch.header.last_offset());
        let fits = match index {
            0 if gaps => next <= last,
            0 => base <= next && next <= last,
            _ if gaps => base >= next,
            _ => base == next,
        };
        if !fits {
            let all = batches.iter().map(|batch| {
                let header = &batch.header;
                (header.base_offset, header.last_offset())
            });
            let all: Vec<_> = all.collect();
            return Err(format!(
                "a batch {base}..={last} where {next} was due: {all:?}"
            ));
        }
        next = last + 1;
    }
    Ok(next)
}

/// A Fetch request (v13 and later) for `wanted`.
pub(crate) fn fetch_request(
    wanted: &BTreeMap<Place, i64>,
    session: i32,
    epoch: i32,
    isolation: i8,
    max_wait_ms: i32,
) -> ApiRequest {
    let mut topics: Vec<FetchTopic> = Vec::new();
    for ((topic, partition), offset) in wanted {
        let partition = FetchPartition::default()
            .with_partition(*partition)
            .with_current_leader_epoch(-1)
            .with_last_fetched_epoch(-1)
            .with_fetch_offset(*offset)
            .with_partition_max_bytes(4096);
        match topics.last_mut() {
            Some(last) if last.topic_id == *topic => last.partitions.push(partition),
            _ => topics.push(
                FetchTopic::default()
                    .with_topic_id(*topic)
                    .with_partitions(vec![partition]),
            ),
        }
    }
    let request = FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_wait_ms(max_wait_ms)
        .with_min_bytes(1)
        .with_max_bytes(32 * 1024)
        .with_isolation_level(isolation)
        .with_session_id(session)
        .with_session_epoch(epoch)
        .with_topics(topics);
    ApiRequest::Fetch(Box::new(request))
}
