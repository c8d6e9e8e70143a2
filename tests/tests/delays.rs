//! A disk that takes its time: requests that say how long they wait are answered by then.

use std::sync::Arc;
use std::time::Duration;

use gateway::Gateway;
use kafka_protocol::messages::DeleteRecordsRequest;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use store_adapter::runtime::BoxFuture;
use store_adapter::volume::memory::{Step, StepHook, StepOp, StepOutcome};
use store_adapter::volume::{MemoryVolume, Volume};
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::{RawClient, ops};
use tokio::sync::watch;

/// Holds syncs while it is shut.
#[derive(Debug)]
struct Gate(watch::Sender<bool>);

impl StepHook for Gate {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let mut open = self.0.subscribe();
        let waits = step.op == StepOp::SyncData;
        Box::pin(async move {
            if waits {
                // Gone with the test.
                drop(open.wait_for(|open| *open).await);
            }
            StepOutcome::Proceed
        })
    }
}

/// Codes and log starts of partitions 0 and 1.
async fn delete(client: &mut RawClient, timeout_ms: i32) -> Vec<(i16, i64)> {
    let partitions = [0, 1].map(|index| {
        DeleteRecordsPartition::default()
            .with_partition_index(index)
            .with_offset(2)
    });
    let topic = DeleteRecordsTopic::default()
        .with_name(ops::topic_name("slow"))
        .with_partitions(partitions.to_vec());
    let request = DeleteRecordsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(timeout_ms);
    let response = client.call(&request, 2).await.unwrap();
    let partitions = &response.topics[0].partitions;
    let answers = partitions.iter().map(|p| (p.error_code, p.low_watermark));
    answers.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_records_is_answered_in_time_and_happens_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate(watch::Sender::new(true)));
    let volume = MemoryVolume::new().mount(Arc::<Gate>::clone(&gate), None);
    let builder = Gateway::builder().free_ports().data_dir(dir.path());
    let volume: Arc<dyn Volume> = Arc::new(volume);
    let gateway = builder.volume(volume).start().await.unwrap();
    let mut client = RawClient::connect(&gateway.addresses().kafka)
        .await
        .unwrap();
    ops::create_topic(&mut client, "slow", 2, &[])
        .await
        .unwrap();
    let spec = BatchSpec {
        records: vec![Record::value("v"); 3],
        ..BatchSpec::default()
    };
    for partition in [0, 1] {
        let sent = ops::produce(&mut client, "slow", partition, spec.build()).await;
        assert_eq!(sent.unwrap().error_code, 0);
    }
    gate.0.send_replace(false);
    for timeout_ms in [1, 1500, i32::MIN] {
        assert_eq!(delete(&mut client, timeout_ms).await, [(7, -1); 2]);
    }
    gate.0.send_replace(true);
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    let starts = loop {
        pace.tick().await;
        let starts = ops::list_offsets(&mut client, "slow", 2, ops::EARLIEST).await;
        let starts = starts.unwrap();
        if starts != [0, 0] && starts.iter().all(|start| *start > 0) {
            break starts;
        }
    };
    assert_eq!(starts, [2, 2]);
    assert_eq!(delete(&mut client, 30_000).await, [(0, 2); 2]);
    assert!(gateway.shutdown().await);
}
