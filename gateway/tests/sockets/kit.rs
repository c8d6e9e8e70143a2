//! A server with a service double, and raw frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use gateway::answer_budget::AnswerBudget;
use gateway::api::{ApiRequest, ApiResponse, ApiService, RequestContext, Staged};
use gateway::connection::{Senders, Shared};
use gateway::features::Features;
use gateway::handlers::api_versions;
use gateway::metrics::{Metrics, Sources};
use gateway::request_budget::ByteBudget;
use gateway::server::{Limits, Listener, Server};
use gateway::stack;
use parking_lot::Mutex;
use store_adapter::runtime::{BoxFuture, Env};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_mins(1);

type Outcome = oneshot::Sender<Staged<ApiResponse>>;

/// Answers ApiVersions; the test decides about everything else.
#[derive(Clone)]
struct Double {
    calls: mpsc::UnboundedSender<(ApiRequest, Outcome)>,
    software: Arc<Mutex<Option<String>>>,
}

impl ApiService for Double {
    fn call(
        &self,
        ctx: RequestContext,
        request: ApiRequest,
    ) -> BoxFuture<'static, Staged<ApiResponse>> {
        if let ApiRequest::ApiVersions(request) = &request {
            let response = api_versions::answer(&ctx, request, &Features::default());
            let software = ctx.connection.software.get();
            *self.software.lock() = software.map(|(name, version)| format!("{name} {version}"));
            let response = ApiResponse::ApiVersions(Box::new(response));
            return Box::pin(std::future::ready(Staged::Now(response)));
        }
        let (outcome, staged) = oneshot::channel();
        self.calls.send((request, outcome)).unwrap();
        Box::pin(async move { staged.await.unwrap() })
    }
}

/// What a test may change.
pub(crate) struct Setup {
    pub(crate) limits: Limits,
    pub(crate) budget: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            limits: Limits {
                connections: 100,
                connections_per_ip: 100,
                idle: Duration::from_mins(10),
                write_stall: Duration::from_secs(30),
                send_buffer: None,
            },
            budget: 256 * 1024 * 1024,
        }
    }
}

pub(crate) struct Kit {
    server: Server,
    address: std::net::SocketAddr,
    calls: tokio::sync::Mutex<mpsc::UnboundedReceiver<(ApiRequest, Outcome)>>,
    software: Arc<Mutex<Option<String>>>,
    draining: AtomicBool,
    budget: ByteBudget,
}

impl Kit {
    pub(crate) fn start() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Setup)) -> Self {
        let mut setup = Setup::default();
        change(&mut setup);
        let env = Env::real();
        let metrics = Arc::new(Metrics::new(&Sources::none()));
        let (calls, received) = mpsc::unbounded_channel();
        let software = Arc::new(Mutex::new(None));
        let service = Double {
            calls,
            software: Arc::clone(&software),
        };
        let stack = stack::compose(service, &metrics, &env.clock);
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address;
        let budget = ByteBudget::new(setup.budget);
        let shared = Shared {
            clock: Arc::clone(&env.clock),
            metrics,
            budget: budget.clone(),
            answers: AnswerBudget::new(1 << 20),
            senders: Senders::new(&*env.runtime),
            log_limit: Arc::default(),
            frame_max: 104_857_600,
            drain: CancellationToken::new(),
        };
        let server = Server::start(vec![listener], &stack, &env, shared, setup.limits);
        Self {
            server,
            address,
            calls: tokio::sync::Mutex::new(received),
            software,
            draining: AtomicBool::new(false),
            budget,
        }
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    pub(crate) fn software(&self) -> Option<String> {
        self.software.lock().clone()
    }

    /// Waits until requests hold at least `bytes` of the budget.
    pub(crate) async fn until_taken(&self, bytes: usize) {
        self.until_budget(&|taken| taken >= bytes).await;
    }

    /// Waits until requests hold nothing of it.
    pub(crate) async fn until_free(&self) {
        self.until_budget(&|taken| taken == 0).await;
    }

    async fn until_budget(&self, reached: &dyn Fn(usize) -> bool) {
        let reached = async {
            while !reached(self.budget.taken()) {
                tokio::task::yield_now().await;
            }
        };
        let patience = tokio::time::timeout(PATIENCE, reached).await;
        assert!(patience.is_ok(), "{} bytes", self.budget.taken());
    }

    pub(crate) fn connections(&self) -> usize {
        self.server.connections()
    }

    /// The next request, not yet ordered.
    async fn call(&self) -> (ApiRequest, Outcome) {
        let mut calls = self.calls.lock().await;
        tokio::time::timeout(PATIENCE, calls.recv())
            .await
            .unwrap()
            .unwrap()
    }

    /// The next request, whose first stage the test completes.
    pub(crate) async fn next_staged(&self) -> Outcome {
        self.call().await.1
    }

    /// The next request, ordered; the answer is owed.
    pub(crate) async fn next_call(&self) -> Call {
        let (request, outcome) = self.call().await;
        let (answer, later) = oneshot::channel();
        let later = Staged::Later(Box::pin(async move { later.await.unwrap() }));
        outcome.send(later).unwrap();
        Call { request, answer }
    }

    /// Whether no request comes while the server has time to read one.
    pub(crate) async fn no_call(&self) -> bool {
        let mut calls = self.calls.lock().await;
        let wait = Duration::from_millis(200);
        match tokio::time::timeout(wait, calls.recv()).await {
            Err(_) => true,
            Ok(call) => call.is_none(),
        }
    }

    /// Waits until as many connections are open.
    pub(crate) async fn until_connections(&self, expected: usize) {
        let reached = async {
            while self.connections() != expected {
                tokio::task::yield_now().await;
            }
        };
        let patience = tokio::time::timeout(PATIENCE, reached).await;
        assert!(
            patience.is_ok(),
            "{} instead of {expected}",
            self.connections()
        );
    }

    /// Waits until the listener is closed.
    pub(crate) async fn until_refusing(&self) {
        let refused = async {
            while TcpStream::connect(self.address).await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, refused).await.unwrap();
    }

    pub(crate) async fn drain(&self, limit: Duration) -> bool {
        assert!(!self.draining.swap(true, Ordering::Relaxed));
        self.server.drain(limit).await
    }
}

