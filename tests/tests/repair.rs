//! What its storage closed opens again by itself: the real services on a volume in memory that
//! fails as it is told to.

#![allow(missing_docs, reason = "a test")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use gateway::admitted::Admitted;
use gateway::api::{ApiRequest, ApiResponse, ConnectionContext, RequestContext, Staged};
use gateway::boot::{BootConfig, Outside, Running};
use gateway::broker::{Broker, NewTopic, NoPeers};
use gateway::turns::Turns;
use store_adapter::journal::MemoryIndex;
use store_adapter::local::{MemoryIdentity, ProcHost};
use store_adapter::runtime::{BoxFuture, Env};
use store_adapter::volume::memory::{Step, StepFault, StepHook, StepOp, StepOutcome};
use store_adapter::volume::{MemoryVolume, Volume as _, VolumePath};
use tests::lone;
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::ops;

/// Fails steps on journal files.
#[derive(Debug, Default)]
struct Faults {
    /// Writes find no space.
    full: AtomicBool,
    /// Syncs fail, and no file can be made: the shard can't go on.
    broken: AtomicBool,
}

impl StepHook for Faults {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let mut outcome = StepOutcome::Proceed;
        if step.path.as_str().strip_suffix(".log").is_some() {
            if self.full.load(Ordering::SeqCst) && step.op == StepOp::WriteAt {
                outcome = StepOutcome::Fail(StepFault::NoSpace);
            }
            let stops = matches!(step.op, StepOp::SyncData | StepOp::CreateNew);
            if self.broken.load(Ordering::SeqCst) && stops {
                outcome = StepOutcome::Fail(StepFault::Io);
            }
        }
        Box::pin(std::future::ready(outcome))
    }
}

async fn start(faults: &Arc<Faults>) -> Running {
    let volume = MemoryVolume::new().mount(Arc::clone(faults) as Arc<dyn StepHook>, None);
    start_on(volume, 1).await
}

async fn start_on(volume: MemoryVolume, shards: u32) -> Running {
    let config = BootConfig {
        shards,
        ..lone::config()
    };
    let outside = Outside {
        volume: Arc::new(volume),
        host: Arc::new(ProcHost),
        identity: Arc::new(MemoryIdentity::default()),
        index: Arc::new(MemoryIndex::new()),
        peers: Arc::new(NoPeers),
    };
    Running::start(Env::real(), outside, config).await.unwrap()
}

async fn create(broker: &Arc<Broker>, name: &str) {
    let new = NewTopic {
        name: name.to_owned(),
        partitions: 1,
        configs: [].into(),
    };
    broker.create_topic(new, false).await.unwrap();
}

/// Sends a batch of producer 7; code and base offset.
async fn produce(broker: &Arc<Broker>, topic: &str, sequence: i32) -> (i16, i64) {
    let spec = BatchSpec {
        producer_id: 7,
        producer_epoch: 0,
        base_sequence: sequence,
        records: vec![Record::value("v")],
        timestamp_ms: broker.env().clock.wall_ms(),
        ..BatchSpec::default()
    };
    let request = ops::produce_request(topic, 0, spec.build());
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
    let staged = broker
        .call(&context, ApiRequest::Produce(Box::new(request)))
        .await;
    let Staged::Later(answer) = staged else {
        panic!("{staged:?}");
    };
    let ApiResponse::Produce(response) = answer.await else {
        panic!("another answer");
    };
    let partition = &response.responses[0].partition_responses[0];
    (partition.error_code, partition.base_offset)
}

