//! `fencepost store`: what it says of a store, of a damaged one, and of one in use.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tests::gatewayproc::{Gateway, GatewayOptions, binary};
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::{RawClient, ops};

fn store(data_dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary().unwrap());
    command.arg("store").arg("--data-dir").arg(data_dir);
    command.args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The lines that a command that went well printed.
fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

async fn produce(client: &mut RawClient, topic: &str, records: &[&[u8]]) {
    let spec = BatchSpec {
        records: records
            .iter()
            .map(|value| Record::value(value.to_vec()))
            .collect(),
        ..BatchSpec::default()
    };
    let sent = ops::produce(client, topic, 0, spec.build()).await.unwrap();
    assert_eq!(sent.error_code, 0);
}

/// A data directory with three batches of one topic and one of another; its broker runs.
async fn filled(dir: &Path) -> (Gateway, PathBuf) {
    filled_on(dir, false).await
}

async fn filled_on(dir: &Path, kv: bool) -> (Gateway, PathBuf) {
    let data_dir = dir.join("data");
    let store = if kv { "sled:?layout=kv" } else { "sled:" };
    let options = GatewayOptions {
        args: ["--store", store].map(str::to_owned).to_vec(),
        ..GatewayOptions::default()
    };
    let gateway = Gateway::start(&data_dir, &options).unwrap();
    let mut client = RawClient::connect(gateway.address()).await.unwrap();
    for topic in ["orders", "other"] {
        ops::create_topic(&mut client, topic, 1, &[]).await.unwrap();
    }
    produce(&mut client, "orders", &[b"one", b"two"]).await;
    produce(&mut client, "orders", &[b"three", &[0xff, 0]]).await;
    produce(&mut client, "other", &[b"a"]).await;
    produce(&mut client, "orders", &[b"five"]).await;
    (gateway, data_dir)
}

#[tokio::test]
async fn a_stopped_store_is_checked_dumped_and_exported_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut gateway, data_dir) = filled(dir.path()).await;
    for verb in [&["check"][..], &["dump"], &["export", "orders"]] {
        let refused = store(&data_dir, verb);
        assert_eq!(refused.status.code(), Some(1));
        let said = text(&refused.stderr);
        assert!(
            said.contains("broker 0") && said.contains("--live"),
            "{said}"
        );
        assert!(
            store(&data_dir, &[verb, &["--live"]].concat())
                .status
                .success()
        );
    }
    gateway.stop().unwrap();
    let before = tree(&data_dir);
    let checked = store(&data_dir, &["check", "--deep"]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    assert!(text(&checked.stdout).contains("2 logs"));
    let exported = lines(&store(&data_dir, &["export", "orders"]));
    let values: Vec<_> = exported.iter().map(|one| one["value"].as_str()).collect();
    let expected = [Some("one"), Some("two"), Some("three"), None, Some("five")];
    assert_eq!(values, expected);
    assert_eq!(exported[3]["valueHex"], "ff00");
    let offsets: Vec<_> = exported.iter().map(|one| one["offset"].as_i64()).collect();
    assert_eq!(offsets, [0, 1, 2, 3, 4].map(Some));
    let part = [
        "export",
        "orders",
        "--partition",
        "0",
        "--from",
        "1",
        "--upto",
        "3",
    ];
    assert_eq!(lines(&store(&data_dir, &part)), exported[1..3]);
    let dumped = lines(&store(&data_dir, &["dump", "orders", "--records"]));
    assert_eq!(dumped.len(), 4);
    assert_eq!(dumped[0]["endOffset"], 5);
    assert_eq!(dumped[0]["segments"][0]["lastOffset"], 4);
    assert_eq!(dumped[2]["content"][0]["value"], "three");
    let all = lines(&store(&data_dir, &["dump"]));
    assert_eq!(all.len(), 3);
    assert!(all[0]["files"][0]["bytes"].as_u64() > Some(0));
    let unknown = store(&data_dir, &["export", "no-such"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert_eq!(tree(&data_dir), before);
}

/// Flips a bit in the batch of the offsets 2 and 3 of `orders`; the file.
fn damage(data_dir: &Path) -> PathBuf {
    let journal = data_dir.join("__store/shard-0/journal");
    let files = std::fs::read_dir(&journal).unwrap();
    let file = files.map(|entry| entry.unwrap().path()).find(|path| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(5).any(|window| window == b"three")
    });
    let file = file.unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(5).position(|window| window == b"three");
    bytes[at.unwrap()] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    file
}

#[tokio::test]
async fn damage_is_found_with_its_path_and_the_rest_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let (mut gateway, data_dir) = filled(dir.path()).await;
    gateway.stop().unwrap();
    let file = damage(&data_dir);
    let found = store(&data_dir, &["check", "--deep"]);
    assert_eq!(found.status.code(), Some(1));
    let said = text(&found.stderr);
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(said.contains(name), "{said}");
    assert_eq!(lines(&store(&data_dir, &["export", "other"])).len(), 1);
    assert_hole(&data_dir, "orders-0");
    let part = ["export", "orders", "--upto", "2"];
    assert_eq!(lines(&store(&data_dir, &part)).len(), 2);
    // A damaged log may lack its end.
    let shown = store(&data_dir, &["export", "orders", "--from", "4"]);
    assert_eq!(shown.status.code(), Some(1));
    assert_eq!(text(&shown.stdout).lines().count(), 1);
}

