//! Large batches that were written or read a moment ago are sent from their files, whatever becomes
//! of those.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::FetchRequest;
use tests::raw::{RawClient, decode_response, encode_request, ops};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::compaction::{EAGER, NOBODY, SOON, keyed, set};
use crate::fsyncs::counter;
use crate::kit::{Target, now_ms, on_kafka, plain, produce, serves};
use crate::reading::{fetch_batch, fetch_request, partitions, records};
use crate::trimming;

const VERSION: i16 = 12;
/// Batches of the topic, a MB each.
const BATCHES: i64 = 24;
/// Journal files of about one batch, and answers of all of them.
const SETTINGS: [(&str, &str); 3] = [
    ("journal.segment.bytes", "1048576"),
    ("queued.max.response.bytes", "1073741824"),
    // Slow readers are what this is about.
    ("connections.write.stall.ms", "600000"),
];

fn from_files(target: &Target) -> u64 {
    counter(target, "fencepost_sent_from_files_bytes_total ")
}

/// A batch of one record about `key`.
fn large(key: &str, bytes: usize) -> Bytes {
    keyed(NOBODY, now_ms(), &[(key, Some(&"x".repeat(bytes)))])
}

/// Whether something comes to hold that nothing tells of; looks so often, 50 ms apart.
async fn holds(looks: u32, mut holds: impl FnMut() -> bool) -> bool {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..looks {
        pace.tick().await;
        if holds() {
            return true;
        }
    }
    false
}

/// Fails where something does not come to hold in two minutes.
pub(crate) async fn until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(holds(2400, is_so).await, "never {what}");
}

#[tokio::test]
async fn what_was_written_or_read_a_moment_ago_is_sent_from_its_file() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    let mut client = target.with_topic("again", 1).await;
    let sent = [large("a", 300_000), plain(3), large("b", 400_000), plain(1)];
    for batch in &sent {
        assert_eq!(produce(&mut client, "again", batch.clone()).await.0, 0);
    }
    let large = u64::try_from(sent[0].len() + sent[2].len()).unwrap();
    let first = fetch_batch(&mut client, "again", 0).await;
    assert_eq!(first.len(), sent.iter().map(Bytes::len).sum::<usize>());
    sent_from_files(&target, &mut client, "again", &first, large).await;
    // A process that has not seen them yet looks at all of them once.
    target.kill_and_restart();
    let mut client = target.connect().await;
    ops::await_topic(&mut client, "again", 1).await.unwrap();
    assert!(fetch_batch(&mut client, "again", 0).await == first);
    assert_eq!(from_files(&target), 0);
    let read = counter(&target, "fencepost_journal_read_bytes_total ");
    assert!(read > large, "{read}");
    sent_from_files(&target, &mut client, "again", &first, large).await;
    // And for requests that wait for no answer.
    let request = fetch_request("again", &[(0, 0)]);
    for _ in 0..10 {
        client.send(&request, VERSION).await.unwrap();
    }
    for _ in 0..10 {
        let (_, response) = client.receive::<FetchRequest>(VERSION).await.unwrap();
        assert!(records(&partitions(&response)[0]) == first);
    }
    target.log_is_clean(&[]);
}

/// Fetches until all that is large comes from files, which it does for a minute after it was looked
/// at last. None did before. It is counted when it is out, which may be after it was received.
async fn sent_from_files(
    target: &Target,
    client: &mut RawClient,
    topic: &str,
    all: &Bytes,
    large: u64,
) {
    for _ in 0..10 {
        assert!(fetch_batch(client, topic, 0).await == *all);
        let counted = || matches!(from_files(target), sent if sent > 0 && sent % large == 0);
        if holds(100, counted).await {
            return;
        }
        assert_eq!(from_files(target), 0);
    }
    panic!("never sent from files");
}

/// A Fetch of all there is.
fn greedy(topic: &str) -> FetchRequest {
    let mut request = fetch_request(topic, &[(0, 0)]);
    request.topics[0].partitions[0].partition_max_bytes = 50 << 20;
    request
}

async fn fetch_all(client: &mut RawClient, topic: &str) -> Bytes {
    let response = client.call(&greedy(topic), VERSION).await.unwrap();
    let answer = &partitions(&response)[0];
    assert_eq!(answer.error_code, 0);
    records(answer)
}

