//! The broker under the load: a process on one port and one folder that can be killed and
//! started again.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure};

use super::input::PARTITIONS;
use super::wall::{Deadline, LOOK_EVERY, pause};
use super::watermarks::WatermarkClient;
use crate::gatewayproc::{Gateway, GatewayOptions};
use crate::oracle::{KafkaNode, OracleOptions};
use crate::process::Process;

const START_LIMIT: Duration = Duration::from_mins(4);

/// What is put under the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The gateway.
    Fencepost,
    /// A node of Apache Kafka, to prove that the suite expects what Kafka does.
    Kafka,
}

impl Kind {
    /// Fencepost, unless `FENCEPOST_FLIGHTS_BROKER` says `kafka`.
    ///
    /// # Errors
    /// If the variable has another value.
    pub fn from_env() -> anyhow::Result<Self> {
        match std::env::var("FENCEPOST_FLIGHTS_BROKER").as_deref() {
            Err(_) | Ok("fencepost") => Ok(Self::Fencepost),
            Ok("kafka") => Ok(Self::Kafka),
            Ok(other) => bail!("FENCEPOST_FLIGHTS_BROKER={other}: fencepost and kafka are allowed"),
        }
    }
}

/// A broker with its folder and its port, dead or alive.
#[derive(Debug)]
pub struct Broker {
    node: Node,
    address: SocketAddr,
}

#[derive(Debug)]
enum Node {
    Fencepost(Gateway),
    Kafka(KafkaNode),
}

impl Broker {
    /// Starts a broker with its files in `dir` and waits until it serves.
    ///
    /// # Errors
    /// If the program is missing, ends, or does not get ready.
    pub fn start(kind: Kind, dir: &Path) -> anyhow::Result<Self> {
        Self::start_with(kind, dir, &[])
    }

    /// [`Broker::start`] with further settings, by Kafka's names.
    ///
    /// # Errors
    /// As there.
    pub fn start_with(kind: Kind, dir: &Path, settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        let partitions = format!("num.partitions={PARTITIONS}");
        let (node, address) = match kind {
            Kind::Fencepost => {
                let mut overrides = vec![partitions];
                overrides.extend(settings.iter().map(|(key, value)| format!("{key}={value}")));
                let options = GatewayOptions {
                    overrides,
                    ..GatewayOptions::default()
                };
                let gateway = Gateway::start(&dir.join("data"), &options)?;
                let address = gateway.address().parse()?;
                (Node::Fencepost(gateway), address)
            }
            Kind::Kafka => {
                let options = OracleOptions {
                    heap_mib: 512,
                    parent_dir: Some(dir.to_owned()),
                    properties: settings
                        .iter()
                        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                        .collect(),
                    ..OracleOptions::default()
                };
                let node = KafkaNode::start(&options)?;
                let address = node.address().parse()?;
                (Node::Kafka(node), address)
            }
        };
        let broker = Self { node, address };
        broker.await_answer()?;
        Ok(broker)
    }

    /// What this is.
    pub fn kind(&self) -> Kind {
        match self.node {
            Node::Fencepost(_) => Kind::Fencepost,
            Node::Kafka(_) => Kind::Kafka,
        }
    }

    /// Where clients connect; the same over restarts.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Kills the process with SIGKILL and waits until it is gone.
    ///
    /// # Errors
    /// If it had ended on its own before: a broker must survive its load.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        if !self.process().is_running()? {
            bail!("the broker ended by itself\n{}", self.log_tail()?);
        }
        self.process().kill()
    }

    /// Starts the killed broker again and waits until it serves.
    ///
    /// # Errors
    /// If it ends or does not get ready.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        match &mut self.node {
            Node::Fencepost(gateway) => {
                gateway.restart()?;
                let (told, serves) = (self.address.to_string(), gateway.address());
                ensure!(told == serves, "told to serve {told}, serves {serves}");
            }
            Node::Kafka(node) => node.restart()?,
        }
        self.await_answer()
    }

    fn process(&mut self) -> &mut Process {
        match &mut self.node {
            Node::Fencepost(gateway) => gateway.process(),
            Node::Kafka(node) => node.process(),
        }
    }

    /// The broker answers requests about a topic; it need not know it.
    fn await_answer(&self) -> anyhow::Result<()> {
        let deadline = Deadline::after(START_LIMIT);
        let mut probe = WatermarkClient::new(self.address, "probe");
        while let Err(error) = probe.latest() {
            deadline
                .check("the broker's first answer")
                .map_err(|late| late.context(error))?;
            pause(LOOK_EVERY);
        }
        Ok(())
    }

    /// What it has logged.
    pub fn log(&self) -> anyhow::Result<String> {
        match &self.node {
            Node::Fencepost(gateway) => gateway.log(),
            Node::Kafka(node) => node.log(),
        }
    }

    fn log_tail(&self) -> anyhow::Result<String> {
        Ok(super::child::tail(&self.log()?))
    }
}