/// Of `orders` the batch of the offsets 2 and 3 can't be read: all others are shown.
fn assert_hole(data_dir: &Path, name: &str) {
    for (arguments, field, expected) in [
        (&["export", "orders"][..], "offset", &[0_i64, 1, 4][..]),
        (&["dump", "orders"], "baseOffset", &[0, 4]),
    ] {
        let shown = store(data_dir, arguments);
        assert_eq!(shown.status.code(), Some(1));
        let said = text(&shown.stderr);
        assert!(said.contains(name), "{said}");
        assert!(said.contains("offsets 2 to 3"), "{said}");
        let printed = text(&shown.stdout);
        let lines = printed.lines();
        let lines = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        let offsets: Vec<_> = lines.filter_map(|line| line[field].as_i64()).collect();
        assert_eq!(offsets, expected);
    }
}

#[tokio::test]
async fn what_is_left_of_a_log_that_is_offline_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let (mut gateway, data_dir) = filled(dir.path()).await;
    gateway.process().kill().unwrap();
    damage(&data_dir);
    assert_hole(&data_dir, "orders-0");
    let part = ["export", "orders", "--upto", "2"];
    assert_eq!(lines(&store(&data_dir, &part)).len(), 2);
    assert_eq!(lines(&store(&data_dir, &["export", "other"])).len(), 1);
}

#[tokio::test]
async fn databases_of_kv_are_read_too() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    let options = GatewayOptions {
        args: ["--store", "sled:?layout=kv"].map(str::to_owned).to_vec(),
        ..GatewayOptions::default()
    };
    let mut gateway = Gateway::start(&data_dir, &options).unwrap();
    let mut client = RawClient::connect(gateway.address()).await.unwrap();
    ops::create_topic(&mut client, "small", 1, &[])
        .await
        .unwrap();
    produce(&mut client, "small", &[b"one", b"two"]).await;
    // In pieces, and more than is read at once.
    let large = vec![b'x'; 700_000];
    for _ in 0..2 {
        produce(&mut client, "small", &[&large]).await;
    }
    for arguments in [&["check"][..], &["check", "--live"]] {
        let refused = store(&data_dir, arguments);
        assert_eq!(refused.status.code(), Some(1));
        let said = text(&refused.stderr);
        assert!(said.contains("layout=kv is read only then"), "{said}");
    }
    gateway.stop().unwrap();
    let before = tree(&data_dir);
    let scratch = dir.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let kv = |arguments: &[&str]| {
        let mut command = Command::new(binary().unwrap());
        command.env("TMPDIR", &scratch);
        command.arg("store").arg("--data-dir").arg(&data_dir);
        command.args(arguments).output().unwrap()
    };
    let checked = kv(&["check", "--deep"]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    let said = text(&checked.stdout);
    assert!(said.ends_with("1 logs, every batch read\n"), "{said}");
    let exported = lines(&kv(&["export", "small"]));
    assert_eq!(exported.len(), 4);
    assert_eq!(
        (&exported[1]["offset"], &exported[1]["value"]),
        (&1.into(), &"two".into())
    );
    let dumped = lines(&kv(&["dump", "small"]));
    assert_eq!((dumped.len(), &dumped[0]["endOffset"]), (4, &4.into()));
    assert_eq!(lines(&kv(&["dump"]))[0]["layout"], "kv");
    let unknown = text(&kv(&["export", "no-such"]).stderr);
    assert!(unknown.contains("no log of topic"), "{unknown}");
    assert_eq!(tree(&data_dir), before);
    for signal in ["TERM", "INT"] {
        let mut command = Command::new(binary().unwrap());
        command.env("TMPDIR", &scratch);
        command.arg("store").arg("--data-dir").arg(&data_dir);
        command.args(["export", "small"]).stdout(Stdio::piped());
        let mut running = command.spawn().unwrap();
        // It prints more than a pipe takes: with the copy there, it waits for a reader.
        running
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut [0])
            .unwrap();
        assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 1);
        let pid = running.id().to_string();
        let killed = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(killed.unwrap().success());
        assert_eq!(running.wait().unwrap().code(), Some(1));
        assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0);
    }
    // Where the database can't be read, nothing is said of what is in it.
    std::fs::remove_file(data_dir.join("__store/shard-0/kv/rounds")).unwrap();
    let checked = kv(&["check"]);
    assert_eq!(checked.status.code(), Some(1));
    let said = text(&checked.stderr);
    assert!(said.contains("shard-0/kv/rounds: it is gone"), "{said}");
    for verb in ["export", "dump"] {
        let refused = kv(&[verb, "small"]);
        assert_eq!(refused.status.code(), Some(1));
        let said = text(&refused.stderr);
        assert!(said.contains("could not be read"), "{said}");
        assert!(
            said.contains("__store/shard-0") && !said.contains("no log"),
            "{said}"
        );
    }
    assert_eq!(tree(&scratch), []);
    assert!(std::fs::read_dir(&scratch).unwrap().next().is_none());
}

