//! `fencepost check-config`, `config`, `health` and `doctor`, run as a user runs them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tests::gatewayproc::{Gateway, GatewayOptions, binary};
use tests::process::free_port;

struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self.out
    }

    fn rows(self) -> Vec<Value> {
        serde_json::from_str(&self.ok()).unwrap()
    }
}

/// Runs the command with these variables of its own and no others that it would take.
fn with_env(env: &[(&str, &str)], args: &[&str]) -> Said {
    let mut command = Command::new(binary().unwrap());
    let others = std::env::vars().map(|(name, _)| name);
    for name in others.filter(|n| n.starts_with("FENCEPOST_") || n.starts_with("KAFKA_")) {
        command.env_remove(name);
    }
    command.env_remove("RUST_LOG");
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .args(args)
        .envs(env.iter().copied())
        .output()
        .unwrap();
    Said {
        code: status.code(),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

fn fencepost(args: &[&str]) -> Said {
    with_env(&[], args)
}

fn file(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The row of a key.
fn row<'a>(rows: &'a [Value], key: &str) -> &'a Value {
    let found = rows.iter().find(|row| row["key"] == key);
    found.unwrap_or_else(|| panic!("no {key}"))
}

const PROPERTIES: &str = "\
node.id=3
num.partitions=2
process.roles=broker,controller
sasl.jaas.config=secret password
num.partition=7
";

#[test]
fn what_a_search_needs_is_named_as_a_whole() {
    let said = fencepost(&["txn", "find-hanging"]);
    assert_eq!(said.code, Some(2));
    let needed = "--broker-id <N>|--topic <TOPIC>";
    assert!(said.err.contains(needed), "{}", said.err);
}

#[test]
fn a_configuration_is_checked_key_by_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "server.properties", PROPERTIES);
    for args in [
        &["check-config", &path][..],
        &["serve", &path, "--check-config"],
        &[&path, "--check-config"],
    ] {
        let said = fencepost(args);
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{args:?}");
        assert!(!said.out.contains("secret"), "{}", said.out);
        let lines: Vec<&str> = said.out.lines().collect();
        assert_eq!(lines.len(), 6, "{lines:?}");
        assert!(lines[0].starts_with("KEY ") && lines[0].ends_with("EFFECT"));
    }
    let rows = fencepost(&["check-config", &path, "--format", "json"]).rows();
    assert_eq!(row(&rows, "node.id")["value"], "3");
    assert_eq!(row(&rows, "node.id")["effect"], "used");
    assert_eq!(
        row(&rows, "num.partitions")["origin"],
        format!("file {path} line 2")
    );
    let ignored = row(&rows, "process.roles")["effect"].as_str().unwrap();
    assert!(ignored.starts_with("is ignored because "), "{ignored}");
    let unknown = row(&rows, "num.partition")["effect"].as_str().unwrap();
    assert!(
        unknown.ends_with("did you mean num.partitions?"),
        "{unknown}"
    );

    let strict = fencepost(&["check-config", &path, "--strict-config"]);
    assert_eq!(strict.code, Some(2));
    assert!(strict.err.contains("process.roles") && strict.err.contains("num.partition "));
    let serve = fencepost(&["serve", &path, "--strict-config"]);
    assert_eq!(serve.code, Some(2));
    assert!(serve.err.contains("--strict-config"), "{}", serve.err);
}

