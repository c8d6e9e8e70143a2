//! Asks a broker how far each partition of a topic is visible: ListOffsets, latest.
//!
//! This is how the scenario knows the load's progress without trusting the writer.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::{BufMut as _, Bytes, BytesMut};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::{
    ApiKey, ListOffsetsRequest, ListOffsetsResponse, RequestHeader, ResponseHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable as _, Encodable as _, StrBytes};

use super::input::PARTITIONS;

const LIST_OFFSETS_VERSION: i16 = 7;
const LATEST: i64 = -1;
const ANSWER_LEN_MAX: usize = 1 << 16;
const PATIENCE: Duration = Duration::from_secs(5);

/// High watermark of every partition; [`ABSENT`] where the broker has no such partition yet.
pub type Watermarks = [i64; PARTITIONS];
/// The watermark of a partition that is not there.
pub const ABSENT: i64 = -1;

/// A client that keeps its connection until an error.
#[derive(Debug)]
pub struct WatermarkClient {
    broker: SocketAddr,
    topic: TopicName,
    connection: Option<TcpStream>,
}

impl WatermarkClient {
    /// A client for one topic; nothing is dialled yet.
    pub fn new(broker: SocketAddr, topic: &str) -> Self {
        let topic = TopicName(StrBytes::from_string(topic.to_owned()));
        Self {
            broker,
            topic,
            connection: None,
        }
    }

    /// The watermarks now. After an error the next call dials again.
    ///
    /// # Errors
    /// If the broker is not there, goes away, or answers what is no answer.
    pub fn latest(&mut self) -> anyhow::Result<Watermarks> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => dial(self.broker)?,
        };
        let answer = exchange(&mut connection, &self.request()?)?;
        let watermarks = read_answer(answer)?;
        self.connection = Some(connection);
        Ok(watermarks)
    }

    fn request(&self) -> anyhow::Result<BytesMut> {
        let header = RequestHeader::default()
            .with_request_api_key(ApiKey::ListOffsets as i16)
            .with_request_api_version(LIST_OFFSETS_VERSION)
            .with_client_id(Some(StrBytes::from_static_str("watermarks")));
        let partitions = (0..PARTITIONS)
            .map(|partition| {
                Ok(ListOffsetsPartition::default()
                    .with_partition_index(i32::try_from(partition)?)
                    .with_timestamp(LATEST))
            })
            .collect::<anyhow::Result<_>>()?;
        let topic = ListOffsetsTopic::default()
            .with_name(self.topic.clone())
            .with_partitions(partitions);
        let body = ListOffsetsRequest::default()
            .with_replica_id((-1).into())
            .with_topics(vec![topic]);
        let mut message = BytesMut::new();
        header.encode(&mut message, ApiKey::ListOffsets.request_header_version(7))?;
        body.encode(&mut message, LIST_OFFSETS_VERSION)?;
        let mut frame = BytesMut::with_capacity(message.len() + 4);
        frame.put_u32(u32::try_from(message.len())?);
        frame.put(message);
        Ok(frame)
    }
}

fn dial(broker: SocketAddr) -> anyhow::Result<TcpStream> {
    let connection = TcpStream::connect_timeout(&broker, PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    connection.set_nodelay(true)?;
    Ok(connection)
}

fn exchange(connection: &mut TcpStream, request: &[u8]) -> anyhow::Result<Bytes> {
    connection.write_all(request)?;
    let mut len = [0; 4];
    connection.read_exact(&mut len)?;
    let len = usize::try_from(u32::from_be_bytes(len))?;
    ensure!(
        len <= ANSWER_LEN_MAX,
        "an answer of {len} bytes to ListOffsets"
    );
    let mut answer = vec![0; len];
    connection.read_exact(&mut answer)?;
    Ok(answer.into())
}

fn read_answer(mut answer: Bytes) -> anyhow::Result<Watermarks> {
    const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
    let header_version = ApiKey::ListOffsets.response_header_version(LIST_OFFSETS_VERSION);
    ResponseHeader::decode(&mut answer, header_version)?;
    let body = ListOffsetsResponse::decode(&mut answer, LIST_OFFSETS_VERSION)?;
    let mut watermarks = [ABSENT; PARTITIONS];
    for partition in body.topics.iter().flat_map(|topic| &topic.partitions) {
        let index = usize::try_from(partition.partition_index)?;
        let watermark = watermarks
            .get_mut(index)
            .context("a partition that was not asked for")?;
        if partition.error_code != UNKNOWN_TOPIC_OR_PARTITION {
            ensure!(
                partition.error_code == 0,
                "error {} of ListOffsets",
                partition.error_code
            );
            *watermark = partition.offset;
        }
    }
    Ok(watermarks)
}
