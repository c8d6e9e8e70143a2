//! Damaged files: reported with their path, answered with a retriable code, never overwritten;
//! what is healthy goes on.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::{
    GroupId, InitProducerIdRequest, OffsetCommitRequest, OffsetFetchRequest,
};
use tests::raw::batch::Record;
use tests::raw::{RawClient, group, ops};

use crate::fsyncs::counter;
use crate::kit::{P, Target, differs, end_of, on_kafka, plain, produce, text};
use crate::reading::{fetch_batch, fetch_request, partitions};

/// Stops the gateway hard, runs `harm` on its data directory, and starts it again.
fn harmed(target: &Target, harm: impl FnOnce(&Path)) {
    target.gateway(|gateway, data_dir| {
        gateway.process().kill().unwrap();
        harm(&data_dir);
        gateway.restart().unwrap();
    });
}

fn overwrite(path: &Path, content: &[u8]) {
    let file = File::create(path).unwrap();
    file.write_all_at(content, 0).unwrap();
}

async fn still_works(client: &mut RawClient, topic: &str) {
    ops::await_topic(client, topic, 1).await.unwrap();
    let end = end_of(client, topic).await;
    let sent = produce(client, topic, plain(1)).await;
    assert_eq!(sent, (0, end));
    let stored = fetch_batch(client, topic, end).await;
    assert_eq!(stored[..8], end.to_be_bytes());
}

async fn produced(client: &mut RawClient, topic: &str) -> i16 {
    ops::produce(client, topic, 0, plain(1))
        .await
        .unwrap()
        .error_code
}

#[tokio::test]
async fn a_damaged_topic_file_takes_one_topic_offline() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    let mut client = target.with_topic("healthy", 1).await;
    ops::create_topic(&mut client, "hurt", 1, &[])
        .await
        .unwrap();
    assert_eq!(produce(&mut client, "hurt", plain(1)).await, (0, 0));
    let garbage = b"{\"topicId\": no json";
    harmed(&target, |data_dir| {
        overwrite(&data_dir.join("hurt/.topic-id.json"), garbage);
    });
    let mut client = target.connect().await;
    still_works(&mut client, "healthy").await;
    assert_eq!(produced(&mut client, "hurt").await, 56);
    let fetch = fetch_request("hurt", &[(0, 0)]);
    let fetched = client.call(&fetch, 12).await.unwrap();
    assert_eq!(partitions(&fetched)[0].error_code, 56);
    let listed = ops::list_offsets(&mut client, "hurt", 1, ops::LATEST).await;
    let listed = listed.unwrap_err().to_string();
    assert!(listed.contains("ListOffsets hurt-0: 56 "), "{listed}");
    // Asking for it must not make an empty topic in its place.
    let asked = ops::metadata(&mut client, "hurt").await.unwrap();
    assert_eq!(asked.topics[0].error_code, 5);
    let created = ops::create_topic(&mut client, "hurt", 1, &[]).await;
    let created = created.unwrap_err().to_string();
    assert!(created.contains("CreateTopics hurt: 56 "), "{created}");
    let deleted = ops::delete_topic(&mut client, "hurt").await.unwrap_err();
    assert!(deleted.to_string().contains(" 56 "), "{deleted}");
    let ready = target.admin("/readyz?verbose");
    assert!(ready.starts_with("HTTP/1.1 200 "), "{ready}");
    let said = "[~]files degraded: 1 damaged, such as hurt/.topic-id.json";
    assert!(ready.contains(said), "{ready}");
    assert_eq!(counter(&target, "fencepost_damaged_files "), 1);
    target.gateway(|gateway, data_dir| {
        let path = data_dir.join("hurt/.topic-id.json");
        assert_eq!(fs::read(&path).unwrap(), garbage, "kept as it was");
        let log = gateway.log().unwrap();
        assert!(log.contains("hurt/.topic-id.json"), "{log}");
        assert!(!log.contains("panicked"), "{log}");
    });
}

/// Journal files with their lengths, oldest first.
fn journals(data_dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for shard in fs::read_dir(data_dir.join("__store")).unwrap() {
        let journal = shard.unwrap().path().join("journal");
        for file in fs::read_dir(journal).unwrap() {
            found.push(file.unwrap().path());
        }
    }
    found.retain(|path| path.extension().is_some_and(|e| e == "log"));
    found.sort();
    found
}

