//! A server that acknowledges every Produce at once and keeps nothing. What a client reaches
//! against it is that client's ceiling: a row near it says nothing about a broker.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsResponse, BrokerId, InitProducerIdResponse, MetadataRequest,
    MetadataResponse, ProduceRequest, ProduceResponse, RequestHeader, ResponseHeader,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, StrBytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::results::{Case, MB_PER_SECOND, Results};
use super::{progress, rdkafka, rows};
use crate::process::Process;

/// What it answers, with the highest version of each.
const APIS: [(ApiKey, i16, i16); 4] = [
    (ApiKey::Produce, 3, 9),
    (ApiKey::ApiVersions, 0, 3),
    (ApiKey::Metadata, 0, 9),
    (ApiKey::InitProducerId, 0, 4),
];

const FRAME_LEN_MAX: usize = 128 * 1024 * 1024;
const CONNECTIONS_MAX: usize = 256;

/// Measures what librdkafka reaches with no broker behind.
pub(super) fn ceilings(quick: bool, results: &mut Results) -> Result<()> {
    for (size, partitions, count) in rows::CLIENT_CASES {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["null-server", "--partitions", &partitions.to_string()]);
        let child = command
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()?;
        let mut server = Process::new(child);
        let stdout = server.child().stdout.take().context("no standard output")?;
        let mut address = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut address)?;
        let count = if quick { count / 20 } else { count };
        let what = format!("librdkafka against a null server, {size} B, {partitions} partitions");
        progress(&what);
        let measured = rdkafka::produce(address.trim(), "null", size, count)?;
        results.add_alone(
            Case {
                row: 1,
                what,
                unit: MB_PER_SECOND,
            },
            measured.mb_per_second,
        );
    }
    Ok(())
}

/// Prints its address and serves until it is killed.
pub(super) fn serve(partitions: i32) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        announce(port)?;
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await?;
            while connections.try_join_next().is_some() {}
            if connections.len() < CONNECTIONS_MAX {
                // A connection ends when its client leaves; the client reports what went wrong.
                connections
                    .spawn(async move { connection(stream, port, partitions).await.is_ok() });
            }
        }
    })
}

fn announce(port: u16) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    std::io::Write::write_fmt(&mut stdout, format_args!("127.0.0.1:{port}\n"))?;
    Ok(std::io::Write::flush(&mut stdout)?)
}

async fn connection(mut stream: TcpStream, port: u16, partitions: i32) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut inbox = BytesMut::with_capacity(1 << 20);
    loop {
        while inbox.len() < 4 || inbox.len() - 4 < (&inbox[..4]).get_u32() as usize {
            if inbox.len() >= 4 {
                let len = (&inbox[..4]).get_u32() as usize;
                if len > FRAME_LEN_MAX {
                    bail!("a frame of {len} bytes");
                }
                inbox.reserve(len + 4 - inbox.len());
            } else {
                inbox.reserve(1 << 20);
            }
            if stream.read_buf(&mut inbox).await? == 0 {
                return Ok(());
            }
        }
        let len = inbox.get_u32() as usize;
        let frame = inbox.split_to(len).freeze();
        stream.write_all(&answer(frame, port, partitions)?).await?;
    }
}

fn answer(mut frame: Bytes, port: u16, partitions: i32) -> Result<Bytes> {
    let mut start = frame.clone();
    if start.remaining() < 8 {
        bail!("a frame of {} bytes", start.remaining());
    }
    let key = ApiKey::try_from(start.get_i16()).map_err(|()| anyhow::anyhow!("unknown API"))?;
    let version = start.get_i16();
    let header = RequestHeader::decode(&mut frame, key.request_header_version(version))?;
    let id = header.correlation_id;
    match key {
        ApiKey::ApiVersions => encode(&api_versions(), id, version.min(3)),
        ApiKey::Metadata => {
            let request = MetadataRequest::decode(&mut frame, version)?;
            encode(&metadata(&request, port, partitions), id, version)
        }
        ApiKey::InitProducerId => encode(
            &InitProducerIdResponse::default().with_producer_id(1.into()),
            id,
            version,
        ),
        ApiKey::Produce => {
            let request = ProduceRequest::decode(&mut frame, version)?;
            encode(&acknowledge(request), id, version)
        }
        other => bail!("{other:?} is not served"),
    }
}

fn encode<R: Encodable + HeaderVersion>(response: &R, id: i32, version: i16) -> Result<Bytes> {
    let mut frame = BytesMut::new();
    frame.put_i32(0);
    let header = ResponseHeader::default().with_correlation_id(id);
    header.encode(&mut frame, R::header_version(version))?;
    response.encode(&mut frame, version)?;
    let len = i32::try_from(frame.len() - 4)?;
    frame[..4].copy_from_slice(&len.to_be_bytes());
    Ok(frame.freeze())
}

fn api_versions() -> ApiVersionsResponse {
    let keys = APIS.iter().map(|&(key, min, max)| {
        ApiVersion::default()
            .with_api_key(key as i16)
            .with_min_version(min)
            .with_max_version(max)
    });
    ApiVersionsResponse::default().with_api_keys(keys.collect())
}

fn metadata(request: &MetadataRequest, port: u16, partitions: i32) -> MetadataResponse {
    let broker = MetadataResponseBroker::default()
        .with_node_id(BrokerId(1))
        .with_host(StrBytes::from_static_str("127.0.0.1"))
        .with_port(port.into());
    let partition = |index| {
        MetadataResponsePartition::default()
            .with_partition_index(index)
            .with_leader_id(BrokerId(1))
            .with_replica_nodes(vec![BrokerId(1)])
            .with_isr_nodes(vec![BrokerId(1)])
    };
    let asked = request.topics.iter().flatten();
    let topics = asked.map(|topic| {
        MetadataResponseTopic::default()
            .with_name(topic.name.clone())
            .with_partitions((0..partitions).map(partition).collect())
    });
    MetadataResponse::default()
        .with_brokers(vec![broker])
        .with_cluster_id(Some(StrBytes::from_static_str("null")))
        .with_controller_id(BrokerId(1))
        .with_topics(topics.collect())
}

fn acknowledge(request: ProduceRequest) -> ProduceResponse {
    let topics = request.topic_data.into_iter().map(|topic| {
        let partitions = topic
            .partition_data
            .iter()
            .map(|partition| PartitionProduceResponse::default().with_index(partition.index));
        TopicProduceResponse::default()
            .with_partition_responses(partitions.collect())
            .with_name(topic.name)
    });
    ProduceResponse::default().with_responses(topics.collect())
}
