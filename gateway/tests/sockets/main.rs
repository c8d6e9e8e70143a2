//! The shell over real sockets, with a service that the test controls.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test"
)]

#[cfg(test)]
mod kit;

use std::time::Duration;

use gateway::api::{ApiRequest, ApiResponse, CloseReason, Staged};
use kafka_protocol::messages::{ApiVersionsResponse, MetadataResponse};
use kafka_protocol::protocol::{Decodable, StrBytes};
use kit::{Kit, api_versions_v3, frame, heartbeat, metadata, produce};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn api_versions_is_answered() {
    let kit = Kit::start();
    let mut client = kit.connect().await;
    client.write_all(&api_versions_v3(41)).await.unwrap();
    let mut answer = kit::answer(&mut client).await.unwrap();
    assert_eq!(answer.correlation_id, 41);
    let response = ApiVersionsResponse::decode(&mut answer.body, 3).unwrap();
    assert_eq!(response.error_code, 0);
    assert!(
        response
            .api_keys
            .iter()
            .any(|api| api.api_key == 18 && api.max_version == 4)
    );
    assert_eq!(kit.software(), Some("raw 1.0".to_owned()));
}

#[tokio::test]
async fn an_unknown_api_versions_steps_down_and_the_connection_goes_on() {
    let kit = Kit::start();
    let mut client = kit.connect().await;
    client
        .write_all(&frame(18, 99, 1, b"\x01junk"))
        .await
        .unwrap();
    let answer = kit::answer(&mut client).await.unwrap();
    // 35, one key: 18 from 0 to 4, in version 0.
    assert_eq!(&answer.body[..], b"\0\x23\0\0\0\x01\0\x12\0\0\0\x04");
    client.write_all(&api_versions_v3(2)).await.unwrap();
    assert_eq!(kit::answer(&mut client).await.unwrap().correlation_id, 2);
}

#[tokio::test]
async fn answers_leave_in_request_order_whatever_order_they_complete_in() {
    let kit = Kit::start();
    let mut client = kit.connect().await;
    let five: Vec<u8> = (1..=5).flat_map(heartbeat).collect();
    client.write_all(&five).await.unwrap();
    // All five are ordered although none is answered.
    let mut calls = Vec::new();
    for _ in 0..5 {
        calls.push(kit.next_call().await);
    }
    for call in calls.into_iter().rev() {
        call.answer();
    }
    for expected in 1..=5 {
        assert_eq!(
            kit::answer(&mut client).await.unwrap().correlation_id,
            expected
        );
    }
}

#[tokio::test]
async fn what_stands_alone_begins_behind_all_and_before_all() {
    let kit = Kit::start();
    let mut client = kit.connect().await;
    let five = [
        heartbeat(1),
        heartbeat(2),
        metadata(3),
        heartbeat(4),
        heartbeat(5),
    ];
    client.write_all(&five.concat()).await.unwrap();
    let (one, two) = (kit.next_call().await, kit.next_call().await);
    assert!(kit.no_call().await, "3 waits for 1 and 2");
    two.answer();
    assert!(kit.no_call().await, "3 waits for 1");
    one.answer();
    let three = kit.next_call().await;
    assert!(matches!(three.request(), ApiRequest::Metadata(_)));
    assert!(kit.no_call().await, "4 waits for 3");
    three.answer();
    let (four, five) = (kit.next_call().await, kit.next_call().await);
    five.answer();
    four.answer();
    for expected in 1..=5 {
        let answer = kit::answer(&mut client).await.unwrap();
        assert_eq!(answer.correlation_id, expected);
    }
}

