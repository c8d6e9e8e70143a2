//! What a long poll of Fetch waits for, and what ends it early.

use std::time::Duration;

use kafka_protocol::messages::{FetchRequest, FetchResponse};
use tests::raw::batch::Record;
use tests::raw::{RawClient, ops};

use crate::idempotence::topic_id;
use crate::kit::{P, Target, on_kafka};
use crate::reading::{fetch_request, partitions, records};

/// Far longer than a test.
const WAIT_MS: i32 = 600_000;
/// What a test waits for at most.
const PATIENCE: Duration = Duration::from_mins(2);

/// Reads partitions 0 and 1 of a topic from their start, by name up to version 12.
async fn poll(client: &mut RawClient, topic: &str, version: i16) {
    let mut request = fetch_request(topic, &[(0, 0), (1, 0)]).with_max_wait_ms(WAIT_MS);
    request.topics[0].topic_id = topic_id(client, topic).await;
    client.send(&request, version).await.unwrap();
    // It is under way, as far as that can be seen.
    assert!(client.is_silent_for(Duration::from_millis(200)).await);
}

async fn answer(client: &mut RawClient, version: i16) -> FetchResponse {
    client.receive::<FetchRequest>(version).await.unwrap().1
}

#[tokio::test]
async fn a_long_poll_ends_with_its_topic() {
    let target = Target::shared();
    for (topic, version) in [("poll-gone-12", 12), ("poll-gone-16", 16)] {
        let mut client = target.with_topic(topic, 2).await;
        let mut reader = target.connect().await.with_patience(PATIENCE);
        poll(&mut reader, topic, version).await;
        ops::delete_topic(&mut client, topic).await.unwrap();
        let response = answer(&mut reader, version).await;
        let codes: Vec<i16> = partitions(&response).iter().map(|p| p.error_code).collect();
        assert!(codes.contains(&3), "v{version}: {codes:?}");
        for partition in partitions(&response) {
            assert!(records(&partition).is_empty());
        }
    }
}

/// Bytes read of journal files.
fn read(target: &Target) -> usize {
    if on_kafka() {
        return 0;
    }
    let metrics = target.admin("/metrics");
    let name = "fencepost_journal_read_bytes_total ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_long_poll_reads_when_there_is_enough() {
    const BATCHES: usize = 40;
    let target = Target::alone();
    let mut spec = P(-1, -1, -1, 0).spec();
    spec.records = vec![Record::value(vec![b'x'; 10_000])];
    let batch = spec.build();
    let all = BATCHES * batch.len();
    for level in [0, 1] {
        let topic = format!("poll-much-{level}");
        let mut client = target.with_topic(&topic, 3).await;
        let mut reader = target.connect().await.with_patience(PATIENCE);
        let before = read(&target);
        let request = fetch_request(&topic, &[(0, 0), (1, 0), (2, 0)])
            .with_isolation_level(level)
            .with_max_wait_ms(WAIT_MS)
            .with_min_bytes(i32::try_from(all).unwrap());
        reader.send(&request, 12).await.unwrap();
        for (partition, n) in (0..3).cycle().zip(1..=BATCHES) {
            let sent = ops::produce(&mut client, &topic, partition, batch.clone()).await;
            assert_eq!(sent.unwrap().error_code, 0);
            if n < BATCHES {
                assert!(reader.is_silent_for(Duration::from_millis(1)).await);
            }
        }
        let answers = partitions(&answer(&mut reader, 12).await);
        let bytes = answers.iter().map(|answer| records(answer).len());
        assert_eq!(bytes.sum::<usize>(), all);
        // Each once, or twice if some were there before the poll was.
        let bytes = read(&target) - before;
        assert!(bytes < 3 * all, "level {level}: {bytes} of {all}");
    }
}
