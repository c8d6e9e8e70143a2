//! Kafka Connect copies a file to a topic and the topic to a file.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tests::flights::child::{Running, Streams, java, with};
use tests::flights::wall::{Deadline, pause};
use tests::process::free_port;

use super::{PACE, PATIENCE, Scene, some};

/// Lines that the file grows by in each round.
const ROUND: usize = 2_000;

/// The settings of a worker. Its topics are made by itself, compacted.
fn settings(scene: &Scene<'_>, port: u16) -> String {
    let string = "org.apache.kafka.connect.storage.StringConverter";
    let mut lines = vec![
        format!("bootstrap.servers={}", scene.address()),
        "group.id=workers".to_owned(),
        format!("key.converter={string}\nvalue.converter={string}"),
        "exactly.once.source.support=enabled".to_owned(),
        format!("listeners=HTTP://127.0.0.1:{port}"),
        "session.timeout.ms=10000\nheartbeat.interval.ms=500".to_owned(),
        "scheduled.rebalance.max.delay.ms=500\noffset.flush.interval.ms=500".to_owned(),
        "connector.client.config.override.policy=All".to_owned(),
        "plugin.discovery=service_load".to_owned(),
    ];
    for topic in ["offset", "config", "status"] {
        lines.push(format!("{topic}.storage.topic=connect-{topic}"));
        lines.push(format!("{topic}.storage.replication.factor=1"));
    }
    lines.push("offset.storage.partitions=3\nstatus.storage.partitions=2".to_owned());
    lines.join("\n")
}

fn worker(scene: &Scene<'_>) -> anyhow::Result<Running> {
    let command = java("org.apache.kafka.connect.cli.ConnectDistributed")?;
    let settings = scene.dir.join("worker.properties");
    Running::start("worker", with(command, [settings]), Streams::Fed, scene.dir)
}

/// One request of Connect's REST interface: the status and the body.
fn ask(port: u16, method: &str, path: &str, body: &str) -> anyhow::Result<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let code = answer.split(' ').nth(1).context("no status")?.parse()?;
    let (_, body) = answer.split_once("\r\n\r\n").context("no body")?;
    Ok((code, body.to_owned()))
}

/// Makes a connector as soon as the worker takes it.
fn connector(port: u16, name: &str, config: &Value, worker: &Running) -> anyhow::Result<()> {
    let deadline = Deadline::after(PATIENCE);
    let path = format!("/connectors/{name}/config");
    loop {
        let answer = ask(port, "PUT", &path, &config.to_string());
        if matches!(answer, Ok((200 | 201, _))) {
            return Ok(());
        }
        let late = deadline.check(name);
        late.with_context(|| format!("{answer:?}\n{}", worker.tail()))?;
        pause(PACE);
    }
}

fn connectors(scene: &Scene<'_>, port: u16, worker: &Running) -> anyhow::Result<()> {
    let file = |name: &str| scene.dir.join(name).display().to_string();
    let kind = |kind: &str| format!("org.apache.kafka.connect.file.FileStream{kind}Connector");
    let source = json!({
        "connector.class": kind("Source"), "tasks.max": "1",
        "file": file("source.txt"), "topic": "lines",
    });
    connector(port, "source", &source, worker)?;
    let sink = json!({
        "connector.class": kind("Sink"), "tasks.max": "1",
        "file": file("sink.txt"), "topics": "lines",
        "consumer.override.isolation.level": "read_committed",
        "consumer.override.auto.offset.reset": "earliest",
        "consumer.override.session.timeout.ms": "10000",
    });
    connector(port, "sink", &sink, worker)
}

/// Lines of the file that the sink writes, as far as they are whole.
fn sunk(dir: &Path) -> Vec<usize> {
    let text = std::fs::read_to_string(dir.join("sink.txt")).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().filter_map(|line| line.parse().ok()).collect()
}

fn copy(dir: &Path) -> anyhow::Result<()> {
    let mut scene = Scene::start(dir, &[("group.initial.rebalance.delay.ms", "100")])?;
    scene.create("lines", 1)?;
    let held = free_port()?;
    let port = held.number();
    std::fs::write(dir.join("worker.properties"), settings(&scene, port))?;
    let mut source = File::create(dir.join("source.txt"))?;
    let mut program = worker(&scene)?;
    connectors(&scene, port, &program)?;
    let mut written = 0;
    for _ in 0..scene.kills {
        for line in written..written + ROUND {
            writeln!(source, "{line}")?;
        }
        let moment = written + some(&mut scene.dice, ROUND / 2);
        scene.await_committed("lines", moment, &program)?;
        scene.restart_broker()?;
        let moment = moment + some(&mut scene.dice, ROUND / 2);
        scene.await_committed("lines", moment, &program)?;
        program.kill()?;
        program = worker(&scene)?;
        written += ROUND;
    }
    let found = scene.await_committed("lines", written, &program)?;
    let expected: Vec<String> = (0..written).map(|line| format!("\t{line}")).collect();
    let differs = expected.iter().zip(&found).find(|(a, b)| a != b);
    ensure!(found == expected, "{} lines; {differs:?}", found.len());
    // This sink is at least once: all of it, and nothing before what it stands behind.
    let deadline = Deadline::after(PATIENCE);
    loop {
        let mut lines = sunk(dir);
        lines.sort_unstable();
        lines.dedup();
        if lines.len() == written {
            return scene.check_log();
        }
        let late = deadline.check("the last line in the sink's file");
        late.with_context(|| format!("{} of {written}\n{}", lines.len(), program.tail()))?;
        pause(PACE);
    }
}

#[test]
fn connect_copies_exactly_once() -> anyhow::Result<()> {
    let dir = tempfile::Builder::new().prefix("connect-").tempdir()?;
    copy(dir.path())
}
