//! The built command as a process, and the library entry inside this one.

#![allow(clippy::unwrap_used, reason = "all of it is a test")]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::Duration;

use gateway::Gateway;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// ApiVersions v0 with correlation id 7 and no client id.
const API_VERSIONS: &[u8] = b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff";

async fn asks_api_versions(address: &str) {
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(API_VERSIONS).await.unwrap();
    read_api_versions(&mut client).await;
}

async fn read_api_versions(client: &mut TcpStream) {
    let len = client.read_u32().await.unwrap();
    let mut answer = vec![0; usize::try_from(len).unwrap()];
    client.read_exact(&mut answer).await.unwrap();
    // Correlation id, no error, and the number of keys.
    let keys = u8::try_from(gateway::api::api_table().len()).unwrap();
    assert_eq!(answer[..10], [0, 0, 0, 7, 0, 0, 0, 0, 0, keys]);
}

async fn get(address: &str, path: &str) -> String {
    let mut client = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_in_this_process_serves_and_stops() {
    // Ports that are let go here are given to none of the other tests.
    let builder = Gateway::builder()
        .ephemeral()
        .set("listeners", "PLAINTEXT://127.0.0.77:0")
        .set("admin.listen", "127.0.0.77:0");
    let gateway = builder.start().await.unwrap();
    let addresses = gateway.addresses().clone();
    assert_eq!(addresses.listeners["PLAINTEXT"], addresses.kafka);
    asks_api_versions(&addresses.kafka).await;
    let ready = get(&addresses.admin, "/readyz?verbose").await;
    assert!(ready.starts_with("HTTP/1.1 200 OK"), "{ready}");
    assert!(ready.ends_with("ready\n"), "{ready}");
    let metrics = get(&addresses.admin, "/metrics").await;
    assert!(
        metrics.contains("fencepost_requests_total{api=\"ApiVersions\"} 1"),
        "{metrics}"
    );
    assert!(metrics.contains("flush_policy=\"memory\""), "{metrics}");
    assert!(gateway.shutdown().await);
    assert!(TcpStream::connect(&addresses.kafka).await.is_err());
    assert!(TcpStream::connect(&addresses.admin).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_and_an_address_off_loopback_are_refused() {
    let first = Gateway::builder().ephemeral().start().await.unwrap();
    let taken = format!("PLAINTEXT://{}", first.addresses().kafka);
    let second = Gateway::builder().ephemeral().set("listeners", &taken);
    let error = second.start().await.unwrap_err().to_string();
    assert!(error.contains(&first.addresses().kafka), "{error}");
    let open = Gateway::builder()
        .ephemeral()
        .set("admin.listen", "0.0.0.0:0");
    let error = open.start().await.unwrap_err().to_string();
    assert!(error.contains("no authentication"), "{error}");
    assert!(first.shutdown().await);
}

struct Process {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn fencepost(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in std::env::vars() {
        if name.starts_with("KAFKA_") || name.starts_with("FENCEPOST_") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command
}

/// Starts a broker on free ports; its addresses are the one line of its standard output.
fn start(data: &Path) -> (Process, gateway_addresses::Addresses) {
    let mut command = fencepost(&["--data-dir", data.to_str().unwrap(), "--print-addresses"]);
    command.args(["--admin-listen", "127.0.0.1:0", "--log-format", "json"]);
    command.args(["--override", "listeners=PLAINTEXT://127.0.0.1:0"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let addresses = gateway_addresses::parse(&line);
    (Process { child, stdout }, addresses)
}

mod gateway_addresses {
    pub(crate) struct Addresses {
        pub(crate) kafka: String,
        pub(crate) admin: String,
    }

    pub(crate) fn parse(line: &str) -> Addresses {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| value[key].as_str().unwrap().to_owned();
        assert_eq!(value["listeners"]["PLAINTEXT"], value["kafka"]);
        Addresses {
            kafka: text("kafka"),
            admin: text("admin"),
        }
    }
}

fn signal(process: &Process, name: &str) {
    let pid = process.child.id().to_string();
    let killed = Command::new("kill")
        .args(["-s", name, &pid])
        .status()
        .unwrap();
    assert!(killed.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_and_sigint_stop_in_order_and_it_starts_again() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["TERM", "INT"] {
        let (mut process, addresses) = start(dir.path());
        asks_api_versions(&addresses.kafka).await;
        assert!(get(&addresses.admin, "/livez").await.ends_with("ok"));
        signal(&process, name);
        assert_eq!(process.child.wait().unwrap().code(), Some(0));
        let mut rest = String::new();
        process.stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "one line and no more");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_and_sigusr1_end_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut process, addresses, mut log) = start_logged(dir.path(), &[]);
    signal(&process, "HUP");
    log.until("nothing is reloaded");
    signal(&process, "USR1");
    let state = log.until("\"message\":\"state\"");
    assert!(state.contains("\"partitions\":0"), "{state}");
    asks_api_versions(&addresses.kafka).await;
    signal(&process, "TERM");
    assert_eq!(process.child.wait().unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_may_be_logfmt() {
    let dir = tempfile::tempdir().unwrap();
    let (mut process, addresses, mut log) = start_logged_as("logfmt", dir.path(), &[]);
    let ready = log.until(" msg=ready ");
    assert!(ready.starts_with("ts=2"), "{ready}");
    assert!(ready.contains(" level=info target="), "{ready}");
    let kafka = format!(" kafka={} ", addresses.kafka);
    assert!(ready.contains(&kafka), "{ready}");
    signal(&process, "HUP");
    let quoted = log.until("nothing is reloaded");
    assert!(quoted.contains(" msg=\""), "{quoted}");
    signal(&process, "TERM");
    assert_eq!(process.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_double_start_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_first, _) = start(dir.path());
    let mut command = fencepost(&["--data-dir", dir.path().to_str().unwrap()]);
    command.args(["--admin-listen", "127.0.0.1:0", "--log-format", "json"]);
    let second = command
        .args(["--override", "listeners=PLAINTEXT://127.0.0.1:0"])
        .output();
    let second = second.unwrap();
    assert_eq!(second.status.code(), Some(1));
    let log = String::from_utf8(second.stderr).unwrap();
    assert!(log.contains("broker 0 runs already on host"), "{log}");
    // How files are named says nothing to who starts it.
    assert!(!log.contains("kaas-"), "{log}");
}

#[test]
fn wrong_arguments_and_values_exit_with_2_and_say_why() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("server.properties");
    std::fs::copy(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrong.properties"),
        &file,
    )
    .unwrap();
    let file = file.to_str().unwrap();
    for (arguments, expected) in [
        (vec!["--no-such-flag"], "--no-such-flag"),
        (
            vec!["--broker-id", "x"],
            "node.id = \"x\" (flag --broker-id): allowed is",
        ),
        (
            vec!["--broker-id", "-1"],
            "allowed is a whole number from 0 to 8190",
        ),
        (vec!["--override", "num.partitions"], "allowed is key=value"),
        (
            vec![file],
            "line 3): allowed is a whole number from 1 to 10000",
        ),
        (vec!["no-such-file"], "no-such-file"),
        (vec!["--log", "a=b=c"], "logging.filter"),
        (vec!["--log", "wran"], "logging.filter"),
        (vec!["--admin-listen", "0.0.0.0:9644"], "no authentication"),
    ] {
        let output = fencepost(&arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty());
    }
}

/// A broker whose log can be read: lines as they come, and the rest at the end.
fn start_logged(data: &Path, more: &[&str]) -> (Process, gateway_addresses::Addresses, Log) {
    start_logged_as("json", data, more)
}

fn start_logged_as(
    format: &str,
    data: &Path,
    more: &[&str],
) -> (Process, gateway_addresses::Addresses, Log) {
    let mut command = fencepost(&["--data-dir", data.to_str().unwrap(), "--print-addresses"]);
    command.args(["--admin-listen", "127.0.0.1:0", "--log-format", format]);
    command.args(["--override", "listeners=PLAINTEXT://127.0.0.1:0"]);
    command
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let log = Log(BufReader::new(child.stderr.take().unwrap()));
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let addresses = gateway_addresses::parse(&line);
    (Process { child, stdout }, addresses, log)
}

struct Log(BufReader<ChildStderr>);

impl Log {
    /// Reads until a line has `text`.
    fn until(&mut self, text: &str) -> String {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "no {text:?}");
        }
        line
    }
}

/// DescribeGroups v0 of groups that are not there. Its answer has 9 MB: more than sockets hold.
fn describe_many_groups() -> Vec<u8> {
    const GROUPS: u32 = 65_536;
    let mut frame = b"\0\0\0\0\0\x0f\0\0\0\0\0\x08\xff\xff".to_vec();
    frame.extend_from_slice(&GROUPS.to_be_bytes());
    for number in 0..GROUPS {
        frame.extend_from_slice(&120_i16.to_be_bytes());
        frame.extend_from_slice(format!("{number:0120}").as_bytes());
    }
    let len = u32::try_from(frame.len() - 4).unwrap();
    frame[..4].copy_from_slice(&len.to_be_bytes());
    frame
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_during_the_drain_ends_the_process_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let slow = ["--override", "shutdown.drain.ms=600000"];
    let (mut process, addresses, mut log) = start_logged(dir.path(), &slow);
    // An answer that is not taken: the drain waits for it.
    let client = tokio::net::TcpSocket::new_v4().unwrap();
    client.set_recv_buffer_size(4096).unwrap();
    let mut client = client
        .connect(addresses.kafka.parse().unwrap())
        .await
        .unwrap();
    client.write_all(&describe_many_groups()).await.unwrap();
    let owed = "fencepost_requests_inflight{api=\"DescribeGroups\"} 1\n";
    while !get(&addresses.admin, "/metrics").await.contains(owed) {
        tokio::task::yield_now().await;
    }
    signal(&process, "TERM");
    log.until("once more stops at once");
    assert!(process.child.try_wait().unwrap().is_none());
    signal(&process, "TERM");
    assert_eq!(process.child.wait().unwrap().code(), Some(1));
    log.until("stopped at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_no_answer_of_the_admin_port_does_not_hold_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let (mut process, addresses) = start(dir.path());
    let client = tokio::net::TcpSocket::new_v4().unwrap();
    client.set_recv_buffer_size(4096).unwrap();
    let client = client.connect(addresses.admin.parse().unwrap());
    let mut client = client.await.unwrap();
    // Until the answers fill what the sockets hold, and no request is read any more.
    let requests = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
    let second = Duration::from_secs(1);
    while let Ok(sent) = tokio::time::timeout(second, client.write_all(&requests)).await {
        sent.unwrap();
    }
    signal(&process, "TERM");
    // An answer that is not read is given up after a minute.
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    for _ in 0..2000 {
        pace.tick().await;
        if let Some(status) = process.child.try_wait().unwrap() {
            assert_eq!(status.code(), Some(0));
            return;
        }
    }
    panic!("it waits for a client");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_taken_over_says_so_once_and_exits_with_1() {
    let dir = tempfile::tempdir().unwrap();
    let (mut first, addresses, mut log) = start_logged(dir.path(), &[]);
    asks_api_versions(&addresses.kafka).await;
    // What is still being taken over would find the second one by itself.
    coordinates(&addresses.admin).await;
    // As if the second one could not know of the first: another host, whose heartbeat is lost.
    let registration = dir.path().join("__cluster/brokers/kaas-0.json");
    std::fs::remove_file(registration).unwrap();
    let index = tempfile::tempdir().unwrap();
    let index = index.path().to_str().unwrap();
    let (_second, addresses, _log) = start_logged(dir.path(), &["--index-dir", index]);
    asks_api_versions(&addresses.kafka).await;
    assert_eq!(first.child.wait().unwrap().code(), Some(1));
    let mut rest = String::new();
    log.0.read_to_string(&mut rest).unwrap();
    let said = "another process of this broker has taken over; stopping";
    let errors: Vec<_> = rest.lines().filter(|line| line.contains("ERROR")).collect();
    assert_eq!(errors.len(), 1, "{rest}");
    assert!(errors[0].contains(said), "{rest}");
}

/// Waits until a broker answers for all that it coordinates.
async fn coordinates(admin: &str) {
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    while !get(admin, "/readyz?verbose")
        .await
        .contains("\n[+]coordinators ")
    {
        pace.tick().await;
    }
}

/// Starts on `data`, which must be refused; what the one line on an error says.
fn refused(data: &Path, more: &[&str]) -> String {
    let mut command = fencepost(&["--data-dir", data.to_str().unwrap()]);
    command.args(["--admin-listen", "127.0.0.1:0", "--log-format", "json"]);
    command.args(["--override", "listeners=PLAINTEXT://127.0.0.1:0"]);
    command
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut log = Log(BufReader::new(child.stderr.take().unwrap()));
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let mut process = Process { child, stdout };
    // Either the one line or the other comes.
    let line = log.until("\"message\":\"");
    let mut line: serde_json::Value = serde_json::from_str(&line).unwrap();
    while line["message"] != "the broker did not start" {
        assert_ne!(line["message"], "ready", "{} {more:?}", data.display());
        line = serde_json::from_str(&log.until("\"message\":\"")).unwrap();
    }
    assert_eq!(process.child.wait().unwrap().code(), Some(1));
    line["error"].as_str().unwrap().to_owned()
}

#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "files are damaged behind the broker's back"
)]
fn every_refused_start_names_the_file_and_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let within = file.join("data");
    let whole = dir.path().join("whole");
    let (mut process, _) = start(&whole);
    signal(&process, "TERM");
    process.child.wait().unwrap();
    let broken = |path: &str, content: &[u8]| {
        let copy = dir.path().join(path.replace('/', "-"));
        let copied = Command::new("cp").arg("-a").arg(&whole).arg(&copy).status();
        assert!(copied.unwrap().success());
        std::fs::write(copy.join(path), content).unwrap();
        copy
    };
    let index = file.to_str().unwrap();
    let mut cases = vec![
        (refused(&file, &[]), "file: use as a directory"),
        (refused(&within, &[]), "file/data: use as a directory"),
        (refused(&whole, &["--index-dir", index]), "file/cluster-id"),
    ];
    for path in ["__cluster/cluster.json", "__cluster/assignment.json"] {
        cases.push((refused(&broken(path, b"no json"), &[]), path));
    }
    for (error, path) in cases {
        assert!(error.contains(path), "{path} is not in {error:?}");
        for garbled in [": :", "\": ", "offline: offline"] {
            assert!(!error.contains(garbled), "{error:?}");
        }
        assert!(error.contains(dir.path().to_str().unwrap()), "{error:?}");
    }
}

/// The keys of a JSON object as they are written, repeated ones too.
struct Keys(Vec<String>);

impl<'de> serde::Deserialize<'de> for Keys {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Keys;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, _)) = map.next_entry::<_, serde::de::IgnoredAny>()? {
                    keys.push(key);
                }
                Ok(Keys(keys))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

#[test]
fn a_log_for_machines_has_every_key_once_and_says_what_the_banner_says() {
    let dir = tempfile::tempdir().unwrap();
    let (_process, addresses, mut log) = start_logged(dir.path(), &[]);
    let line = log.until("\"ready\"");
    let Keys(keys) = serde_json::from_str(&line).unwrap();
    let mut once = keys.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), keys.len(), "{keys:?}");
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    for (key, expected) in [
        ("message", "ready"),
        ("version", env!("CARGO_PKG_VERSION")),
        ("store", "sled"),
        ("durability", "fsync"),
        ("volume", dir.path().to_str().unwrap()),
        ("kafka", &addresses.kafka),
        ("admin", &addresses.admin),
        ("listeners", &format!("PLAINTEXT://{}", addresses.kafka)),
    ] {
        assert_eq!(line[key], expected, "{key}");
    }
    assert_eq!(line["broker"], 0);
}

#[test]
fn a_log_for_people_warns_once_of_each_key_without_effect_and_ends_with_the_banner() {
    let dir = tempfile::tempdir().unwrap();
    let more = [
        "--override",
        "no.such.key=1",
        "--override",
        "default.replication.factor=3",
    ];
    let (_process, addresses, mut log) = start_logged_as("pretty", dir.path(), &more);
    let mut said = Vec::new();
    while !said
        .last()
        .is_some_and(|line: &String| line.contains("kcat"))
    {
        said.push(log.until("\n"));
    }
    for (key, why) in [
        ("no.such.key", "is not a known key"),
        ("default.replication.factor", "one replica per live broker"),
    ] {
        let warnings = said.iter().filter(|line| line.contains(key));
        let warnings: Vec<_> = warnings.collect();
        assert_eq!(warnings.len(), 1, "{said:?}");
        assert!(
            warnings[0].contains("WARN") && warnings[0].contains(why),
            "{warnings:?}"
        );
    }
    let banner = said
        .iter()
        .position(|line| line.starts_with("fencepost "))
        .unwrap();
    let (data, kafka, admin) = (dir.path().display(), &addresses.kafka, &addresses.admin);
    let expected = format!(
        "fencepost {}, broker 0\n  \
         store       sled: in {data}\n  \
         durability  an acknowledged batch is on the disk (flush.policy=fsync)\n  \
         PLAINTEXT   clients are told {kafka}\n  \
         admin       http://{admin}/readyz?verbose  http://{admin}/metrics\n\n  \
         echo hello | kcat -P -b {kafka} -t greetings -X enable.idempotence=true\n",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(said[banner..].concat(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_connection_that_is_closed_for_what_it_sent_has_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let (process, addresses, mut log) = start_logged(dir.path(), &[]);
    // A negative length, one that is too large, and a key that nobody knows.
    for wrong in [
        &b"\xff\xff\xff\xff"[..],
        &b"\x7f\xff\xff\xff"[..],
        &b"\0\0\0\x0a\x7f\0\0\0\0\0\0\x07\xff\xff"[..],
    ] {
        let mut client = TcpStream::connect(&addresses.kafka).await.unwrap();
        client.write_all(wrong).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert!(answer.is_empty());
        let peer = client.local_addr().unwrap().to_string();
        let line = log.until("connection closed");
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(line["peer"].as_str().unwrap().contains(&peer), "{line}");
        let why = line["reason"].as_str().or(line["error"].as_str());
        assert!(why.is_some_and(|why| !why.is_empty()), "{line}");
    }
    signal(&process, "TERM");
    let mut rest = String::new();
    log.0.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("connection closed"), "{rest}");
}
