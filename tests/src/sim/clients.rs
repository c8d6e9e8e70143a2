//! Clients as real ones behave: what every one of them needs, and what answers say.

use std::sync::Arc;
use std::time::Duration;

use gateway::api::{ApiRequest, ApiResponse};
use gateway::wire::segment::Segment;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::{
    BrokerId, InitProducerIdRequest, ListOffsetsRequest, MetadataRequest, ProducerId,
};
use store_adapter::batch::{BatchHeader, HEADER_LEN};
use store_adapter::control::EndTxnMarker;
use store_adapter::records::Records;
use store_adapter::runtime::Env;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::executor::World;
use super::history::{History, Place, RecordId};
use super::net::{Connection, Network};
use crate::raw::ops::topic_name;

/// Stands for the first offset of a log in ListOffsets.
const EARLIEST: i64 = -2;
/// How long a client waits for an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// A topic that clients use.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Its id.
    pub(crate) id: Uuid,
    /// Its name.
    pub(crate) name: String,
    /// How many partitions it has.
    pub(crate) partitions: i32,
}

/// What every client has.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) world: World,
    pub(crate) env: Env,
    pub(crate) net: Arc<Network>,
    pub(crate) history: Arc<History>,
}

/// A batch that was read.
#[derive(Debug, Clone)]
pub(crate) struct ReadBatch {
    pub(crate) header: BatchHeader,
    pub(crate) records: Vec<RecordId>,
    /// Their offsets.
    pub(crate) offsets: Vec<i64>,
    /// What a control batch says.
    pub(crate) marker: Option<EndTxnMarker>,
}

impl ReadBatch {
    /// Offsets and records.
    pub(crate) fn placed(&self) -> impl Iterator<Item = (i64, RecordId)> + '_ {
        let records = self.records.iter().copied();
        self.offsets.iter().copied().zip(records)
    }
}

impl Client {
    /// Waits between `from` and `to` milliseconds.
    pub(crate) async fn pause(&self, from: u64, to: u64) {
        let ms = from + self.world.below(to - from + 1);
        self.env.clock.sleep(Duration::from_millis(ms)).await;
    }

    /// Connects, however long it takes.
    pub(crate) async fn connect(&self) -> Connection {
        self.connect_elsewhere(None).await
    }

    /// Connects as a client does that `left` did not serve.
    pub(crate) async fn connect_elsewhere(&self, left: Option<u64>) -> Connection {
        loop {
            if let Some(connection) = self.net.connect(&self.env, left).await {
                return connection;
            }
            self.pause(5, 60).await;
        }
    }

    /// The answer to what was sent; `None` when it does not come.
    pub(crate) async fn answer(&self, wait: oneshot::Receiver<ApiResponse>) -> Option<ApiResponse> {
        tokio::select! {
            biased;
            answer = wait => answer.ok(),
            () = self.env.clock.sleep(PATIENCE) => None,
        }
    }

    /// Sends one request and waits for its answer.
    pub(crate) async fn ask(
        &self,
        connection: &Connection,
        request: ApiRequest,
        version: i16,
    ) -> Option<ApiResponse> {
        let wait = connection.send(request, version, Vec::new()).await.ok()?;
        self.answer(wait).await
    }

    /// A fresh producer id, asked for until there is one.
    pub(crate) async fn producer_id(&self) -> i64 {
        let mut connection = self.connect().await;
        loop {
            match self.ask(&connection, init_producer_id(), 4).await {
                Some(ApiResponse::InitProducerId(answer)) if answer.error_code == 0 => {
                    return answer.producer_id.0;
                }
                Some(_) => self.pause(5, 60).await,
                None => connection = self.connect().await,
            }
        }
    }

    /// Where a log begins; `None` when there is no answer to that now.
    pub(crate) async fn earliest(&self, connection: &Connection, place: Place) -> Option<i64> {
        let name = self.history.topics().get(&place.0)?.name.clone();
        let partition = ListOffsetsPartition::default()
            .with_partition_index(place.1)
            .with_current_leader_epoch(-1)
            .with_timestamp(EARLIEST);
        let topic = ListOffsetsTopic::default()
            .with_name(topic_name(&name))
            .with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_topics(vec![topic]);
        let request = ApiRequest::ListOffsets(Box::new(request));
        let ApiResponse::ListOffsets(answer) = self.ask(connection, request, 7).await? else {
            self.history.violation("another answer to ListOffsets");
            return None;
        };
        let found = answer.topics.first()?.partitions.first()?;
        (found.error_code == 0).then_some(found.offset)
    }

    /// Metadata of one topic, or of all; `None` when the connection broke.
    pub(crate) async fn metadata(
        &self,
        connection: &Connection,
        name: Option<&str>,
        create: bool,
    ) -> Option<Vec<MetadataResponseTopic>> {
        let topics = name
            .map(|name| vec![MetadataRequestTopic::default().with_name(Some(topic_name(name)))]);
        let request = MetadataRequest::default()
            .with_topics(topics)
            .with_allow_auto_topic_creation(create);
        let request = ApiRequest::Metadata(Box::new(request));
        match self.ask(connection, request, 12).await {
            Some(ApiResponse::Metadata(answer)) => Some(answer.body.topics),
            _ => None,
        }
    }
}

/// A request for a fresh producer id.
pub(crate) fn init_producer_id() -> ApiRequest {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(None)
        .with_transaction_timeout_ms(60_000)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1);
    ApiRequest::InitProducerId(Box::new(request))
}

/// The batches of a Fetch answer.
pub(crate) fn read_batches(records: &[Segment]) -> Result<Vec<ReadBatch>, String> {
    let mut batches = Vec::new();
    for part in records {
        let mut rest = part.bytes().ok_or("records in a file")?.clone();
        while !rest.is_empty() {
            let header = BatchHeader::read(&rest).map_err(|error| error.to_string())?;
            let len = header.total_len().filter(|len| *len <= rest.len());
            let bytes = rest.split_to(len.ok_or("a batch is cut off")?);
            batches.push(read_batch(header, &bytes)?);
        }
    }
    Ok(batches)
}

fn read_batch(header: BatchHeader, bytes: &[u8]) -> Result<ReadBatch, String> {
    let crc = crc32c::crc32c(bytes.get(21..).unwrap_or_default());
    if crc != header.crc {
        return Err(format!(
            "the CRC of the batch at {} is wrong",
            header.base_offset
        ));
    }
    if header.is_control() {
        let marker = EndTxnMarker::read(bytes).ok_or("a control batch that is no marker")?;
        return Ok(ReadBatch {
            header,
            records: Vec::new(),
            offsets: Vec::new(),
            marker: Some(marker),
        });
    }
    let (mut ids, mut offsets) = (Vec::new(), Vec::new());
    let body = bytes.get(HEADER_LEN..).unwrap_or_default();
    for record in Records::new(&header, body).map_err(|error| format!("{error:?}"))? {
        let record = record.map_err(|error| format!("{error:?}"))?;
        let id = record.value.and_then(RecordId::read);
        ids.push(id.ok_or("a record that nobody sent")?);
        offsets.push(header.base_offset + i64::from(record.offset_delta));
    }
    Ok(ReadBatch {
        header,
        records: ids,
        offsets,
        marker: None,
    })
}
