//! Real transactional clients in processes of their own, in the words of `tests/clients/README.md`.

#![allow(
    clippy::cast_precision_loss,
    reason = "rates and times are reported to few digits"
)]

use std::fs::{File, create_dir_all};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{progress, rdkafka};
use crate::flights::child::tail;
use crate::oracle::{KAFKA_VERSION, class_path};
use crate::process::{Process, cache_dir, read_line, repository};

/// Longest time that a client may take for its producers to be ready, and beyond a case's own.
const PATIENCE: Duration = Duration::from_mins(2);

/// Whose producers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Library {
    /// Apache Kafka's own, which speaks the second dialect where the broker does.
    Java,
    /// librdkafka, which speaks the first.
    Librdkafka,
}

impl Library {
    /// The name in the table.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Java => "Java",
            Self::Librdkafka => "librdkafka",
        }
    }

    fn command(self, address: &str) -> Result<Command> {
        let mut command = match self {
            Self::Java => java()?,
            Self::Librdkafka => Command::new(c_program()?),
        };
        command.arg(address);
        Ok(command)
    }
}

/// What the producers of a case do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) producers: u32,
    /// Records of a transaction.
    pub(super) records: u32,
    /// Partitions that a transaction's records go to.
    pub(super) touched: u32,
    /// Partitions of the topic.
    pub(super) partitions: u32,
    /// Whether a transaction commits an offset.
    pub(super) offsets: bool,
    /// Whether there are transactions at all, or only as many records and a flush.
    pub(super) transactional: bool,
    /// Whether a consumer of committed records measures when they become visible.
    pub(super) watch: bool,
    /// Transactions per second of all producers; 0 is as many as go.
    pub(super) rate: u32,
}

impl Shape {
    /// Records of each transaction to one partition of 16.
    pub(super) fn new(producers: u32, records: u32) -> Self {
        Self {
            producers,
            records,
            touched: 1,
            partitions: 16,
            offsets: false,
            transactional: true,
            watch: false,
            rate: 0,
        }
    }
}

/// Where a case works, and for how long.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// Prefix of transactional ids and groups.
    pub(super) name: String,
    pub(super) topic: String,
    /// Topic whose offsets are committed; it has a partition for each producer.
    pub(super) input: String,
    pub(super) warmup: Duration,
    pub(super) time: Duration,
}

/// What a case gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Outcome {
    /// Transactions, warm-up included, those apart that came before the client was ready.
    pub(super) all: u64,
    /// Transactions of the measured span.
    pub(super) counted: u64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// From the call of commit to the record in a consumer's hands, if that was watched.
    pub(super) visible_p50_ms: f64,
    pub(super) visible_p99_ms: f64,
}

/// A client under way. Its producers go with each case, its process stays: a JVM is slow until its
/// hot code is compiled.
#[derive(Debug)]
pub(super) struct Driver {
    process: Process,
    stdin: ChildStdin,
    stdout: ChildStdout,
    log: PathBuf,
}

impl Driver {
    /// Starts it; what it complains about is kept in `dir`.
    pub(super) fn start(library: Library, address: &str, dir: &Path) -> Result<Self> {
        let log = dir.join(format!("{}.log", library.label()));
        let mut command = library.command(address)?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?);
        let mut process = Process::new(command.spawn().context(library.label())?);
        let stdin = process.child().stdin.take().context("standard input")?;
        let stdout = process.child().stdout.take().context("standard output")?;
        Ok(Self {
            process,
            stdin,
            stdout,
            log,
        })
    }

    /// Prepares a case: each producer has had one transaction when this returns.
    pub(super) fn prepare(&mut self, shape: &Shape, place: &Place) -> Result<()> {
        let line = case_line(shape, place);
        let answer = self.ask(&line, PATIENCE)?;
        ensure!(answer == "ready", "instead of being ready: {answer}");
        Ok(())
    }

    /// Runs the case that was prepared.
    pub(super) fn run(&mut self, place: &Place) -> Result<Outcome> {
        let answer = self.ask("go", PATIENCE + place.warmup + place.time)?;
        parse(&answer).with_context(|| format!("unexpected line: {answer}"))
    }

    fn ask(&mut self, line: &str, patience: Duration) -> Result<String> {
        let asked = writeln!(self.stdin, "{line}").map_err(anyhow::Error::from);
        let answered = asked.and_then(|()| read_line(&mut self.stdout, patience));
        answered.with_context(|| {
            let said = std::fs::read_to_string(&self.log).unwrap_or_default();
            format!("client {}: {line}\n{}", self.process.pid(), tail(&said))
        })
    }
}

