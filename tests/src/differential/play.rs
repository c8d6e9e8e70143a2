//! One script on one broker.

use std::fmt::Debug;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use kafka_protocol::messages::ApiKey;
use kafka_protocol::protocol::Request;

use super::fields::{Line, Names};
use crate::raw::batch::{BatchSpec, Record as Message};
use crate::raw::{RawClient, ops};

/// Around the present, in ms: brokers have clocks and scripts take their time.
const PRESENT: i64 = 120_000;
/// How far the timestamps of batches lie back, in ms, so that none is taken for the present.
const BACK: i64 = 1_800_000;
/// How often something that comes by itself is looked for.
const LOOK: Duration = Duration::from_millis(50);
/// At most so often.
const LOOKS: usize = 1200;

/// What a script does.
pub(super) type Script = for<'a> fn(&'a mut Play) -> BoxFuture<'a, Result<()>>;

/// One answer, or what a script says itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) what: String,
    pub(super) lines: Vec<Line>,
}

/// What a broker did.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) steps: Vec<Step>,
    /// What the script expected by a literal and did not get.
    pub(super) missed: Vec<String>,
}

/// A script's view of the broker.
#[derive(Debug)]
pub struct Play {
    address: String,
    client: RawClient,
    id: &'static str,
    names: Names,
    record: Record,
    /// What the script remembers of before the kill.
    pub(super) facts: Vec<i64>,
}

/// The time, in ms since the epoch.
#[allow(
    clippy::disallowed_methods,
    reason = "records need timestamps that a broker believes"
)]
pub(super) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(0))
}

/// The timestamp of batches: the same for both brokers.
pub(super) fn stamp() -> i64 {
    static STAMP: OnceLock<i64> = OnceLock::new();
    *STAMP.get_or_init(|| now_ms() - BACK)
}

/// Producer id (by its place among those that scripts choose), epoch, base sequence, record count.
#[derive(Debug, Clone, Copy)]
pub(super) struct P(pub i64, pub i16, pub i32, pub usize);

impl P {
    pub(super) fn spec(self) -> BatchSpec {
        let P(id, producer_epoch, base_sequence, count) = self;
        BatchSpec {
            producer_id: if id < 0 { id } else { 7_000_000 + id },
            producer_epoch,
            base_sequence,
            timestamp_ms: stamp(),
            records: (0..count)
                .map(|i| Message::value(format!("v{i}")))
                .collect(),
            ..BatchSpec::default()
        }
    }

    pub(super) fn batch(self) -> Bytes {
        self.spec().build()
    }
}

/// A batch without a producer.
pub(super) fn plain(count: usize) -> Bytes {
    P(-1, -1, -1, count).batch()
}

impl Play {
    /// A script's view, by a connection of its own.
    pub(super) async fn new(address: &str, id: &'static str) -> Result<Self> {
        let now = now_ms();
        Ok(Self {
            address: address.to_owned(),
            client: RawClient::connect(address).await?,
            id,
            names: Names {
                chosen: (7_000_000..7_000_100).collect(),
                now: Some((now - PRESENT, now + 2 * PRESENT)),
                ..Names::default()
            },
            record: Record::default(),
            facts: Vec::new(),
        })
    }

    /// Connects again, when the broker that was killed leads the vector's topic.
    pub(super) async fn again(&mut self, partitions: i32) -> Result<()> {
        self.client = RawClient::connect(&self.address).await?;
        let topic = self.topic();
        ops::await_topic(&mut self.client, &topic, partitions).await?;
        Ok(())
    }

    /// What was recorded.
    pub(super) fn end_of_play(self) -> Record {
        self.record
    }

    /// The vector's topic; `-` and a word behind it for others.
    pub(super) fn topic(&self) -> String {
        format!("of-{}", self.id)
    }

    /// Creates the vector's topic, which is not part of the record.
    pub(super) async fn create(&mut self, partitions: i32, configs: &[(&str, &str)]) -> Result<()> {
        let topic = self.topic();
        ops::create_topic(&mut self.client, &topic, partitions, configs).await?;
        Ok(())
    }

