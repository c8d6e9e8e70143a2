//! `fencepost group` beside Kafka's `kafka-consumer-groups`: on one broker both must say the same,
//! and what one changes the other must see.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kafka_protocol::messages::JoinGroupResponse;
use serde_json::Value;
use tests::flights::child::java;
use tests::gatewayproc::{Gateway, GatewayOptions, binary};
use tests::oracle::{KAFKA_VERSION, KafkaNode, OracleOptions};
use tests::process::cache_dir;
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::{RawClient, group, ops};
use tokio::runtime::Runtime;

const TOPIC: &str = "orders";
const PARTITIONS: i32 = 3;
/// Records of every partition: half of them two hours old, half of them one.
const RECORDS: i64 = 10;
const HOUR_MS: i64 = 3_600_000;
/// Longer than the test takes, as nobody sends heartbeats.
const SESSION_MS: i32 = 1_500_000;

/// One row of a table: cells by heading.
type Line = BTreeMap<String, String>;

/// A broker's clients.
struct Bench {
    address: String,
    runtime: Runtime,
    now_ms: i64,
}

#[allow(
    clippy::disallowed_methods,
    reason = "records need timestamps that strategies find"
)]
fn now_ms() -> i64 {
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

impl Bench {
    fn new(address: String) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        Self {
            address,
            runtime,
            now_ms: now_ms(),
        }
    }

    fn raw<T>(&self, work: impl AsyncFnOnce(&mut RawClient) -> T) -> T {
        self.runtime.block_on(async {
            let mut client = RawClient::connect(&self.address).await.unwrap();
            work(&mut client).await
        })
    }

    /// The topic, the group `idle` with offsets 3 and 5, `spare` with 1, and `busy` with a member.
    fn fill(&self) -> JoinGroupResponse {
        let now = self.now_ms;
        self.raw(async |client| {
            ops::create_topic(client, TOPIC, PARTITIONS, &[])
                .await
                .unwrap();
            for partition in 0..PARTITIONS {
                for age in [2, 1] {
                    let spec = BatchSpec {
                        timestamp_ms: now - age * HOUR_MS,
                        records: (0..RECORDS / 2).map(|_| Record::value("x")).collect(),
                        ..BatchSpec::default()
                    };
                    let answer = ops::produce(client, TOPIC, partition, spec.build()).await;
                    assert_eq!(answer.unwrap().error_code, 0);
                }
            }
            for name in ["idle", "spare", "busy"] {
                group::await_coordinator(client, name).await.unwrap();
            }
            let simple = ("", -1);
            let commit = group::commit(client, "idle", simple, TOPIC, &[(0, 3), (1, 5)]);
            commit.await.unwrap();
            let commit = group::commit(client, "spare", simple, TOPIC, &[(0, 1)]);
            commit.await.unwrap();
            let joined = group::join(client, "busy", "", TOPIC, SESSION_MS)
                .await
                .unwrap();
            assert_eq!(joined.error_code, 0);
            let all = group::assignment(TOPIC, &[0, 1, 2]).unwrap();
            let mine = [(joined.member_id.clone(), all)];
            let synced = group::sync(client, "busy", &joined, &mine).await.unwrap();
            assert_eq!(synced.error_code, 0);
            let who = (joined.member_id.as_str(), joined.generation_id);
            let commit = group::commit(client, "busy", who, TOPIC, &[(0, 1), (1, 10)]);
            commit.await.unwrap();
            joined
        })
    }

    /// Committed offsets, asked for without either command.
    fn committed(&self, name: &str) -> Vec<i64> {
        self.raw(async |client| {
            group::committed(client, name, TOPIC, PARTITIONS)
                .await
                .unwrap()
        })
    }

    /// What Kafka's tool does and says.
    fn java_output(&self, args: &[&str]) -> String {
        let mut command =
            java("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand").unwrap();
        command
            .args(["--bootstrap-server", &self.address])
            .args(args);
        with_archive(command, |command| said(command, args, true).0)
    }

    fn java(&self, args: &[&str]) -> Vec<Line> {
        table(&self.java_output(args))
    }

    fn ours_output(&self, args: &[&str], succeeds: bool) -> (String, String) {
        let mut command = Command::new(binary().unwrap());
        command.args(["group", "--bootstrap-server", &self.address]);
        command.args(["--timeout", "60000"]);
        said(command.args(args), args, succeeds)
    }

    /// What `fencepost group` says, as JSON.
    fn ours(&self, args: &[&str]) -> Vec<Value> {
        let (out, _) = self.ours_output(&[args, &["--format", "json"]].concat(), true);
        serde_json::from_str(&out).unwrap()
    }
}

