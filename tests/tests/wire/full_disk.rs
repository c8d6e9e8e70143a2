//! A full disk: retriable answers while it is full, service by itself when there is space again,
//! and nothing acknowledged that is not there. Needs the right to mount a tmpfs.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tests::gatewayproc::{Gateway, GatewayOptions};
use tests::raw::batch::Record;
use tests::raw::{RawClient, ops};

use crate::kit::{P, end_of, get, on_kafka, produce_request};
use crate::reading::fetch_batch;
use crate::trimming;
use crate::txn_apis::{self, Session, await_state};

/// A file system of a fixed size, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path, mib: u32) -> Self {
        fs::create_dir_all(at).unwrap();
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs"])
            .arg(at)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "this test needs the right to mount a tmpfs: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Self(at.to_owned())
    }

    /// Leaves no byte free, but for what the file system keeps.
    fn fill(&self) {
        let mut ballast = File::create(self.0.join("ballast")).unwrap();
        let mut block = vec![7; 1 << 16];
        while !block.is_empty() {
            if ballast.write_all(&block).is_err() {
                block.truncate(block.len() / 2);
            }
        }
    }

    fn free(&self) {
        fs::remove_file(self.0.join("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that still ends may hold files open.
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

/// A broker with small files, so that what it gives back is seen soon.
fn start(data_dir: &Path) -> Gateway {
    let options = GatewayOptions {
        overrides: vec!["journal.segment.bytes=1048576".to_owned()],
        ..GatewayOptions::default()
    };
    Gateway::start(data_dir, &options).unwrap()
}

fn batch(sequence: i32) -> bytes::Bytes {
    let mut spec = P(7, 0, sequence, 0).spec();
    spec.records = vec![Record::value(vec![b'x'; 40_000])];
    spec.build()
}

/// Sends until the code is `wanted`, for a minute; every other one must be retriable.
async fn until(client: &mut RawClient, topic: &str, sequence: i32, wanted: &[i16]) -> (i16, i64) {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..1200 {
        pace.tick().await;
        let got = ops::produce(client, topic, 0, batch(sequence))
            .await
            .unwrap();
        if wanted.contains(&got.error_code) {
            return (got.error_code, got.base_offset);
        }
        assert!([7, 56].contains(&got.error_code), "{got:?}");
    }
    panic!("never answered {wanted:?}");
}

#[tokio::test]
async fn a_full_disk_is_answered_and_forgiven() {
    if on_kafka() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(&dir.path().join("disk"), 48);
    let mut gateway = start(&disk.0.join("data"));
    // The log of the process grows on the same disk; what it can't write is lost, not fatal.
    let mut client = RawClient::connect(gateway.address()).await.unwrap();
    ops::create_topic(&mut client, "filled", 1, &[])
        .await
        .unwrap();
    let mut next = 0;
    for _ in 0..10 {
        let got = until(&mut client, "filled", next, &[0]).await;
        assert_eq!(got, (0, i64::from(next)));
        next += 1;
    }
    for round in 0..3 {
        disk.fill();
        // Some fit into what was allocated; then none does.
        loop {
            let (code, base) = until(&mut client, "filled", next, &[0, 7, 56]).await;
            if code != 0 {
                break;
            }
            assert_eq!(base, i64::from(next));
            next += 1;
            assert!(next < 2000, "the disk never gets full");
        }
        // Reading goes on, and so does everything that needs no space.
        let stored = fetch_batch(&mut client, "filled", i64::from(next) - 1).await;
        assert_eq!(stored[..8], (i64::from(next) - 1).to_be_bytes());
        assert!(gateway.process().is_running().unwrap());
        disk.free();
        let (_, base) = until(&mut client, "filled", next, &[0]).await;
        assert_eq!(base, i64::from(next), "round {round}: once, and in order");
        next += 1;
    }
    gateway.process().kill().unwrap();
    gateway.restart().unwrap();
    let mut client = RawClient::connect(gateway.address()).await.unwrap();
    let end = ops::list_offsets(&mut client, "filled", 1, ops::LATEST).await;
    assert_eq!(end.unwrap(), [i64::from(next)]);
    for offset in 0..next {
        let stored = fetch_batch(&mut client, "filled", i64::from(offset)).await;
        assert_eq!(stored[..8], i64::from(offset).to_be_bytes());
        assert_eq!(stored[53..57], offset.to_be_bytes(), "its sequence");
    }
}

#[tokio::test]
async fn what_needs_space_is_refused_with_a_retry() {
    if on_kafka() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(&dir.path().join("disk"), 32);
    let gateway = start(&disk.0.join("data"));
    let mut client = RawClient::connect(gateway.address()).await.unwrap();
    disk.fill();
    let refused = ops::create_topic(&mut client, "no-room", 1, &[]).await;
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("CreateTopics no-room: 7 ") || refused.contains("56"),
        "{refused}"
    );
    disk.free();
    // What met the full disk behind these answers may be about to be opened again.
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..1200 {
        pace.tick().await;
        let Err(refused) = ops::create_topic(&mut client, "no-room", 1, &[]).await else {
            break;
        };
        let refused = refused.to_string();
        assert!(
            refused.contains(": 7 ") || refused.contains(": 56 "),
            "{refused}"
        );
    }
    assert_eq!(until(&mut client, "no-room", 0, &[0]).await, (0, 0));
    ops::init_producer_id(&mut client).await.unwrap();
}

#[tokio::test]
async fn a_full_disk_is_shown_and_said_once() {
    if on_kafka() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // The log of the process lies beside the disk, not on it.
    let disk = SmallDisk::mount(&dir.path().join("data"), 48);
    let gateway = start(&disk.0);
    let admin = |path: &str| get(&gateway.admin_address(), path);
    let shown = |full: bool| {
        let metric = format!("fencepost_disk_full {}\n", u8::from(full));
        let degraded = admin("/readyz").contains("\ndisk: it is full");
        admin("/metrics").contains(&metric) && degraded == full
    };
    let mut client = RawClient::connect(gateway.address()).await.unwrap();
    ops::create_topic(&mut client, "filled", 1, &[])
        .await
        .unwrap();
    assert!(shown(false));
    for round in 1..=2 {
        disk.fill();
        let mut refused = 0;
        while refused < 20 {
            let sent = ops::produce(&mut client, "filled", 0, plain_of(40_000)).await;
            refused += i32::from(sent.unwrap().error_code != 0);
        }
        assert!(shown(true));
        assert!(admin("/readyz").starts_with("HTTP/1.1 200 "));
        assert!(admin("/metrics").contains("fencepost_store_refusals_total{cause=\"full\"} "));
        disk.free();
        let mut pace = tokio::time::interval(Duration::from_millis(50));
        while !shown(false) {
            pace.tick().await;
        }
        let log = gateway.log().unwrap();
        let said = |what: &str| log.lines().filter(|line| line.contains(what)).count();
        assert_eq!(said("the disk is full"), round, "{log}");
        assert_eq!(said("the disk has space again"), round, "{log}");
        // Nothing is said for each of twenty refusals.
        let loud = |line: &&str| line.contains("ERROR") || line.contains("WARN");
        assert!(log.lines().filter(loud).count() < 10 * round, "{log}");
    }
}

/// Topic `kept` with a few records; then the disk is full.
async fn filled(disk: &SmallDisk) -> (Gateway, i32) {
    let gateway = start(&disk.0);
    let mut client = RawClient::connect(gateway.address()).await.unwrap();
    ops::create_topic(&mut client, "kept", 1, &[])
        .await
        .unwrap();
    disk.fill();
    let mut acknowledged = 0;
    loop {
        let sent = ops::produce(&mut client, "kept", 0, batch(acknowledged)).await;
        let sent = sent.unwrap();
        if sent.error_code != 0 {
            assert!([7, 56].contains(&sent.error_code), "{sent:?}");
            return (gateway, acknowledged);
        }
        assert_eq!(sent.base_offset, i64::from(acknowledged));
        acknowledged += 1;
    }
}

/// Every record that was acknowledged is there, and the one that was refused comes behind them.
async fn has_kept(gateway: &Gateway, acknowledged: i32) {
    let mut client = RawClient::connect(gateway.address()).await.unwrap();
    for offset in 0..acknowledged {
        let stored = fetch_batch(&mut client, "kept", i64::from(offset)).await;
        assert_eq!(stored[..8], i64::from(offset).to_be_bytes());
        assert_eq!(stored[53..57], offset.to_be_bytes(), "its sequence");
    }
    let sent = until(&mut client, "kept", acknowledged, &[0]).await;
    assert_eq!(sent, (0, i64::from(acknowledged)));
}

/// Waits until the process has said that it waits for space; where its admin port is.
async fn waits_for_space(gateway: &mut Gateway, times: usize) -> String {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    loop {
        pace.tick().await;
        let log = gateway.log().unwrap();
        let mut said = log.lines().filter(|line| line.contains(WAITS));
        if let Some(line) = said.nth(times - 1) {
            let (_, admin) = line.split_once("\"admin\":\"").unwrap();
            return admin.split('"').next().unwrap().to_owned();
        }
        assert!(gateway.process().is_running().unwrap(), "{log}");
    }
}

const WAITS: &str = "the broker can't start without space";

#[tokio::test]
async fn a_broker_that_is_killed_on_a_full_disk_comes_back_with_the_space() {
    if on_kafka() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // The log of the process lies beside the disk, not on it.
    let disk = SmallDisk::mount(&dir.path().join("data"), 48);
    let (mut gateway, acknowledged) = filled(&disk).await;
    for round in 1..=2 {
        gateway.process().kill().unwrap();
        gateway.begin_restart().unwrap();
        let admin = waits_for_space(&mut gateway, round).await;
        let ready = get(&admin, "/readyz");
        assert!(ready.starts_with("HTTP/1.1 503 "), "{ready}");
        assert!(ready.contains("no space left for __cluster/"), "{ready}");
        assert!(get(&admin, "/livez").starts_with("HTTP/1.1 200 "));
        let others = get(&admin, "/api/v1/transactions");
        assert!(others.starts_with("HTTP/1.1 503 "), "{others}");
        // Clients are not kept waiting.
        let mut client = RawClient::connect(gateway.address()).await.unwrap();
        let turned_away = ops::api_versions(&mut client).await.unwrap_err();
        let turned_away = format!("{turned_away:#}");
        assert!(!turned_away.contains("in time"), "{turned_away}");
    }
    disk.free();
    gateway.await_start().unwrap();
    has_kept(&gateway, acknowledged).await;
    let ready = get(&gateway.admin_address(), "/readyz");
    assert!(ready.starts_with("HTTP/1.1 200 "), "{ready}");
    let log = gateway.log().unwrap();
    let loud = log.lines().filter(|line| line.contains("ERROR"));
    // That the disk is full, for the first process; that and what waits, for the two others.
    assert_eq!(loud.count(), 5, "{log}");
    assert!(gateway.stop().unwrap().success());
}

#[tokio::test]
async fn a_broker_that_has_filled_its_disk_by_itself_starts_on_it() {
    if on_kafka() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(&dir.path().join("data"), 128);
    let mut gateway = start(&disk.0);
    let mut client = RawClient::connect(gateway.address()).await.unwrap();
    ops::create_topic(&mut client, "kept", 1, &[])
        .await
        .unwrap();
    let ballast = File::create(disk.0.join("ballast")).unwrap();
    ballast.write_all_at(&vec![7; 100 << 20], 0).unwrap();
    drop(ballast);
    let mut acknowledged = 0;
    while until(&mut client, "kept", acknowledged, &[0, 7, 56])
        .await
        .0
        == 0
    {
        acknowledged += 1;
    }
    gateway.process().kill().unwrap();
    gateway.restart().unwrap();
    let mut client = RawClient::connect(gateway.address()).await.unwrap();
    for offset in 0..acknowledged {
        let stored = fetch_batch(&mut client, "kept", i64::from(offset)).await;
        assert_eq!(stored[..8], i64::from(offset).to_be_bytes());
    }
    // A start may have given back what was reserved.
    while until(&mut client, "kept", acknowledged, &[0, 7, 56])
        .await
        .0
        == 0
    {
        acknowledged += 1;
    }
    disk.free();
    let again = until(&mut client, "kept", acknowledged, &[0]).await;
    assert_eq!(again, (0, i64::from(acknowledged)));
}

/// Sends what closes the connection, and has a line in the log.
async fn refused(gateway: &Gateway) {
    let mut refused = RawClient::connect(gateway.address()).await.unwrap();
    refused.send_frame(&[0x7f; 40]).await.unwrap();
    assert_eq!(refused.receive_frame().await.unwrap(), None);
}

/// Names in a directory that begin and end so.
fn names(dir: &Path, begin: &str, end: &str) -> usize {
    let names = fs::read_dir(dir).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let found = names.filter(|name| name.starts_with(begin) && name.ends_with(end));
    found.count()
}

#[tokio::test]
async fn deleting_goes_on_where_others_have_filled_the_disk() {
    if on_kafka() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(&dir.path().join("data"), 64);
    let options = GatewayOptions {
        overrides: vec![
            "journal.segment.bytes=1048576".to_owned(),
            "journal.reserved.bytes=8388608".to_owned(),
        ],
        ..GatewayOptions::default()
    };
    let gateway = Gateway::start(&disk.0, &options).unwrap();
    let mut client = RawClient::connect(gateway.address()).await.unwrap();
    for topic in ["trimmed", "deleted"] {
        ops::create_topic(&mut client, topic, 1, &[]).await.unwrap();
        for _ in 0..60 {
            let sent = ops::produce(&mut client, topic, 0, plain_of(40_000)).await;
            assert_eq!(sent.unwrap().error_code, 0);
        }
    }
    let held = || names(&disk.0.join("__cluster"), "room-", "") == 1;
    let journal = disk.0.join("__store/shard-0/journal");
    assert!(held() && names(&journal, "", ".log") >= 4);
    disk.fill();
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let mut refused = 0;
    while trimming::delete(&mut client, 2, "trimmed", &[(0, -1)]).await != [(0, 0, 60)] {
        pace.tick().await;
        refused += 1;
        assert!(refused < 1200, "the records stay");
    }
    while let Err(error) = ops::delete_topic(&mut client, "deleted").await {
        pace.tick().await;
        refused += 1;
        assert!(refused < 1200, "the topic stays: {error}");
    }
    assert!(!held());
    while names(&journal, "", ".log") > 2 {
        pace.tick().await;
    }
    disk.free();
    while !held() {
        pace.tick().await;
    }
    assert_eq!(until(&mut client, "trimmed", 0, &[0]).await, (0, 60));
}

#[tokio::test]
async fn a_log_that_cannot_be_written_costs_lines_only() {
    if on_kafka() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Only the log of the process lies on the disk.
    let disk = SmallDisk::mount(&dir.path().join("disk"), 8);
    let real = dir.path().join("real");
    fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, disk.0.join("data")).unwrap();
    let options = GatewayOptions {
        overrides: vec!["logging.filter=debug".to_owned()],
        ..GatewayOptions::default()
    };
    let mut gateway = Gateway::start(&disk.0.join("data"), &options).unwrap();
    let lines = |gateway: &Gateway| gateway.log().unwrap().matches("connection closed").count();
    refused(&gateway).await;
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    while lines(&gateway) == 0 {
        pace.tick().await;
    }
    disk.fill();
    let mut client = RawClient::connect(gateway.address()).await.unwrap();
    ops::create_topic(&mut client, "kept", 1, &[])
        .await
        .unwrap();
    for sequence in 0..100 {
        // Each has a line in the log: in all more than what a page has room for.
        refused(&gateway).await;
        let sent = ops::produce(&mut client, "kept", 0, batch(sequence)).await;
        assert_eq!(sent.unwrap().error_code, 0);
    }
    let lines = lines(&gateway);
    assert!(
        (1..100).contains(&lines),
        "{lines} lines: the log is not full"
    );
    assert_eq!(gateway.stop().unwrap().code(), Some(0));
}

#[tokio::test]
async fn sigterm_on_a_full_disk_is_an_orderly_stop() {
    if on_kafka() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(&dir.path().join("data"), 48);
    let (mut gateway, acknowledged) = filled(&disk).await;
    assert_eq!(gateway.stop().unwrap().code(), Some(0));
    // One that waits for space stops like one that runs.
    gateway.begin_restart().unwrap();
    waits_for_space(&mut gateway, 1).await;
    assert_eq!(gateway.stop().unwrap().code(), Some(0));
    disk.free();
    gateway.restart().unwrap();
    has_kept(&gateway, acknowledged).await;
    let log = gateway.log().unwrap();
    assert!(!log.contains("panicked"), "{log}");
}

/// Opens a transaction of `tx` with one record in `kept`.
async fn open(client: &mut RawClient) -> Session {
    let session = txn_apis::begin(client, "tx").await;
    let of = [("kept", &[0][..])];
    let added = txn_apis::add(client, "tx", session, &of, 3).await;
    assert_eq!(added, [0]);
    let mut spec = P(session.0, session.1, 0, 1).spec();
    spec.attributes = 0x10;
    let mut request = produce_request("kept", &[(0, Some(spec.build()))]);
    request.transactional_id = Some(txn_apis::id_of("tx"));
    let sent = txn_apis::produce(client, &request, 9).await;
    assert_eq!(sent[0].error_code, 0);
    session
}

#[tokio::test]
async fn a_transaction_that_a_full_disk_keeps_open_ends_once_with_the_space() {
    if on_kafka() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // The log of the process lies beside the disk, not on it.
    let disk = SmallDisk::mount(&dir.path().join("data"), 48);
    let mut gateway = start(&disk.0);
    let mut client = RawClient::connect(gateway.address()).await.unwrap();
    ops::create_topic(&mut client, "kept", 1, &[])
        .await
        .unwrap();
    let mut ended = 0;
    let session = loop {
        let session = open(&mut client).await;
        disk.fill();
        let commit = txn_apis::end_request("tx", session, true);
        let code = client.call(&commit, 3).await.unwrap().error_code;
        if code != 0 {
            assert!([14, 15].contains(&code), "{code}");
            break session;
        }
        // A file that was not needed any more has gone in between.
        ended += 1;
        assert!(ended < 100, "the disk never gets full");
        disk.free();
    };
    assert!(gateway.process().is_running().unwrap());
    disk.free();
    let told = txn_apis::end(&mut client, "tx", session, true, 3).await;
    assert_eq!(told.0, 0);
    await_state(&mut client, "tx", "CompleteCommit").await;
    // A record and a marker of each.
    let end = 2 * (ended + 1);
    let lso = format!("\"lastStableOffset\":{end},");
    for restart in [false, true] {
        if restart {
            gateway.process().kill().unwrap();
            gateway.restart().unwrap();
            client = RawClient::connect(gateway.address()).await.unwrap();
            await_state(&mut client, "tx", "CompleteCommit").await;
        }
        assert_eq!(end_of(&mut client, "kept").await, end, "one marker");
        let told = get(
            &gateway.admin_address(),
            "/api/v1/topics/kept/partitions/0/lso",
        );
        assert!(told.contains(&lso), "{told}");
    }
}

fn plain_of(len: usize) -> bytes::Bytes {
    let mut spec = P(-1, -1, -1, 0).spec();
    spec.records = vec![Record::value(vec![b'x'; len])];
    spec.build()
}