#[tokio::test]
async fn what_stands_alone_begins_behind_what_has_no_answer() {
    let kit = Kit::start();
    let mut client = kit.connect().await;
    let two = [heartbeat(1), metadata(2)].concat();
    client.write_all(&two).await.unwrap();
    let (well, ends) = tokio::sync::oneshot::channel::<()>();
    let unsaid = Staged::Unsaid(Box::pin(async {
        ends.await.unwrap();
        None
    }));
    kit.next_staged().await.send(unsaid).unwrap();
    assert!(kit.no_call().await);
    well.send(()).unwrap();
    kit.next_call().await.answer();
    assert_eq!(kit::answer(&mut client).await.unwrap().correlation_id, 2);
    // If it goes wrong, nothing begins behind it.
    client.write_all(&two).await.unwrap();
    let failed = Some(CloseReason::UnacknowledgedError(47));
    let unsaid = Staged::Unsaid(Box::pin(async { failed }));
    kit.next_staged().await.send(unsaid).unwrap();
    assert!(kit::answer(&mut client).await.is_none());
    assert!(kit.no_call().await);
}

#[tokio::test]
async fn what_lies_behind_an_answer_that_is_long_in_coming_takes_no_room() {
    let kit = Kit::with(|setup| setup.budget = 4 << 20);
    let mut client = kit.connect().await;
    client.write_all(&metadata(1)).await.unwrap();
    let (answer, parked) = tokio::sync::oneshot::channel();
    let parked = Staged::Parked(Box::pin(async { parked.await.unwrap() }));
    kit.next_staged().await.send(parked).unwrap();
    let (mut read, mut write) = client.into_split();
    let behind = tokio::spawn(async move {
        for id in 2..=5 {
            write.write_all(&produce(id, 640_000)).await.unwrap();
        }
        write
    });
    assert!(kit.no_call().await);
    kit.until_free().await;
    for _ in 0..3 {
        let mut other = kit.connect().await;
        other.write_all(&produce(1, 640_000)).await.unwrap();
        kit.next_call().await.answer();
        assert!(kit::answer(&mut other).await.is_some());
    }
    answer.send(kit::heartbeat_response()).unwrap();
    for expected in 1..=5 {
        let answer = kit::answer(&mut read).await.unwrap();
        assert_eq!(answer.correlation_id, expected);
        if expected < 5 {
            kit.next_call().await.answer();
        }
    }
    drop(behind.await.unwrap());
}

#[tokio::test]
async fn a_frame_may_come_byte_by_byte_and_two_in_one_write() {
    let kit = Kit::start();
    let mut client = kit.connect().await;
    for byte in api_versions_v3(1) {
        client.write_all(&[byte]).await.unwrap();
    }
    assert_eq!(kit::answer(&mut client).await.unwrap().correlation_id, 1);
    let two = [api_versions_v3(2), api_versions_v3(3)].concat();
    client.write_all(&two).await.unwrap();
    assert_eq!(kit::answer(&mut client).await.unwrap().correlation_id, 2);
    assert_eq!(kit::answer(&mut client).await.unwrap().correlation_id, 3);
}

#[tokio::test]
async fn the_pipeline_is_bounded() {
    let kit = Kit::start();
    let mut client = kit.connect().await;
    let many: Vec<u8> = (0..64).flat_map(heartbeat).collect();
    client.write_all(&many).await.unwrap();
    let mut calls = std::collections::VecDeque::new();
    // The queue, one in the hands of the writer, one waiting for room in the queue.
    for _ in 0..gateway::connection::PIPELINE_MAX + 2 {
        calls.push_back(kit.next_call().await);
    }
    assert!(kit.no_call().await, "the reader reads on");
    for expected in 0..64 {
        calls.pop_front().unwrap().answer();
        assert_eq!(
            kit::answer(&mut client).await.unwrap().correlation_id,
            expected
        );
        if calls.len() + expected_usize(expected) + 1 < 64 {
            calls.push_back(kit.next_call().await);
        }
    }
}

fn expected_usize(n: i32) -> usize {
    usize::try_from(n).unwrap()
}

