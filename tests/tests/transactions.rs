//! Transactions below the wire: the services of one broker as production composes them, on a volume
//! in memory that outlives kill -9 and power cuts. The coordinator is asked as handlers ask it.

#![allow(missing_docs, reason = "a test")]

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use coordinator::machine::txn::{
    AddClass, Added, EndTxn, InitProducerId, Named, Session, TxnError, TxnState,
};
use coordinator::volume::format::{Extra, MarkerQueueFile, TopicPartitionsEntry, encode};
use coordinator::volume::layout::Place;
use futures_util::FutureExt;
use gateway::admitted::Admitted;
use gateway::api::{ApiRequest, ApiResponse, ConnectionContext, RequestContext, Staged};
use gateway::boot::{BootConfig, Outside, Running};
use gateway::broker::{BrokerConfig, NewTopic, NoPeers};
use gateway::partition::{Isolation, Partition};
use gateway::turns::Turns;
use kafka_protocol::messages::{EndTxnRequest, TransactionalId};
use kafka_protocol::protocol::StrBytes;
use store_adapter::control::EndTxnMarker;
use store_adapter::ids::{BrokerId, ProducerEpoch, ProducerId};
use store_adapter::journal::MemoryIndex;
use store_adapter::local::{FixedHost, MemoryIdentity};
use store_adapter::runtime::{BoxFuture, Clock, Env};
use store_adapter::store::{Passed, StoredBatch};
use store_adapter::volume::memory::{Step, StepFault, StepHook, StepOutcome};
use store_adapter::volume::{MemoryVolume, Volume, VolumePath};
use tests::lone;
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::ops;
use tokio::sync::{Notify, watch};

/// How the volume of one process behaves.
#[derive(Debug, Default)]
struct Steps {
    /// The process is dead: nothing that it still does happens.
    dead: AtomicBool,
    /// Journal files can't be written.
    no_journal: AtomicBool,
    /// Group slots can't be taken over.
    no_groups: AtomicBool,
    /// The process dies at the step of this number that changes something, if it is counted.
    dies_at: AtomicI64,
    counts: AtomicBool,
    /// It has died so.
    died: Notify,
    /// Steps on files of fences.
    fences: AtomicU32,
    /// Steps below this wait.
    stalled: watch::Sender<Option<String>>,
    /// Steps that have begun to wait.
    held: AtomicU32,
}

impl StepHook for Steps {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let path = step.path.as_str();
        if self.counts.load(Ordering::SeqCst)
            && step.op.changes()
            && self.dies_at.fetch_sub(1, Ordering::SeqCst) == 0
        {
            self.dead.store(true, Ordering::SeqCst);
            self.died.notify_one();
        }
        let outcome = if self.dead.load(Ordering::SeqCst) {
            StepOutcome::Stop
        } else if self.no_journal.load(Ordering::SeqCst)
            && path.rsplit_once('.').is_some_and(|(_, end)| end == "log")
            || self.no_groups.load(Ordering::SeqCst) && path.contains("owners/group-slot-")
        {
            StepOutcome::Fail(StepFault::Io)
        } else {
            StepOutcome::Proceed
        };
        if path.contains("producer_fences") && step.op.changes() {
            self.fences.fetch_add(1, Ordering::SeqCst);
        }
        let (mut stalled, path) = (self.stalled.subscribe(), path.to_owned());
        let goes_on = move |below: &Option<String>| {
            below
                .as_ref()
                .is_none_or(|below| !path.contains(below.as_str()))
        };
        let held = !goes_on(&stalled.borrow());
        self.held.fetch_add(u32::from(held), Ordering::SeqCst);
        Box::pin(async move {
            // One that is never released waits for ever.
            drop(stalled.wait_for(goes_on).await);
            outcome
        })
    }
}

/// A clock that is so slow that nobody gives a coordinator up.
#[derive(Debug)]
struct Patient(Arc<dyn Clock>);

const SLOWER: u32 = 1_000;

impl Clock for Patient {
    fn wall_ms(&self) -> i64 {
        self.0.wall_ms()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic() / SLOWER
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration.saturating_mul(SLOWER))
    }
}

/// A clock that goes ahead when it is told to.
#[derive(Debug)]
struct Ahead {
    clock: Arc<dyn Clock>,
    by_ms: AtomicI64,
}

impl Clock for Ahead {
    fn wall_ms(&self) -> i64 {
        self.clock.wall_ms() + self.by_ms.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(duration)
    }
}

/// What outlives processes.
struct Site {
    volume: MemoryVolume,
    identity: Arc<MemoryIdentity>,
    processes: AtomicU32,
}

/// A process.
struct Process {
    running: Running,
    steps: Arc<Steps>,
}

impl Site {
    fn new() -> Self {
        Self {
            volume: MemoryVolume::new(),
            identity: Arc::default(),
            processes: AtomicU32::new(0),
        }
    }

    async fn start(&self) -> Process {
        self.start_with(|_| {}).await
    }

    async fn start_with(&self, change: impl FnOnce(&mut BrokerConfig)) -> Process {
        self.start_on(Steps::default(), change).await
    }

    async fn start_on(&self, steps: Steps, change: impl FnOnce(&mut BrokerConfig)) -> Process {
        self.start_in(Env::real(), steps, change).await
    }

