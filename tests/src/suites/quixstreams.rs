//! quixstreams with processing guarantee exactly-once: a stateful program of ours
//! (`tests/clients/python/quix.py`) counts and sums integers by key, and is killed with -9 twice.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;

use super::run::{Bench, in_parallel, installed};
use super::{Outcome, Suite};
use crate::flights::child::{Running, Streams};
use crate::flights::wall::{Deadline, pause};
use crate::process::repository;
use crate::raw::batch::{BatchSpec, Record};
use crate::raw::{RawClient, ops};

/// Integers that go in.
const COUNT: usize = 20_000;
const KEYS: usize = 20;
const PARTITIONS: usize = 2;
const KILLS: usize = 2;
/// Records of one batch.
const CHUNK: usize = 500;
const LIMIT: Duration = Duration::from_mins(12);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Records that a life writes before it is killed: more than the markers of what it finds.
const AT_WORK: i64 = 100;

/// The suite.
pub const SUITE: Suite = Suite {
    id: "quixstreams",
    client: "quixstreams",
    version: "3.28.1",
    what: "exactly-once with state: 20,000 integers by key through two kills",
    settings: &["group.initial.rebalance.delay.ms=0", "log.retention.ms=-1"],
    further: "",
    tests: || WAYS.to_vec(),
    skipped: &[],
    run: || in_parallel(WAYS.len(), &WAYS, |way| run(way)),
};

/// How the transactional id is chosen.
const WAYS: [&str; 2] = ["random transactional.id", "fixed transactional.id"];

fn run(way: &str) -> anyhow::Result<Outcome> {
    let bench = Bench::start(way, SUITE.settings)?;
    let mut outcome = Outcome::default();
    match scenario(&bench, way) {
        Ok(()) => {
            outcome.passed.insert(way.to_owned());
        }
        Err(error) => {
            outcome.failed.insert(way.to_owned(), format!("{error:#}"));
        }
    }
    bench.end(outcome)
}

fn key(number: usize) -> String {
    format!("k{}", number % KEYS)
}

fn scenario(bench: &Bench, way: &str) -> anyhow::Result<()> {
    let address = bench.gateway.address();
    feed(&address)?;
    let deadline = Deadline::after(LIMIT);
    for life in 0..=KILLS {
        let last = life == KILLS;
        let before = written(&address)?;
        let mut program = start(bench.dir(), &address, way, life)?;
        // A killed transaction holds back what comes behind it for ten seconds: that there is work
        // going on shows in what is not committed yet.
        loop {
            let done = if last {
                output(&address, "read_committed")?.len() >= COUNT
            } else {
                written(&address)? >= before + AT_WORK
            };
            if done {
                break;
            }
            ensure!(program.ended()?.is_none(), "it ended:\n{}", program.tail());
            deadline
                .check(&format!("the goal of life {life}"))
                .with_context(|| program.tail())?;
            pause(LOOK_EVERY);
        }
        program.kill()?;
        let values: BTreeSet<usize> = output(&address, "read_uncommitted")?
            .iter()
            .map(|(_, tally)| tally.value)
            .collect();
        let left = COUNT - values.len();
        ensure!(last || left > 0, "kill {life} interrupted nothing");
    }
    judge(&output(&address, "read_committed")?)
}

fn start(dir: &Path, address: &str, way: &str, life: usize) -> anyhow::Result<Running> {
    let python = installed("clients/suites-python/venv/bin/python", "suites-python")?;
    let mut command = Command::new(python);
    command.arg(repository().join("tests/clients/python/quix.py"));
    command.args([address, "in", "out"]).arg(dir.join("state"));
    if way.starts_with("fixed") {
        command.arg("quix-0");
    }
    let name = format!("quix-{life}");
    let out = dir.join(format!("{name}.out"));
    Running::start(&name, command, Streams::Stored(out), dir)
}

/// Makes the topics and writes the integers, each key to one partition.
fn feed(address: &str) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut client = RawClient::connect(address).await?;
        // It makes the one of its state itself, which is compacted.
        for topic in ["in", "out"] {
            let partitions = i32::try_from(PARTITIONS)?;
            ops::create_topic(&mut client, topic, partitions, &[]).await?;
        }
        for partition in 0..PARTITIONS {
            let numbers: Vec<usize> = (0..COUNT).filter(|n| n % PARTITIONS == partition).collect();
            for chunk in numbers.chunks(CHUNK) {
                let record = |number: &usize| Record {
                    key: Some(Bytes::from(key(*number))),
                    value: Some(Bytes::from(number.to_string())),
                };
                let spec = BatchSpec {
                    records: chunk.iter().map(record).collect(),
                    ..BatchSpec::default()
                };
                let index = i32::try_from(partition)?;
                let answer = ops::produce(&mut client, "in", index, spec.build()).await?;
                ops::check(answer.error_code, "Produce")?;
            }
        }
        Ok(())
    })
}

/// End of the output, over all partitions.
fn written(address: &str) -> anyhow::Result<i64> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut client = RawClient::connect(address).await?;
        let partitions = i32::try_from(PARTITIONS)?;
        let ends = ops::list_offsets(&mut client, "out", partitions, ops::LATEST).await?;
        Ok(ends.iter().sum())
    })
}

/// Keys and values of the output that a consumer of this isolation gets.
fn output(address: &str, isolation: &str) -> anyhow::Result<Vec<(String, Tally)>> {
    let mut command = Command::new("timeout");
    command.args(["60", "kcat", "-C", "-e", "-q", "-o", "beginning"]);
    command.args(["-b", address, "-t", "out", "-f", "%k\t%s\n"]);
    command.args(["-X", &format!("isolation.level={isolation}")]);
    let output = command.output().context("kcat")?;
    ensure!(
        output.status.success(),
        "kcat: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout)?;
    let line = |line: &str| -> anyhow::Result<(String, Tally)> {
        let (key, value) = line.split_once('\t').context("no key")?;
        Ok((key.to_owned(), serde_json::from_str(value)?))
    };
    text.lines().map(line).collect()
}

/// A value of the output.
#[derive(Debug, serde::Deserialize)]
struct Tally {
    value: usize,
    count: usize,
    sum: usize,
}

/// Every integer once, and each key counted and summed in order.
fn judge(output: &[(String, Tally)]) -> anyhow::Result<()> {
    let mut seen: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let mut values = Vec::new();
    for (name, tally) in output {
        ensure!(*name == key(tally.value), "{name}: {tally:?}");
        let (count, sum) = seen.entry(name).or_default();
        *count += 1;
        *sum += tally.value;
        ensure!(
            (tally.count, tally.sum) == (*count, *sum),
            "{name}: {tally:?}, where count {count} and sum {sum} are due"
        );
        values.push(tally.value);
    }
    values.sort_unstable();
    let expected: Vec<usize> = (0..COUNT).collect();
    ensure!(
        values == expected,
        "{} values came out; first difference {:?}",
        values.len(),
        values.iter().zip(&expected).find(|(a, b)| a != b)
    );
    Ok(())
}