#[tokio::test]
async fn half_closed_clients_still_get_their_answers() {
    let kit = Kit::start();
    let mut client = kit.connect().await;
    client
        .write_all(&[heartbeat(1), heartbeat(2)].concat())
        .await
        .unwrap();
    client.shutdown().await.unwrap();
    let (one, two) = (kit.next_call().await, kit.next_call().await);
    two.answer();
    one.answer();
    assert_eq!(kit::answer(&mut client).await.unwrap().correlation_id, 1);
    assert_eq!(kit::answer(&mut client).await.unwrap().correlation_id, 2);
    assert!(kit::answer(&mut client).await.is_none(), "then it closes");
    kit.until_connections(0).await;
}

#[tokio::test]
async fn frames_that_are_no_requests_close_the_connection_after_earlier_answers() {
    let kit = Kit::start();
    let bad: Vec<(&str, Vec<u8>)> = vec![
        ("negative length", vec![0xff, 0xff, 0xff, 0xff]),
        ("length 0", vec![0, 0, 0, 0]),
        ("length 4", vec![0, 0, 0, 4, 0, 3, 0, 1]),
        ("http", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("tls", vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]),
        ("over the limit of its api", {
            let mut huge = (9 * 1024 * 1024_i32).to_be_bytes().to_vec();
            huge.extend_from_slice(&[0, 3, 0, 1, 0, 0, 0, 9]);
            huge
        }),
        (
            "client id missing",
            vec![0, 0, 0, 8, 0, 3, 0, 1, 0, 0, 0, 9],
        ),
        ("client id too long", frame(3, 1, 9, b"")[..14].to_vec()),
        ("unknown key", frame(9999, 0, 9, b"")),
        ("removed key", frame(4, 0, 9, b"")),
        ("old produce", frame(0, 2, 9, b"")),
        (
            "array length beyond the body",
            frame(3, 1, 9, b"\x7f\xff\xff\xff"),
        ),
        ("truncated body", frame(3, 1, 9, b"\0\0\0\x01\0\x09x")),
    ];
    for (what, bytes) in bad {
        let mut client = kit.connect().await;
        client.write_all(&api_versions_v3(8)).await.unwrap();
        client.write_all(&bytes).await.unwrap();
        if what == "client id too long" {
            client.shutdown().await.unwrap();
        }
        let first = kit::answer(&mut client).await;
        assert_eq!(first.map(|answer| answer.correlation_id), Some(8), "{what}");
        assert!(kit::answer(&mut client).await.is_none(), "{what}");
    }
    kit.until_connections(0).await;
}

#[tokio::test]
async fn a_claimed_length_takes_neither_memory_nor_the_budget_for_long() {
    let kit = Kit::with(|setup| setup.budget = 64 * 1024 * 1024);
    let mut liars = Vec::new();
    for _ in 0..4 {
        let mut client = kit.connect().await;
        let mut claim = (50 * 1024 * 1024_i32).to_be_bytes().to_vec();
        claim.extend_from_slice(&[0, 0, 0, 9, 0, 0, 0, 1]);
        client.write_all(&claim).await.unwrap();
        liars.push(client);
    }
    // The budget holds one such frame; all the same an honest one of 20 MiB gets through.
    let mut honest = kit.connect().await;
    let body = vec![0_u8; 20 * 1024 * 1024];
    let send = async {
        // A Produce whose body is garbage: it is refused once it has arrived whole.
        let closed = honest.write_all(&frame(0, 9, 1, &body)).await;
        drop(closed);
        kit::answer(&mut honest).await
    };
    assert!(
        tokio::time::timeout(Duration::from_mins(2), send)
            .await
            .unwrap()
            .is_none()
    );
    // The liars are still waiting.
    kit.until_connections(4).await;
}

/// The first 12 bytes of a Produce that claims `len` bytes.
fn claim(len: usize) -> Vec<u8> {
    let mut claim = i32::try_from(len).unwrap().to_be_bytes().to_vec();
    claim.extend_from_slice(&[0, 0, 0, 9, 0, 0, 0, 1]);
    claim
}