/// Turns a bit of the first place in the journals that holds `needle`; the file.
fn flip(data_dir: &Path, needle: &[u8]) -> PathBuf {
    for path in journals(data_dir) {
        let content = fs::read(&path).unwrap();
        let at = content
            .windows(needle.len())
            .position(|window| window == needle);
        if let Some(at) = at {
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            let at = at + needle.len() / 2;
            let byte = content[at] ^ 0x20;
            file.write_all_at(&[byte], u64::try_from(at).unwrap())
                .unwrap();
            return path;
        }
    }
    panic!("the journals don't hold what was sent");
}

#[tokio::test]
async fn a_flipped_bit_in_the_journal_is_never_served() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[("journal.segment.bytes", "1048576")]);
    let mut client = target.with_topic("whole", 1).await;
    ops::create_topic(&mut client, "flipped", 1, &[])
        .await
        .unwrap();
    let mut spec = P(-1, -1, -1, 0).spec();
    spec.records = vec![Record::value(&b"the value that will be damaged"[..])];
    assert_eq!(produce(&mut client, "flipped", spec.build()).await, (0, 0));
    // The journal rolls: the place lies in an old, sealed file.
    let mut filler = P(-1, -1, -1, 0).spec();
    filler.records = vec![Record::value(vec![b'f'; 200_000])];
    for offset in 0..20 {
        assert_eq!(
            produce(&mut client, "whole", filler.build()).await,
            (0, offset)
        );
    }
    let mut file = PathBuf::new();
    harmed(&target, |data_dir| {
        assert!(journals(data_dir).len() > 2);
        file = flip(data_dir, b"the value that will be damaged");
    });
    let mut client = target.connect().await;
    still_works(&mut client, "whole").await;
    let response = client
        .call(&fetch_request("flipped", &[(0, 0)]), 12)
        .await
        .unwrap();
    let answer = &partitions(&response)[0];
    assert!(
        [2, 6, 56].contains(&answer.error_code),
        "served or unknown: {answer:?}"
    );
    let code = produced(&mut client, "flipped").await;
    assert!([6, 56].contains(&code), "offline, not {code}");
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    let ready = target.admin("/readyz");
    assert!(ready.starts_with("HTTP/1.1 200 "), "{ready}");
    assert!(ready.contains(&name), "{ready}");
    assert_eq!(counter(&target, "fencepost_damaged_files "), 1);
    assert_eq!(counter(&target, "fencepost_partitions_offline "), 1);
    target.gateway(|gateway, _| {
        let log = gateway.log().unwrap();
        assert!(log.contains(&name), "{name} is not named in:\n{log}");
        assert!(!log.contains("panicked"), "{log}");
    });
}

#[tokio::test]
async fn a_lost_index_is_built_again() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    let mut client = target.with_topic("indexed", 1).await;
    for sequence in 0..20 {
        let got = produce(&mut client, "indexed", P(7, 0, sequence, 1).batch()).await;
        assert_eq!(got, (0, i64::from(sequence)));
    }
    let before = fetch_batch(&mut client, "indexed", 0).await;
    for garbage in [false, true] {
        harmed(&target, |data_dir| {
            let index = data_dir.join("index");
            assert!(index.is_dir());
            if garbage {
                scribble(&sled(&index));
            } else {
                fs::remove_dir_all(sled(&index)).unwrap();
            }
        });
        let mut client = target.connect().await;
        ops::await_topic(&mut client, "indexed", 1).await.unwrap();
        assert_eq!(fetch_batch(&mut client, "indexed", 0).await, before);
        let got = produce(&mut client, "indexed", P(7, 0, 19, 1).batch()).await;
        assert_eq!(got, (0, 19), "garbage: {garbage}");
    }
}

/// Overwrites every file below `dir` with noise.
fn scribble(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            scribble(&path);
        } else {
            overwrite(&path, &[0xa5; 5000]);
        }
    }
}

/// The directory of sled within `index`, where the id of the cluster lies too.
fn sled(index: &Path) -> PathBuf {
    let found = fs::read_dir(index).unwrap().map(|entry| entry.unwrap());
    let mut directories = found.map(|entry| entry.path()).filter(|path| path.is_dir());
    directories.next().unwrap()
}