/// A connection that takes little while it does not read, and has been sent a part of everything
/// from files.
async fn slow_reader(target: &Target, client: &mut RawClient, topic: &str) -> TcpStream {
    for _ in 0..5 {
        fetch_all(client, topic).await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(32 << 10).unwrap();
        let address = target.address().parse().unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        let before = from_files(target);
        let frame = encode_request(&greedy(topic), VERSION, 1).unwrap();
        stream.write_all(&frame).await.unwrap();
        // Unless more than a minute went by since it was looked at.
        if holds(400, || from_files(target) > before).await {
            return stream;
        }
    }
    panic!("never sent from files");
}

/// The records of the answer that it has been given in part.
async fn read_on(mut stream: TcpStream) -> Bytes {
    let len = usize::try_from(stream.read_u32().await.unwrap()).unwrap();
    let mut body = vec![0; len];
    let read = tokio::time::timeout(Duration::from_mins(2), stream.read_exact(&mut body));
    read.await.unwrap().unwrap();
    let (_, response) = decode_response::<FetchRequest>(body.into(), VERSION).unwrap();
    records(&partitions(&response)[0])
}

/// A topic whose batches come from files, and what they are.
async fn filled(target: &Target, topic: &str, configs: &[(&str, &str)]) -> (RawClient, Bytes) {
    let mut client = target.with_configs(topic, 1, configs).await;
    let batch = large("k", 1_000_000);
    for offset in 0..BATCHES {
        let got = produce(&mut client, topic, batch.clone()).await;
        assert_eq!(got, (0, offset));
    }
    let all = fetch_all(&mut client, topic).await;
    assert!(all.len() > 24_000_000, "{}", all.len());
    (client, all)
}

fn journals(target: &Target) -> Vec<PathBuf> {
    target.gateway(|_, data_dir| {
        let journal = data_dir.join("__store/shard-0/journal");
        let names = fs::read_dir(journal).unwrap();
        let mut found: Vec<_> = names.map(|entry| entry.unwrap().path()).collect();
        found.retain(|path| path.extension().is_some_and(|end| end == "log"));
        found.sort_by_key(|path| number(path));
        found
    })
}

/// The number of a journal file.
fn number(path: &Path) -> u64 {
    let name = path.file_stem().unwrap().to_str().unwrap();
    name.rsplit_once('-').unwrap().1.parse().unwrap()
}

/// Files that hold nothing but batches of the topic: the first has what came before it, too.
fn its_files(target: &Target) -> Vec<PathBuf> {
    let mut files = journals(target);
    assert!(files.len() > 8, "{files:?}");
    files.drain(1..files.len() - 1).collect()
}

#[tokio::test]
async fn a_slow_reader_of_a_topic_that_is_deleted_gets_all_of_its_answer() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&SETTINGS);
    let (mut client, all) = filled(&target, "deleted", &[]).await;
    let slow = slow_reader(&target, &mut client, "deleted").await;
    let files = its_files(&target);
    ops::delete_topic(&mut client, "deleted").await.unwrap();
    until("unlinked", || files.iter().all(|file| !file.exists())).await;
    assert!(read_on(slow).await == all);
    assert!(serves(&target).await);
    target.log_is_clean(&[]);
}

#[tokio::test]
async fn a_slow_reader_of_records_that_are_deleted_gets_all_of_its_answer() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&SETTINGS);
    let (mut client, all) = filled(&target, "trimmed", &[]).await;
    let slow = slow_reader(&target, &mut client, "trimmed").await;
    let files = its_files(&target);
    let deleted = trimming::delete(&mut client, 2, "trimmed", &[(0, -1)]).await;
    assert_eq!(deleted, [(0, 0, BATCHES)]);
    until("unlinked", || files.iter().all(|file| !file.exists())).await;
    let request = greedy("trimmed");
    let response = client.call(&request, VERSION).await.unwrap();
    assert_eq!(partitions(&response)[0].error_code, 1);
    assert!(read_on(slow).await == all);
    target.log_is_clean(&[]);
}

#[tokio::test]
async fn a_slow_reader_of_what_retention_removes_gets_all_of_its_answer() {
    if on_kafka() {
        return;
    }
    let settings = [&SETTINGS[..], &SOON[..]].concat();
    let target = Target::start(&settings);
    let configs = [("segment.bytes", "1048576")];
    let (mut client, all) = filled(&target, "retained", &configs).await;
    let slow = slow_reader(&target, &mut client, "retained").await;
    let files = its_files(&target);
    set(&mut client, "retained", "retention.bytes", "1").await;
    // All but the segment that is being written.
    let files = &files[..files.len() / 2];
    until("unlinked", || files.iter().all(|file| !file.exists())).await;
    assert!(read_on(slow).await == all);
    target.log_is_clean(&[]);
}

