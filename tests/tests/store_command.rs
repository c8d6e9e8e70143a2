//! `fencepost store`: what it says of a store, of a damaged one, and of one in use.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::{
    EndTxnRequest, GroupId, InitProducerIdRequest, OffsetCommitRequest, OffsetFetchRequest,
    TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
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

/// A record of a transaction in `orders`, which is ended so, if it is.
async fn transaction(client: &mut RawClient, id: &'static str, end: Option<bool>) {
    let transactional_id = TransactionalId(StrBytes::from_static_str(id));
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(transactional_id.clone()))
        .with_transaction_timeout_ms(60_000);
    let session = client.call(&request, 4).await.unwrap();
    assert_eq!(session.error_code, 0);
    let spec = BatchSpec {
        producer_id: session.producer_id.0,
        producer_epoch: session.producer_epoch,
        base_sequence: 0,
        attributes: 0x10,
        records: vec![Record::value(id.as_bytes().to_vec())],
        ..BatchSpec::default()
    };
    // From v12 on the batch adds the partition to its transaction.
    let request = ops::produce_request("orders", 0, spec.build())
        .with_transactional_id(Some(transactional_id.clone()));
    let sent = client.call(&request, 12).await.unwrap();
    assert_eq!(sent.responses[0].partition_responses[0].error_code, 0);
    let Some(commit) = end else { return };
    let request = EndTxnRequest::default()
        .with_transactional_id(transactional_id)
        .with_producer_id(session.producer_id)
        .with_producer_epoch(session.producer_epoch)
        .with_committed(commit);
    assert_eq!(client.call(&request, 5).await.unwrap().error_code, 0);
}

#[tokio::test]
async fn an_export_tells_what_became_of_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let (mut gateway, data_dir) = filled(dir.path()).await;
    let mut client = RawClient::connect(gateway.address()).await.unwrap();
    transaction(&mut client, "waits", None).await;
    transaction(&mut client, "counts", Some(true)).await;
    transaction(&mut client, "aborted", Some(false)).await;
    transaction(&mut client, "counts", Some(true)).await;
    gateway.process().kill().unwrap();
    let exported = lines(&store(&data_dir, &["export", "orders", "--from", "5"]));
    let told: Vec<_> = exported
        .iter()
        .map(|one| (one["value"].as_str(), one["transaction"].as_str()))
        .collect();
    let expected = [
        ("waits", "open"),
        ("counts", "committed"),
        ("aborted", "aborted"),
        ("counts", "committed"),
    ];
    assert_eq!(
        told,
        expected.map(|(value, fate)| (Some(value), Some(fate)))
    );
    assert!(exported[0]["producerId"].is_i64());
    let values = |output: &Output| {
        let lines = text(&output.stdout);
        let lines = lines.lines().map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            line["value"].as_str().map(str::to_owned)
        });
        lines.flatten().collect::<Vec<_>>()
    };
    let arguments = ["export", "orders", "--committed"];
    let committed = store(&data_dir, &arguments);
    assert!(committed.status.success());
    assert_eq!(
        values(&committed),
        ["one", "two", "three", "five", "counts", "counts"]
    );
    // A marker may lie in what can't be read.
    let journal = data_dir.join("__store/shard-0/journal");
    for entry in std::fs::read_dir(&journal).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(7).position(|part| part == b"aborted") {
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let unsure = store(&data_dir, &arguments);
    assert_eq!(unsure.status.code(), Some(1));
    assert_eq!(values(&unsure).len(), 6);
    let said = text(&unsure.stderr);
    assert!(said.contains("what became of its transaction"), "{said}");
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

/// Whether this process was started to outlive its terminal.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    u64::from_str_radix(mask.unwrap().trim(), 16).unwrap() & 1 != 0
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
    for signal in ["TERM", "INT", "HUP", "KILL"] {
        if signal == "HUP" && ignores_hang_up() {
            // So does what is started here, which goes on then.
            continue;
        }
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
        // Another one leaves it alone.
        assert!(kv(&["check"]).status.success());
        assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 1);
        let pid = running.id().to_string();
        let killed = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(killed.unwrap().success());
        let ended = running.wait().unwrap();
        if signal == "KILL" {
            // Its copy goes with the next command.
            assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 1);
            assert!(kv(&["check"]).status.success());
        } else {
            assert_eq!(ended.code(), Some(1));
        }
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

/// A group with an offset, and a transactional id of which there is a second session.
async fn coordinated(client: &mut RawClient) {
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(1);
    let topic = OffsetCommitRequestTopic::default()
        .with_name(ops::topic_name("orders"))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(GroupId(StrBytes::from_static_str("readers")))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![topic]);
    let committed = client.call(&request, 8).await.unwrap();
    assert_eq!(committed.topics[0].partitions[0].error_code, 0);
    for _ in 0..2 {
        assert_eq!(session(client, Some("payments")).await, 0);
    }
}