/// Runs the tool with the archive of its loaded classes, which the first run leaves in the cache:
/// most of the tool's time is loading them. A JVM that can't use it goes without.
fn with_archive<T>(mut command: Command, run: impl FnOnce(&mut Command) -> T) -> T {
    let archive = cache_dir().join(format!("consumer-groups-{KAFKA_VERSION}.jsa"));
    let (option, made): (String, Option<PathBuf>) = if archive.is_file() {
        (format!("SharedArchiveFile={}", archive.display()), None)
    } else {
        let made = archive.with_extension(fastrand::u64(..).to_string());
        (
            format!("ArchiveClassesAtExit={}", made.display()),
            Some(made),
        )
    };
    command.env("JAVA_TOOL_OPTIONS", format!("-Xlog:disable -XX:{option}"));
    let out = run(&mut command);
    if let Some(made) = made.filter(|made| made.is_file()) {
        std::fs::rename(made, archive).unwrap();
    }
    out
}

fn said(command: &mut Command, args: &[&str], succeeds: bool) -> (String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let (out, err) = (
        String::from_utf8(stdout).unwrap(),
        String::from_utf8_lossy(&stderr).into_owned(),
    );
    assert_eq!(status.success(), succeeds, "{args:?}: {out}{err}");
    (out, err)
}

/// Every table in the text: a line that begins with GROUP or TOPIC names its columns.
fn table(text: &str) -> Vec<Line> {
    let text = text.replace("COORDINATOR (ID)", "COORDINATOR ID");
    let mut headings: Vec<&str> = Vec::new();
    let mut rows = Vec::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.split_whitespace().collect();
        if matches!(cells.first(), Some(&"GROUP" | &"TOPIC")) {
            headings = cells;
        } else if cells.len() == headings.len() && !cells.is_empty() {
            let row = headings.iter().zip(cells);
            rows.push(row.map(|(k, v)| ((*k).to_owned(), v.to_owned())).collect());
        }
    }
    rows
}

/// The named cells of every row, sorted.
fn cells(rows: &[Line], names: &[&str]) -> Vec<Vec<String>> {
    let of = |row: &Line| {
        let cell = |name: &&str| row.get(*name).cloned();
        let cells: Option<Vec<String>> = names.iter().map(cell).collect();
        cells.unwrap_or_else(|| panic!("{names:?} of {row:?}"))
    };
    sorted(rows.iter().map(of).collect())
}

/// The named fields of every object, sorted, in the words of Kafka's tables: `-` is nothing.
fn fields(rows: &[Value], names: &[&str]) -> Vec<Vec<String>> {
    let word = |row: &Value, name: &str| match &row[name] {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let of = |row: &Value| names.iter().map(|name| word(row, name)).collect();
    sorted(rows.iter().map(of).collect())
}

fn sorted(mut rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    rows.sort();
    rows
}

/// Lists and descriptions are the same.
fn facts_agree(bench: &Bench, joined: &JoinGroupResponse) {
    let listed = bench.java(&["--list", "--state"]);
    let ours = bench.ours(&["list"]);
    assert_eq!(
        cells(&listed, &["GROUP", "STATE"]),
        fields(&ours, &["group", "state"])
    );
    assert_eq!(ours.len(), 3, "{ours:?}");
    let stable = bench.java(&["--list", "--state", "Stable"]);
    assert_eq!(cells(&stable, &["GROUP"]), [["busy"]]);
    let ours = bench.ours(&["list", "--state", "Stable"]);
    assert_eq!(fields(&ours, &["group"]), [["busy"]]);

    let described = bench.java(&["--describe", "--all-groups"]);
    let ours = bench.ours(&["describe", "--all-groups"]);
    let (names, keys) = (
        [
            "GROUP",
            "TOPIC",
            "PARTITION",
            "CURRENT-OFFSET",
            "LOG-END-OFFSET",
            "LAG",
            "CONSUMER-ID",
            "HOST",
            "CLIENT-ID",
        ],
        [
            "group",
            "topic",
            "partition",
            "currentOffset",
            "logEndOffset",
            "lag",
            "consumerId",
            "host",
            "clientId",
        ],
    );
    assert_eq!(cells(&described, &names), fields(&ours, &keys));
    // Three assigned partitions of one, two committed of the other, one of the third.
    assert_eq!(ours.len(), 6, "{ours:?}");

    members_agree(bench, joined);
    let states = bench.java(&["--describe", "--all-groups", "--state"]);
    let ours = bench.ours(&["describe", "--all-groups", "--state"]);
    let names = [
        "GROUP",
        "COORDINATOR",
        "ASSIGNMENT-STRATEGY",
        "STATE",
        "#MEMBERS",
    ];
    let keys = [
        "group",
        "coordinator",
        "assignmentStrategy",
        "state",
        "members",
    ];
    assert_eq!(cells(&states, &names), fields(&ours, &keys));
    let members = fields(&ours, &["group", "members"]);
    assert_eq!(members, [["busy", "1"], ["idle", "0"], ["spare", "0"]]);
}

fn members_agree(bench: &Bench, joined: &JoinGroupResponse) {
    let theirs = bench.java(&["--describe", "--group", "busy", "--members", "--verbose"]);
    let ours = bench.ours(&["describe", "busy", "--members"]);
    let names = ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"];
    let keys = ["group", "consumerId", "host", "clientId", "partitions"];
    assert_eq!(cells(&theirs, &names), fields(&ours, &keys));
    assert_eq!(
        fields(&ours, &["consumerId"]),
        [[joined.member_id.as_str()]]
    );
    // One column is TOPIC:0,1,2; the other is a map.
    let assigned = cells(&theirs, &["CURRENT-ASSIGNMENT"]);
    let map = ours[0]["assignment"].as_object().unwrap();
    let words: Vec<String> = map
        .iter()
        .map(|(topic, numbers)| {
            let numbers = numbers.as_array().unwrap().iter().map(Value::to_string);
            format!("{topic}:{}", numbers.collect::<Vec<_>>().join(","))
        })
        .collect();
    assert_eq!(assigned, [[words.join(";")]]);
}

/// Which command makes a change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Java,
    Ours,
}

