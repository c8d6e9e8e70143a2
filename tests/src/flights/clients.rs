//! The clients: how each is told to write and to read.
//!
//! Every writer has idempotence on, takes acknowledgements from all replicas, and gets
//! [`DELIVERY_MS`] to deliver a record; every reader reads all partitions from their start
//! without a group. All else is the client's default, but for short pauses between attempts to
//! reach a broker that is away.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use super::child::{Running, Streams, java, need, with};
use super::input::{PARTITIONS, Placement};
use super::verdict::{Read, parse};
use super::wall::Deadline;
use super::watermarks::Watermarks;
use crate::process::{cache_dir, repository};

/// Time that writers have for one record, in milliseconds: more than all restarts take.
pub const DELIVERY_MS: u32 = 180_000;
pub(crate) const LIBRDKAFKA_PATIENCE: [&str; 3] = [
    "reconnect.backoff.ms=10",
    "reconnect.backoff.max.ms=100",
    "retry.backoff.ms=20",
];

/// A real client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// kcat of Debian.
    Kcat,
    /// librdkafka through the crate rdkafka.
    RustRdkafka,
    /// librdkafka through the Python package confluent-kafka.
    PythonConfluent,
    /// The console producer and the console consumer of Apache Kafka.
    JavaConsole,
    /// franz-go.
    FranzGo,
}

/// A topic on a broker.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Bootstrap address.
    pub broker: SocketAddr,
    /// Topic name.
    pub topic: &'a str,
}

impl Client {
    /// The name in messages and file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kcat => "kcat",
            Self::RustRdkafka => "rust-rdkafka",
            Self::PythonConfluent => "python-confluent-kafka",
            Self::JavaConsole => "java-console",
            Self::FranzGo => "franz-go",
        }
    }

    /// What this client's writer is fed. The tools take no partition per record.
    pub fn placement(self) -> Placement {
        match self {
            Self::Kcat | Self::JavaConsole => Placement::Keyed,
            Self::RustRdkafka | Self::PythonConfluent | Self::FranzGo => Placement::Explicit,
        }
    }

    /// The command that writes its standard input.
    ///
    /// # Errors
    /// If what it needs is not installed.
    pub fn writer(self, target: Target<'_>) -> anyhow::Result<Command> {
        let broker = target.broker.to_string();
        match self {
            Self::Kcat => Ok(kcat_writer(&broker, target.topic)),
            Self::JavaConsole => java_writer(&broker, target.topic),
            Self::RustRdkafka | Self::PythonConfluent | Self::FranzGo => {
                Ok(with(self.program()?, ["produce", &broker, target.topic]))
            }
        }
    }

    /// Reads every record below `ends` from every partition.
    ///
    /// # Errors
    /// If the client is missing, fails, does not end in time, or prints what is no record.
    pub fn read(
        self,
        target: Target<'_>,
        ends: &Watermarks,
        dir: &Path,
        deadline: Deadline,
    ) -> anyhow::Result<Read> {
        let mut started = Vec::new();
        for (number, command) in self.readers(target, ends)?.into_iter().enumerate() {
            let name = format!("reader-{}-{number}", self.name());
            let output = dir.join(format!("{name}.out"));
            let stdout = Streams::Stored(output.clone());
            started.push((Running::start(&name, command, stdout, dir)?, output));
        }
        let mut read = Read::new();
        for (mut running, output) in started {
            running.finish(deadline)?;
            let text = std::fs::read(&output)?;
            parse(&text, &mut read).with_context(|| running.tail())?;
        }
        Ok(read)
    }

    fn readers(self, target: Target<'_>, ends: &Watermarks) -> anyhow::Result<Vec<Command>> {
        let broker = target.broker.to_string();
        let partitions = PARTITIONS.to_string();
        let count = ends.iter().sum::<i64>().to_string();
        match self {
            Self::Kcat => Ok(vec![kcat_reader(&broker, target.topic)]),
            // It reads a single partition when it is to do without a group.
            Self::JavaConsole => ends
                .iter()
                .enumerate()
                .filter(|(_, end)| **end > 0)
                .map(|(partition, end)| java_reader(&broker, target.topic, partition, *end))
                .collect(),
            Self::RustRdkafka | Self::PythonConfluent | Self::FranzGo => {
                let args = ["consume", &broker, target.topic, &partitions, &count];
                Ok(vec![with(self.program()?, args)])
            }
        }
    }

    /// Our own program around a client library.
    fn program(self) -> anyhow::Result<Command> {
        let clients = cache_dir().join("clients");
        match self {
            Self::FranzGo => {
                let path = clients.join("bin").join("flights-franz-go");
                need(&path, "run scripts/setup-clients.sh go")?;
                Ok(Command::new(path))
            }
            Self::PythonConfluent => {
                let path = clients.join("venv").join("bin").join("python");
                need(&path, "run scripts/setup-clients.sh python")?;
                let script = repository().join("tests/clients/python/flights.py");
                Ok(with(Command::new(path), [script]))
            }
            Self::RustRdkafka => Ok(Command::new(rdkafka_program()?)),
            Self::Kcat | Self::JavaConsole => anyhow::bail!("{self:?} is no program of ours"),
        }
    }
}