/// The code of a new session, of a transactional id or of none.
async fn session(client: &mut RawClient, id: Option<&'static str>) -> i16 {
    let id = id.map(|id| TransactionalId(StrBytes::from_static_str(id)));
    let request = InitProducerIdRequest::default()
        .with_transactional_id(id)
        .with_transaction_timeout_ms(60_000);
    client.call(&request, 4).await.unwrap().error_code
}

/// The code of the group's offset.
async fn offset(client: &mut RawClient) -> i16 {
    let group = OffsetFetchRequestGroup::default()
        .with_group_id(GroupId(StrBytes::from_static_str("readers")));
    let request = OffsetFetchRequest::default().with_groups(vec![group]);
    client.call(&request, 8).await.unwrap().groups[0].error_code
}

/// Whether a broker on a copy of the data directory calls anything damaged.
async fn broker_says_damaged(data_dir: &Path, options: &GatewayOptions) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("data");
    for (path, content) in tree(data_dir) {
        let to = copy.join(path.strip_prefix(data_dir).unwrap());
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::write(to, content).unwrap();
    }
    let Ok(mut gateway) = Gateway::start(&copy, options) else {
        return true;
    };
    // What is read behind the start was read when it is answered; what is damaged is not.
    let mut client = RawClient::connect(gateway.address()).await.unwrap();
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    let damaged = |gateway: &Gateway| gateway.counter("fencepost_damaged_files").unwrap() > 0;
    let (mut waits, mut said) = (true, false);
    for _ in 0..3000 {
        let codes = [
            session(&mut client, Some("payments")).await,
            session(&mut client, None).await,
            offset(&mut client).await,
        ];
        waits = codes.iter().any(|code| [14, 15, 51].contains(code));
        said = damaged(&gateway);
        if said || !waits {
            break;
        }
        pace.tick().await;
    }
    assert!(said || !waits, "still loading after a minute");
    gateway.stop().unwrap();
    said
}

#[tokio::test]
async fn check_and_the_broker_agree_on_what_is_damaged() {
    let seed: u64 = std::env::var("MUTATIONS_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("MUTATIONS_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut harms, mut found) = (0, 0);
    for kv in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (mut gateway, data_dir) = filled_on(dir.path(), kv).await;
        let mut client = RawClient::connect(gateway.address()).await.unwrap();
        coordinated(&mut client).await;
        // A second process takes over what the first one wrote.
        gateway.stop().unwrap();
        gateway.restart().unwrap();
        let mut client = RawClient::connect(gateway.address()).await.unwrap();
        coordinated(&mut client).await;
        gateway.stop().unwrap();
        let options = GatewayOptions {
            overrides: gateway.options().overrides.clone(),
            args: gateway.options().args.clone(),
            ..GatewayOptions::default()
        };
        let whole = store(&data_dir, &["check"]);
        assert!(whole.status.success(), "{}", text(&whole.stderr));
        assert!(!broker_says_damaged(&data_dir, &options).await);
        for (path, content) in tree(&data_dir) {
            let name = path.strip_prefix(&data_dir).unwrap().display().to_string();
            // The index is made anew; what is empty is a name only; owners are a hundred alike.
            let alike = name.contains("-slot-") && name.ends_with("current.json");
            if name.starts_with("index/")
                || content.is_empty()
                || (alike && random.u8(..) > 3)
                || (kv && random.u8(..) > 80)
            {
                continue;
            }
            let mut flipped = content.clone();
            let bit = random.usize(..content.len() * 8);
            flipped[bit / 8] ^= 1 << (bit % 8);
            let half = content[..content.len() / 2].to_vec();
            let other = [Some(Vec::new()), Some(half), Some(flipped)];
            for harm in [None, other[random.usize(..3)].clone()] {
                match &harm {
                    None => std::fs::remove_file(&path).unwrap(),
                    Some(bytes) => std::fs::write(&path, bytes).unwrap(),
                }
                let what = harm.map(|bytes| bytes.len());
                let checked = store(&data_dir, &["check"]);
                let of_check = checked.status.code() == Some(1);
                let of_broker = broker_says_damaged(&data_dir, &options).await;
                let said = text(&checked.stderr);
                // Of what journals and databases hold, a check may know more than a start reads.
                let more = of_check && name.starts_with("__store/");
                assert!(
                    of_check == of_broker || more,
                    "{name} of {} bytes with {what:?}, kv: {kv}: the broker says {of_broker}, \
                     check {of_check}: {said}",
                    content.len()
                );
                harms += 1;
                found += u32::from(of_check);
                std::fs::write(&path, &content).unwrap();
            }
        }
    }
    println!("{harms} harms, {found} found");
    assert!(harms >= 40 && found >= 20, "{harms}, {found}");
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