/// A request whose answer is owed.
pub(crate) struct Call {
    request: ApiRequest,
    answer: oneshot::Sender<ApiResponse>,
}

impl Call {
    pub(crate) fn request(&self) -> &ApiRequest {
        &self.request
    }

    pub(crate) fn answer(self) {
        let response = match &self.request {
            ApiRequest::Produce(_) => ApiResponse::Produce(Box::default()),
            _ => heartbeat_response(),
        };
        self.answer_with(response);
    }

    pub(crate) fn answer_with(self, response: ApiResponse) {
        self.answer.send(response).unwrap();
    }
}

pub(crate) fn heartbeat_response() -> ApiResponse {
    ApiResponse::Heartbeat(Box::default())
}

/// A frame with client id "raw".
pub(crate) fn frame(key: i16, version: i16, correlation_id: i32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&key.to_be_bytes());
    bytes.extend_from_slice(&version.to_be_bytes());
    bytes.extend_from_slice(&correlation_id.to_be_bytes());
    bytes.extend_from_slice(b"\0\x03raw");
    if matches!((key, version), (0 | 3, 9..) | (18, 3..)) {
        bytes.push(0);
    }
    bytes.extend_from_slice(body);
    let mut frame = i32::try_from(bytes.len()).unwrap().to_be_bytes().to_vec();
    frame.append(&mut bytes);
    frame
}

/// ApiVersions v3 of client software "raw" 1.0.
pub(crate) fn api_versions_v3(correlation_id: i32) -> Vec<u8> {
    frame(18, 3, correlation_id, b"\x04raw\x041.0\0")
}

/// Metadata v1 for no topics: it stands alone.
pub(crate) fn metadata(correlation_id: i32) -> Vec<u8> {
    frame(3, 1, correlation_id, b"\0\0\0\0")
}

/// Heartbeat v0: several overlap.
pub(crate) fn heartbeat(correlation_id: i32) -> Vec<u8> {
    frame(12, 0, correlation_id, b"\0\x01g\0\0\0\x01\0\x01m")
}

/// Produce v9 of `len` bytes to one partition: several overlap.
pub(crate) fn produce(correlation_id: i32, len: usize) -> Vec<u8> {
    let mut body = b"\0\xff\xff\0\0\0\x01\x02\x02t\x02\0\0\0\0".to_vec();
    let mut claim = len + 1;
    while claim > 0x7f {
        body.push(u8::try_from(claim & 0x7f).unwrap() | 0x80);
        claim >>= 7;
    }
    body.push(u8::try_from(claim).unwrap());
    body.resize(body.len() + len, b'x');
    body.extend_from_slice(&[0, 0, 0]);
    frame(0, 9, correlation_id, &body)
}

/// A response frame.
pub(crate) struct Answer {
    pub(crate) correlation_id: i32,
    pub(crate) body: Bytes,
}

/// The next answer; `None` if the connection is closed or reset.
pub(crate) async fn answer(stream: &mut (impl AsyncRead + Unpin)) -> Option<Answer> {
    let read = async {
        let len = stream.read_i32().await.ok()?;
        let correlation_id = stream.read_i32().await.ok()?;
        let mut body = vec![0; usize::try_from(len).unwrap() - 4];
        stream.read_exact(&mut body).await.ok()?;
        let body = Bytes::from(body);
        Some(Answer {
            correlation_id,
            body,
        })
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap()
}
