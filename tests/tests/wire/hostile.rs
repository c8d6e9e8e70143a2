//! Clients that are slow, many, large or in a hurry: what they cost is bounded, and the others do
//! not notice. The bounds are those of `docs/hostile-clients.md`.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiVersionsRequest, ProduceRequest};
use rustix::process::{Resource, getrlimit, setrlimit};
use tests::gatewayproc::{Gateway, GatewayOptions, binary};
use tests::raw::batch::Record;
use tests::raw::{RawClient, ops};

use crate::kit::{P, Target, answers, end_of, on_kafka, plain, produce, produce_request, serves};
use crate::malformed::header;

const MIB: u64 = 1 << 20;
/// `socket.request.max.bytes`.
const FRAME_MAX: i32 = 104_857_600;

/// The largest memory so far.
fn peak(target: &Target) -> u64 {
    target.process(|process| process.rss_peak_bytes().unwrap())
}

/// The length and the header of the largest Produce that may be, and nothing of its body.
fn claim() -> Vec<u8> {
    let mut bytes = FRAME_MAX.to_be_bytes().to_vec();
    bytes.put_slice(&header(0, 9, 1, true));
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_idle_connections_cost_16_kib_each() {
    const CONNECTIONS: u64 = 10_000;
    if on_kafka() {
        return;
    }
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    // Started with the limit of a shell, which the gateway raises by itself.
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("limited");
    let serve = format!("exec {} \"$@\"\n", binary().unwrap().display());
    std::fs::write(&script, format!("#!/bin/sh\nulimit -Sn 1024\n{serve}")).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let options = GatewayOptions {
        binary: Some(script),
        ..GatewayOptions::default()
    };
    let mut gateway = Gateway::start(&dir.path().join("data"), &options).unwrap();
    let address = gateway.address();
    let mut bystander = RawClient::connect(&address).await.unwrap();
    ops::create_topic(&mut bystander, "beside-many", 1, &[])
        .await
        .unwrap();
    let before = gateway.process().rss_peak_bytes().unwrap();
    let mut idle = Vec::new();
    for number in 0..CONNECTIONS {
        let mut client = RawClient::connect(&address).await.unwrap();
        // Some have asked something before, some are in the middle of a request.
        match number % 10 {
            0 => drop(ops::api_versions(&mut client).await.unwrap()),
            1 => client.send_bytes(&claim()).await.unwrap(),
            _ => {}
        }
        idle.push(client);
    }
    for offset in 0..20 {
        let sent = ops::produce(&mut bystander, "beside-many", 0, plain(1)).await;
        assert_eq!(sent.unwrap().base_offset, offset);
    }
    let after = gateway.process().rss_peak_bytes().unwrap();
    let each = (after - before) / CONNECTIONS;
    assert!(each <= 16 << 10, "{each} bytes for each connection");
    // They are connections that are served.
    for client in idle.iter_mut().step_by(10).take(50) {
        ops::api_versions(client).await.unwrap();
    }
    drop(idle);
    let sent = ops::produce(&mut bystander, "beside-many", 0, plain(1)).await;
    assert_eq!(sent.unwrap().base_offset, 20);
    let log = gateway.log().unwrap();
    assert!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
}

#[tokio::test]
async fn a_thousand_pipelined_requests_are_answered_in_order() {
    let target = Target::shared();
    let client = target.with_topic("thousand", 1).await;
    let (mut writer, mut reader) = client.into_split();
    let writing = tokio::spawn(async move {
        for sequence in 0..500 {
            let batch = P(7, 0, sequence, 1).batch();
            let request = produce_request("thousand", &[(0, Some(batch))]);
            writer.send(&request, 9).await.unwrap();
            let request = ApiVersionsRequest::default();
            writer.send(&request, 0).await.unwrap();
        }
        writer
    });
    // All of them are sent, as far as the connection takes them, before any is read.
    let mut other = target.connect().await;
    for _ in 0..10 {
        ops::api_versions(&mut other).await.unwrap();
    }
    for number in 0..500 {
        let (id, response) = reader.receive::<ProduceRequest>(9).await.unwrap();
        let answer = &answers(&response)[0];
        let base = i64::from(number);
        assert_eq!((answer.error_code, answer.base_offset), (0, base));
        let (next, _) = reader.receive::<ApiVersionsRequest>(0).await.unwrap();
        assert_eq!(next, id + 1);
    }
    drop(writing.await.unwrap());
    assert_eq!(end_of(&mut other, "thousand").await, 500);
}

/// A Produce of exactly the largest size, with one batch that is larger than any topic takes.
fn largest(topic: &str) -> Bytes {
    let frame = |len: usize| {
        let mut spec = P(-1, -1, -1, 0).spec();
        spec.records = vec![Record::value(vec![b'x'; len])];
        let request = produce_request(topic, &[(0, Some(spec.build()))]);
        tests::raw::encode_request(&request, 9, 1).unwrap()
    };
    let wanted = usize::try_from(FRAME_MAX).unwrap() + 4;
    let near = wanted - 1000;
    let frame = frame(near + wanted - frame(near).len());
    assert_eq!(frame.len(), wanted);
    frame
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_100_mib_is_answered_and_the_others_are_served_beside_it() {
    // Kafka makes room for all of them at once, and its heap is small here.
    if on_kafka() {
        return;
    }
    let target = Target::alone();
    let mut bystander = target.with_topic("largest", 1).await;
    let frame = largest("largest");
    let before = peak(&target);
    let mut clients = Vec::new();
    for _ in 0..3 {
        let client = target.connect().await;
        let mut client = client.with_patience(Duration::from_mins(2));
        let frame = frame.clone();
        clients.push(tokio::spawn(async move {
            let (half, rest) = frame.split_at(frame.len() / 2);
            client.send_bytes(half).await.unwrap();
            client.send_bytes(rest).await.unwrap();
            let (_, response) = client.receive::<ProduceRequest>(9).await.unwrap();
            answers(&response)[0].error_code
        }));
    }
    let mut offset = 0;
    while clients.iter().any(|client| !client.is_finished()) {
        assert_eq!(
            produce(&mut bystander, "largest", plain(1)).await,
            (0, offset)
        );
        offset += 1;
    }
    for client in clients {
        assert_eq!(client.await.unwrap(), 10);
    }
    assert!(offset > 0, "nobody was served beside it");
    // The budget of 48 MiB, and what one such request has beyond half of it.
    let grown = (peak(&target) - before) / MIB;
    assert!(grown < 48 + 76 + 36, "{grown} MiB more");
    target.log_is_clean(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_byte_by_byte_cost_what_has_come_and_delay_nobody() {
    // Kafka makes room for what is claimed.
    if on_kafka() {
        return;
    }
    let target = Target::alone();
    let mut bystander = target.with_topic("trickle", 1).await;
    let before = peak(&target);
    let mut slow = Vec::new();
    for _ in 0..100 {
        let mut client = target.connect().await;
        client.send_bytes(&claim()).await.unwrap();
        slow.push(client);
    }
    // Each has got what it claims, or waits for it, and sends a byte now and then.
    for offset in 0..40 {
        for client in &mut slow {
            // The broker may give it up.
            client.send_bytes(&[0]).await.ok();
        }
        let sent = produce(&mut bystander, "trickle", large()).await;
        assert_eq!(sent, (0, offset));
    }
    let grown = (peak(&target) - before) / MIB;
    assert!(grown < 64, "{grown} MiB more");
    drop(slow);
    assert!(serves(&target).await);
    target.log_is_clean(&[]);
}

/// One record of 512 KiB.
fn large() -> Bytes {
    let mut spec = P(-1, -1, -1, 0).spec();
    spec.records = vec![Record::value(vec![b'x'; 512 << 10])];
    spec.build()
}

/// Half of a Produce of a MiB.
fn half() -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_i32(1 << 20);
    bytes.put_slice(&header(0, 9, 1, true));
    bytes.resize(1 << 19, 0);
    bytes.freeze()
}

/// More halves of requests than there is room for: who stays away for long is given up, once others
/// wait, and those are served.
#[tokio::test(flavor = "multi_thread")]
async fn halves_of_requests_are_given_up_for_those_who_send_whole_ones() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[("queued.max.request.bytes", "8388608")]);
    let bystander = target.with_topic("halves", 1).await;
    let mut bystander = bystander.with_patience(Duration::from_mins(2));
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut client = target.connect().await;
        // Not taken while there is no room.
        let mut sent = half();
        slow.push(tokio::spawn(async move {
            client.send_bytes(&sent.split_to(1 << 18)).await.ok();
            client.send_bytes(&sent).await.ok();
            client
        }));
    }
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let given_up = || {
        let log = target.gateway(|gateway, _| gateway.log().unwrap());
        log.contains("a frame stalled, and others wait for its room")
    };
    // The first may be through before anybody is in their way.
    for offset in 0..2400 {
        pace.tick().await;
        let sent = produce(&mut bystander, "halves", large()).await;
        assert_eq!(sent, (0, offset));
        if offset >= 2 && given_up() {
            break;
        }
    }
    assert!(given_up());
    drop(slow);
    target.log_is_clean(&[]);
}
