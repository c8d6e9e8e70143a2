//! The Kafka client of the command line: one request at a time, each at the newest version that
//! both sides know, to the broker that it is meant for.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use clap::Args;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::{
    ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest, MetadataResponse, RequestHeader,
    ResponseHeader,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Message, Request, StrBytes};
use store_adapter::runtime::{Clock, Env};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::output::{Failure, check};

const CLIENT_ID: &str = "fencepost";
/// Longest answer, bytes.
const ANSWER_LEN_MAX: usize = 128 << 20;
/// Between two tries of what a broker says will pass.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// COORDINATOR_LOAD_IN_PROGRESS.
const LOADING: i16 = 14;
/// COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR.
const COORDINATOR_MOVES: [i16; 3] = [LOADING, 15, 16];
/// CONCURRENT_TRANSACTIONS: the one before is not finished.
const NOT_FINISHED: i16 = 51;

/// Whether Kafka says that an error passes by itself.
pub(super) fn passes(code: i16) -> bool {
    ResponseError::try_from_code(code).is_some_and(|error| error.is_retriable())
}

/// What a coordinator is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key<'a> {
    /// A consumer group.
    Group(&'a str),
    /// A transactional id.
    Transaction(&'a str),
}

impl Key<'_> {
    fn name(self) -> StrBytes {
        let (Self::Group(name) | Self::Transaction(name)) = self;
        StrBytes::from_string(name.to_owned())
    }

    fn kind(self) -> i8 {
        match self {
            Self::Group(_) => 0,
            Self::Transaction(_) => 1,
        }
    }

    /// Whether an error passes by itself.
    fn passes(self, code: i16) -> bool {
        let finishes = matches!(self, Self::Transaction(_)) && code == NOT_FINISHED;
        finishes || COORDINATOR_MOVES.contains(&code)
    }
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(name) => write!(f, "group {name}"),
            Self::Transaction(name) => write!(f, "transactional id {name}"),
        }
    }
}

/// Which cluster, and how long to wait for it.
#[derive(Debug, Clone, Args)]
pub(super) struct Connect {
    /// A broker of the cluster
    #[arg(
        short = 'b',
        long,
        global = true,
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9092"
    )]
    bootstrap_server: String,
    /// How long to wait for an answer, in milliseconds
    #[arg(long, global = true, value_name = "MS", default_value_t = 10_000)]
    timeout: u64,
}

impl Connect {
    /// A broker, and how long to wait for it, in milliseconds.
    pub(super) fn to(address: &str, timeout: u64) -> Self {
        Self {
            bootstrap_server: address.to_owned(),
            timeout,
        }
    }
}

/// Connections to the brokers of one cluster.
#[derive(Debug)]
pub(super) struct Client {
    bootstrap: String,
    patience: Duration,
    clock: Arc<dyn Clock>,
    connections: BTreeMap<String, Connection>,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    next_correlation_id: i32,
    /// Versions that the broker knows, by api key.
    versions: BTreeMap<i16, (i16, i16)>,
}

impl Client {
    /// A client that has not connected yet. To be made on a tokio runtime.
    pub(super) fn new(connect: &Connect) -> Self {
        Self {
            bootstrap: connect.bootstrap_server.clone(),
            patience: Duration::from_millis(connect.timeout),
            clock: Env::real().clock,
            connections: BTreeMap::new(),
        }
    }

    /// Asks the broker at `address` (or the first one, for `None`) what `build` makes for the
    /// version that is spoken.
    pub(super) async fn call<R: Request>(
        &mut self,
        address: Option<&str>,
        build: impl FnOnce(i16) -> R,
    ) -> Result<R::Response, Failure> {
        self.call_upto(address, i16::MAX, build).await
    }

    /// The same at no version above `max`.
    pub(super) async fn call_upto<R: Request>(
        &mut self,
        address: Option<&str>,
        max: i16,
        build: impl FnOnce(i16) -> R,
    ) -> Result<R::Response, Failure> {
        let address = address.unwrap_or(&self.bootstrap).to_owned();
        let (clock, patience) = (Arc::clone(&self.clock), self.patience);
        let answer = async {
            let connection = self.connection(&address).await?;
            let version = connection.version::<R>(&address, max)?;
            connection.call(&build(version), version).await
        };
        let answer = within(&clock, patience, &address, answer).await;
        if answer.is_err() {
            // A late answer would be taken for the next one.
            self.connections.remove(&address);
        }
        answer
    }

    /// What the cluster says of itself and of the topics asked for.
    pub(super) async fn metadata(
        &mut self,
        build: impl FnOnce(i16) -> MetadataRequest,
    ) -> Result<MetadataResponse, Failure> {
        self.call(None, build).await
    }

