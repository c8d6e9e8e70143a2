//! kill -9: what was acknowledged is there, what was not can be sent again, and who starts twice.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use kafka_protocol::messages::ProduceRequest;
use tests::gatewayproc::binary;
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::{RawClient, ops};

use crate::kit::{P, Target, answers, codes, differs, end_of, on_kafka, produce, produce_request};
use crate::reading::{fetch_batch, leader_epoch, with_epoch};

#[tokio::test]
async fn i34_batches_whose_answers_were_lost_are_stored_once() {
    let target = Target::start(&[]);
    let mut client = target.with_topic("lost-answers", 1).await;
    let rounds = if on_kafka() { 1 } else { 8 };
    for round in 0..rounds {
        let first = round * 5;
        let producers: Vec<P> = (first..first + 5).map(|s| P(7, 0, s, 1)).collect();
        for producer in &producers {
            let request = produce_request("lost-answers", &[(0, Some(producer.batch()))]);
            client.send(&request, 9).await.unwrap();
        }
        // As many answers as the round says, then the end.
        for _ in 0..=round % 5 {
            let (_, response) = client.receive::<ProduceRequest>(9).await.unwrap();
            assert_eq!(answers(&response)[0].error_code, 0);
        }
        target.kill_and_restart();
        client = target.connect().await;
        ops::await_topic(&mut client, "lost-answers", 1)
            .await
            .unwrap();
        // What is still missing is sent in order, as a producer does; then all five again.
        let missing = usize::try_from(end_of(&mut client, "lost-answers").await).unwrap();
        let missing = missing - usize::try_from(first).unwrap();
        assert!(
            missing > usize::try_from(round % 5).unwrap(),
            "acknowledged"
        );
        for producer in producers.iter().skip(if on_kafka() { missing } else { 0 }) {
            let got = produce(&mut client, "lost-answers", producer.batch()).await;
            assert_eq!(got, (0, i64::from(producer.2)), "round {round}");
        }
        for producer in &producers[..4] {
            let (code, base) = produce(&mut client, "lost-answers", producer.batch()).await;
            let same = (0, i64::from(producer.2));
            let allowed = differs("window-after-a-crash", [same, (45, -1)], [same, same]);
            assert!(allowed.contains(&(code, base)), "round {round}: {code}");
        }
        assert_eq!(
            end_of(&mut client, "lost-answers").await,
            i64::from(first) + 5
        );
    }
    target.log_is_clean(&[]);
}

#[tokio::test]
async fn the_window_is_the_same_after_a_kill() {
    let target = Target::start(&[]);
    let mut client = target.with_topic("same-window", 1).await;
    for sequence in 0..7 {
        let got = produce(&mut client, "same-window", P(7, 2, sequence, 1).batch()).await;
        assert_eq!(got, (0, i64::from(sequence)));
    }
    assert_eq!(
        produce(&mut client, "same-window", P(8, 0, 90, 3).batch()).await,
        (0, 7)
    );
    let stored = fetch_batch(&mut client, "same-window", 0).await;
    target.kill_and_restart();
    let mut client = target.connect().await;
    ops::await_topic(&mut client, "same-window", 1)
        .await
        .unwrap();
    assert_eq!(fetch_batch(&mut client, "same-window", 0).await, stored);
    for (producer, code, base) in [
        // Older than the five, a stale epoch, a gap, an epoch that begins in the middle.
        (P(7, 2, 1, 1), 45, -1),
        (P(7, 1, 7, 1), 47, -1),
        (P(7, 2, 8, 1), 45, -1),
        (P(7, 3, 7, 1), 45, -1),
        (P(8, 0, 90, 3), 0, 7),
        (P(8, 0, 90, 2), 45, -1),
        (P(7, 2, 6, 1), 0, 6),
        (P(7, 2, 7, 1), 0, 10),
        (P(8, 0, 93, 1), 0, 11),
    ] {
        let got = produce(&mut client, "same-window", producer.batch()).await;
        assert_eq!(got, (code, base), "{producer:?}");
    }
}

/// Batches of many partitions lie among one another: the start reads them in one pass.
#[tokio::test]
async fn the_windows_of_many_partitions_are_the_same_after_a_kill() {
    const PARTITIONS: i32 = 32;
    let target = Target::start(&[("journal.segment.bytes", "1048576")]);
    let mut client = target.with_topic("windows", PARTITIONS).await;
    let batch = |partition: i32, sequence: i32| {
        let record = Record::value(vec![b'x'; 2000]);
        let spec = BatchSpec {
            records: vec![record],
            ..P(i64::from(partition), 0, sequence, 1).spec()
        };
        (partition, Some(spec.build()))
    };
    for sequence in 0..40 {
        let data: Vec<_> = (0..PARTITIONS).map(|p| batch(p, sequence)).collect();
        let request = produce_request("windows", &data);
        let got = codes(&client.call(&request, 9).await.unwrap());
        assert!(got.iter().all(|code| *code == 0), "{got:?}");
    }
    target.kill_and_restart();
    let mut client = target.connect().await;
    ops::await_topic(&mut client, "windows", PARTITIONS)
        .await
        .unwrap();
    if !on_kafka() {
        // Those are reads for one log, of 2.7 MB. With layout=kv there is no journal.
        let metrics = target.admin("/metrics");
        let mut lines = metrics.lines();
        let read = lines.find_map(|line| line.strip_prefix("fencepost_journal_read_bytes_total "));
        let read: u64 = read.map_or(0, |bytes| bytes.parse().unwrap());
        assert!(read < 1_000_000, "{read}");
    }
    for (sequence, code) in [(37, 0), (41, 45), (40, 0)] {
        let data: Vec<_> = (0..PARTITIONS).map(|p| batch(p, sequence)).collect();
        let request = produce_request("windows", &data);
        let told = answers(&client.call(&request, 9).await.unwrap());
        for one in told {
            let base = if code == 0 { i64::from(sequence) } else { -1 };
            assert_eq!(
                (one.error_code, one.base_offset),
                (code, base),
                "{}",
                one.index
            );
        }
    }
    target.log_is_clean(&[]);
}

