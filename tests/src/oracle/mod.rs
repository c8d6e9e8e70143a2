//! A real Apache Kafka node, assembled from Maven artifacts: the judge of what is Kafka's
//! behaviour, and the peer of the benchmark.
//!
//! The jars are fetched once with `mvn` into the cache. A node has its own temporary data
//! directory and free ports on 127.0.0.1, and is killed when its handle is dropped.

pub mod apis;
mod install;

use std::fs::File;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::process::{Port, Process, free_port};
use crate::wallclock::poll_until;

pub use install::{KAFKA_VERSION, class_path};

/// How long a node may take to open its port.
const STARTUP: Duration = Duration::from_mins(3);

/// How a node is set up.
#[derive(Debug, Clone)]
pub struct OracleOptions {
    /// Lines of server.properties behind ours; of a key given twice the last one counts.
    pub properties: Vec<(String, String)>,
    /// Most heap, in MiB.
    pub heap_mib: u32,
    /// `transaction.version` at format time; `None` is Kafka's default.
    pub transaction_version: Option<u8>,
    /// Sync the log on every append (`log.flush.interval.messages=1`).
    pub flush_every_append: bool,
    /// Where the temporary directory is made; `None` is the system's.
    pub parent_dir: Option<PathBuf>,
}

impl Default for OracleOptions {
    fn default() -> Self {
        Self {
            properties: Vec::new(),
            heap_mib: 1024,
            transaction_version: None,
            flush_every_append: false,
            parent_dir: None,
        }
    }
}

/// A running node.
#[derive(Debug)]
pub struct KafkaNode {
    process: Process,
    dir: TempDir,
    class_path: String,
    heap_mib: u32,
    /// Of clients and of the controller.
    ports: [Port; 2],
}

impl KafkaNode {
    /// Fetches the jars if need be, formats the storage, starts the node and awaits its port.
    pub fn start(options: &OracleOptions) -> Result<Self> {
        let class_path = class_path()?;
        let mut builder = tempfile::Builder::new();
        builder.prefix("fencepost-kafka-");
        let dir = match &options.parent_dir {
            Some(parent) => builder.tempdir_in(parent)?,
            None => builder.tempdir()?,
        };
        let ports = [free_port()?, free_port()?];
        let [port, controller_port] = ports.each_ref().map(Port::number);
        let properties = server_properties(options, dir.path(), port, controller_port);
        create(&dir.path().join("server.properties"), &properties)?;
        create(&dir.path().join("log4j2.yaml"), LOG4J2)?;
        format_storage(&class_path, dir.path(), options.transaction_version)?;
        let heap_mib = options.heap_mib;
        let process = launch(&class_path, dir.path(), heap_mib, port)?;
        Ok(Self {
            process,
            dir,
            class_path,
            heap_mib,
            ports,
        })
    }

    /// HOST:PORT for clients.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.ports[0].number())
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Starts the node again on the same data and port, after it was killed or stopped.
    pub fn restart(&mut self) -> Result<()> {
        let port = self.ports[0].number();
        self.process = launch(&self.class_path, self.dir.path(), self.heap_mib, port)?;
        Ok(())
    }

    /// Ends the node with SIGTERM.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.process.terminate()
    }

    /// A command that runs `class` of Kafka's tools, to which arguments can be added.
    pub fn tool(&self, class: &str) -> Command {
        tool(&self.class_path, class)
    }

    /// Everything that the node has logged (warnings and worse).
    pub fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.dir.path().join("kafka.log"))?)
    }
}

/// A command that runs a class from `class_path` in a small JVM.
pub fn tool(class_path: &str, class: &str) -> Command {
    let mut command = Command::new("java");
    command.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
    command.args(["-cp", class_path, class]);
    command
}

fn create(path: &Path, content: &str) -> Result<()> {
    let mut file = File::create(path).with_context(|| path.display().to_string())?;
    file.write_all(content.as_bytes())?;
    Ok(())
}