    /// Time, as the client sees it: milliseconds since the epoch.
    pub(super) fn now_ms(&self) -> i64 {
        self.clock.wall_ms()
    }

    /// Time that only goes on.
    pub(super) fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    /// How long one answer may take.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// The same as a broker is told it, in milliseconds.
    pub(super) fn patience_ms(&self) -> i32 {
        i32::try_from(self.patience.as_millis()).unwrap_or(i32::MAX)
    }

    /// Waits, before something is tried again.
    pub(super) async fn pause(&self, time: Duration) {
        self.clock.sleep(time).await;
    }

    /// Versions that the broker at `address` knows, by api key. Connects to it.
    pub(super) async fn versions(
        &mut self,
        address: &str,
    ) -> Result<BTreeMap<i16, (i16, i16)>, Failure> {
        let (clock, patience) = (Arc::clone(&self.clock), self.patience);
        let connected = async { Ok(self.connection(address).await?.versions.clone()) };
        within(&clock, patience, address, connected).await
    }

    /// Address of every broker, by its number.
    pub(super) async fn brokers(&mut self) -> Result<BTreeMap<i32, String>, Failure> {
        let metadata = self
            .metadata(|_| MetadataRequest::default().with_topics(Some(Vec::new())))
            .await?;
        let addresses = metadata.brokers.iter().map(|broker| {
            let address = format!("{}:{}", broker.host.as_str(), broker.port);
            (broker.node_id.0, address)
        });
        Ok(addresses.collect())
    }

    /// Number and address of a coordinator. Asks again while there is none yet: Kafka makes the
    /// topic behind the first one only when it is asked for.
    pub(super) async fn coordinator(&mut self, key: Key<'_>) -> Result<(i32, String), Failure> {
        let late = self.monotonic() + self.patience;
        loop {
            let (code, node, address) = self.find_coordinator(key).await?;
            if !COORDINATOR_MOVES.contains(&code) || self.monotonic() >= late {
                check(code, || format!("coordinator of {key}"))?;
                return Ok((node, address));
            }
            self.pause(RETRY_PAUSE).await;
        }
    }

    async fn find_coordinator(&mut self, key: Key<'_>) -> Result<(i16, i32, String), Failure> {
        let answer = self
            .call(None, |version| {
                let request = FindCoordinatorRequest::default();
                // Version 0 has groups only, and no field to say so.
                let request = match key {
                    Key::Group(_) => request,
                    Key::Transaction(_) => request.with_key_type(key.kind()),
                };
                if version >= 4 {
                    request.with_coordinator_keys(vec![key.name()])
                } else {
                    request.with_key(key.name())
                }
            })
            .await?;
        let (code, node, host, port) = match answer.coordinators.first() {
            Some(found) => (found.error_code, found.node_id, &found.host, found.port),
            None => (answer.error_code, answer.node_id, &answer.host, answer.port),
        };
        Ok((code, node.0, format!("{}:{port}", host.as_str())))
    }

    /// Asks a coordinator, again while `code` finds that it is moving or loading, or that a
    /// transaction is not finished.
    pub(super) async fn call_coordinator<R: Request>(
        &mut self,
        key: Key<'_>,
        build: impl Fn(i16) -> R,
        code: impl Fn(&R::Response) -> i16,
    ) -> Result<R::Response, Failure> {
        self.call_coordinator_upto(key, i16::MAX, build, code).await
    }

    /// The same at no version above `max`.
    pub(super) async fn call_coordinator_upto<R: Request>(
        &mut self,
        key: Key<'_>,
        max: i16,
        build: impl Fn(i16) -> R,
        code: impl Fn(&R::Response) -> i16,
    ) -> Result<R::Response, Failure> {
        let (clock, patience) = (Arc::clone(&self.clock), self.patience);
        let again = async {
            loop {
                let (_, coordinator) = self.coordinator(key).await?;
                let answer = self.call_upto(Some(&coordinator), max, &build).await?;
                if !key.passes(code(&answer)) {
                    return Ok(answer);
                }
                self.clock.sleep(RETRY_PAUSE).await;
            }
        };
        let what = format!("coordinator of {key}");
        within(&clock, patience, &what, again).await
    }

