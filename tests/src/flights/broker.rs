//! The broker under the load: a process on one port and one folder that can be killed and
//! started again.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

use super::child::{Running, Streams, java, need, with};
use super::input::PARTITIONS;
use super::wall::{Deadline, LOOK_EVERY, pause};
use super::watermarks::WatermarkClient;

const START_LIMIT: Duration = Duration::from_mins(1);
/// Ports below the range that the kernel gives to outgoing connections: while the broker is
/// away, a client that dials its port can't be given that port as its own and meet itself.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// What is put under the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The gateway: `$FENCEPOST_BIN`, or `target/ci/fencepost` in the checkout.
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

/// A broker with its folder and its port.
#[derive(Debug)]
pub struct Broker {
    kind: Kind,
    dir: PathBuf,
    port: u16,
    running: Option<Running>,
}

impl Broker {
    /// Starts a broker on a free port, with its files in `dir`, and waits until it serves.
    ///
    /// # Errors
    /// If the program is missing, ends, or does not get ready.
    pub fn start(kind: Kind, dir: &Path) -> anyhow::Result<Self> {
        let mut broker = Self {
            kind,
            dir: dir.to_owned(),
            port: free_port()?,
            running: None,
        };
        if kind == Kind::Kafka {
            broker.format_kafka()?;
        }
        broker.restart()?;
        Ok(broker)
    }

    /// What this is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where clients connect; the same over restarts.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Kills the process with SIGKILL and waits until it is gone.
    ///
    /// # Errors
    /// If it had ended on its own before: a broker must survive its load.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        let mut running = self.running.take().context("the broker is not running")?;
        if let Some(status) = running.ended()? {
            bail!(
                "the broker ended by itself with {status}\n{}",
                running.tail()
            );
        }
        running.kill()
    }

    /// Starts the killed broker again and waits until it serves.
    ///
    /// # Errors
    /// If it ends or does not get ready.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        ensure!(self.running.is_none(), "the broker is running");
        let running = match self.kind {
            Kind::Fencepost => self.start_fencepost()?,
            Kind::Kafka => self.start_kafka()?,
        };
        self.running = Some(running);
        Ok(())
    }

    fn start_fencepost(&self) -> anyhow::Result<Running> {
        let command = with(fencepost()?, ["serve", "--print-addresses"]);
        let command = with(command, ["--admin-listen", "127.0.0.1:0", "--data-dir"]);
        let mut command = with(command, [self.dir.join("data")]);
        let listeners = format!("listeners=PLAINTEXT://{}", self.address());
        command.args(["--override", &listeners]);
        command.args(["--override", &format!("num.partitions={PARTITIONS}")]);
        let mut running = Running::start("broker", command, Streams::Heard, &self.dir)?;
        let lines = listen(running.take_stdout()?);
        let address = match lines.recv_timeout(START_LIMIT) {
            Ok(line) => kafka_address(&line?)?,
            Err(RecvTimeoutError::Timeout) => {
                bail!("not ready within {START_LIMIT:?}\n{}", running.tail())
            }
            Err(RecvTimeoutError::Disconnected) => {
                bail!("the broker ended before it was ready\n{}", running.tail())
            }
        };
        ensure!(
            address == self.address(),
            "told to serve {}, serves {address}",
            self.address()
        );
        Ok(running)
    }

    fn start_kafka(&self) -> anyhow::Result<Running> {
        let command = with(
            java("kafka.Kafka", "-Xmx512m")?,
            [self.dir.join("kafka.properties")],
        );
        let stdout = Streams::Stored(self.dir.join("broker.out"));
        let mut running = Running::start("broker", command, stdout, &self.dir)?;
        let deadline = Deadline::after(START_LIMIT);
        let mut probe = WatermarkClient::new(self.address(), "probe");
        while probe.latest().is_err() {
            if let Some(status) = running.ended()? {
                bail!("Apache Kafka ended with {status}\n{}", running.tail());
            }
            deadline.check("Apache Kafka's first answer")?;
            pause(LOOK_EVERY * 10);
        }
        Ok(running)
    }

    fn format_kafka(&self) -> anyhow::Result<()> {
        let properties = self.dir.join("kafka.properties");
        std::fs::File::create_new(&properties)
            .and_then(|mut file| {
                use std::io::Write as _;
                file.write_all(self.kafka_properties().as_bytes())
            })
            .with_context(|| properties.display().to_string())?;
        let cluster_id = "Zm9ydHktdHdvLWJ5dGVzMQ";
        let command = java("kafka.tools.StorageTool", "-Xmx128m")?;
        let command = with(command, ["format", "--standalone", "-t", cluster_id, "-c"]);
        let command = with(command, [&properties]);
        let stdout = Streams::Stored(self.dir.join("format.out"));
        let mut running = Running::start("format", command, stdout, &self.dir)?;
        running.finish(Deadline::after(START_LIMIT))
    }

    fn kafka_properties(&self) -> String {
        let (client, controller) = (self.port, self.port + 1);
        let mut text = String::new();
        for (key, value) in [
            ("process.roles", "broker,controller".to_owned()),
            ("node.id", "0".to_owned()),
            (
                "controller.quorum.bootstrap.servers",
                format!("127.0.0.1:{controller}"),
            ),
            (
                "listeners",
                format!("PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}"),
            ),
            ("controller.listener.names", "CONTROLLER".to_owned()),
            ("log.dirs", self.dir.join("data").display().to_string()),
            ("num.partitions", PARTITIONS.to_string()),
            ("offsets.topic.replication.factor", "1".to_owned()),
            ("offsets.topic.num.partitions", "1".to_owned()),
        ] {
            // Writing to a string cannot fail.
            writeln!(text, "{key}={value}").unwrap_or_default();
        }
        text
    }
}

fn fencepost() -> anyhow::Result<Command> {
    let path = match std::env::var_os("FENCEPOST_BIN") {
        Some(path) => PathBuf::from(path),
        None => std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| super::checkout().join("target"), PathBuf::from)
            .join("ci")
            .join("fencepost"),
    };
    need(
        &path,
        "cargo build --profile ci -p gateway, or set FENCEPOST_BIN",
    )?;
    Ok(Command::new(path))
}

/// The line that says the addresses; whatever follows is read and dropped, so that the pipe
/// never fills.
fn listen(stdout: ChildStdout) -> Receiver<std::io::Result<String>> {
    let (send, receive) = sync_channel(1);
    super::wall::spawn(move || {
        let mut first = true;
        for line in BufReader::new(stdout).lines() {
            if std::mem::take(&mut first) && send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}

fn kafka_address(line: &str) -> anyhow::Result<SocketAddr> {
    let addresses: serde_json::Value =
        serde_json::from_str(line).with_context(|| format!("not the addresses: {line:?}"))?;
    let kafka = addresses.get("kafka").and_then(serde_json::Value::as_str);
    Ok(kafka
        .with_context(|| format!("no address of the Kafka port in {line}"))?
        .parse()?)
}

fn free_port() -> anyhow::Result<u16> {
    for _ in 0..200 {
        let port = fastrand::u16(PORTS);
        let both = [port, port + 1].map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
        if both.iter().all(Result::is_ok) {
            return Ok(port);
        }
    }
    bail!("no free port from {} to {}", PORTS.start, PORTS.end)
}