/// A Produce of about `len` bytes that is refused once it has arrived whole: its connection closes.
async fn refused(kit: &Kit, len: usize) {
    let mut client = kit.connect().await;
    // It may be closed before all is written.
    let written = client.write_all(&frame(0, 9, 1, &vec![0_u8; len])).await;
    drop(written);
    assert!(kit::answer(&mut client).await.is_none());
}

async fn served(kit: &Kit) {
    let mut client = kit.connect().await;
    client.write_all(&heartbeat(2)).await.unwrap();
    kit.next_call().await.answer();
    assert!(kit::answer(&mut client).await.is_some());
}

#[tokio::test]
async fn what_lacks_little_takes_nothing_from_others() {
    let kit = Kit::with(|setup| setup.budget = 1 << 20);
    let mut slow = Vec::new();
    for _ in 0..64 {
        let mut client = kit.connect().await;
        client.write_all(&claim(65_540)).await.unwrap();
        slow.push(client);
    }
    served(&kit).await;
    refused(&kit, 150_000).await;
    kit.until_free().await;
    // All may go on.
    kit.until_connections(64).await;
}

#[tokio::test]
async fn a_huge_frame_that_comes_slowly_stops_nobody() {
    let kit = Kit::with(|setup| setup.budget = 4 << 20);
    let mut slow = kit.connect().await;
    slow.write_all(&claim(100 << 20)).await.unwrap();
    slow.write_all(&vec![0; 6 << 20]).await.unwrap();
    let (mut read, mut write) = slow.into_split();
    let trickle = tokio::spawn(async move {
        let mut pace = tokio::time::interval(Duration::from_millis(100));
        loop {
            pace.tick().await;
            write.write_all(&[0; 16 * 1024]).await.unwrap();
        }
    });
    for _ in 0..3 {
        served(&kit).await;
        refused(&kit, 700 * 1024).await;
    }
    // It is beyond the budget, and goes on.
    kit.until_free().await;
    kit.until_connections(1).await;
    trickle.abort();
    assert!(trickle.await.unwrap_err().is_cancelled());
    assert!(kit::answer(&mut read).await.is_none());
}

#[tokio::test]
async fn who_waits_for_the_one_huge_frame_ends_no_smaller_one() {
    let kit = Kit::with(|setup| setup.budget = 4 << 20);
    let request = produce(1, 200_000);
    let (first, rest) = request.split_at(100_000);
    let mut smaller = kit.connect().await;
    smaller.write_all(first).await.unwrap();
    kit.until_taken(100_000).await;
    // It stalled before the huge one, which makes way all the same.
    let mut huge = kit.connect().await;
    huge.write_all(&claim(100 << 20)).await.unwrap();
    huge.write_all(&vec![0; 6 << 20]).await.unwrap();
    let others = async {
        loop {
            refused(&kit, 5 << 20).await;
        }
    };
    tokio::select! {
        closed = kit::answer(&mut huge) => assert!(closed.is_none()),
        () = others => {}
    }
    smaller.write_all(rest).await.unwrap();
    kit.next_call().await.answer();
    assert!(kit::answer(&mut smaller).await.is_some());
}

#[tokio::test]
async fn what_lies_behind_a_request_that_takes_long_is_not_to_blame() {
    let kit = Kit::with(|setup| setup.budget = 1 << 20);
    let mut waiting = kit.connect().await;
    // The next buffer is as large as this frame.
    waiting.write_all(&produce(1, 50_000)).await.unwrap();
    kit.next_call().await.answer();
    assert!(kit::answer(&mut waiting).await.is_some());
    let behind = heartbeat(3);
    let (begins, rest) = behind.split_at(10);
    let both = [&metadata(2)[..], begins].concat();
    waiting.write_all(&both).await.unwrap();
    let long = kit.next_call().await;
    // More than there is room for: the first of them make way for the others.
    let mut stalled = Vec::new();
    for _ in 0..24 {
        let mut client = kit.connect().await;
        client.write_all(&claim(60_000)).await.unwrap();
        client.write_all(&[0; 8 * 1024]).await.unwrap();
        stalled.push(client);
    }
    let closed = stalled
        .iter_mut()
        .map(|client| Box::pin(kit::answer(client)));
    let (first, _, _) = futures_util::future::select_all(closed).await;
    assert!(first.is_none());
    waiting.write_all(rest).await.unwrap();
    long.answer();
    kit.next_call().await.answer();
    for expected in [2, 3] {
        let answer = kit::answer(&mut waiting).await.unwrap();
        assert_eq!(answer.correlation_id, expected);
    }
}

