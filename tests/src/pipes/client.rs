//! The programs, in the words of `tests/clients/README.md`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{ChildStdin, Command};

use anyhow::Context as _;

use crate::flights::child::{Running, Streams, java_from, need, with};
use crate::flights::wall::Deadline;
use crate::process::{cache_dir, repository};

/// How often a program may end by itself, whatever else: what ends a session ends it.
const RESTARTS_MAX: usize = 60;
/// And for each time that the broker is killed.
const RESTARTS_A_KILL: usize = 3;

/// A client that moves records in transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// librdkafka through confluent-kafka.
    Librdkafka,
    /// Apache Kafka's own.
    Java,
    /// franz-go.
    FranzGo,
    /// kafka-python.
    KafkaPython,
    /// aiokafka.
    Aiokafka,
    /// kafkajs.
    Kafkajs,
}

impl Client {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Librdkafka,
        Self::Java,
        Self::FranzGo,
        Self::KafkaPython,
        Self::Aiokafka,
        Self::Kafkajs,
    ];

    /// The name in messages, file names, topics, groups and transactional ids.
    pub fn name(self) -> &'static str {
        match self {
            Self::Librdkafka => "librdkafka",
            Self::Java => "java",
            Self::FranzGo => "franz-go",
            Self::KafkaPython => "kafka-python",
            Self::Aiokafka => "aiokafka",
            Self::Kafkajs => "kafkajs",
        }
    }

    fn program(self) -> anyhow::Result<Command> {
        let clients = cache_dir().join("clients");
        let python = |library: &str| {
            let path = clients.join("venv").join("bin").join("python");
            need(&path, "run scripts/setup-clients.sh python")?;
            let mut command = Command::new(path);
            command.arg(repository().join("tests/clients/python/pipes.py"));
            command.arg(library);
            anyhow::Ok(command)
        };
        match self {
            Self::Librdkafka => python("confluent"),
            Self::KafkaPython => python("kafka-python"),
            Self::Aiokafka => python("aiokafka"),
            Self::Java => {
                let classes = clients.join("java");
                need(
                    &classes.join("Pipe.class"),
                    "run scripts/setup-clients.sh java",
                )?;
                java_from(&classes, "Pipe")
            }
            Self::FranzGo => {
                let path = clients.join("bin").join("flights-franz-go");
                need(&path, "run scripts/setup-clients.sh go")?;
                Ok(with(Command::new(path), ["pipe"]))
            }
            Self::Kafkajs => {
                let dir = clients.join("node");
                need(&dir.join("installed"), "run scripts/setup-clients.sh node")?;
                let mut command = Command::new("node");
                command.env("NODE_PATH", dir.join("node_modules"));
                command.arg(repository().join("tests/clients/node/pipes.js"));
                Ok(command)
            }
        }
    }
}

/// Where records come from and go to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way<'a> {
    pub(super) broker: SocketAddr,
    pub(super) input: &'a str,
    pub(super) output: &'a str,
    pub(super) dir: &'a Path,
}

/// A client at work, over its lives.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) client: Client,
    running: Running,
    /// Closed, it tells the program to end.
    stdin: Option<ChildStdin>,
    lives: usize,
    /// Lives that the program ended by itself.
    pub(super) ended: usize,
    /// Committed offsets, by partition; -1 where there are none.
    pub(super) committed: Vec<i64>,
}

impl Pipe {
    pub(super) fn start(client: Client, way: Way<'_>, partitions: usize) -> anyhow::Result<Self> {
        let (running, stdin) = life(client, way, 0)?;
        Ok(Self {
            client,
            running,
            stdin: Some(stdin),
            lives: 1,
            ended: 0,
            committed: vec![-1; partitions],
        })
    }

    /// Starts it again if it has ended by itself.
    ///
    /// # Errors
    /// If it does so all the time.
    pub(super) fn tend(&mut self, way: Way<'_>, kills: usize) -> anyhow::Result<()> {
        let Some(status) = self.running.ended()? else {
            return Ok(());
        };
        self.ended += 1;
        anyhow::ensure!(
            self.ended <= RESTARTS_MAX + RESTARTS_A_KILL * kills,
            "{} ended by itself {} times, now with {status}\n{}",
            self.client.name(),
            self.ended,
            self.running.tail()
        );
        self.again(way)
    }

    /// SIGKILL, and another life.
    pub(super) fn kill(&mut self, way: Way<'_>) -> anyhow::Result<()> {
        self.running.kill()?;
        self.again(way)
    }

    fn again(&mut self, way: Way<'_>) -> anyhow::Result<()> {
        let (running, stdin) = life(self.client, way, self.lives)?;
        self.lives += 1;
        self.running = running;
        self.stdin = Some(stdin);
        Ok(())
    }

    /// Asks it to end.
    pub(super) fn stop(&mut self, deadline: Deadline) -> anyhow::Result<()> {
        self.stdin = None;
        self.running.end(deadline).map(drop)
    }
}

fn life(client: Client, way: Way<'_>, number: usize) -> anyhow::Result<(Running, ChildStdin)> {
    let name = client.name();
    let broker = way.broker.to_string();
    let command = with(
        client.program()?,
        [broker.as_str(), way.input, name, way.output, name],
    );
    let file = way.dir.join(format!("{name}-{number}.out"));
    let mut running = Running::start(name, command, Streams::Led(file), way.dir)?;
    let stdin = running.take_stdin().with_context(|| name.to_owned())?;
    Ok((running, stdin))
}