/// The program `flights-rdkafka` lies beside the folder of the test that runs.
pub(crate) fn rdkafka_program() -> anyhow::Result<PathBuf> {
    ensure!(
        cfg!(feature = "clients-c"),
        "run the suite with --features clients-c"
    );
    let mut path = std::env::current_exe()?;
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.push("flights-rdkafka");
    need(&path, "run the suite with --features clients-c")?;
    Ok(path)
}

fn kcat(broker: &str, topic: &str) -> Command {
    let mut command = with(Command::new("kcat"), ["-b", broker, "-t", topic, "-E"]);
    for property in LIBRDKAFKA_PATIENCE {
        command.args(["-X", property]);
    }
    command
}

fn kcat_writer(broker: &str, topic: &str) -> Command {
    let mut command = with(kcat(broker, topic), ["-P", "-K", "\t"]);
    command.args(["-X", "enable.idempotence=true", "-X", "acks=all"]);
    command.args(["-X", &format!("message.timeout.ms={DELIVERY_MS}")]);
    command
}

fn kcat_reader(broker: &str, topic: &str) -> Command {
    with(
        kcat(broker, topic),
        [
            "-C",
            "-o",
            "beginning",
            "-e",
            "-q",
            "-f",
            "%p\t%o\t%k\t%s\n",
        ],
    )
}

fn java_writer(broker: &str, topic: &str) -> anyhow::Result<Command> {
    let mut command = java("org.apache.kafka.tools.ConsoleProducer")?;
    command.args(["--bootstrap-server", broker, "--topic", topic]);
    command.args(["--reader-property", "parse.key=true"]);
    command.args(["--reader-property", "key.separator=\t"]);
    // The tool has weaker defaults than the producer in it, so each is said here.
    command.args(["--message-send-max-retries", &i32::MAX.to_string()]);
    command.args(["--request-timeout-ms", "5000"]);
    command.args(["--max-block-ms", &DELIVERY_MS.to_string()]);
    for property in [
        "enable.idempotence=true",
        "acks=all",
        &format!("delivery.timeout.ms={DELIVERY_MS}"),
        "retry.backoff.ms=20",
        "reconnect.backoff.ms=10",
        "reconnect.backoff.max.ms=100",
    ] {
        command.args(["--command-property", property]);
    }
    Ok(command)
}

fn java_reader(broker: &str, topic: &str, partition: usize, end: i64) -> anyhow::Result<Command> {
    let mut command = java("org.apache.kafka.tools.consumer.ConsoleConsumer")?;
    command.args([
        "--bootstrap-server",
        broker,
        "--topic",
        topic,
        "--offset",
        "earliest",
    ]);
    command.args([
        "--partition",
        &partition.to_string(),
        "--max-messages",
        &end.to_string(),
    ]);
    command.args(["--timeout-ms", "60000"]);
    for part in ["key", "partition", "offset"] {
        command.args(["--formatter-property", &format!("print.{part}=true")]);
    }
    Ok(command)
}