/// Both commands plan the same, and what `who` then does is what was planned.
fn reset_agrees(bench: &Bench, scope: &[&str], strategy: &[&str], who: Who, planned: &[i64]) {
    let rest = [scope, strategy].concat();
    let java_base = ["--reset-offsets", "--group", "idle"];
    let ours_base = ["reset-offsets", "idle"];
    let before = bench.committed("idle");
    let names = ["TOPIC", "PARTITION", "NEW-OFFSET"];
    let keys = ["topic", "partition", "newOffset"];
    let theirs = cells(
        &bench.java(&[&java_base[..], &rest, &["--dry-run"]].concat()),
        &names,
    );
    let ours = bench.ours(&[&ours_base[..], &rest, &["--dry-run"]].concat());
    assert_eq!(theirs, fields(&ours, &keys), "{strategy:?}");
    assert!(ours.iter().all(|row| row["committed"] == false));
    assert_eq!(bench.committed("idle"), before, "{strategy:?}: a dry run");
    let done = match who {
        Who::Java => cells(
            &bench.java(&[&java_base[..], &rest, &["--execute"]].concat()),
            &names,
        ),
        Who::Ours => {
            let rows = bench.ours(&[&ours_base[..], &rest, &["--execute"]].concat());
            assert!(rows.iter().all(|row| row["committed"] == true));
            fields(&rows, &keys)
        }
    };
    assert_eq!(done, theirs, "{strategy:?}: planned and done");
    assert_eq!(bench.committed("idle"), planned, "{strategy:?}");
}

fn resets_agree(bench: &Bench, dir: &Path) {
    let all = ["--topic", TOPIC];
    reset_agrees(bench, &all, &["--to-latest"], Who::Ours, &[10, 10, 10]);
    reset_agrees(bench, &all, &["--to-earliest"], Who::Java, &[0, 0, 0]);
    reset_agrees(bench, &all, &["--to-offset", "7"], Who::Ours, &[7, 7, 7]);
    let two = ["--topic", "orders:0,1"];
    reset_agrees(bench, &two, &["--shift-by", "-2"], Who::Java, &[5, 5, 7]);
    reset_agrees(bench, &two, &["--shift-by", "9"], Who::Ours, &[10, 10, 7]);
    // Between the two halves of the records.
    let minutes = |ago: i64| bench.now_ms - ago * 60_000;
    let time = datetime(minutes(90));
    reset_agrees(
        bench,
        &all,
        &["--to-datetime", &time],
        Who::Java,
        &[5, 5, 5],
    );
    let all_topics = ["--all-topics"];
    let hours = ["--by-duration", "PT3H"];
    reset_agrees(bench, &all_topics, &hours, Who::Ours, &[0, 0, 0]);
    let file = dir.join("plan.csv");
    std::fs::write(&file, format!("{TOPIC},0,4\n{TOPIC},2,99\n")).unwrap();
    let from = ["--from-file", file.to_str().unwrap()];
    reset_agrees(bench, &[], &from, Who::Java, &[4, 0, 10]);
    reset_agrees(bench, &all, &["--to-current"], Who::Ours, &[4, 0, 10]);
}