/// A case as the clients read it.
fn case_line(shape: &Shape, place: &Place) -> String {
    let Shape {
        producers,
        records,
        touched,
        partitions,
        rate,
        ..
    } = shape;
    let flag = u8::from;
    format!(
        "name={} topic={} input={} partitions={partitions} producers={producers} records={records} \
         touched={touched} bytes=100 offsets={} transactional={} watch={} rate={rate} \
         warmup_ms={} ms={}",
        place.name,
        place.topic,
        place.input,
        flag(shape.offsets),
        flag(shape.transactional),
        flag(shape.watch),
        place.warmup.as_millis(),
        place.time.as_millis(),
    )
}

/// "done all=812 counted=640 p50_us=1900 p99_us=5210 ..."; what is not said is 0.
fn parse(line: &str) -> Option<Outcome> {
    let words = line.strip_prefix("done ")?.split(' ');
    let pairs: Option<Vec<(&str, u64)>> = words
        .map(|word| {
            let (key, value) = word.split_once('=')?;
            Some((key, value.parse().ok()?))
        })
        .collect();
    let pairs = pairs?;
    let number = |wanted| {
        let found = pairs.iter().find(|(key, _)| *key == wanted);
        found.map_or(0, |(_, value)| *value)
    };
    let ms = |wanted| number(wanted) as f64 / 1e3;
    Some(Outcome {
        all: number("all"),
        counted: number("counted"),
        p50_ms: ms("p50_us"),
        p99_ms: ms("p99_us"),
        visible_p50_ms: ms("visible_p50_us"),
        visible_p99_ms: ms("visible_p99_us"),
    })
}

fn java() -> Result<Command> {
    let jars = class_path()?;
    let source = repository().join("tests/clients/java/Transactions.java");
    let classes = built(&format!("bench-java-{KAFKA_VERSION}"), &source, |dir| {
        let mut command = Command::new("javac");
        command.args(["-cp", &jars, "-d"]).arg(dir).arg(&source);
        Ok(command)
    })?;
    let logging = repository().join("tests/clients/java/log4j2.properties");
    let mut command = Command::new("java");
    command.args(["-Xms256m", "-Xmx512m", "-XX:+UseSerialGC"]);
    command.arg(format!("-Dlog4j2.configurationFile={}", logging.display()));
    command.arg("-cp");
    command.arg(format!("{}:{jars}", classes.display()));
    command.arg("Transactions");
    Ok(command)
}

/// The C program, with the librdkafka that row 1 is measured with.
fn c_program() -> Result<PathBuf> {
    let library = rdkafka::library()?;
    let source = repository().join("tests/clients/c/transactions.c");
    let name = format!("bench-c-{}", rdkafka::CRATE_VERSION);
    let dir = built(&name, &source, |dir| {
        let mut command = Command::new("cc");
        command.args([
            "-std=gnu11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-isystem",
        ]);
        command
            .arg(&library)
            .arg("-o")
            .arg(dir.join("transactions"));
        command.arg(&source).arg(library.join("librdkafka.a"));
        command.args(["-lm", "-lz", "-ldl", "-lpthread", "-lrt"]);
        Ok(command)
    })?;
    Ok(dir.join("transactions"))
}

/// A folder of the cache in which `compile` has put what it makes of `source` as it is now.
fn built(
    name: &str,
    source: &Path,
    compile: impl FnOnce(&Path) -> Result<Command>,
) -> Result<PathBuf> {
    let dir = cache_dir().join(name);
    create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let lock = File::create(dir.join("lock"))?;
    lock.lock().context("lock of the cache")?;
    let text = std::fs::read(source).with_context(|| source.display().to_string())?;
    let stamp = dir.join("source");
    if std::fs::read(&stamp).is_ok_and(|built| built == text) {
        return Ok(dir);
    }
    progress(&format!("compiling {}", source.display()));
    let mut command = compile(&dir)?;
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().context(program.clone())?;
    if !output.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&output.stderr));
    }
    File::create(&stamp)?.write_all(&text)?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_says_is_understood() {
        let line = "done all=812 counted=640 p50_us=1900 p99_us=5210 visible_p50_us=0 \
                    visible_p99_us=31000";
        let expected = Outcome {
            all: 812,
            counted: 640,
            p50_ms: 1.9,
            p99_ms: 5.21,
            visible_p50_ms: 0.0,
            visible_p99_ms: 31.0,
        };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(parse("done all=x"), None);
        assert_eq!(parse("ready"), None);
    }
}