    /// Sends a request and records the answer.
    pub(super) async fn call<R>(&mut self, request: &R, version: i16) -> Result<R::Response>
    where
        R: Request,
        R::Response: Debug,
    {
        let response = self.client.call(request, version).await?;
        self.record(&api(R::KEY), &response);
        Ok(response)
    }

    /// Sends a request whose answer is not part of the record.
    pub(super) async fn ask<R: Request>(
        &mut self,
        request: &R,
        version: i16,
    ) -> Result<R::Response> {
        self.client.call(request, version).await
    }

    /// The connection, for what is not part of the record.
    pub(super) fn client(&mut self) -> &mut RawClient {
        &mut self.client
    }

    /// Another connection.
    pub(super) async fn connect(&self) -> Result<RawClient> {
        RawClient::connect(&self.address).await
    }

    /// Records an answer, or anything else.
    pub(super) fn record(&mut self, what: &str, value: &impl Debug) {
        let lines = self.names.lines(value);
        let what = what.to_owned();
        self.record.steps.push(Step { what, lines });
    }

    /// Expects a literal.
    #[allow(clippy::needless_pass_by_value, reason = "literals are values")]
    pub(super) fn expect<T: Debug + PartialEq>(&mut self, what: &str, got: T, wanted: T) {
        if got != wanted {
            let said = format!("{what}: {got:?} where {wanted:?} is expected");
            self.record.missed.push(said);
        }
    }

    /// Sends one batch to partition 0 of the vector's topic; expects a code and a base offset.
    pub(super) async fn produce(&mut self, batch: Bytes, code: i16, base: i64) -> Result<()> {
        let request = ops::produce_request(&self.topic(), 0, batch);
        let response = self.call(&request, 9).await?;
        let answer = &response.responses[0].partition_responses[0];
        self.expect(
            "Produce",
            (answer.error_code, answer.base_offset),
            (code, base),
        );
        Ok(())
    }

    /// Records the end of partition 0 and expects it.
    pub(super) async fn end(&mut self, end: i64) -> Result<()> {
        let topic = self.topic();
        let ends = ops::list_offsets(&mut self.client, &topic, 1, ops::LATEST).await?;
        self.record("end", &ends[0]);
        self.expect("the end", ends[0], end);
        Ok(())
    }

    /// Sends bytes on a connection of its own and records what becomes of them: `closed`, or the
    /// answer in hexadecimal; expects that.
    pub(super) async fn bytes(&mut self, what: &str, bytes: &[u8], wanted: &str) -> Result<()> {
        let mut client = self.connect().await?;
        // A broker may close before it has everything.
        client.send_bytes(bytes).await.ok();
        let seen = match client.receive_frame().await {
            Ok(Some(frame)) => frame
                .iter()
                .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}")),
            Ok(None) => "closed".to_owned(),
            Err(error) => error.to_string(),
        };
        self.record(what, &seen);
        self.expect(what, seen.as_str(), wanted);
        Ok(())
    }

    /// Asks again until an answer is as it should be; the answers are not part of the record.
    pub(super) async fn until<R: Request>(
        &mut self,
        request: &R,
        version: i16,
        good: impl Fn(&R::Response) -> bool,
    ) -> Result<R::Response> {
        let mut pace = tokio::time::interval(LOOK);
        for _ in 0..LOOKS {
            pace.tick().await;
            let response = self.ask(request, version).await?;
            if good(&response) {
                return Ok(response);
            }
        }
        bail!("{}: never came", api(R::KEY))
    }
}

/// Kafka's name of an api.
fn api(key: i16) -> String {
    ApiKey::try_from(key).map_or_else(|()| key.to_string(), |key| format!("{key:?}"))
}

/// The only partition of an answer.
pub(super) fn only<T>(all: &[T]) -> Result<&T> {
    let [one] = all else {
        bail!("{} elements where one is due", all.len());
    };
    Ok(one)
}