#[tokio::test]
async fn frames_that_stall_make_way_for_others() {
    const KIB: usize = 1024;
    let kit = Kit::with(|setup| setup.budget = 4 << 20);
    let mut stalled = Vec::new();
    // Four have room for all that they claim; the fifth goes beyond the budget when it has taken
    // what is left.
    for taken in [700, 1400, 2100, 2800, 3000] {
        let mut client = kit.connect().await;
        client.write_all(&claim(700 * KIB)).await.unwrap();
        client.write_all(&vec![0_u8; 600 * KIB]).await.unwrap();
        stalled.push(client);
        kit.until_taken(taken * KIB).await;
    }
    // Small requests wait for none of them, large ones until they are closed.
    served(&kit).await;
    refused(&kit, 40 * KIB).await;
    kit.until_connections(5).await;
    futures_util::future::join_all((0..4).map(|_| refused(&kit, 700 * KIB))).await;
    let closed = stalled
        .iter_mut()
        .map(|client| Box::pin(kit::answer(client)));
    let (first, _, _) = futures_util::future::select_all(closed).await;
    assert!(first.is_none(), "it made way");
    drop(stalled);
    kit.until_connections(0).await;
    kit.until_free().await;
}

#[tokio::test]
async fn requests_whose_answers_are_not_taken_make_way_for_others() {
    let kit = Kit::with(|setup| {
        setup.budget = 4 << 20;
        setup.limits.write_stall = Duration::from_mins(10);
    });
    let request = produce(1, 640_000);
    let response = MetadataResponse::default().with_brokers(vec![
        kafka_protocol::messages::metadata_response::MetadataResponseBroker::default()
            .with_host(StrBytes::from_string("c".repeat(32_000)));
        300
    ]);
    let mut hoarder = kit.connect().await;
    for _ in 0..4 {
        hoarder.write_all(&request).await.unwrap();
        let response = response.clone().into();
        let response = ApiResponse::Metadata(Box::new(response));
        kit.next_call().await.answer_with(response);
    }
    kit.until_taken(2 << 20).await;
    // One gets what is left, one goes beyond the budget, the third has to wait.
    let mut others = Vec::new();
    let mut calls = Vec::new();
    for _ in 0..3 {
        let mut client = kit.connect().await;
        client.write_all(&request).await.unwrap();
        others.push(client);
        calls.push(kit.next_call().await);
    }
    kit.until_connections(3).await;
    for (mut client, call) in others.into_iter().zip(calls) {
        call.answer();
        assert!(kit::answer(&mut client).await.is_some());
    }
}

#[tokio::test]
async fn large_frames_arrive_whole() {
    let kit = Kit::start();
    let mut client = kit.connect().await;
    // Client ids may be long: 100 topics of 32,000 bytes each make 3 MB.
    let mut body = 100_i32.to_be_bytes().to_vec();
    for _ in 0..100 {
        body.extend_from_slice(&32_000_i16.to_be_bytes());
        body.extend_from_slice(&vec![b'x'; 32_000]);
    }
    let (mut read, mut write) = client.split();
    let bytes = [frame(3, 1, 1, &body), heartbeat(2)].concat();
    write.write_all(&bytes).await.unwrap();
    let call = kit.next_call().await;
    let ApiRequest::Metadata(request) = call.request() else {
        panic!("not Metadata");
    };
    assert_eq!(request.topics.as_ref().map(Vec::len), Some(100));
    call.answer();
    kit.next_call().await.answer();
    let mut both = [0; 2];
    for id in &mut both {
        *id = kit::answer(&mut read).await.unwrap().correlation_id;
    }
    assert_eq!(both, [1, 2]);
}