    /// Asks a broker about all that it coordinates, again while `code` finds that it is loading.
    pub(super) async fn call_loaded<R: Request>(
        &mut self,
        address: &str,
        mut build: impl FnMut(i16) -> R,
        code: impl Fn(&R::Response) -> i16,
    ) -> Result<R::Response, Failure> {
        let late = self.monotonic() + self.patience;
        loop {
            let answer = self.call(Some(address), &mut build).await?;
            if !COORDINATOR_MOVES.contains(&code(&answer)) || self.monotonic() >= late {
                return Ok(answer);
            }
            self.pause(RETRY_PAUSE).await;
        }
    }

    async fn connection(&mut self, address: &str) -> Result<&mut Connection, Failure> {
        if !self.connections.contains_key(address) {
            let connection = Connection::open(address).await?;
            self.connections.insert(address.to_owned(), connection);
        }
        let found = self.connections.get_mut(address);
        found.ok_or_else(|| Failure::Unreachable(format!("{address}: not connected")))
    }
}

async fn within<T>(
    clock: &Arc<dyn Clock>,
    patience: Duration,
    what: &str,
    answer: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let late = clock.sleep(patience);
    tokio::select! {
        biased;
        // On the heap: answers of some apis are large.
        answer = Box::pin(answer) => answer,
        () = late => Err(Failure::TimedOut(format!("{what}: no answer within {patience:?}"))),
    }
}

impl Connection {
    async fn open(address: &str) -> Result<Self, Failure> {
        let failed = |error| Failure::Unreachable(format!("{address}: {error}"));
        let stream = TcpStream::connect(address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let mut connection = Self {
            stream,
            next_correlation_id: 0,
            versions: BTreeMap::new(),
        };
        // Version 0 is answered by every broker, with every key.
        let answer = connection.call(&ApiVersionsRequest::default(), 0).await?;
        check(answer.error_code, || format!("{address}: ApiVersions"))?;
        connection.versions = answer
            .api_keys
            .iter()
            .map(|api| (api.api_key, (api.min_version, api.max_version)))
            .collect();
        Ok(connection)
    }

    /// The newest version of an api that both sides know.
    fn version<R: Request>(&self, address: &str, most: i16) -> Result<i16, Failure> {
        let ours = <R as Message>::VERSIONS;
        let unknown = || Failure::Refused(format!("{address} does not offer api key {}", R::KEY));
        let (min, max) = self.versions.get(&R::KEY).ok_or_else(unknown)?;
        let version = ours.max.min(*max).min(most);
        if version < ours.min.max(*min) {
            return Err(unknown());
        }
        Ok(version)
    }

    async fn call<R: Request>(
        &mut self,
        request: &R,
        version: i16,
    ) -> Result<R::Response, Failure> {
        let id = self.next_correlation_id;
        self.next_correlation_id = id.wrapping_add(1);
        let broken = |error: std::io::Error| Failure::Unreachable(format!("connection: {error}"));
        let frame = encode(request, version, id)?;
        self.stream.write_all(&frame).await.map_err(broken)?;
        let length = self.stream.read_u32().await.map_err(broken)?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > ANSWER_LEN_MAX {
            let what = format!("an answer of {length} bytes: is this a Kafka listener?");
            return Err(Failure::Unreachable(what));
        }
        // Grows with what arrives, not with what is claimed.
        let mut body = Vec::new();
        let mut rest = (&mut self.stream).take(u64::try_from(length).unwrap_or(0));
        rest.read_to_end(&mut body).await.map_err(broken)?;
        if body.len() < length {
            let what = "connection: closed in the middle of an answer".to_owned();
            return Err(Failure::Unreachable(what));
        }
        decode::<R>(Bytes::from(body), version, id)
    }
}

fn encode<R: Request>(request: &R, version: i16, id: i32) -> Result<Bytes, Failure> {
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(id)
        .with_client_id(Some(StrBytes::from_static_str(CLIENT_ID)));
    let mut frame = BytesMut::new();
    frame.put_u32(0);
    header
        .encode(&mut frame, R::header_version(version))
        .and_then(|()| request.encode(&mut frame, version))
        .map_err(|error| Failure::Usage(format!("request: {error}")))?;
    let length = u32::try_from(frame.len() - 4)
        .map_err(|_| Failure::Usage("the request is too large".to_owned()))?;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    Ok(frame.freeze())
}

fn decode<R: Request>(mut body: Bytes, version: i16, id: i32) -> Result<R::Response, Failure> {
    let strange = |what: String| Failure::Unreachable(format!("answer: {what}"));
    let header = ResponseHeader::decode(&mut body, R::Response::header_version(version));
    let header = header.map_err(|error| strange(error.to_string()))?;
    if header.correlation_id != id {
        return Err(strange(format!("to request {}", header.correlation_id)));
    }
    R::Response::decode(&mut body, version).map_err(|error| strange(error.to_string()))
}
