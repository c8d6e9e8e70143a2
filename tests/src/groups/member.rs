//! The members: how each client is told to read in a group, and how it is told to leave.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};

use anyhow::{Context as _, ensure};

use crate::flights::child::{Running, Streams, java, java_from, need, with};
use crate::flights::clients::{LIBRDKAFKA_PATIENCE, rdkafka_program};
use crate::flights::wall::Deadline;
use crate::process::{cache_dir, repository};

/// Time after which a silent member is out, in milliseconds; every member has it.
pub const SESSION_MS: u32 = 6_000;
/// Pause between heartbeats of a member, in milliseconds.
const HEARTBEAT_MS: u32 = 200;
/// Pause between commits of a client that commits by itself, in milliseconds.
const AUTO_COMMIT_MS: u32 = 100;
/// How a JVM ends on SIGTERM when its hooks are done: 128 and the signal.
const ENDED_BY_TERM: i32 = 143;

/// A client with an assignor of it, by the client's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// librdkafka through the crate rdkafka.
    Rdkafka(&'static str),
    /// kcat; commits by itself.
    Kcat,
    /// The console consumer of Apache Kafka; commits by itself.
    JavaConsole,
    /// Apache Kafka's consumer, which waits for the answer to each commit.
    Java(&'static str),
    /// The same with a group instance id.
    JavaStatic(&'static str),
    /// franz-go.
    FranzGo(&'static str),
    /// The same with a group instance id.
    FranzGoStatic(&'static str),
    /// kafka-python.
    KafkaPython(&'static str),
    /// aiokafka.
    Aiokafka(&'static str),
    /// kafkajs, whose only assignor takes turns.
    Kafkajs,
}

impl Client {
    /// The name in messages and file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rdkafka(_) => "rust-rdkafka",
            Self::Kcat => "kcat",
            Self::JavaConsole => "java-console",
            Self::Java(_) => "java",
            Self::JavaStatic(_) => "java-static",
            Self::FranzGo(_) => "franz-go",
            Self::FranzGoStatic(_) => "franz-go-static",
            Self::KafkaPython(_) => "kafka-python",
            Self::Aiokafka(_) => "aiokafka",
            Self::Kafkajs => "kafkajs",
        }
    }

    /// Whether it is a tool that prints records only and commits when it likes.
    pub fn is_tool(self) -> bool {
        matches!(self, Self::Kcat | Self::JavaConsole)
    }

    /// Whether it loses no record however it ends. kcat commits what it holds and has not printed.
    pub fn may_end(self) -> bool {
        self != Self::Kcat
    }

    /// `instance` is the number of a static member, which nobody else has at the time.
    fn command(
        self,
        broker: SocketAddr,
        (topic, group): (&str, &str),
        instance: usize,
    ) -> anyhow::Result<Command> {
        let broker = broker.to_string();
        let instance = format!("instance-{instance}");
        let clients = cache_dir().join("clients");
        let python = |library: &str, strategy: &str| {
            let path = clients.join("venv").join("bin").join("python");
            need(&path, "run scripts/setup-clients.sh python")?;
            let mut command = Command::new(path);
            command.arg(repository().join("tests/clients/python/groups.py"));
            command.args([library, &broker, topic, group, strategy]);
            anyhow::Ok(command)
        };
        match self {
            Self::Rdkafka(strategy) => {
                let args = [&*broker, topic, group, strategy];
                Ok(with(rdkafka_member()?, args))
            }
            Self::FranzGo(strategy) => {
                let args = [&*broker, topic, group, strategy];
                Ok(with(franz_go_member()?, args))
            }
            Self::FranzGoStatic(strategy) => {
                let args = [&*broker, topic, group, strategy, &*instance];
                Ok(with(franz_go_member()?, args))
            }
            Self::Java(strategy) => {
                let args = [&*broker, topic, group, strategy];
                Ok(with(java_member()?, args))
            }
            Self::JavaStatic(strategy) => {
                let args = [&*broker, topic, group, strategy, &*instance];
                Ok(with(java_member()?, args))
            }
            Self::KafkaPython(strategy) => python("kafka-python", strategy),
            Self::Aiokafka(strategy) => python("aiokafka", strategy),
            Self::Kafkajs => {
                let dir = clients.join("node");
                need(&dir.join("installed"), "run scripts/setup-clients.sh node")?;
                let mut command = Command::new("node");
                command.env("NODE_PATH", dir.join("node_modules"));
                command.arg(repository().join("tests/clients/node/groups.js"));
                Ok(with(command, [&broker, topic, group]))
            }
            Self::Kcat => Ok(kcat(&broker, topic, group)),
            Self::JavaConsole => java_console(&broker, topic, group),
        }
    }
}

/// The program of ours that is a member through Apache Kafka's consumer.
///
/// # Errors
/// If it is not compiled.
pub fn java_member() -> anyhow::Result<Command> {
    let classes = cache_dir().join("clients").join("java");
    let advice = "run scripts/setup-clients.sh java";
    need(&classes.join("Member.class"), advice)?;
    java_from(&classes, "Member")
}

/// The program of ours that is a member through librdkafka.
///
/// # Errors
/// If it is not compiled.
pub fn rdkafka_member() -> anyhow::Result<Command> {
    Ok(with(Command::new(rdkafka_program()?), ["group"]))
}

/// The program of ours that is a member through franz-go.
///
/// # Errors
/// If it is not compiled.
pub fn franz_go_member() -> anyhow::Result<Command> {
    let path = cache_dir()
        .join("clients")
        .join("bin")
        .join("flights-franz-go");
    need(&path, "run scripts/setup-clients.sh go")?;
    Ok(with(Command::new(path), ["group"]))
}

fn kcat(broker: &str, topic: &str, group: &str) -> Command {
    let mut command = with(Command::new("kcat"), ["-b", broker, "-E", "-q", "-u"]);
    command.args(["-G", group, "-f", "%p\t%o\t%k\t%s\n"]);
    for property in LIBRDKAFKA_PATIENCE {
        command.args(["-X", property]);
    }
    let interval = format!("auto.commit.interval.ms={AUTO_COMMIT_MS}");
    let (session, heartbeat) = (
        format!("session.timeout.ms={SESSION_MS}"),
        format!("heartbeat.interval.ms={HEARTBEAT_MS}"),
    );
    for property in [
        "auto.offset.reset=earliest",
        &interval,
        &session,
        &heartbeat,
    ] {
        command.args(["-X", property]);
    }
    with(command, [topic])
}

fn java_console(broker: &str, topic: &str, group: &str) -> anyhow::Result<Command> {
    let mut command = java("org.apache.kafka.tools.consumer.ConsoleConsumer")?;
    command.args(["--bootstrap-server", broker, "--topic", topic]);
    command.args(["--group", group, "--from-beginning"]);
    for part in ["key", "partition", "offset"] {
        command.args(["--formatter-property", &format!("print.{part}=true")]);
    }
    for property in [
        &format!("auto.commit.interval.ms={AUTO_COMMIT_MS}"),
        &format!("session.timeout.ms={SESSION_MS}"),
        &format!("heartbeat.interval.ms={HEARTBEAT_MS}"),
        "reconnect.backoff.ms=10",
        "reconnect.backoff.max.ms=100",
    ] {
        command.args(["--command-property", property]);
    }
    Ok(command)
}

/// A running member.
#[derive(Debug)]
pub struct Member {
    client: Client,
    /// Its number, where it is a static member.
    pub instance: usize,
    running: Running,
    /// Closed, it tells a program of ours to leave.
    stdin: Option<ChildStdin>,
    output: PathBuf,
    floor: Vec<i64>,
}

/// A member that is gone, and what it printed.
#[derive(Debug)]
pub struct Gone {
    /// Its client.
    pub client: Client,
    /// Committed offsets before it began, -1 where there was none.
    pub floor: Vec<i64>,
    /// Its standard output.
    pub output: Vec<u8>,
}

impl Member {
    /// Starts a member, the `number`th; `floor` is what is committed now.
    ///
    /// # Errors
    /// If what the client needs is not installed.
    pub fn start(
        client: Client,
        (number, instance): (usize, usize),
        (broker, topic, group): (SocketAddr, &str, &str),
        floor: Vec<i64>,
        dir: &Path,
    ) -> anyhow::Result<Self> {
        let name = format!("member-{number}-{}", client.name());
        let output = dir.join(format!("{name}.out"));
        let command = client.command(broker, (topic, group), instance)?;
        let mut running = Running::start(&name, command, Streams::Led(output.clone()), dir)?;
        let stdin = Some(running.take_stdin()?);
        Ok(Self {
            client,
            instance,
            running,
            stdin,
            output,
            floor,
        })
    }

    /// Whether it has printed a record or an assignment.
    pub fn has_spoken(&self) -> anyhow::Result<bool> {
        Ok(self.output.metadata()?.len() > 0)
    }

    /// Fails if it has ended by itself.
    pub fn check(&mut self) -> anyhow::Result<()> {
        let ended = self.running.ended()?;
        ensure!(
            ended.is_none(),
            "{} ended by itself: {ended:?}\n{}",
            self.client.name(),
            self.running.tail()
        );
        Ok(())
    }

    /// Ends it with SIGKILL.
    pub fn kill(mut self) -> anyhow::Result<Gone> {
        self.running.kill()?;
        self.gone()
    }

    /// Asks it to leave the group and waits for its end.
    ///
    /// # Errors
    /// If it does not end in time and in order.
    pub fn leave(mut self, deadline: Deadline) -> anyhow::Result<Gone> {
        if self.client.is_tool() {
            self.running.terminate()?;
            let status = self.running.end(deadline)?;
            ensure!(
                status.success() || status.code() == Some(ENDED_BY_TERM),
                "{} ended with {status}\n{}",
                self.client.name(),
                self.running.tail()
            );
        } else {
            self.stdin = None;
            self.running.finish(deadline)?;
        }
        self.gone()
    }

    fn gone(self) -> anyhow::Result<Gone> {
        let output = std::fs::read(&self.output);
        Ok(Gone {
            client: self.client,
            floor: self.floor,
            output: output.with_context(|| self.output.display().to_string())?,
        })
    }
}