#[tokio::test]
async fn a_volume_of_another_cluster_is_refused() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    let mut client = target.with_topic("remembered", 1).await;
    assert_eq!(produce(&mut client, "remembered", plain(1)).await, (0, 0));
    let refused = target.gateway(|gateway, data_dir| {
        gateway.process().kill().unwrap();
        let cluster = data_dir.join("__cluster/cluster.json");
        let kept = fs::read(&cluster).unwrap();
        fs::remove_file(&cluster).unwrap();
        let refused = gateway.restart().unwrap_err();
        overwrite(&cluster, &kept);
        gateway.restart().unwrap();
        format!("{refused:#}")
    });
    assert!(refused.contains("cluster.json"), "{refused}");
    assert_eq!(end_of(&mut target.connect().await, "remembered").await, 1);
}

/// Whether the only shard is offline, as people and clients see it; `path` is why.
async fn is_offline(target: &Target, topic: &str, path: &str) {
    let mut client = target.connect().await;
    assert_eq!(produced(&mut client, topic).await, 56);
    let fetched = client.call(&fetch_request(topic, &[(0, 0)]), 12).await;
    assert_eq!(partitions(&fetched.unwrap())[0].error_code, 56);
    let ready = target.admin("/readyz");
    assert!(ready.starts_with("HTTP/1.1 503 "), "{ready}");
    assert!(ready.contains(path), "{path} is not named in: {ready}");
    assert_eq!(counter(target, "fencepost_shards_offline "), 1);
    target.gateway(|gateway, _| {
        let log = gateway.log().unwrap();
        assert!(log.contains(path), "{path} is not named in:\n{log}");
        assert!(!log.contains("panicked"), "{log}");
    });
}

#[tokio::test]
async fn a_journal_file_that_is_gone_after_a_kill_takes_its_shard_offline() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    let mut client = target.with_topic("acknowledged", 1).await;
    assert_eq!(produce(&mut client, "acknowledged", plain(1)).await, (0, 0));
    let (mut file, mut kept) = (PathBuf::new(), PathBuf::new());
    harmed(&target, |data_dir| {
        file = journals(data_dir).pop().unwrap();
        kept = file.with_extension("kept");
        fs::rename(&file, &kept).unwrap();
    });
    let name = file.file_name().unwrap().to_str().unwrap();
    is_offline(&target, "acknowledged", name).await;
    harmed(&target, |_| fs::rename(&kept, &file).unwrap());
    assert_eq!(end_of(&mut target.connect().await, "acknowledged").await, 1);
}

/// The bytes of the copies in quarantine whose name has `part` in it.
fn copies(data_dir: &Path, part: &str) -> Vec<Vec<u8>> {
    let Ok(dir) = fs::read_dir(data_dir.join("__cluster/quarantine")) else {
        return Vec::new();
    };
    let files = dir.map(|entry| entry.unwrap());
    let of = files.filter(|entry| entry.file_name().to_string_lossy().contains(part));
    of.map(|entry| fs::read(entry.path()).unwrap()).collect()
}

/// Ways in which a file can be damaged: garbage, nothing, and half of it.
const HARMS: [&str; 3] = ["garbage", "empty", "half"];

/// Damages a file, and returns what it holds then.
fn harm(path: &Path, how: &str) -> Vec<u8> {
    let whole = fs::read(path).unwrap();
    let harmed = match how {
        "garbage" => b"{\"later\": no json".to_vec(),
        "empty" => Vec::new(),
        _ => {
            // Of its content: behind that is a checksum.
            let content = whole.trim_ascii_end();
            content[..content.len() / 2].to_vec()
        }
    };
    overwrite(path, &harmed);
    harmed
}

#[tokio::test]
async fn a_damaged_json_file_of_a_shard_takes_it_offline_and_is_kept() {
    if on_kafka() {
        return;
    }
    for name in ["seals.json", "newest.json"] {
        for how in HARMS {
            let target = Target::start(&[]);
            let mut client = target.with_topic("sealed", 1).await;
            assert_eq!(produce(&mut client, "sealed", plain(1)).await, (0, 0));
            // Files of an earlier process are sealed.
            target.kill_and_restart();
            let path = format!("__store/shard-0/{name}");
            let (mut whole, mut harmed_bytes) = (Vec::new(), Vec::new());
            harmed(&target, |data_dir| {
                whole = fs::read(data_dir.join(&path)).unwrap();
                harmed_bytes = harm(&data_dir.join(&path), how);
            });
            is_offline(&target, "sealed", &path).await;
            assert_eq!(counter(&target, "fencepost_damaged_files "), 1);
            target.gateway(|_, data_dir| {
                let kept = fs::read(data_dir.join(&path)).unwrap();
                assert_eq!(kept, harmed_bytes, "{name}, {how}");
                let copy = (how != "empty").then(|| harmed_bytes.clone());
                assert_eq!(copies(&data_dir, name), Vec::from_iter(copy));
            });
            harmed(&target, |data_dir| overwrite(&data_dir.join(&path), &whole));
            still_works(&mut target.connect().await, "sealed").await;
        }
    }
}

