//! What read_committed and read_uncommitted readers see of transactions.

use std::time::Duration;

use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::{BrokerId, FetchRequest, ListOffsetsRequest};
use tests::raw::{RawClient, ops};

use super::{TV1, finish, send};
use crate::kit::{P, Target, plain, produce};
use crate::reading::{fetch_request, partitions, records};
use crate::txn_apis::{Session, add, begin, connect};

const VERSION: i16 = 12;

/// A new session of an id, with partition 0 of the topic of that name in its transaction.
pub(super) async fn open(target: &Target, id: &str) -> (RawClient, Session) {
    let mut client = connect(target, id).await;
    let session = begin(&mut client, id).await;
    again(&mut client, id, session).await;
    (client, session)
}

async fn again(client: &mut RawClient, id: &str, session: Session) {
    let topic = id.split('/').next().unwrap();
    let of = [(topic, &[0][..])];
    assert_eq!(add(client, id, session, &of, 3).await, [0]);
}

pub(super) fn committed(topic: &str, offset: i64) -> FetchRequest {
    fetch_request(topic, &[(0, offset)]).with_isolation_level(1)
}

pub(super) async fn fetch(client: &mut RawClient, request: &FetchRequest) -> PartitionData {
    let response = client.call(request, VERSION).await.unwrap();
    let answer = partitions(&response).remove(0);
    assert_eq!(answer.error_code, 0);
    answer
}

/// Base offsets of the batches of an answer.
pub(super) fn bases(answer: &PartitionData) -> Vec<i64> {
    let (bytes, mut rest) = (records(answer), 0);
    let mut bases = Vec::new();
    while let Some(head) = bytes.get(rest..rest + 12) {
        bases.push(i64::from_be_bytes(head[..8].try_into().unwrap()));
        let length = i32::from_be_bytes(head[8..].try_into().unwrap());
        rest += 12 + usize::try_from(length).unwrap();
    }
    bases
}

/// Producer and first offset of the aborted transactions that an answer lists.
pub(super) fn aborted(answer: &PartitionData) -> Option<Vec<(i64, i64)>> {
    let listed = answer.aborted_transactions.as_ref()?;
    let mut listed: Vec<_> = listed
        .iter()
        .map(|txn| (txn.producer_id.0, txn.first_offset))
        .collect();
    listed.sort_by_key(|(_, first)| *first);
    Some(listed)
}

pub(super) async fn latest(client: &mut RawClient, topic: &str, isolation: i8) -> i64 {
    let partition = ListOffsetsPartition::default()
        .with_current_leader_epoch(-1)
        .with_timestamp(ops::LATEST);
    let topic = ListOffsetsTopic::default()
        .with_name(ops::topic_name(topic))
        .with_partitions(vec![partition]);
    let request = ListOffsetsRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_isolation_level(isolation)
        .with_topics(vec![topic]);
    let answer = client.call(&request, 7).await.unwrap();
    let partition = &answer.topics[0].partitions[0];
    assert_eq!(partition.error_code, 0);
    partition.offset
}

#[tokio::test]
async fn r01_r06_an_open_transaction_holds_committed_readers() {
    let target = Target::shared();
    target.with_topic("r01", 1).await;
    let (mut client, (pid, epoch)) = open(&target, "r01").await;
    assert_eq!(produce(&mut client, "r01", plain(5)).await, (0, 0));
    assert_eq!(
        send(&mut client, "r01", "r01", P(pid, epoch, 0, 1), TV1).await,
        (0, 5)
    );
    assert_eq!(produce(&mut client, "r01", plain(4)).await, (0, 6));
    let seen = fetch(&mut client, &committed("r01", 0)).await;
    assert_eq!((seen.high_watermark, seen.last_stable_offset), (10, 5));
    assert_eq!((bases(&seen), aborted(&seen)), (vec![0], Some(vec![])));
    let seen = fetch(&mut client, &fetch_request("r01", &[(0, 0)])).await;
    assert_eq!((seen.high_watermark, seen.last_stable_offset), (10, 5));
    assert_eq!((bases(&seen), aborted(&seen)), (vec![0, 5, 6], None));
    // At the last stable offset there is nothing to be read, and no error.
    let seen = fetch(&mut client, &committed("r01", 7)).await;
    assert_eq!((bases(&seen), aborted(&seen)), (vec![], Some(vec![])));
    assert_eq!(latest(&mut client, "r01", 1).await, 5);
    assert_eq!(latest(&mut client, "r01", 0).await, 10);
    finish(&mut client, "r01", (pid, epoch), true).await;
    assert_eq!(latest(&mut client, "r01", 1).await, 11);
    // R22: the marker is a batch, and readers get past it.
    let seen = fetch(&mut client, &committed("r01", 10)).await;
    assert_eq!(bases(&seen), [10]);
}