    async fn start_in(
        &self,
        env: Env,
        steps: Steps,
        change: impl FnOnce(&mut BrokerConfig),
    ) -> Process {
        let pid = self.processes.fetch_add(1, Ordering::SeqCst) + 1;
        let steps = Arc::new(steps);
        let host = FixedHost {
            name: "one".to_owned(),
            boot_id: "boot".to_owned(),
            pid,
            start_time: u64::from(pid),
            running: Vec::new(),
        };
        let hook: Arc<dyn StepHook> = steps.clone();
        let outside = Outside {
            volume: Arc::new(self.volume.mount(hook, None)),
            host: Arc::new(host),
            identity: self.identity.clone(),
            index: Arc::new(MemoryIndex::new()),
            peers: Arc::new(NoPeers),
        };
        let mut config = config();
        change(&mut config.broker);
        let running = Running::start(env, outside, config).await.unwrap();
        let process = Process { running, steps };
        process
            .until(|p| p.running.broker.txns().slots_loading() == 0)
            .await;
        process
    }
}

/// No pass begins by itself.
fn config() -> BootConfig {
    let mut config = lone::config();
    let broker = &mut config.broker;
    broker.txn_reap_interval = Duration::from_hours(1);
    broker.txn_reconcile_interval = Duration::from_hours(1);
    broker.txn_poll_interval = Duration::from_hours(1);
    config
}

const IMPLICIT: i16 = 12;

impl Process {
    /// kill -9.
    fn kill(self) {
        self.steps.dead.store(true, Ordering::SeqCst);
    }

    /// Waits for what comes without being asked for.
    async fn until(&self, is: impl Fn(&Self) -> bool) {
        let mut pace = tokio::time::interval(Duration::from_millis(5));
        for _ in 0..12_000 {
            if is(self) {
                return;
            }
            pace.tick().await;
        }
        panic!("it never comes");
    }

    async fn create(&self, name: &str) -> Arc<Partition> {
        let new = NewTopic {
            name: name.to_owned(),
            partitions: 1,
            configs: [].into(),
        };
        let created = self.running.broker.create_topic(new, false).await;
        created.unwrap();
        self.partition(name)
    }

    fn partition(&self, name: &str) -> Arc<Partition> {
        let topic = StrBytes::from_string(name.to_owned());
        let topic = self.running.broker.topic_by_name(&topic).unwrap();
        topic.partitions[0].clone()
    }

    async fn init(&self, id: &str) -> Result<Session, TxnError> {
        let request = InitProducerId {
            version: 5,
            id_is_empty: false,
            timeout_ms: 60_000,
            claimed: session(-1, -1),
            client: None,
        };
        let txns = self.running.broker.txns();
        settled(async || txns.init_producer_id(id, &request).await).await
    }

    async fn add(&self, id: &str, session: Session, topics: &[&str]) -> Result<Added, TxnError> {
        let named: Vec<Named> = topics
            .iter()
            .map(|topic| Named {
                topic: (*topic).into(),
                topic_id: Some(self.partition(topic).id().topic),
                partition: 0,
            })
            .collect();
        let class = AddClass::Client(3);
        let txns = self.running.broker.txns();
        settled(async || txns.add_partitions(id, session, &named, class, None).await).await
    }

    async fn add_group(&self, id: &str, session: Session, group: &str) -> Result<Added, TxnError> {
        let class = AddClass::Client(3);
        let txns = self.running.broker.txns();
        let group: Arc<str> = group.into();
        settled(async || txns.add_groups(id, session, &group, class, None).await).await
    }

    async fn end(
        &self,
        id: &str,
        version: i16,
        session: Session,
        commit: bool,
    ) -> Result<Option<Session>, TxnError> {
        settled(async || self.end_once(id, version, session, commit).await).await
    }

    async fn end_once(
        &self,
        id: &str,
        version: i16,
        session: Session,
        commit: bool,
    ) -> Result<Option<Session>, TxnError> {
        let request = EndTxn {
            version,
            session,
            commit,
            client: None,
        };
        self.running.broker.txns().end_txn(id, &request).await
    }

    fn state(&self, id: &str) -> TxnState {
        let entry = self.running.broker.txns().describe(id).unwrap();
        entry.unwrap().state
    }

    /// Sends a batch of one record; code and base offset, once a coordinator that is slow to be
    /// asked about it has answered.
    async fn produce(
        &self,
        version: i16,
        id: Option<&str>,
        topic: &str,
        batch: (Session, i32),
    ) -> (i16, i64) {
        let mut pace = tokio::time::interval(Duration::from_millis(50));
        for _ in 0..600 {
            pace.tick().await;
            let sent = self.produce_once(version, id, topic, batch).await;
            if ![19, 51].contains(&sent.0) {
                return sent;
            }
        }
        panic!("Produce still asks for a retry");
    }

    async fn produce_once(
        &self,
        version: i16,
        id: Option<&str>,
        topic: &str,
        batch: (Session, i32),
    ) -> (i16, i64) {
        let context = context(version);
        produced(self.order(&context, id, topic, batch).await).await
    }

    /// The first stage of a request with a batch of one record.
    async fn order(
        &self,
        context: &RequestContext,
        id: Option<&str>,
        topic: &str,
        (session, sequence): (Session, i32),
    ) -> Staged<ApiResponse> {
        let spec = BatchSpec {
            producer_id: session.pid.0,
            producer_epoch: session.epoch.0,
            base_sequence: sequence,
            attributes: if id.is_some() { 0x10 } else { 0 },
            records: vec![Record::value("v")],
            ..BatchSpec::default()
        };
        let mut request = ops::produce_request(topic, 0, spec.build());
        let own = |id: &str| TransactionalId(StrBytes::from_string(id.to_owned()));
        request.transactional_id = id.map(own);
        let request = ApiRequest::Produce(Box::new(request));
        self.running.broker.call(context, request).await
    }
}