#[test]
fn everything_that_is_wrong_is_said_at_once_with_what_is_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(
        dir.path(),
        "wrong.properties",
        "node.id=9999\nnum.partitions=0\n",
    );
    let said = fencepost(&["check-config", &path]);
    assert_eq!(said.code, Some(2));
    let lines: Vec<&str> = said.err.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("node.id = \"9999\"") && lines[0].contains("from 0 to 8190"));
    assert!(lines[1].contains("num.partitions") && lines[1].contains("line 2"));
    assert!(said.out.contains("num.partitions"), "{}", said.out);
    for (args, says) in [
        (&["--override", "listeners=x"][..], "listeners"),
        (&["--log", "no=such=filter"], "logging.filter"),
        (&["--override", "x"], "key=value"),
        (&["/no/such/file.properties"], "/no/such/file.properties"),
    ] {
        let said = fencepost(&[&["check-config"], args].concat());
        assert_eq!(said.code, Some(2), "{args:?}");
        assert!(said.err.contains(says), "{args:?}: {}", said.err);
    }
    let listeners = "listeners=SSL://h:1,OUT://h:2,PLAINTEXT://0.0.0.0:3";
    let said = fencepost(&["check-config", "--override", listeners]);
    assert_eq!(said.code, Some(2));
    let lines: Vec<&str> = said.err.lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
}

#[test]
fn that_nothing_is_given_is_said() {
    let said = fencepost(&["check-config"]).ok();
    assert_eq!(said, "no key is given: all are at their defaults\n");
    let rows = fencepost(&["check-config", "--format", "json"]).rows();
    assert!(rows.is_empty());
}

#[test]
fn a_file_of_another_name_is_read_in_javas_form_when_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "kafka.conf", "node.id: 4\n");
    assert_eq!(fencepost(&["check-config", &path]).code, Some(2));
    let rows = ["check-config", &path, "--properties", "--format", "json"];
    assert_eq!(row(&fencepost(&rows).rows(), "node.id")["value"], "4");
}

#[test]
fn the_dump_says_where_every_value_comes_from() {
    let dir = tempfile::tempdir().unwrap();
    let text = "node.id=1\nnum.partitions=2\nfetch.max.bytes=2000\nmax.connections=9\n";
    let path = file(dir.path(), "server.properties", text);
    let env = [
        ("FENCEPOST_NUM_PARTITIONS", "4"),
        ("KAFKA_NUM_PARTITIONS", "3"),
        ("KAFKA_FETCH_MAX_BYTES", "3000"),
    ];
    let args = [
        "config",
        "dump",
        &path,
        "--broker-id",
        "5",
        "--format",
        "json",
    ];
    let rows = with_env(&env, &args).rows();
    for (key, value, origin) in [
        ("node.id", "5", "flag --broker-id".to_owned()),
        (
            "num.partitions",
            "4",
            "environment variable FENCEPOST_NUM_PARTITIONS".to_owned(),
        ),
        (
            "fetch.max.bytes",
            "3000",
            "environment variable KAFKA_FETCH_MAX_BYTES".to_owned(),
        ),
        ("max.connections", "9", format!("file {path} line 4")),
        ("auto.create.topics.enable", "true", "default".to_owned()),
    ] {
        let found = row(&rows, key);
        assert_eq!(
            (&found["value"], &found["origin"]),
            (&value.into(), &origin.into())
        );
    }
    let given = [&args[..], &["--given"]].concat();
    assert_eq!(with_env(&env, &given).rows().len(), 4);
    let yaml = fencepost(&["config", "dump", "--format", "yaml"]).ok();
    assert!(yaml.contains("  key: \"node.id\"\n"), "{yaml}");
}