#[tokio::test]
async fn damaged_producer_ids_are_not_given_out_and_nothing_else_stops() {
    if on_kafka() {
        return;
    }
    for how in HARMS {
        let target = Target::start(&[]);
        let mut client = target.with_topic("numbered", 1).await;
        let (id, epoch) = ops::init_producer_id(&mut client).await.unwrap();
        let sent = produce(&mut client, "numbered", P(id, epoch, 0, 1).batch()).await;
        assert_eq!(sent, (0, 0));
        let (mut path, mut harmed_bytes) = (PathBuf::new(), Vec::new());
        harmed(&target, |data_dir| {
            let dir = data_dir.join("__cluster/producer_ids");
            let files = fs::read_dir(dir)
                .unwrap()
                .map(|entry| entry.unwrap().path());
            path = files.last().unwrap();
            harmed_bytes = harm(&path, how);
        });
        let mut client = target.connect().await;
        let request = InitProducerIdRequest::default().with_transactional_id(None);
        let refused = client.call(&request, 4).await.unwrap();
        assert_eq!(
            (refused.error_code, refused.producer_id.0),
            (14, -1),
            "{how}"
        );
        // Who has an id goes on, and so do all others.
        let sent = produce(&mut client, "numbered", P(id, epoch, 1, 1).batch()).await;
        assert_eq!(sent, (0, 1));
        still_works(&mut client, "numbered").await;
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(target.admin("/readyz").contains(name));
        assert_eq!(counter(&target, "fencepost_damaged_files "), 1);
        target.gateway(|gateway, data_dir| {
            assert_eq!(fs::read(&path).unwrap(), harmed_bytes, "{how}: kept");
            let copy = (how != "empty").then(|| harmed_bytes.clone());
            assert_eq!(copies(&data_dir, name), Vec::from_iter(copy), "{how}");
            let log = gateway.log().unwrap();
            assert!(log.contains(name), "{how}: {log}");
            assert!(!log.contains("panicked"), "{how}: {log}");
        });
    }
}

/// The log holds all that is in these files: they count as none, and are written anew.
#[tokio::test]
async fn damaged_snapshots_and_manifests_cost_nothing_but_a_replay() {
    if on_kafka() {
        return;
    }
    let files = [
        "manifest.json",
        "producer-state.snapshot",
        "txn-index.snapshot",
    ];
    for how in HARMS {
        let target = Target::start(&[]);
        let mut client = target.with_topic("snapped", 1).await;
        ops::create_topic(&mut client, "other", 1, &[])
            .await
            .unwrap();
        for sequence in 0..4 {
            let sent = produce(&mut client, "snapped", P(7, 0, sequence, 1).batch()).await;
            assert_eq!(sent, (0, i64::from(sequence)));
        }
        let mut left = Vec::new();
        target.gateway(|gateway, data_dir| {
            // An orderly stop writes all three.
            assert!(gateway.stop().unwrap().success());
            for file in files {
                let path = data_dir.join("snapped/0").join(file);
                left.push((file, harm(&path, how)));
            }
            gateway.restart().unwrap();
        });
        let mut client = target.connect().await;
        still_works(&mut client, "other").await;
        for (sequence, offset) in [(0, 0), (3, 3), (4, 4)] {
            let sent = produce(&mut client, "snapped", P(7, 0, sequence, 1).batch()).await;
            assert_eq!(sent, (0, offset), "{how}: sequence {sequence}");
        }
        let skipped = produce(&mut client, "snapped", P(7, 0, 9, 1).batch()).await;
        assert_eq!(skipped.0, 45, "{how}");
        // An empty file is how other writers say that there is no snapshot.
        let damaged = if how == "empty" { 0 } else { 3 };
        assert_eq!(counter(&target, "fencepost_damaged_files "), damaged);
        target.gateway(|gateway, data_dir| {
            assert!(gateway.stop().unwrap().success());
            let log = gateway.log().unwrap();
            for (file, harmed_bytes) in &left {
                let path = data_dir.join("snapped/0").join(file);
                assert_ne!(&fs::read(path).unwrap(), harmed_bytes, "{how}: {file}");
                let said = log.contains(&format!("snapped/0/{file}"));
                assert_eq!(said, damaged > 0, "{how}: {file}: {log}");
                let copy = (damaged > 0).then(|| harmed_bytes.clone());
                assert_eq!(copies(&data_dir, file), Vec::from_iter(copy), "{how}");
            }
            gateway.restart().unwrap();
        });
        assert_eq!(counter(&target, "fencepost_damaged_files "), 0, "{how}");
        let mut client = target.connect().await;
        let sent = produce(&mut client, "snapped", P(7, 0, 4, 1).batch()).await;
        assert_eq!(sent, (0, 4), "{how}");
    }
}