/// About 4 MB: more than the socket buffers hold.
fn large() -> ApiResponse {
    let name = StrBytes::from_string("c".repeat(4_000_000));
    let response = MetadataResponse::default().with_cluster_id(Some(name));
    ApiResponse::Metadata(Box::new(response.into()))
}

#[tokio::test]
async fn a_slow_reader_gets_every_byte_and_a_stuck_one_is_closed() {
    let kit = Kit::with(|setup| {
        setup.limits.write_stall = Duration::from_secs(10);
    });
    let mut slow = kit.connect().await;
    slow.write_all(&produce(1, 1)).await.unwrap();
    kit.next_call().await.answer_with(large());
    let mut received = 0;
    let mut chunk = vec![0; 256 * 1024];
    while received < 4_000_000 {
        let n = slow.read(&mut chunk).await.unwrap();
        assert!(n > 0);
        received += n;
    }
    let mut stuck = kit.connect().await;
    for id in 0..8 {
        stuck.write_all(&produce(id, 1)).await.unwrap();
        kit.next_call().await.answer_with(large());
    }
    kit.until_connections(1).await;
    drop(slow);
    kit.until_connections(0).await;
}

#[tokio::test]
async fn idle_connections_are_closed_unless_an_answer_is_owed() {
    let kit = Kit::with(|setup| setup.limits.idle = Duration::from_secs(5));
    let mut waiting = kit.connect().await;
    waiting.write_all(&heartbeat(1)).await.unwrap();
    let call = kit.next_call().await;
    let mut idle = kit.connect().await;
    assert!(kit::answer(&mut idle).await.is_none());
    call.answer();
    assert_eq!(kit::answer(&mut waiting).await.unwrap().correlation_id, 1);
    assert!(
        kit::answer(&mut waiting).await.is_none(),
        "now it is idle too"
    );
}

#[tokio::test]
async fn connections_over_a_limit_are_closed_at_once() {
    let kit = Kit::with(|setup| setup.limits.connections_per_ip = 2);
    let (mut one, _two) = (kit.connect().await, kit.connect().await);
    kit.until_connections(2).await;
    let mut three = kit.connect().await;
    assert!(kit::answer(&mut three).await.is_none());
    one.write_all(&api_versions_v3(1)).await.unwrap();
    assert!(kit::answer(&mut one).await.is_some());
    drop(one);
    kit.until_connections(1).await;
    let mut again = kit.connect().await;
    again.write_all(&api_versions_v3(1)).await.unwrap();
    assert!(kit::answer(&mut again).await.is_some());
}

#[tokio::test]
async fn a_drain_finishes_what_is_ordered_and_reads_no_more() {
    let kit = Kit::start();
    let mut client = kit.connect().await;
    client.write_all(&heartbeat(1)).await.unwrap();
    let call = kit.next_call().await;
    let drain = kit.drain(Duration::from_mins(1));
    let client = async {
        kit.until_refusing().await;
        client.write_all(&heartbeat(2)).await.unwrap();
        call.answer();
        let answer = kit::answer(&mut client).await.unwrap();
        assert_eq!(answer.correlation_id, 1);
        assert!(kit::answer(&mut client).await.is_none());
    };
    let (complete, ()) = tokio::join!(drain, client);
    assert!(complete, "nothing was left");
    assert!(kit.no_call().await);
}