#[test]
fn a_key_is_explained() {
    let text = fencepost(&["config", "explain", "broker.id", "--broker-id", "6"]).ok();
    for part in [
        "node.id: ",
        "from 0 to 8190",
        "value    6",
        "flag --broker-id",
        "broker.id",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let ignored = fencepost(&["config", "explain", "zookeeper.connect"]).ok();
    assert_eq!(
        ignored,
        "zookeeper.connect is ignored because there is no ZooKeeper\n"
    );
    let unknown = fencepost(&["config", "explain", "num.partition"]);
    assert_eq!(unknown.code, Some(2));
    assert!(
        unknown.err.contains("did you mean num.partitions?"),
        "{}",
        unknown.err
    );
    let of_topics = fencepost(&["config", "explain", "retention.ms"]);
    assert_eq!(of_topics.code, Some(2));
    assert!(
        of_topics.err.contains("a config of topics"),
        "{}",
        of_topics.err
    );
}

fn started(dir: &Path, settings: &[&str]) -> Gateway {
    let options = GatewayOptions {
        overrides: settings
            .iter()
            .map(|setting| (*setting).to_owned())
            .collect(),
        ..GatewayOptions::default()
    };
    Gateway::start(&dir.join("data"), &options).unwrap()
}

#[test]
fn health_has_a_code_for_each_case() {
    let dir = tempfile::tempdir().unwrap();
    let mut gateway = started(dir.path(), &[]);
    let admin = gateway.admin_address();
    let live = fencepost(&["health", "--admin", &admin]).ok();
    assert_eq!(live, "CHECK  STATE  REASON\nlive   ok     -\n");
    let ready = ["health", "--ready", "--admin", &admin, "--format", "json"];
    let rows = fencepost(&ready).rows();
    assert!(
        rows.len() > 2 && rows.iter().all(|row| row["state"] == "ok"),
        "{rows:?}"
    );
    let of_environment = with_env(&[("FENCEPOST_ADMIN_LISTEN", &admin)], &["health"]);
    of_environment.ok();
    // A Kafka port is no admin port.
    let wrong = fencepost(&["health", "--admin", &gateway.address(), "--timeout", "2000"]);
    assert!(
        matches!(wrong.code, Some(3 | 4)),
        "{:?} {}",
        wrong.code,
        wrong.err
    );
    gateway.stop().unwrap();
    let nobody = free_port().unwrap();
    let address = format!("127.0.0.1:{}", nobody.number());
    let gone = fencepost(&["health", "--ready", "--admin", &address]);
    assert_eq!(gone.code, Some(3), "{}", gone.err);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let late = fencepost(&["health", "--admin", &address, "--timeout", "200"]);
    assert_eq!(late.code, Some(4), "{}", late.err);
}

/// An admin port that answers one request.
fn answering(status: &str, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = BufReader::new(stream.try_clone().unwrap()).lines();
        while request.next().unwrap().unwrap() != "" {}
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
    });
    address
}

#[test]
fn what_is_wrong_with_a_broker_is_a_finding() {
    let body = "[+]workers ok\n[~]disk degraded: it is full\n[-]owner failed: gone\nnot ready\n";
    let admin = answering("503 Service Unavailable", body);
    let said = fencepost(&["health", "--ready", "--admin", &admin, "--format", "json"]);
    assert_eq!(said.code, Some(1), "{}", said.err);
    let rows: Vec<Value> = serde_json::from_str(&said.out).unwrap();
    let states: Vec<&Value> = rows.iter().map(|row| &row["state"]).collect();
    assert_eq!(states, ["ok", "degraded", "failed"]);
    assert_eq!(rows[2]["reason"], "gone");
    let admin = answering(
        "200 OK",
        "[+]workers ok\n[~]disk degraded: it is full\nready\n",
    );
    assert!(
        fencepost(&["health", "--ready", "--admin", &admin])
            .ok()
            .contains("it is full")
    );
    let admin = answering(
        "503 Service Unavailable",
        "{\"detail\":\"no progress for 7 s\"}",
    );
    let said = fencepost(&["health", "--admin", &admin]);
    assert_eq!(said.code, Some(1));
    assert!(said.out.contains("no progress for 7 s"), "{}", said.out);
    let admin = answering("404 Not Found", "");
    let said = fencepost(&["health", "--admin", &admin]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("404"), "{}", said.err);
}