#[tokio::test]
async fn an_older_leader_epoch_is_fenced_after_a_restart() {
    let target = Target::start(&[]);
    let mut client = target.with_topic("restarted", 1).await;
    let before = leader_epoch(&mut client, "restarted").await;
    target.kill_and_restart();
    let mut client = target.connect().await;
    ops::await_topic(&mut client, "restarted", 1).await.unwrap();
    let after = leader_epoch(&mut client, "restarted").await;
    assert!(after >= before);
    let code = if after > before { 74 } else { 0 };
    assert_eq!(
        with_epoch(&mut client, "restarted", before).await,
        (code, code)
    );
    assert_eq!(
        with_epoch(&mut client, "restarted", after + 1).await,
        (75, 75)
    );
}

async fn ids(client: &mut RawClient, count: usize) -> Vec<i64> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(ops::init_producer_id(client).await.unwrap().0);
    }
    ids
}

#[tokio::test]
async fn producer_ids_are_never_used_again() {
    let target = Target::start(&[]);
    let mut seen = BTreeSet::new();
    // Fewer, as many, and more than a block of them.
    for count in [3, 1, 1000, 1100, 5] {
        let mut client = target.connect().await;
        for id in ids(&mut client, count).await {
            assert!(seen.insert(id), "{id} was used before");
        }
        target.kill_and_restart();
    }
    let mut client = target.connect().await;
    for id in ids(&mut client, 5).await {
        assert!(seen.insert(id), "{id} was used before");
    }
}

#[tokio::test]
async fn deleted_topics_stay_deleted_and_created_ones_created() {
    let target = Target::start(&[("auto.create.topics.enable", "false")]);
    let mut client = target.with_topic("kept", 2).await;
    let kept = ops::metadata(&mut client, "kept").await.unwrap();
    ops::create_topic(&mut client, "gone", 1, &[])
        .await
        .unwrap();
    assert_eq!(
        produce(&mut client, "gone", P(7, 0, 0, 1).batch()).await,
        (0, 0)
    );
    ops::delete_topic(&mut client, "gone").await.unwrap();
    target.kill_and_restart();
    let mut client = target.connect().await;
    let again = ops::await_topic(&mut client, "kept", 2).await.unwrap();
    assert_eq!(again.topics[0].topic_id, kept.topics[0].topic_id);
    assert_eq!(again.cluster_id, kept.cluster_id);
    let gone = ops::metadata(&mut client, "gone").await.unwrap();
    assert_eq!(gone.topics[0].error_code, 3);
}

#[tokio::test]
async fn a_clean_stop_ends_with_zero_and_keeps_everything() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    let mut client = target.with_topic("stopped", 1).await;
    for sequence in 0..6 {
        let got = produce(&mut client, "stopped", P(7, 0, sequence, 1).batch()).await;
        assert_eq!(got, (0, i64::from(sequence)));
    }
    target.gateway(|gateway, _| {
        assert_eq!(gateway.stop().unwrap().code(), Some(0));
        gateway.restart().unwrap();
    });
    let mut client = target.connect().await;
    for (sequence, code, base) in [(0, 45, -1), (1, 0, 1), (5, 0, 5), (6, 0, 6)] {
        let got = produce(&mut client, "stopped", P(7, 0, sequence, 1).batch()).await;
        assert_eq!(got, (code, base), "{sequence}");
    }
    target.log_is_clean(&[]);
}

#[tokio::test]
async fn a_stop_and_restart_does_not_wait_for_half_a_request_of_the_admin_port() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    for round in 0..8 {
        let address = target.gateway(|gateway, _| gateway.admin_address());
        let half = |text: &str| {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            stream
        };
        let asked = ["G", "GET /readyz HTTP/1.1\r\nHost: x\r\n", ""];
        let asked = asked.map(half);
        // Behind one that is answered: the others were read.
        assert!(target.admin("/readyz").starts_with("HTTP/1.1 200 "));
        target.gateway(|gateway, _| {
            assert_eq!(gateway.stop().unwrap().code(), Some(0), "round {round}");
            gateway.restart().unwrap();
        });
        drop(asked);
    }
    target.log_is_clean(&[]);
}

#[tokio::test]
async fn a_second_start_is_refused_while_the_first_runs() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    let mut client = target.with_topic("one-of-two", 1).await;
    let data_dir = target.gateway(|_, data_dir| data_dir);
    for _ in 0..2 {
        let second = Command::new(binary().unwrap())
            .arg("serve")
            .arg("--data-dir")
            .arg(&data_dir)
            .args(["--override", "listeners=PLAINTEXT://127.0.0.1:0"])
            .args(["--admin-listen", "127.0.0.1:0", "--print-addresses"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(!second.status.success(), "{second:?}");
        assert!(second.stdout.is_empty(), "it must not become ready");
        let said = String::from_utf8_lossy(&second.stderr).into_owned();
        let pid = target.process(|process| process.pid()).to_string();
        assert!(said.contains(&pid), "who runs is named: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
    // The first did not notice.
    assert_eq!(
        produce(&mut client, "one-of-two", P(7, 0, 0, 1).batch()).await,
        (0, 0)
    );
    // After it was killed, nobody waits.
    target.kill_and_restart();
    let mut client = target.connect().await;
    assert_eq!(
        produce(&mut client, "one-of-two", P(7, 0, 0, 1).batch()).await,
        (0, 0)
    );
    target.log_is_clean(&[]);
}
