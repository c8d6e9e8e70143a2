//! A full disk: retriable answers while it is full, service by itself when there is space again,
//! and nothing acknowledged that is not there. Needs the right to mount a tmpfs.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tests::gatewayproc::{Gateway, GatewayOptions};
use tests::raw::batch::Record;
use tests::raw::{RawClient, ops};

use crate::kit::{P, get, on_kafka, plain};
use crate::reading::fetch_batch;

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

fn batch(sequence: i32) -> bytes::Bytes {
    let mut spec = P(7, 0, sequence, 0).spec();
    spec.records = vec![Record::value(vec![b'x'; 40_000])];
    spec.build()
}

/// Sends until the code is `wanted`, at most 400 times; every other one must be retriable.
async fn until(client: &mut RawClient, sequence: i32, wanted: &[i16]) -> (i16, i64) {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..400 {
        pace.tick().await;
        let got = ops::produce(client, "filled", 0, batch(sequence))
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
    let options = GatewayOptions {
        overrides: vec!["journal.segment.bytes=1048576".to_owned()],
        ..GatewayOptions::default()
    };
    let mut gateway = Gateway::start(&disk.0.join("data"), &options).unwrap();
    // The log of the process grows on the same disk; what it can't write is lost, not fatal.
    let mut client = RawClient::connect(gateway.address()).await.unwrap();
    ops::create_topic(&mut client, "filled", 1, &[])
        .await
        .unwrap();
    let mut next = 0;
    for _ in 0..10 {
        let got = until(&mut client, next, &[0]).await;
        assert_eq!(got, (0, i64::from(next)));
        next += 1;
    }
    for round in 0..3 {
        disk.fill();
        // Some fit into what was allocated; then none does.
        loop {
            let (code, base) = until(&mut client, next, &[0, 7, 56]).await;
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
        let (_, base) = until(&mut client, next, &[0]).await;
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
    let options = GatewayOptions {
        overrides: vec!["journal.segment.bytes=1048576".to_owned()],
        ..GatewayOptions::default()
    };
    let gateway = Gateway::start(&disk.0.join("data"), &options).unwrap();
    let mut client = RawClient::connect(gateway.address()).await.unwrap();
    disk.fill();
    let refused = ops::create_topic(&mut client, "no-room", 1, &[]).await;
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("CreateTopics no-room: 7 ") || refused.contains("56"),
        "{refused}"
    );
    disk.free();
    ops::create_topic(&mut client, "no-room", 1, &[])
        .await
        .unwrap();
    let sent = ops::produce(&mut client, "no-room", 0, plain(1))
        .await
        .unwrap();
    assert_eq!((sent.error_code, sent.base_offset), (0, 0));
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
    let options = GatewayOptions {
        overrides: vec!["journal.segment.bytes=1048576".to_owned()],
        ..GatewayOptions::default()
    };
    let gateway = Gateway::start(&disk.0, &options).unwrap();
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

fn plain_of(len: usize) -> bytes::Bytes {
    let mut spec = P(-1, -1, -1, 0).spec();
    spec.records = vec![Record::value(vec![b'x'; len])];
    spec.build()
}