#[tokio::test]
async fn a_drain_waits_for_no_part_of_a_frame() {
    let kit = Kit::start();
    let mut client = kit.connect().await;
    client.write_all(&api_versions_v3(1)).await.unwrap();
    assert!(kit::answer(&mut client).await.is_some());
    let frame = heartbeat(2);
    client.write_all(&frame[..frame.len() - 1]).await.unwrap();
    let mut other = kit.connect().await;
    other.write_all(b"G").await.unwrap();
    kit.until_connections(2).await;
    assert!(kit.drain(Duration::from_mins(2)).await);
    assert!(kit::answer(&mut client).await.is_none());
    assert!(kit::answer(&mut other).await.is_none());
}

#[tokio::test]
async fn a_drain_waits_a_part_of_its_time_for_who_takes_nothing() {
    let kit = Kit::with(|setup| setup.limits.write_stall = Duration::from_mins(10));
    let mut stuck = kit.connect().await;
    for id in 0..8 {
        stuck.write_all(&produce(id, 1)).await.unwrap();
        kit.next_call().await.answer_with(large());
    }
    assert!(kit.drain(Duration::from_secs(40)).await);
    assert_eq!(kit.connections(), 0);
}

#[tokio::test]
async fn a_drain_is_bounded() {
    let kit = Kit::start();
    let mut client = kit.connect().await;
    client.write_all(&heartbeat(1)).await.unwrap();
    let _never_answered = kit.next_call().await;
    assert!(!kit.drain(Duration::from_millis(50)).await);
    assert!(kit::answer(&mut client).await.is_none());
    kit.until_connections(0).await;
}

#[tokio::test]
async fn closes_silence_and_panics_of_the_service() {
    let kit = Kit::start();
    let mut client = kit.connect().await;
    client
        .write_all(&[heartbeat(1), heartbeat(2)].concat())
        .await
        .unwrap();
    kit.next_staged().await.send(Staged::Silent).unwrap();
    kit.next_call().await.answer();
    assert_eq!(
        kit::answer(&mut client).await.unwrap().correlation_id,
        2,
        "1 has no answer"
    );
    client.write_all(&heartbeat(3)).await.unwrap();
    let reason = CloseReason::UnacknowledgedError(3);
    kit.next_staged().await.send(Staged::Close(reason)).unwrap();
    assert!(kit::answer(&mut client).await.is_none());

    // What is unsaid may go well, or not.
    let mut client = kit.connect().await;
    client
        .write_all(&[heartbeat(1), heartbeat(2), heartbeat(3)].concat())
        .await
        .unwrap();
    let (fail, fails) = tokio::sync::oneshot::channel();
    let fails = Staged::Unsaid(Box::pin(async { fails.await.ok() }));
    kit.next_staged().await.send(fails).unwrap();
    let well = Staged::Unsaid(Box::pin(async { None }));
    kit.next_staged().await.send(well).unwrap();
    kit.next_call().await.answer();
    let answer = kit::answer(&mut client).await.unwrap();
    assert_eq!(answer.correlation_id, 3, "1 and 2 have no answer");
    fail.send(CloseReason::UnacknowledgedError(47)).unwrap();
    assert!(kit::answer(&mut client).await.is_none());

    let mut client = kit.connect().await;
    client.write_all(&heartbeat(4)).await.unwrap();
    let panics = Staged::Later(Box::pin(async {
        let lazy: fn() -> ApiResponse = || panic!("a defect in the second stage");
        lazy()
    }));
    kit.next_staged().await.send(panics).unwrap();
    assert!(kit::answer(&mut client).await.is_none());
    let mut other = kit.connect().await;
    other.write_all(&api_versions_v3(5)).await.unwrap();
    assert!(
        kit::answer(&mut other).await.is_some(),
        "the process goes on"
    );
}

#[tokio::test]
async fn a_connection_that_goes_away_cancels_no_first_stage() {
    let kit = Kit::start();
    let mut client = kit.connect().await;
    client.write_all(&heartbeat(1)).await.unwrap();
    let staged = kit.next_staged().await;
    drop(client);
    // The first stage is still awaited by the reader: it can be completed.
    let answer = kit::heartbeat_response();
    assert!(staged.send(Staged::Now(answer)).is_ok());
    kit.until_connections(0).await;
}
