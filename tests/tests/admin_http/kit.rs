//! A broker in this process, a client of HTTP, and transactions that nobody ends.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use coordinator::machine::txn::{AddClass, InitProducerId, Named, Session};
use gateway::Gateway;
use gateway::admitted::Admitted;
use gateway::api::{ApiRequest, ApiResponse, ConnectionContext, RequestContext, Staged};
use gateway::broker::NewTopic;
use gateway::turns::Turns;
use kafka_protocol::protocol::StrBytes;
use serde_json::Value;
use store_adapter::ids::{ProducerEpoch, ProducerId};
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::ops;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }
}

/// Sends a request on a connection of its own; with a body, as JSON.
pub(crate) async fn ask(address: &str, method: &str, path: &str, body: Option<&str>) -> Answer {
    let mut client = TcpStream::connect(address).await.unwrap();
    let content = body.map_or_else(String::new, |body| {
        let length = body.len();
        format!("Content-Type: application/json\r\nContent-Length: {length}\r\n")
    });
    let body = body.unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{content}\r\n{body}"
    );
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer {
        status,
        head: head.to_owned(),
        body: body.to_owned(),
    }
}

/// A running broker, asked over HTTP.
pub(crate) struct Site(pub(crate) Gateway);

impl Site {
    pub(crate) async fn start() -> Self {
        let builder = Gateway::builder().ephemeral().set("enable.faults", "true");
        Self(builder.start().await.unwrap()).loaded().await
    }

    /// Awaits that every slot has been taken over, of transactional ids and of groups.
    pub(crate) async fn loaded(self) -> Self {
        let mut pace = tokio::time::interval(Duration::from_millis(20));
        let broker = self.0.broker();
        while broker.txns().slots_loading() + broker.offsets().slots_loading() > 0 {
            pace.tick().await;
        }
        self
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        ask(&self.0.addresses().admin, "GET", path, None).await
    }

    pub(crate) async fn json(&self, path: &str) -> Value {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.json()
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Answer {
        ask(&self.0.addresses().admin, "POST", path, Some(body)).await
    }

    /// Asks until the answer is as `wanted`.
    pub(crate) async fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut pace = tokio::time::interval(Duration::from_millis(20));
        let mut last = Value::Null;
        for _ in 0..3000 {
            pace.tick().await;
            last = self.json(path).await;
            if wanted(&last) {
                return last;
            }
        }
        panic!("{path} stays {last:#}");
    }

    pub(crate) async fn create(&self, topic: &str) {
        let new = NewTopic {
            name: topic.to_owned(),
            partitions: 1,
            configs: [].into(),
        };
        self.0.broker().create_topic(new, false).await.unwrap();
    }

    /// Begins a session of an id. Its transactions outlive the test.
    pub(crate) async fn init(&self, id: &str) -> Session {
        self.init_for(id, 900_000).await
    }

    async fn init_for(&self, id: &str, timeout_ms: i32) -> Session {
        let request = InitProducerId {
            version: 4,
            id_is_empty: false,
            timeout_ms,
            claimed: Session {
                pid: ProducerId(-1),
                epoch: ProducerEpoch(-1),
            },
            client: None,
        };
        let txns = self.0.broker().txns();
        txns.init_producer_id(id, &request).await.unwrap()
    }

    /// Opens a transaction on partition 0 of a topic, with three records there.
    pub(crate) async fn open(&self, id: &str, topic: &str) -> Session {
        self.open_for(id, topic, 900_000).await
    }

    /// The same, with a timeout.
    pub(crate) async fn open_for(&self, id: &str, topic: &str, timeout_ms: i32) -> Session {
        let session = self.init_for(id, timeout_ms).await;
        let broker = self.0.broker();
        let name = StrBytes::from_string(topic.to_owned());
        let named = Named {
            topic: topic.into(),
            topic_id: Some(broker.topic_by_name(&name).unwrap().id),
            partition: 0,
        };
        let (class, named) = (AddClass::Client(3), [named]);
        let txns = broker.txns();
        let added = txns.add_partitions(id, session, &named, class, None).await;
        added.unwrap();
        assert_eq!(self.produce(id, session, topic).await, 0);
        session
    }

    /// The code of three records, once a coordinator that is slow to be asked about them (19) has
    /// answered.
    pub(crate) async fn produce(&self, id: &str, session: Session, topic: &str) -> i16 {
        let mut pace = tokio::time::interval(Duration::from_millis(50));
        for _ in 0..600 {
            pace.tick().await;
            let code = self.produce_once(id, session, topic).await;
            if code != 19 {
                return code;
            }
        }
        panic!("Produce still asks for a retry");
    }

    async fn produce_once(&self, id: &str, session: Session, topic: &str) -> i16 {
        let broker = self.0.broker();
        let spec = BatchSpec {
            producer_id: session.pid.0,
            producer_epoch: session.epoch.0,
            base_sequence: 0,
            attributes: 0x10,
            records: ["a", "b", "c"].map(Record::value).into(),
            timestamp_ms: broker.env().clock.wall_ms(),
        };
        let mut request = ops::produce_request(topic, 0, spec.build());
        let id = StrBytes::from_string(id.to_owned());
        request.transactional_id = Some(id.into());
        let context = RequestContext {
            connection: Arc::new(ConnectionContext {
                id: 1,
                peer: None,
                local: None,
                listener: 0,
                software: OnceLock::new(),
                turns: Turns::default(),
            }),
            version: 9,
            client_id: None,
            received: Duration::ZERO,
            admitted: Admitted::default(),
        };
        let request = ApiRequest::Produce(Box::new(request));
        let staged = broker.call(&context, request).await;
        let Staged::Later(answer) = staged else {
            panic!("{staged:?}");
        };
        let ApiResponse::Produce(response) = answer.await else {
            panic!("another answer");
        };
        response.responses[0].partition_responses[0].error_code
    }
}