#[tokio::test]
async fn a_slow_reader_of_a_topic_that_is_compacted_gets_all_of_its_answer() {
    if on_kafka() {
        return;
    }
    let settings = [&SETTINGS[..], &SOON[..]].concat();
    let target = Target::start(&settings);
    let (mut client, all) = filled(&target, "compacted", &EAGER).await;
    let slow = slow_reader(&target, &mut client, "compacted").await;
    let files = its_files(&target);
    let size = |path: &PathBuf| fs::metadata(path).map_or(0, |file| file.len());
    assert!(files.iter().all(|file| size(file) > 500_000));
    set(&mut client, "compacted", "cleanup.policy", "compact").await;
    // One record of the key is left, and that is in the last of them at the earliest.
    let files = &files[..files.len() / 2];
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let mut rounds = 0;
    while files.iter().any(|file| size(file) > 500_000) {
        rounds += 1;
        assert!(rounds < 2400, "never compacted: {files:?}");
        pace.tick().await;
        // Makes a segment close.
        let tick = keyed(NOBODY, now_ms(), &[("tick", Some("x"))]);
        assert_eq!(produce(&mut client, "compacted", tick).await.0, 0);
    }
    let left = fetch_all(&mut client, "compacted").await;
    assert!(left.len() < all.len() / 2 + 1_000_000, "{}", left.len());
    assert!(read_on(slow).await == all);
    target.log_is_clean(&[]);
}

#[tokio::test]
async fn who_goes_away_in_the_middle_leaves_nothing_behind() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&SETTINGS);
    let (mut client, all) = filled(&target, "left", &[]).await;
    for _ in 0..5 {
        let slow = slow_reader(&target, &mut client, "left").await;
        drop(slow);
    }
    // Reads a part, and goes.
    let mut slow = slow_reader(&target, &mut client, "left").await;
    let mut part = vec![0; 3_000_000];
    slow.read_exact(&mut part).await.unwrap();
    drop(slow);
    until("all gone", || {
        let connections = counter(&target, "fencepost_connections ");
        let held = counter(&target, "fencepost_responses_in_memory_bytes ");
        connections == 1 && held == 0
    })
    .await;
    assert!(fetch_all(&mut client, "left").await == all);
    target.log_is_clean(&[]);
}

#[tokio::test]
async fn a_file_that_is_cut_ends_the_connection_and_nothing_else() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&SETTINGS);
    let (mut other, all) = filled(&target, "cut", &[]).await;
    let file = its_files(&target)[5].clone();
    let cut = fs::OpenOptions::new().write(true).open(&file).unwrap();
    cut.set_len(64).unwrap();
    let mut client = target.connect().await;
    client.call(&greedy("cut"), VERSION).await.unwrap_err();
    let said =
        |line: &str| line.contains("connection closed") && line.contains("unexpected end of file");
    until("said once", || {
        let log = target.gateway(|gateway, _| gateway.log().unwrap());
        log.lines().filter(|line| said(line)).count() == 1
    })
    .await;
    // From then on the file is read, and what is wrong with it is told.
    let mut client = target.connect().await;
    let response = client.call(&greedy("cut"), VERSION).await.unwrap();
    let answer = &partitions(&response)[0];
    assert_eq!(answer.error_code, 0);
    let before = records(answer);
    assert!(!before.is_empty() && before.len() < all.len() && all.starts_with(&before));
    let next = i64::try_from(before.len() / (all.len() / 24)).unwrap();
    let request = fetch_request("cut", &[(0, next)]);
    let response = client.call(&request, VERSION).await.unwrap();
    assert_eq!(partitions(&response)[0].error_code, 56);
    // Other places and connections are as they were.
    let last = fetch_batch(&mut other, "cut", BATCHES - 1).await;
    assert!(all.ends_with(&last) && last.len() > 1_000_000);
    assert_eq!(produce(&mut other, "cut", plain(1)).await, (0, BATCHES));
    target.log_is_clean(&["a stored batch is damaged"]);
}