#[test]
fn the_doctor_finds_an_address_that_leads_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let nobody = free_port().unwrap();
    let gone = format!("127.0.0.1:{}", nobody.number());
    let told = format!("advertised.listeners=PLAINTEXT://{gone}");
    let gateway = started(dir.path(), &[&told]);
    let address = gateway.address();
    let said = fencepost(&["doctor", &address, "--format", "json"]);
    assert_eq!(said.code, Some(1), "{}", said.err);
    let rows: Vec<Value> = serde_json::from_str(&said.out).unwrap();
    let failed: Vec<&Value> = rows.iter().filter(|row| row["state"] == "failed").collect();
    assert_eq!(failed.len(), 1, "{rows:?}");
    assert_eq!(failed[0]["check"], "broker 0");
    assert!(failed[0]["found"].as_str().unwrap().contains(&gone));
    let advice = failed[0]["advice"].as_str().unwrap();
    assert!(advice.contains("advertised.listeners"), "{advice}");
    let nowhere = fencepost(&["doctor", &gone]);
    assert_eq!(nowhere.code, Some(3), "{}", nowhere.err);
    assert!(nowhere.out.contains("resolve") && nowhere.out.contains("connect"));
    let unknown = fencepost(&["doctor", "no-such-host.invalid:9092", "--timeout", "60000"]);
    assert_eq!(unknown.code, Some(3), "{}", unknown.err);
}

#[test]
fn the_doctor_finds_nothing_wrong_with_a_broker_that_is_well() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = started(dir.path(), &[]);
    let (address, admin) = (gateway.address(), gateway.admin_address());
    let args = ["doctor", &address, "--admin", &admin, "--format", "json"];
    let rows = fencepost(&args).rows();
    assert!(rows.iter().all(|row| row["state"] == "ok"), "{rows:?}");
    for check in [
        "resolve",
        "connect",
        "api versions",
        "metadata",
        "broker 0",
        "topics",
        "clock",
    ] {
        assert!(
            rows.iter().any(|row| row["check"] == check),
            "no {check} in {rows:?}"
        );
    }
    let not_kafka = fencepost(&["doctor", &admin, "--timeout", "2000"]);
    assert!(
        matches!(not_kafka.code, Some(3 | 4)),
        "{:?}",
        not_kafka.code
    );
}

#[test]
fn every_command_says_what_its_formats_have() {
    // No broker is asked.
    let nobody = format!("127.0.0.1:{}", free_port().unwrap().number());
    for (args, field, column) in [
        (&["topic", "list"][..], "replicationFactor: number", "TOPIC"),
        (&["topic", "partitions", "t"][..], "isr: list", "ISR"),
        (
            &["topic", "configs", "t"][..],
            "value: may be null",
            "SOURCE",
        ),
        (
            &["group", "list"][..],
            "protocolType: text",
            "PROTOCOL-TYPE",
        ),
        (&["group", "describe", "g"][..], "lag: may be null", "LAG"),
        (
            &["group", "delete", "g"][..],
            "deleted: true or false",
            "ERROR",
        ),
        (&["txn", "list"][..], "transactionalId: text", "COORDINATOR"),
        (&["produce", "t"][..], "records: number", "LAST-OFFSET"),
    ] {
        let more = ["--bootstrap-server", &nobody, "--format", "help"];
        let args = [args, &more].concat();
        let said = fencepost(&args).ok();
        assert!(said.contains(&format!("\n  {field}\n")), "{args:?}: {said}");
        let table = said.lines().find(|line| line.starts_with("table: "));
        assert!(table.unwrap().contains(column), "{args:?}: {said}");
    }
    for args in [
        &["health"][..],
        &["doctor", &nobody][..],
        &["config", "dump"][..],
        &["config", "explain", "listeners"][..],
        &["check-config"][..],
    ] {
        let args = [args, &["--format", "help"]].concat();
        let said = fencepost(&args).ok();
        assert!(said.contains("\ntable: "), "{args:?}: {said}");
    }
    let said = fencepost(&[
        "store",
        "check",
        "--data-dir",
        "/no/such",
        "--format",
        "help",
    ])
    .ok();
    assert!(said.contains("\n  findings: list\n"), "{said}");
}