/// What a coordinator answers once what passes has passed.
async fn settled<T>(ask: impl AsyncFn() -> Result<T, TxnError>) -> Result<T, TxnError> {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..600 {
        pace.tick().await;
        match ask().await {
            Err(
                TxnError::ConcurrentTransactions
                | TxnError::CoordinatorLoading
                | TxnError::CoordinatorNotAvailable
                | TxnError::NotCoordinator,
            ) => {}
            answer => return answer,
        }
    }
    panic!("the coordinator still asks for a retry");
}

/// Code and base offset of the one batch of a request.
async fn produced(staged: Staged<ApiResponse>) -> (i16, i64) {
    let Staged::Later(answer) = staged else {
        panic!("{staged:?}");
    };
    let ApiResponse::Produce(response) = answer.await else {
        panic!("another answer");
    };
    let partition = &response.responses[0].partition_responses[0];
    (partition.error_code, partition.base_offset)
}

fn context(version: i16) -> RequestContext {
    RequestContext {
        connection: Arc::new(ConnectionContext {
            id: 1,
            peer: None,
            local: None,
            listener: 0,
            software: OnceLock::new(),
            turns: Turns::default(),
        }),
        version,
        client_id: None,
        received: Duration::ZERO,
        admitted: Admitted::default(),
    }
}

fn session(pid: i64, epoch: i16) -> Session {
    Session {
        pid: ProducerId(pid),
        epoch: ProducerEpoch(epoch),
    }
}

fn at_epoch(session: Session, epoch: i16) -> Session {
    Session {
        epoch: ProducerEpoch(epoch),
        ..session
    }
}

/// High watermark and last stable offset.
fn ends(led: &Partition) -> (i64, i64) {
    let visible = led.visible();
    (visible.high_watermark, visible.last_stable)
}