/// The rows of a plan of several groups are the same; nothing is done.
fn plans_agree(bench: &Bench, groups: &[&str], rest: &[&str]) -> Vec<Vec<String>> {
    let named = groups.iter().flat_map(|group| ["--group", group]);
    let named: Vec<&str> = named.collect();
    let theirs = bench.java(&[&["--reset-offsets"], &named[..], rest, &["--dry-run"]].concat());
    let ours = bench.ours(&[&["reset-offsets"], groups, rest].concat());
    let theirs = cells(&theirs, &["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]);
    let keys = ["group", "topic", "partition", "newOffset"];
    assert_eq!(theirs, fields(&ours, &keys), "{groups:?} {rest:?}");
    theirs
}

/// Plans of several groups, of what is committed alone, and as files.
fn plans_of_groups_agree(bench: &Bench, dir: &Path) {
    // One partition of one, three of the other.
    let both = ["idle", "spare"];
    let latest = plans_agree(bench, &both, &["--all-topics", "--to-latest"]);
    assert_eq!(latest.len(), 4, "{latest:?}");
    plans_agree(bench, &both, &["--topic", "orders:0", "--to-earliest"]);
    // Beyond the end of the log.
    bench.raw(async |client| {
        let commit = group::commit(client, "spare", ("", -1), TOPIC, &[(0, 15)]);
        commit.await.unwrap();
    });
    let current = plans_agree(bench, &["spare"], &["--topic", TOPIC, "--to-current"]);
    assert_eq!(current[0], ["spare", TOPIC, "0", "15"]);
    let names = ["PARTITION", "LEADER-EPOCH", "CURRENT-OFFSET", "LAG"];
    let keys = ["partition", "leaderEpoch", "currentOffset", "lag"];
    let theirs = cells(
        &bench.java(&["--describe", "--group", "spare", "--offsets", "--verbose"]),
        &names,
    );
    let ours = bench.ours(&["describe", "spare", "--offsets", "--verbose"]);
    assert_eq!(theirs, fields(&ours, &keys));
    assert_eq!(theirs[0].last().unwrap(), "-5");
    let (text, _) = bench.ours_output(&["describe", "spare", "--verbose"], true);
    assert_eq!(cells(&table(&text), &names), theirs);

    let lines = |text: &str| {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let plan = ["--all-topics", "--to-current", "--export"];
    for groups in [&["idle"][..], &both] {
        let named: Vec<&str> = groups.iter().flat_map(|g| ["--group", g]).collect();
        let theirs = bench.java_output(&[&["--reset-offsets"], &named[..], &plan].concat());
        let (ours, _) = bench.ours_output(&[&["reset-offsets"], groups, &plan].concat(), true);
        assert_eq!(lines(&ours), lines(&theirs), "{groups:?}");
        let file = dir.join("exported.csv");
        std::fs::write(&file, theirs).unwrap();
        plans_agree(bench, groups, &["--from-file", file.to_str().unwrap()]);
    }
    let (_, refused) = bench.ours_output(&["list", "--state", "Stabel"], false);
    assert!(refused.contains("CompletingRebalance"), "{refused}");
    // Of several, the ones that are there are shown and moved.
    let rest = ["--all-topics", "--to-earliest", "--format", "json"];
    let (out, why) = bench.ours_output(
        &[&["reset-offsets", "busy", "idle"][..], &rest].concat(),
        false,
    );
    assert!(why.contains("busy is in state Stable"), "{why}");
    let moved: Vec<Value> = serde_json::from_str(&out).unwrap();
    assert_eq!(moved.len(), 3, "{out}");
    let (out, why) = bench.ours_output(&["describe", "nobody", "idle"], false);
    assert!(why.contains("nobody does not exist"), "{why}");
    assert_eq!(table(&out).len(), 3, "{out}");
}

/// The form that both commands read, in UTC: `YYYY-MM-DDTHH:mm:SS.sss`.
fn datetime(ms: i64) -> String {
    let (day, of_day) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000));
    // Days since 0000-03-01, in eras of 400 years.
    let days = day + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = era * 400 + year + i64::from(month <= 2);
    let (h, m, s) = (of_day / HOUR_MS, of_day / 60_000 % 60, of_day / 1_000 % 60);
    format!(
        "{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{:03}",
        of_day % 1_000
    )
}

#[test]
fn datetimes_are_civil() {
    assert_eq!(datetime(0), "1970-01-01T00:00:00.000");
    assert_eq!(datetime(951_782_399_999), "2000-02-28T23:59:59.999");
    assert_eq!(datetime(951_782_400_000), "2000-02-29T00:00:00.000");
    assert_eq!(datetime(1_735_689_599_001), "2024-12-31T23:59:59.001");
}

/// Deleting offsets and groups; a group with a member stays.
fn deletions_agree(bench: &Bench) {
    let text = bench.java_output(&["--delete-offsets", "--group", "idle", "--topic", "orders:1"]);
    let deleted = cells(&table(&text), &["TOPIC", "PARTITION", "STATUS"]);
    assert_eq!(deleted, [[TOPIC, "1", "Successful"]]);
    assert_eq!(bench.committed("idle")[1], -1);
    let left = fields(&bench.ours(&["describe", "idle"]), &["partition"]);
    assert_eq!(left, [["0"], ["2"]]);
    let deleted = bench.ours(&["delete-offsets", "idle", "--topic", "orders:0,2"]);
    let keys = ["topic", "partition", "deleted"];
    let expected = [[TOPIC, "0", "true"], [TOPIC, "2", "true"]];
    assert_eq!(fields(&deleted, &keys), expected);
    assert_eq!(bench.committed("idle"), [-1, -1, -1]);
    let subscribed = ["delete-offsets", "busy", "--topic", "orders:0"];
    let (out, refused) = bench.ours_output(&subscribed, false);
    assert!(refused.contains("(86)") && out.contains("false"), "{out}");

    let text = bench.java_output(&["--delete", "--group", "busy"]);
    assert!(text.contains("GroupNotEmptyException"), "{text}");
    let (_, refused) = bench.ours_output(&["delete", "busy"], false);
    assert!(refused.contains("(68)"), "{refused}");
    let (_, refused) = bench.ours_output(&["delete", "nobody"], false);
    assert!(refused.contains("(69)"), "{refused}");

    let text = bench.java_output(&["--delete", "--group", "idle"]);
    assert!(text.contains("successful"), "{text}");
    assert_eq!(bench.committed("idle"), [-1, -1, -1]);
    // One that can't be deleted does not keep the others.
    let many = ["delete", "busy", "spare", "nobody", "--format", "json"];
    let (out, refused) = bench.ours_output(&many, false);
    assert!(refused.contains("(68)"), "{refused}");
    let deleted: Vec<Value> = serde_json::from_str(&out).unwrap();
    let expected = [["busy", "false"], ["nobody", "false"], ["spare", "true"]];
    assert_eq!(fields(&deleted, &["group", "deleted"]), expected);
    let left = cells(&bench.java(&["--list", "--state"]), &["GROUP"]);
    assert_eq!(left, [["busy"]]);
    assert_eq!(fields(&bench.ours(&["list"]), &["group"]), [["busy"]]);
}

#[test]
fn kafka_consumer_groups_agrees_with_fencepost_group() {
    let dir = tempfile::tempdir().unwrap();
    let options = GatewayOptions {
        overrides: vec!["group.initial.rebalance.delay.ms=0".to_owned()],
        ..GatewayOptions::default()
    };
    let gateway = Gateway::start(&dir.path().join("data"), &options).unwrap();
    let bench = Bench::new(gateway.address());
    let joined = bench.fill();
    facts_agree(&bench, &joined);
    resets_agree(&bench, dir.path());
    plans_of_groups_agree(&bench, dir.path());
    deletions_agree(&bench);
}

/// Neither command is a client of one broker only.
#[test]
fn fencepost_group_is_a_client_of_apache_kafka() {
    let options = OracleOptions {
        heap_mib: 512,
        // Records two hours old must not be deleted meanwhile.
        properties: vec![("log.retention.ms".into(), "-1".into())],
        ..OracleOptions::default()
    };
    let node = KafkaNode::start(&options).unwrap();
    let bench = Bench::new(node.address());
    let joined = bench.fill();
    facts_agree(&bench, &joined);
    let all = ["--topic", TOPIC];
    reset_agrees(&bench, &all, &["--to-offset", "7"], Who::Ours, &[7, 7, 7]);
    let shift = ["--shift-by", "-2"];
    reset_agrees(&bench, &["--all-topics"], &shift, Who::Ours, &[5, 5, 5]);
    let dir = tempfile::tempdir().unwrap();
    plans_of_groups_agree(&bench, dir.path());
    deletions_agree(&bench);
}