#[tokio::test]
async fn r03_r04_readers_learn_of_the_aborts_that_they_can_meet() {
    let target = Target::shared();
    target.with_topic("r03", 1).await;
    let (mut client, (pid, epoch)) = open(&target, "r03").await;
    assert_eq!(
        send(&mut client, "r03", "r03", P(pid, epoch, 0, 4), TV1).await,
        (0, 0)
    );
    finish(&mut client, "r03", (pid, epoch), false).await;
    let from = async |client: &mut RawClient, offset| {
        aborted(&fetch(client, &committed("r03", offset)).await)
    };
    assert_eq!(from(&mut client, 3).await, Some(vec![(pid, 0)]));
    assert_eq!(from(&mut client, 5).await, Some(vec![]));
    again(&mut client, "r03", (pid, epoch)).await;
    assert_eq!(
        send(&mut client, "r03", "r03", P(pid, epoch, 4, 2), TV1).await,
        (0, 5)
    );
    finish(&mut client, "r03", (pid, epoch), false).await;
    assert_eq!(from(&mut client, 0).await, Some(vec![(pid, 0), (pid, 5)]));
    assert_eq!(from(&mut client, 5).await, Some(vec![(pid, 5)]));
    let all = fetch(&mut client, &fetch_request("r03", &[(0, 0)])).await;
    assert_eq!((bases(&all), aborted(&all)), (vec![0, 4, 5, 7], None));
}

#[tokio::test]
async fn transactions_that_overlap_are_told_apart() {
    let target = Target::shared();
    target.with_topic("overlap", 1).await;
    let (mut one, a) = open(&target, "overlap/a").await;
    let (mut two, b) = open(&target, "overlap/b").await;
    let put = async |client: &mut RawClient, id, session: Session, sequence| {
        send(
            client,
            id,
            "overlap",
            P(session.0, session.1, sequence, 1),
            TV1,
        )
        .await
    };
    assert_eq!(put(&mut one, "overlap/a", a, 0).await, (0, 0));
    assert_eq!(put(&mut two, "overlap/b", b, 0).await, (0, 1));
    assert_eq!(put(&mut one, "overlap/a", a, 1).await, (0, 2));
    finish(&mut two, "overlap/b", b, false).await;
    // What is decided stays behind what is open before it.
    let seen = fetch(&mut one, &committed("overlap", 0)).await;
    assert_eq!((seen.high_watermark, seen.last_stable_offset), (4, 0));
    finish(&mut one, "overlap/a", a, true).await;
    let seen = fetch(&mut one, &committed("overlap", 0)).await;
    assert_eq!(
        (seen.last_stable_offset, bases(&seen)),
        (5, vec![0, 1, 2, 3, 4])
    );
    assert_eq!(aborted(&seen), Some(vec![(b.0, 1)]));
}

#[tokio::test]
async fn r12_a_marker_wakes_who_waits_at_the_last_stable_offset() {
    let target = Target::shared();
    target.with_topic("r12", 1).await;
    let (mut client, (pid, epoch)) = open(&target, "r12").await;
    assert_eq!(
        send(&mut client, "r12", "r12", P(pid, epoch, 0, 1), TV1).await,
        (0, 0)
    );
    let mut reader = target.connect().await;
    // Far longer than the test: only the marker can end the wait.
    let request = committed("r12", 0).with_max_wait_ms(600_000);
    reader.send(&request, VERSION).await.unwrap();
    finish(&mut client, "r12", (pid, epoch), true).await;
    let woken = reader.receive::<FetchRequest>(VERSION);
    let woken = tokio::time::timeout(Duration::from_mins(2), woken).await;
    let (_, response) = woken.expect("it is woken").unwrap();
    let answer = &partitions(&response)[0];
    assert_eq!(answer.last_stable_offset, 2);
    assert_eq!(bases(answer)[0], 0);
}

/// What lies behind an open transaction counts when it can be read, whenever it was written.
#[tokio::test]
async fn r12_what_a_marker_shows_counts_for_the_least_bytes() {
    let target = Target::shared();
    target.with_topic("r12-least", 1).await;
    let (mut client, (pid, epoch)) = open(&target, "r12-least").await;
    let mut readers = Vec::new();
    for sequence in 0..4 {
        let request = committed("r12-least", 0)
            .with_max_wait_ms(600_000)
            .with_min_bytes(300);
        let mut reader = target.connect().await.with_patience(Duration::from_mins(2));
        reader.send(&request, VERSION).await.unwrap();
        assert!(reader.is_silent_for(Duration::from_millis(50)).await);
        readers.push(reader);
        let producer = P(pid, epoch, sequence, 1);
        let sent = send(&mut client, "r12-least", "r12-least", producer, TV1).await;
        assert_eq!(sent, (0, i64::from(sequence)));
    }
    finish(&mut client, "r12-least", (pid, epoch), true).await;
    for reader in &mut readers {
        let (_, response) = reader.receive::<FetchRequest>(VERSION).await.unwrap();
        let answer = &partitions(&response)[0];
        assert_eq!(answer.last_stable_offset, 5);
        assert_eq!(bases(answer), [0, 1, 2, 3, 4]);
        assert!(records(answer).len() >= 300);
    }
}