/// Direction and number of every marker in the log, with its offset.
async fn markers(led: &Partition) -> Vec<(i64, bool, Option<u64>)> {
    let read = led.read(0, 1 << 20, Isolation::ReadUncommitted).await;
    let read = read.unwrap();
    let marker = |batch: StoredBatch| {
        let marker = EndTxnMarker::read(&batch.bytes)?;
        Some((batch.base_offset, marker.commit, marker.txn_seq))
    };
    let batches = read.batches.into_iter().filter_map(Passed::read);
    batches.filter_map(marker).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_batch_below_v12_must_be_of_the_transaction() {
    let site = Site::new();
    let one = site.start().await;
    let (a, b) = (one.create("a").await, one.create("b").await);
    let me = one.init("tx").await.unwrap();
    // In no transaction: by version, as Kafka answers. Nothing is appended.
    for (version, code) in [(9, 48), (10, 48), (11, 120)] {
        let sent = one.produce(version, Some("tx"), "a", (me, 0)).await;
        assert_eq!(sent, (code, -1), "v{version}");
    }
    // T13, and the epoch: whoever asks is not the session.
    let other = session(me.pid.0 + 1, 0);
    assert_eq!(one.produce(9, Some("tx"), "a", (other, 0)).await.0, 49);
    assert_eq!(one.produce(9, Some("none"), "a", (me, 0)).await.0, 49);
    assert_eq!(
        one.produce(9, Some("tx"), "a", (at_epoch(me, 1), 0))
            .await
            .0,
        47
    );
    // T34.
    assert_eq!(ends(&a), (0, 0));
    assert_eq!(one.add("tx", me, &["a"]).await, Ok(Added::InTxn(1)));
    assert_eq!(one.produce(9, Some("tx"), "a", (me, 0)).await, (0, 0));
    assert_eq!(one.produce(9, Some("tx"), "a", (me, 1)).await, (0, 1));
    assert_eq!(one.produce(9, Some("tx"), "b", (me, 0)).await, (48, -1));
    // T35: an open transaction refuses what is outside of it.
    assert_eq!(one.produce(9, None, "a", (me, 2)).await.0, 48);
    assert_eq!((ends(&a), ends(&b)), ((2, 0), (0, 0)));
    // T20: the marker carries the epoch of the records.
    assert_eq!(one.end("tx", 3, me, true).await, Ok(None));
    assert_eq!(ends(&a), (3, 3));
    assert_eq!(markers(&a).await, [(2, true, Some(1))]);
    // T49: sequences go on in the next transaction of the session.
    assert_eq!(one.add("tx", me, &["a"]).await, Ok(Added::InTxn(2)));
    assert_eq!(one.produce(9, Some("tx"), "a", (me, 5)).await.0, 45);
    assert_eq!(one.produce(9, Some("tx"), "a", (me, 2)).await, (0, 3));
    assert_eq!(one.end("tx", 3, me, false).await, Ok(None));
    let read = a.read(0, 1 << 20, Isolation::ReadCommitted).await.unwrap();
    assert_eq!(read.aborted, Some(vec![(me.pid.0, 3)]));
    assert_eq!(ends(&a), (5, 5));
    one.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_verification_nobody_is_asked_below_v12() {
    let site = Site::new();
    let off = |config: &mut BrokerConfig| config.txn_partition_verification = false;
    let one = site.start_with(off).await;
    let a = one.create("a").await;
    let me = one.init("tx").await.unwrap();
    assert_eq!(one.produce(11, Some("tx"), "a", (me, 0)).await, (0, 0));
    assert_eq!(ends(&a), (1, 0));
    // From v12 on the batch adds its partition all the same.
    let another = one.init("ty").await.unwrap();
    let a_first = one.produce(IMPLICIT, Some("ty"), "a", (another, 0)).await;
    assert_eq!((a_first, one.state("ty")), ((0, 1), TxnState::Ongoing));
    one.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_v12_on_a_first_batch_adds_its_partition() {
    let site = Site::new();
    let one = site.start().await;
    let (a, b) = (one.create("a").await, one.create("b").await);
    let me = one.init("tx").await.unwrap();
    // An unknown producer begins at 0; the refused batch has no record, the partition is added.
    assert_eq!(one.produce(IMPLICIT, Some("tx"), "b", (me, 3)).await.0, 45);
    assert_eq!(
        one.produce(IMPLICIT, Some("tx"), "a", (me, 0)).await,
        (0, 0)
    );
    let entry = one.running.broker.txns().describe("tx").unwrap().unwrap();
    assert_eq!((entry.state, entry.txn_seq), (TxnState::Ongoing, 1));
    let topics: Vec<&str> = entry.partitions.keys().map(|topic| &**topic).collect();
    assert_eq!(topics, ["a", "b"]);
    // T23: the marker carries the next epoch, of which the session is told.
    let next = at_epoch(me, 1);
    assert_eq!(one.end("tx", 5, me, true).await, Ok(Some(next)));
    assert_eq!((ends(&a), ends(&b)), ((2, 2), (1, 1)));
    assert_eq!(one.produce(IMPLICIT, Some("tx"), "a", (me, 1)).await.0, 47);
    // T50.
    assert_eq!(
        one.produce(IMPLICIT, Some("tx"), "a", (next, 1)).await.0,
        45
    );
    assert_eq!(
        one.produce(IMPLICIT, Some("tx"), "a", (next, 0)).await,
        (0, 2)
    );
    assert_eq!(ends(&a), (3, 2));
    one.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_waits_for_its_coordinator_holds_no_other_up() {
    let site = Site::new();
    let mut env = Env::real();
    env.clock = Arc::new(Patient(env.clock));
    let one = site.start_in(env, Steps::default(), |_| {}).await;
    let led = one.create("a").await;
    let (slow, other) = (one.init("slow").await, one.init("other").await);
    let (slow, other) = (slow.unwrap(), other.unwrap());
    let slot = |id: &str| one.running.broker.txns().slot_of(id);
    assert_ne!(slot("slow"), slot("other"));
    let area = format!("owners/txn-slot-{}/", slot("slow"));
    one.steps.stalled.send_replace(Some(area));
    let on = context(12);
    let first = one.order(&on, Some("slow"), "a", (slow, 0)).await;
    // Others pass, on the same connection.
    let passes = one.order(&on, Some("other"), "a", (other, 0)).await;
    assert_eq!(produced(passes).await, (0, 0));
    // Its own producer does not, nor does what has no place beside transactions.
    let mut second = Box::pin(one.order(&on, Some("slow"), "a", (slow, 1)));
    assert!((&mut second).now_or_never().is_none());
    let mut plain = Box::pin(one.order(&on, None, "a", (session(-1, -1), -1)));
    assert!((&mut plain).now_or_never().is_none());
    let other_ends = ApiRequest::EndTxn(Box::new(
        EndTxnRequest::default()
            .with_transactional_id(TransactionalId(StrBytes::from_static_str("other")))
            .with_producer_id(other.pid.0.into())
            .with_producer_epoch(other.epoch.0)
            .with_committed(true),
    ));
    let on_v5 = RequestContext {
        version: 5,
        ..on.clone()
    };
    let Staged::Later(ended) = one.running.broker.call(&on_v5, other_ends).await else {
        panic!("ended at once");
    };
    let ApiResponse::EndTxn(ended) = ended.await else {
        panic!("another answer");
    };
    assert_eq!(ended.error_code, 0);
    assert_eq!(markers(&led).await, [(1, true, Some(1))]);

    one.steps.stalled.send_replace(None);
    assert_eq!(produced(first).await, (0, 2));
    assert_eq!(produced(second.await).await, (0, 3));
    assert_eq!(produced(plain.await).await, (0, 4));
}

/// A Produce of one record of a transaction to `a`, and one of the idempotent producer 77 to `b`.
fn mixed(id: &'static str, session: Session, sequence: i32) -> ApiRequest {
    let of = |topic, producer: (i64, i16, i32), attributes| {
        let spec = BatchSpec {
            producer_id: producer.0,
            producer_epoch: producer.1,
            base_sequence: producer.2,
            attributes,
            records: vec![Record::value("v")],
            ..BatchSpec::default()
        };
        ops::produce_request(topic, 0, spec.build())
    };
    let mut request = of("a", (session.pid.0, session.epoch.0, 0), 0x10);
    let other = of("b", (77, 0, sequence), 0);
    request.topic_data.extend(other.topic_data);
    request.transactional_id = Some(TransactionalId(StrBytes::from_static_str(id)));
    ApiRequest::Produce(Box::new(request))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_concerns_the_same_keeps_its_order_on_a_connection() {
    let site = Site::new();
    let mut env = Env::real();
    env.clock = Arc::new(Patient(env.clock));
    let one = site.start_in(env, Steps::default(), |_| {}).await;
    one.create("a").await;
    one.create("b").await;
    let (slow, other) = (one.init("slow").await, one.init("other").await);
    let (slow, other) = (slow.unwrap(), other.unwrap());
    let stalled = || {
        let slot = one.running.broker.txns().slot_of("slow");
        let area = format!("owners/txn-slot-{slot}/");
        one.steps.stalled.send_replace(Some(area));
    };
    let on = context(12);
    // Batches of no transaction wait with those that they came with.
    stalled();
    let broker = &one.running.broker;
    let first = broker.call(&on, mixed("slow", slow, 0)).await;
    let mut second = Box::pin(broker.call(&on, mixed("other", other, 1)));
    assert!((&mut second).now_or_never().is_none());
    one.steps.stalled.send_replace(None);
    let codes = async |staged: Staged<ApiResponse>| {
        let Staged::Later(answer) = staged else {
            panic!("{staged:?}");
        };
        let ApiResponse::Produce(response) = answer.await else {
            panic!("another answer");
        };
        let topics = response.responses.iter();
        let partitions = topics.map(|topic| &topic.partition_responses[0]);
        partitions
            .map(|partition| (partition.error_code, partition.base_offset))
            .collect::<Vec<_>>()
    };
    assert_eq!(codes(first).await, [(0, 0), (0, 0)]);
    assert_eq!(codes(second.await).await, [(0, 1), (0, 1)]);
    // A batch waits for what its transactional id was sent before.
    stalled();
    let ends = EndTxnRequest::default()
        .with_transactional_id(TransactionalId(StrBytes::from_static_str("slow")))
        .with_producer_id(slow.pid.0.into())
        .with_producer_epoch(slow.epoch.0)
        .with_committed(true);
    let on_v5 = RequestContext {
        version: 5,
        ..on.clone()
    };
    let ends = ApiRequest::EndTxn(Box::new(ends));
    let Staged::Later(ended) = broker.call(&on_v5, ends).await else {
        panic!("ended at once");
    };
    let next = at_epoch(slow, slow.epoch.0 + 1);
    let mut begins = Box::pin(one.order(&on, Some("slow"), "a", (next, 0)));
    assert!((&mut begins).now_or_never().is_none());
    let passes = one.order(&on, Some("other"), "a", (other, 1)).await;
    assert_eq!(produced(passes).await, (0, 2));
    one.steps.stalled.send_replace(None);
    let ApiResponse::EndTxn(ended) = ended.await else {
        panic!("another answer");
    };
    assert_eq!((ended.error_code, ended.producer_epoch), (0, next.epoch.0));
    // Behind the marker.
    assert_eq!(produced(begins.await).await, (0, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn t37_a_transaction_that_is_not_finished_holds_the_next_one() {
    let site = Site::new();
    let one = site.start().await;
    let (a, _) = (one.create("a").await, one.create("c").await);
    let me = one.init("tx").await.unwrap();
    one.add("tx", me, &["a"]).await.unwrap();
    assert_eq!(one.produce(9, Some("tx"), "a", (me, 0)).await, (0, 0));
    one.steps.no_journal.store(true, Ordering::SeqCst);
    let late = one.end_once("tx", 3, me, true).await;
    assert_eq!(late, Err(TxnError::CoordinatorNotAvailable));
    assert_eq!(one.state("tx"), TxnState::PrepareCommit);
    let late = one.produce_once(9, Some("tx"), "c", (me, 0)).await;
    assert_eq!(late, (19, -1));
    let late = one.produce_once(11, Some("tx"), "c", (me, 0)).await;
    assert_eq!(late, (19, -1));
    let late = one.produce_once(IMPLICIT, Some("tx"), "c", (me, 0)).await;
    assert_eq!(late, (51, -1));
    // What comes again comes first.
    assert_eq!(ends(&a).1, 0);
    one.steps.no_journal.store(false, Ordering::SeqCst);
    one.until(|one| one.running.broker.condition().offline == 0)
        .await;
    let txns = one.running.broker.txns().clone();
    while txns.reconcile("tx").await != Ok(true) {
        tokio::task::yield_now().await;
    }
    assert_eq!(ends(&one.partition("a")), (2, 2));
    assert_eq!(markers(&one.partition("a")).await, [(1, true, Some(1))]);
    one.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_kill_9_everything_is_as_it_was() {
    for cut in [false, true] {
        let site = Site::new();
        let one = site.start().await;
        one.create("a").await;
        let [x, y] = [one.init("x").await.unwrap(), one.init("y").await.unwrap()];
        assert_eq!(one.produce(IMPLICIT, Some("x"), "a", (x, 0)).await, (0, 0));
        assert_eq!(one.produce(IMPLICIT, Some("y"), "a", (y, 0)).await, (0, 1));
        let x = one.end("x", 5, x, false).await.unwrap().unwrap();
        assert_eq!(one.produce(IMPLICIT, Some("x"), "a", (x, 0)).await, (0, 3));
        let before = one.partition("a").snapshot().image;
        one.kill();
        if cut {
            site.volume.power_cut(7);
        }
        let two = site.start().await;
        let a = two.partition("a");
        assert_eq!(a.snapshot().image, before);
        assert_eq!(ends(&a), (4, 1));
        // What was open goes on without asking; what is repeated is answered as before.
        assert_eq!(two.produce(IMPLICIT, Some("y"), "a", (y, 1)).await, (0, 4));
        assert_eq!(two.produce(IMPLICIT, Some("y"), "a", (y, 0)).await, (0, 1));
        assert_eq!(
            two.produce(IMPLICIT, Some("x"), "a", (at_epoch(x, 0), 0))
                .await
                .0,
            47
        );
        two.end("y", 5, y, true).await.unwrap();
        assert_eq!(ends(&a), (6, 3));
        two.end("x", 5, x, false).await.unwrap();
        assert_eq!(ends(&a), (7, 7));
        let read = a.read(0, 1 << 20, Isolation::ReadCommitted).await.unwrap();
        let pid = x.pid.0;
        assert_eq!(read.aborted, Some(vec![(pid, 0), (pid, 3)]));
        two.kill();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t47_a_crash_between_decision_and_markers_is_finished_once() {
    let site = Site::new();
    let one = site.start().await;
    one.create("a").await;
    let me = one.init("tx").await.unwrap();
    one.produce(IMPLICIT, Some("tx"), "a", (me, 0)).await;
    one.steps.no_journal.store(true, Ordering::SeqCst);
    one.end_once("tx", 5, me, true).await.unwrap_err();
    one.kill();
    site.volume.power_cut(9);
    let two = site.start().await;
    two.until(|two| two.state("tx") == TxnState::CompleteCommit)
        .await;
    let a = two.partition("a");
    assert_eq!(ends(&a), (2, 2));
    // Its retry is told the same; nothing is written a second time, also after the next crash,
    // which finds it decided again.
    let next = Ok(Some(at_epoch(me, 1)));
    assert_eq!(two.end("tx", 5, me, true).await, next);
    two.kill();
    let three = site.start().await;
    three
        .until(|three| three.state("tx") == TxnState::CompleteCommit)
        .await;
    assert_eq!(three.end("tx", 5, me, true).await, next);
    assert_eq!(markers(&three.partition("a")).await, [(1, true, Some(1))]);
    three.kill();
}

/// A broker that dies at a step of the end of a transaction on two partitions and a group; the step
/// that it had, and what the client heard, if it lived on.
async fn dies_at(site: &Site, step: i64) -> (Session, Option<Result<Option<Session>, TxnError>>) {
    let one = site.start().await;
    for name in ["a", "b"] {
        one.create(name).await;
    }
    // A timeout that is over when somebody looks.
    let request = InitProducerId {
        version: 5,
        id_is_empty: false,
        timeout_ms: 1,
        claimed: session(-1, -1),
        client: None,
    };
    let txns = one.running.broker.txns();
    let me = txns.init_producer_id("tx", &request).await.unwrap();
    for topic in ["a", "b"] {
        let sent = one.produce(IMPLICIT, Some("tx"), topic, (me, 0)).await;
        assert_eq!(sent, (0, 0));
    }
    one.add_group("tx", me, "g").await.unwrap();
    one.until(|one| one.running.broker.offsets().slots_loading() == 0)
        .await;
    one.steps.dies_at.store(step, Ordering::SeqCst);
    one.steps.counts.store(true, Ordering::SeqCst);
    let ended = tokio::select! {
        biased;
        () = one.steps.died.notified() => None,
        ended = one.end("tx", 5, me, true) => Some(ended),
    };
    one.kill();
    (me, ended)
}

#[tokio::test(flavor = "multi_thread")]
async fn t46_t47_a_crash_at_any_step_of_an_end_decides_all_or_nothing() {
    let (mut open, mut decided) = (0, 0);
    for step in 0.. {
        let site = Site::new();
        let (me, ended) = dies_at(&site, step).await;
        site.volume.power_cut(u64::try_from(step).unwrap());
        let two = site.start().await;
        if two.state("tx") == TxnState::Ongoing {
            // T46: nothing was decided, and nothing is until it is reaped.
            assert_eq!(ended, None, "step {step}");
            open += 1;
            for topic in ["a", "b"] {
                let led = two.partition(topic);
                assert_eq!((ends(&led), markers(&led).await), ((1, 0), vec![]));
            }
            two.kill();
            let quick = |config: &mut BrokerConfig| {
                config.txn_reap_interval = Duration::from_millis(10);
            };
            let three = site.start_with(quick).await;
            three
                .until(|three| three.state("tx") == TxnState::CompleteAbort)
                .await;
            for topic in ["a", "b"] {
                let found = markers(&three.partition(topic)).await;
                assert_eq!(found, [(1, false, Some(1))], "step {step}, {topic}");
            }
            three.kill();
        } else {
            decided += 1;
            // T47: what has its marker gets no second one.
            two.until(|two| two.state("tx") == TxnState::CompleteCommit)
                .await;
            for topic in ["a", "b"] {
                let found = markers(&two.partition(topic)).await;
                assert_eq!(found, [(1, true, Some(1))], "step {step}, {topic}");
            }
            let next = Ok(Some(at_epoch(me, 1)));
            assert_eq!(two.end("tx", 5, me, true).await, next, "step {step}");
            two.kill();
        }
        if let Some(ended) = ended {
            assert_eq!(ended, Ok(Some(at_epoch(me, 1))), "step {step}");
            break;
        }
    }
    assert!(open > 2 && decided > 3, "{open} open, {decided} decided");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_decided_is_finished_as_soon_as_its_groups_are_read() {
    let site = Site::new();
    let one = site.start().await;
    one.create("a").await;
    let me = one.init("tx").await.unwrap();
    one.produce(IMPLICIT, Some("tx"), "a", (me, 0)).await;
    one.add_group("tx", me, "g").await.unwrap();
    one.steps.no_journal.store(true, Ordering::SeqCst);
    one.end_once("tx", 5, me, true).await.unwrap_err();
    one.kill();
    let steps = Steps {
        no_groups: AtomicBool::new(true),
        ..Steps::default()
    };
    let two = site.start_on(steps, |_| {}).await;
    // The marker is there: it has been looked at, and the group can't be decided.
    let partition = two.partition("a");
    two.until(|_| ends(&partition).0 == 2).await;
    assert_eq!(two.state("tx"), TxnState::PrepareCommit);
    two.steps.no_groups.store(false, Ordering::SeqCst);
    // The next pass comes in an hour.
    two.until(|two| two.state("tx") == TxnState::CompleteCommit)
        .await;
    two.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_is_in_force_on_every_partition_and_outlives_the_process() {
    let site = Site::new();
    let one = site.start().await;
    for name in ["a", "b"] {
        one.create(name).await;
    }
    let old = one.init("tx").await.unwrap();
    one.produce(IMPLICIT, Some("tx"), "a", (old, 0)).await;
    let new = one.init("tx").await.unwrap();
    assert_eq!(new, at_epoch(old, 2));
    assert_eq!(markers(&one.partition("a")).await, [(1, false, Some(1))]);
    assert!(one.steps.fences.load(Ordering::SeqCst) > 0);
    // Also on one that no session ever touched, and by whoever has the number.
    for (version, id) in [(IMPLICIT, Some("tx")), (9, Some("tx")), (9, None)] {
        for topic in ["a", "b"] {
            let zombie = one.produce(version, id, topic, (old, 0)).await;
            assert_eq!(zombie.0, 47, "v{version} {id:?} {topic}");
        }
    }
    assert_eq!(ends(&one.partition("b")), (0, 0));
    one.kill();
    site.volume.power_cut(11);
    let two = site.start().await;
    assert_eq!(two.produce(9, None, "b", (old, 0)).await.0, 47);
    assert_eq!(two.produce(9, None, "b", (at_epoch(old, 1), 0)).await.0, 47);
    assert_eq!(two.produce(9, None, "b", (new, 0)).await, (0, 0));
    two.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn t31_t32_what_takes_too_long_is_aborted_and_fenced() {
    let site = Site::new();
    let quick = |config: &mut BrokerConfig| {
        config.txn_reap_interval = Duration::from_millis(10);
    };
    let one = site.start_with(quick).await;
    let (a, b) = (one.create("a").await, one.create("b").await);
    let request = InitProducerId {
        version: 5,
        id_is_empty: false,
        timeout_ms: 1,
        claimed: session(-1, -1),
        client: None,
    };
    let txns = one.running.broker.txns();
    let me = txns.init_producer_id("tx", &request).await.unwrap();
    one.add("tx", me, &["a", "b"]).await.unwrap();
    one.until(|one| one.state("tx") == TxnState::CompleteAbort)
        .await;
    for led in [&a, &b] {
        assert_eq!(markers(led).await, [(0, false, Some(1))]);
    }
    assert_eq!(one.produce(9, Some("tx"), "a", (me, 0)).await.0, 47);
    assert_eq!(
        one.end("tx", 3, me, true).await,
        Err(TxnError::ProducerFenced)
    );
    assert_eq!(
        one.end("tx", 1, me, true).await,
        Err(TxnError::InvalidProducerEpoch)
    );
    one.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_whose_slot_hangs_does_not_keep_the_reaper_from_others() {
    let site = Site::new();
    let mut env = Env::real();
    let clock = Arc::new(Ahead {
        clock: env.clock,
        by_ms: AtomicI64::new(0),
    });
    env.clock = clock.clone();
    let quick = |config: &mut BrokerConfig| {
        config.txn_reap_interval = Duration::from_millis(10);
    };
    let one = site.start_in(env, Steps::default(), quick).await;
    let a = one.create("a").await;
    let txns = one.running.broker.txns();
    assert_ne!(txns.slot_of("slow"), txns.slot_of("other"));
    let slow = one.init("slow").await.unwrap();
    one.add("slow", slow, &["a"]).await.unwrap();
    let area = format!("owners/txn-slot-{}/", txns.slot_of("slow"));
    one.steps.stalled.send_replace(Some(area));
    clock.by_ms.fetch_add(3_600_000, Ordering::SeqCst);
    one.until(|one| one.steps.held.load(Ordering::SeqCst) > 0)
        .await;
    // The reaper is at it. What is overdue later has its turn all the same.
    let other = one.init("other").await.unwrap();
    one.add("other", other, &["a"]).await.unwrap();
    clock.by_ms.fetch_add(3_600_000, Ordering::SeqCst);
    one.until(|one| one.state("other") == TxnState::CompleteAbort)
        .await;
    assert_eq!(one.state("slow"), TxnState::Ongoing);
    one.steps.stalled.send_replace(None);
    one.until(|one| one.state("slow") == TxnState::CompleteAbort)
        .await;
    assert_eq!(
        markers(&a).await,
        [(0, false, Some(1)), (1, false, Some(1))]
    );
    one.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tombstone_of_a_topic_voids_its_markers() {
    let site = Site::new();
    let one = site.start().await;
    for name in ["a", "b"] {
        one.create(name).await;
    }
    let me = one.init("tx").await.unwrap();
    one.add("tx", me, &["a", "b"]).await.unwrap();
    one.produce(9, Some("tx"), "b", (me, 0)).await;
    let gone = one.partition("a").id().topic;
    let node = &one.running.node;
    node.delete_topic(gone).await.unwrap();
    // One of the same name is another topic, and owes nothing.
    one.create("a").await;
    assert_eq!(one.end("tx", 3, me, true).await, Ok(None));
    assert_eq!(markers(&one.partition("a")).await, []);
    assert_eq!(ends(&one.partition("b")), (2, 2));
    one.running.stop().await;
}

/// Puts a file on the volume, as another broker does.
async fn put(volume: &MemoryVolume, path: &VolumePath, bytes: Bytes) {
    volume.create_dir_all(&path.parent()).await.unwrap();
    let beside = path.parent().join("~written");
    let file = volume.create_new(&beside).await.unwrap();
    file.write_at(0, &[bytes]).await.unwrap();
    volume.rename(&beside, path).await.unwrap();
}

/// What another broker queues of a transaction of producer 7000000 on a partition and a group.
fn queued(on: &Partition) -> MarkerQueueFile {
    let topic = on.topic().to_string();
    MarkerQueueFile {
        transactional_id: "theirs".to_owned(),
        producer_id: 7_000_000,
        producer_epoch: 4,
        commit: false,
        coordinator_epoch: 2,
        partitions: vec![TopicPartitionsEntry {
            topic: topic.clone(),
            partitions: vec![0],
        }],
        txn_seq: Some(5),
        topic_ids: [(topic, on.id().topic)].into(),
        groups: vec!["g".to_owned()],
        enqueued_ms: None,
        extra: Extra::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_marker_that_hangs_holds_up_neither_fences_nor_other_producers() {
    let site = Site::new();
    let polls = |config: &mut BrokerConfig| config.txn_poll_interval = Duration::from_millis(10);
    let one = site.start_with(polls).await;
    let a = one.create("a").await;
    one.steps.stalled.send_replace(Some("/journal/".to_owned()));
    let hangs = queued(&a);
    // Behind it in the order of producers, and without a partition.
    let mut goes_on = queued(&a);
    goes_on.producer_id += 1;
    goes_on.partitions.clear();
    goes_on.topic_ids.clear();
    let place = |entry: &MarkerQueueFile| {
        let (pid, epoch) = (ProducerId(entry.producer_id), ProducerEpoch(3));
        let entry = Place::MarkerQueue(BrokerId(0), pid, epoch).path();
        (entry, Place::MarkerDone(BrokerId(0), pid, epoch, 5).path())
    };
    let mut pace = tokio::time::interval(Duration::from_millis(5));
    put(&site.volume, &place(&hangs).0, encode(&hangs).unwrap()).await;
    put(&site.volume, &place(&goes_on).0, encode(&goes_on).unwrap()).await;
    while site.volume.open(&place(&goes_on).1).await.is_err() {
        pace.tick().await;
    }
    let fences = Place::ProducerFences(BrokerId(1)).path();
    put(&site.volume, &fences, Bytes::from_static(br#"{"9":3}"#)).await;
    let table = one.running.broker.fences().table().clone();
    one.until(|_| table.is_stale(ProducerId(9), ProducerEpoch(2)))
        .await;
    assert!(site.volume.open(&place(&hangs).1).await.is_err());
    // Let go, it is carried out once, however often it was looked at.
    one.steps.stalled.send_replace(None);
    while site.volume.open(&place(&hangs).1).await.is_err() {
        pace.tick().await;
    }
    assert_eq!(markers(&a).await, [(0, false, Some(5))]);
    one.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_broker_queued_is_carried_out_and_confirmed() {
    let site = Site::new();
    let polls = |config: &mut BrokerConfig| {
        config.txn_partition_verification = false;
        config.txn_poll_interval = Duration::from_millis(10);
    };
    let one = site.start_with(polls).await;
    let a = one.create("a").await;
    // Of a transaction that another broker coordinates.
    let other = session(7_000_000, 3);
    assert_eq!(
        one.produce(9, Some("theirs"), "a", (other, 0)).await,
        (0, 0)
    );
    let mut entry = queued(&a);
    let (own, pid, epoch) = (BrokerId(0), ProducerId(7_000_000), ProducerEpoch(3));
    let place = Place::MarkerQueue(own, pid, epoch).path();
    let done = Place::MarkerDone(own, pid, epoch, 5).path();
    // The second time nothing is left to do but to say so.
    for _ in 0..2 {
        put(&site.volume, &place, encode(&entry).unwrap()).await;
        let mut pace = tokio::time::interval(Duration::from_millis(5));
        while site.volume.open(&done).await.is_err() {
            pace.tick().await;
        }
        assert!(site.volume.open(&place).await.is_err());
        site.volume.remove(&done).await.unwrap();
        assert_eq!(markers(&a).await, [(1, false, Some(5))]);
    }
    assert_eq!(ends(&a), (2, 2));
    // What this broker does not lead is left, and so is what can't be understood.
    entry.partitions[0].partitions.push(1);
    entry.txn_seq = Some(6);
    put(&site.volume, &place, encode(&entry).unwrap()).await;
    one.until(|one| one.partition("a").visible().high_watermark == 3)
        .await;
    let bad = Place::MarkerQueue(own, ProducerId(8), epoch).path();
    put(&site.volume, &bad, Bytes::from_static(b"{")).await;
    one.until(|one| !one.running.node.damage().is_empty()).await;
    assert_eq!(one.running.node.damage()[0].path, bad.to_string());
    for left in [&place, &bad] {
        assert!(site.volume.open(left).await.is_ok());
    }
    one.running.stop().await;
}