/// A journal whose end is cut off looks like one that was written no further; what was durable is
/// told by the snapshot.
#[tokio::test]
async fn a_log_that_lost_its_end_is_reported() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    let mut client = target.with_topic("cut", 1).await;
    for sequence in 0..40 {
        let sent = produce(&mut client, "cut", P(7, 0, sequence, 1).batch()).await;
        assert_eq!(sent, (0, i64::from(sequence)));
    }
    target.gateway(|gateway, data_dir| {
        assert!(gateway.stop().unwrap().success());
        let journal = longest_journal(&data_dir);
        let file = OpenOptions::new().write(true).open(&journal).unwrap();
        let len = file.metadata().unwrap().len();
        file.set_len(len - len / 4).unwrap();
        gateway.restart().unwrap();
    });
    let mut client = target.connect().await;
    ops::await_topic(&mut client, "cut", 1).await.unwrap();
    let end = end_of(&mut client, "cut").await;
    assert!((1..40).contains(&end), "{end}");
    let missing = 40 - end;
    let ready = target.admin("/readyz");
    let told = format!("lost acknowledged records at their end; {missing} of cut-0");
    assert!(ready.contains(&told), "{ready}");
    target.gateway(|gateway, _| {
        let log = gateway.log().unwrap();
        assert!(log.contains("acknowledged records are lost"), "{log}");
    });
}

fn longest_journal(data_dir: &Path) -> PathBuf {
    let shards = fs::read_dir(data_dir.join("__store")).unwrap();
    let journals = shards.flat_map(|shard| {
        let dir = shard.unwrap().path().join("journal");
        fs::read_dir(dir).into_iter().flatten()
    });
    journals
        .map(|entry| entry.unwrap().path())
        .max_by_key(|path| fs::metadata(path).unwrap().len())
        .unwrap()
}

/// Some clients look at the partitions only, and begin from the start where one has no offset.
#[tokio::test]
async fn a_group_that_cannot_be_read_is_an_error_at_each_partition() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    let mut client = target.with_topic("read", 2).await;
    group::await_coordinator(&mut client, "hurt").await.unwrap();
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(7);
    let topic = OffsetCommitRequestTopic::default()
        .with_name(ops::topic_name("read"))
        .with_partitions(vec![partition]);
    let commit = OffsetCommitRequest::default()
        .with_group_id(GroupId(text("hurt")))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![topic]);
    let committed = client.call(&commit, 7).await.unwrap();
    assert_eq!(committed.topics[0].partitions[0].error_code, 0);
    harmed(&target, |data_dir| {
        let file = data_dir.join("__cluster/__consumer_offsets/hurt.json");
        overwrite(&file, b"{\"group\": no json");
    });
    let mut client = target.connect().await;
    let topic = OffsetFetchRequestTopic::default()
        .with_name(ops::topic_name("read"))
        .with_partition_indexes(vec![0, 1]);
    let request = OffsetFetchRequest::default()
        .with_group_id(GroupId(text("hurt")))
        .with_topics(Some(vec![topic]));
    for version in 1..=7 {
        let response = client.call(&request, version).await.unwrap();
        let kafka = (14, Vec::new());
        let ours = (14, vec![(-1, 14), (-1, 14)]);
        let expected = differs("offset-fetch-group-error", kafka, ours);
        let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
        let partitions = partitions.map(|p| (p.committed_offset, p.error_code));
        assert_eq!(partitions.collect::<Vec<_>>(), expected.1, "v{version}");
        let whole = if version >= 2 { expected.0 } else { 0 };
        assert_eq!(response.error_code, whole, "v{version}");
    }
}