#[tokio::test]
async fn a_log_that_lost_its_end_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (mut gateway, data_dir) = filled(dir.path()).await;
    gateway.stop().unwrap();
    let files = std::fs::read_dir(data_dir.join("__store/shard-0/journal")).unwrap();
    let (journal, at) = files
        .map(|entry| entry.unwrap().path())
        .find_map(|path| {
            let bytes = std::fs::read(&path).unwrap();
            let at = bytes.windows(4).position(|window| window == b"five");
            at.map(|at| (path, at as u64))
        })
        .unwrap();
    let journal = std::fs::File::options().write(true).open(journal);
    journal.unwrap().set_len(at).unwrap();
    let checked = store(&data_dir, &["check"]);
    assert_eq!(checked.status.code(), Some(1));
    let said = text(&checked.stderr);
    assert!(
        said.contains("orders/0/producer-state.snapshot: "),
        "{said}"
    );
    assert!(said.contains("records at its end are lost"), "{said}");
}

/// A number in a file gets another value; behind it stands the checksum of either content.
fn rewrite(path: &Path, from: &str, to: &str, with_sum: bool) {
    let file = std::fs::read(path).unwrap();
    let content = text(file.trim_ascii_end());
    let changed = content.replace(from, to);
    assert_ne!(changed, content);
    let mut bytes = changed.clone().into_bytes();
    if with_sum {
        bytes = store_adapter::volume::sum::with_sum(&bytes).to_vec();
    } else {
        bytes.extend(&file[content.len()..]);
    }
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn a_manifest_that_is_damaged_or_tells_of_more_is_found() {
    for kv in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (mut gateway, data_dir) = filled_on(dir.path(), kv).await;
        gateway.stop().unwrap();
        assert!(store(&data_dir, &["check"]).status.success());
        let manifest = data_dir.join("orders/0/manifest.json");
        let whole = std::fs::read(&manifest).unwrap();
        let epoch = text(&whole);
        let epoch = epoch.split([':', ',']).nth(1).unwrap();
        for (from, to, with_sum, expected) in [
            (
                "\"highWatermark\":5",
                "\"highWatermark\":4",
                false,
                "checksum",
            ),
            ("{", "", true, "expected"),
            (
                "\"highWatermark\":5",
                "\"highWatermark\":6",
                true,
                "records at its end are lost",
            ),
            (
                "\"logStartOffset\":0",
                "\"logStartOffset\":5",
                true,
                "it began at 5",
            ),
            (
                format!("\"epoch\":{epoch}").as_str(),
                "\"epoch\":4000000000",
                true,
                "this tells of 4000000000",
            ),
        ] {
            rewrite(&manifest, from, to, with_sum);
            let checked = store(&data_dir, &["check"]);
            assert_eq!(checked.status.code(), Some(1), "{from} {to}");
            let said = text(&checked.stderr);
            assert!(said.contains("\norders/0/manifest.json: "), "{said}");
            assert!(said.contains(expected), "{said}");
            assert!(said.contains("1 findings"), "{said}");
            std::fs::write(&manifest, &whole).unwrap();
        }
        // Beside a log that is gone.
        let lost = data_dir.join("orders/7");
        std::fs::create_dir(&lost).unwrap();
        std::fs::write(lost.join("manifest.json"), &whole).unwrap();
        let said = text(&store(&data_dir, &["check"]).stderr);
        assert!(said.contains("\norders/7/manifest.json: the store has no log of orders-7"));
        assert!(said.contains("1 findings"), "{said}");
        std::fs::remove_dir_all(&lost).unwrap();
        // Of another topic that had the name.
        let id = text(&whole);
        let id = id.split('"').rev().nth(1).unwrap().to_owned();
        rewrite(&manifest, &id, "12345678-9abc-4def-8123-456789abcdef", true);
        assert!(store(&data_dir, &["check"]).status.success());
        for name in ["producer-state.snapshot", "txn-index.snapshot"] {
            let path = data_dir.join("orders/0").join(name);
            rewrite(&path, "\"version\":1", "\"version\":2", false);
            let checked = store(&data_dir, &["check"]);
            let said = text(&checked.stderr);
            assert!(said.contains(&format!("orders/0/{name}: ")), "{said}");
        }
    }
}

#[test]
fn where_no_store_is_nothing_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    for data_dir in [dir.path(), &missing] {
        let refused = store(data_dir, &["check"]);
        assert_eq!(refused.status.code(), Some(1));
    }
    assert!(!missing.exists());
    assert_eq!(tree(dir.path()), []);
}

/// Every file below `dir` with its content.
fn tree(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tree(&path));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            found.push((path, bytes));
        }
    }
    found.sort();
    found
}