/// Sends until it is taken; every refusal must be one that a client repeats.
async fn until_taken(broker: &Arc<Broker>, topic: &str, sequence: i32) -> i64 {
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    for _ in 0..2000 {
        pace.tick().await;
        let (code, base) = produce(broker, topic, sequence).await;
        if code == 0 {
            return base;
        }
        assert!([7, 56].contains(&code), "{code}");
    }
    panic!("never taken: {:?}", broker.condition());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_was_made_on_a_full_disk_opens_when_there_is_space() {
    let faults = Arc::new(Faults::default());
    let running = start(&faults).await;
    let broker = &running.broker;
    create(broker, "before").await;
    faults.full.store(true, Ordering::SeqCst);
    create(broker, "made").await;
    let (code, _) = produce(broker, "made", 0).await;
    assert!([7, 56].contains(&code), "{code}");
    let condition = broker.condition();
    assert_eq!((condition.partitions, condition.offline), (2, 1));
    assert!(condition.example.unwrap().starts_with("made-0: "));
    faults.full.store(false, Ordering::SeqCst);
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    while broker.condition().offline > 0 {
        pace.tick().await;
    }
    // What was in flight behind the refused batch does not take its place.
    assert_eq!(produce(broker, "made", 1).await.0, 45);
    assert_eq!(until_taken(broker, "made", 0).await, 0);
    assert_eq!(until_taken(broker, "made", 1).await, 1);
    assert_eq!(until_taken(broker, "before", 0).await, 0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_went_offline_opens_again_with_what_it_acknowledged() {
    let faults = Arc::new(Faults::default());
    let running = start(&faults).await;
    let broker = &running.broker;
    for topic in ["one", "two"] {
        create(broker, topic).await;
        assert_eq!(produce(broker, topic, 0).await, (0, 0));
    }
    faults.broken.store(true, Ordering::SeqCst);
    assert_eq!(produce(broker, "one", 1).await.0, 7);
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    while broker.condition().closed.is_empty() {
        pace.tick().await;
    }
    let (code, _) = produce(broker, "two", 1).await;
    assert!([7, 56].contains(&code), "{code}");
    faults.broken.store(false, Ordering::SeqCst);
    for topic in ["one", "two"] {
        assert_eq!(until_taken(broker, topic, 1).await, 1);
    }
    let condition = broker.condition();
    assert_eq!((condition.offline, condition.closed.len()), (0, 0));
    running.stop().await;
}

/// Names of topics with the shards of their only partitions.
fn shards_of(running: &Running) -> Vec<(String, u32)> {
    let view = running.node.view();
    let topics = running.broker.topics();
    let topics = topics.iter().map(|topic| {
        let shard = view.topics.by_id(topic.id).unwrap().shard(0).unwrap();
        (topic.name.to_string(), shard.0)
    });
    topics.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_shard_does_not_keep_the_others_from_starting() {
    for name in ["seals.json", "newest.json"] {
        let volume = MemoryVolume::new();
        let running = start_on(volume.clone(), 2).await;
        // The shard of a topic follows from its random id.
        let mut shards = Vec::new();
        while !(0..2).all(|shard| shards.iter().any(|(_, of)| *of == shard)) {
            let topic = format!("topic-{}", shards.len());
            create(&running.broker, &topic).await;
            assert_eq!(produce(&running.broker, &topic, 0).await, (0, 0));
            shards = shards_of(&running);
        }
        running.stop().await;
        // Files of an earlier process are sealed.
        start_on(volume.clone(), 2).await.stop().await;
        let path = ["__store", "shard-1", name];
        let path = path
            .iter()
            .fold(VolumePath::root(), |dir, name| dir.join(name));
        volume.remove(&path).await.unwrap();
        let garbage = Bytes::from_static(b"{\"no\": ");
        let file = volume.create_new(&path).await.unwrap();
        file.write_at(0, std::slice::from_ref(&garbage))
            .await
            .unwrap();
        file.sync_data().await.unwrap();

        let running = start_on(volume.clone(), 2).await;
        for (topic, shard) in &shards {
            let sent = produce(&running.broker, topic, 1).await;
            if *shard == 0 {
                assert_eq!(sent, (0, 1), "{topic}");
            } else {
                assert_eq!(sent.0, 56, "{topic}");
            }
        }
        let condition = running.broker.condition();
        assert_eq!((condition.shards, condition.closed.len()), (2, 1));
        assert!(condition.closed[0].contains(path.as_str()), "{condition:?}");
        let damage = running.node.damage();
        assert_eq!(damage.len(), 1);
        assert_eq!(damage[0].path, path.as_str());
        let copy = damage[0].copy.as_ref().unwrap();
        let copy = copy
            .split('/')
            .fold(VolumePath::root(), |dir, name| dir.join(name));
        assert_eq!(volume.read(&copy, 100).await.unwrap(), garbage);
        assert_eq!(volume.read(&path, 100).await.unwrap(), garbage, "kept");
        running.stop().await;
    }
}