fn server_properties(
    options: &OracleOptions,
    dir: &Path,
    port: u16,
    controller_port: u16,
) -> String {
    let listeners =
        format!("PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}");
    let mut lines = vec![
        format!("listeners={listeners}"),
        format!("advertised.listeners={listeners}"),
        format!("controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}"),
        format!("log.dirs={}", dir.join("data").display()),
        FIXED_PROPERTIES.trim().to_owned(),
    ];
    if options.flush_every_append {
        lines.push("log.flush.interval.messages=1".to_owned());
    }
    lines.extend(
        options
            .properties
            .iter()
            .map(|(key, value)| format!("{key}={value}")),
    );
    lines.join("\n") + "\n"
}

/// One node that is its own controller, with the inner topics small.
const FIXED_PROPERTIES: &str = "
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
offsets.topic.replication.factor=1
offsets.topic.num.partitions=5
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=5
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
num.partitions=4
auto.create.topics.enable=true
num.network.threads=2
num.io.threads=2
";

const LOG4J2: &str = "Configuration:
  Appenders:
    Console:
      name: STDERR
      target: SYSTEM_ERR
      PatternLayout:
        pattern: '%d %p %m (%c)%n'
  Loggers:
    Root:
      level: WARN
      AppenderRef:
        ref: STDERR
";

fn format_storage(class_path: &str, dir: &Path, transaction_version: Option<u8>) -> Result<()> {
    let mut command = tool(class_path, "kafka.tools.StorageTool");
    let cluster_id = cluster_id(uuid::Uuid::new_v4().as_u128());
    command.args(["format", "--standalone", "-t", &cluster_id, "-c"]);
    command.arg(dir.join("server.properties"));
    if let Some(version) = transaction_version {
        command.args(["-f", &format!("transaction.version={version}")]);
    }
    let output = command.output().context("java")?;
    if !output.status.success() {
        bail!(
            "StorageTool format: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// `bits` as a cluster id of Kafka: unpadded URL-safe base64, 22 characters. None begins with `-`,
/// which the tool takes for an option: such a first digit, `A` takes its place.
fn cluster_id(bits: u128) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let digits = (0..22).map(|i| {
        // The last digit has only two bits left, which are padded with zeros.
        let index = if i < 21 {
            bits >> (128 - 6 * (i + 1)) & 63
        } else {
            (bits & 3) << 4
        };
        let digit = char::from(ALPHABET[usize::try_from(index).unwrap_or(0)]);
        if (i, digit) == (0, '-') { 'A' } else { digit }
    });
    digits.collect()
}

fn launch(class_path: &str, dir: &Path, heap_mib: u32, port: u16) -> Result<Process> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(dir.join("kafka.log"))?;
    let mut command = Command::new("java");
    command
        .args([
            &format!("-Xms{}m", heap_mib / 2),
            &format!("-Xmx{heap_mib}m"),
            "-XX:+UseG1GC",
        ])
        .arg(format!(
            "-Dlog4j2.configurationFile={}",
            dir.join("log4j2.yaml").display()
        ))
        .arg(format!("-Dkafka.logs.dir={}", dir.join("logs").display()))
        .args(["-cp", class_path, "kafka.Kafka"])
        .arg(dir.join("server.properties"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let mut process = Process::new(command.spawn().context("java")?);
    let mut ended = false;
    let open = poll_until(STARTUP, Duration::from_millis(10), || {
        ended = !process.is_running().unwrap_or(false);
        ended || TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    if ended || !open {
        let log = std::fs::read_to_string(dir.join("kafka.log")).unwrap_or_default();
        let tail: Vec<&str> = log.lines().rev().take(20).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        bail!("Kafka did not open port {port}:\n{}", tail.join("\n"));
    }
    Ok(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_id_has_the_form_that_kafka_reads() {
        assert_eq!(cluster_id(0), "AAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(cluster_id(u128::MAX), "_____________________w");
        // Six bits of `-` come first.
        assert_eq!(cluster_id(62 << 122 | 0x7b), "AAAAAAAAAAAAAAAAAAAAew");
    }

    #[test]
    fn later_properties_come_behind_ours() {
        let options = OracleOptions {
            properties: vec![("node.id".into(), "0".into())],
            flush_every_append: true,
            ..OracleOptions::default()
        };
        let text = server_properties(&options, Path::new("/d"), 1, 2);
        let last = text.lines().rfind(|line| line.starts_with("node.id="));
        assert_eq!(last, Some("node.id=0"));
        assert!(text.contains("log.flush.interval.messages=1\n"));
        assert!(text.contains("log.dirs=/d/data\n"));
    }
}
