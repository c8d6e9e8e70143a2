//! What the rows ask of a broker besides load: topics made, counted and removed.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::runtime::{Builder, Runtime};

use crate::loadgen::Report;
use crate::process::read_line;
use crate::raw::{RawClient, group, ops};

/// How long the load generator may take to prepare a run.
const PREPARATION: Duration = Duration::from_mins(2);

/// A blocking client.
#[derive(Debug)]
pub(super) struct Client {
    runtime: Runtime,
    address: String,
}

impl Client {
    pub(super) fn new(address: String) -> Result<Self> {
        Ok(Self {
            runtime: Builder::new_current_thread().enable_all().build()?,
            address,
        })
    }

    pub(super) fn create_topic(&self, name: &str, partitions: i32) -> Result<()> {
        self.runtime.block_on(async {
            let mut client = RawClient::connect(&self.address).await?;
            ops::create_topic(&mut client, name, partitions, &[])
                .await
                .map(drop)
        })
    }

    pub(super) fn delete_topic(&self, name: &str) -> Result<()> {
        self.runtime.block_on(async {
            let mut client = RawClient::connect(&self.address).await?;
            ops::delete_topic(&mut client, name).await
        })
    }

    /// Records in the topic: every one acknowledged must be there, and no other.
    pub(super) fn expect_records(&self, name: &str, partitions: i32, count: u64) -> Result<()> {
        let found = self.runtime.block_on(async {
            let mut client = RawClient::connect(&self.address).await?;
            let ends = ops::list_offsets(&mut client, name, partitions, ops::LATEST).await?;
            anyhow::Ok(ends.iter().map(|end| end.unsigned_abs()).sum::<u64>())
        })?;
        if found != count {
            bail!("{name}: {count} records were acknowledged, the log has {found}");
        }
        Ok(())
    }

    /// Awaits that the logs of the topic have `count` records and markers together, and nothing
    /// that is undecided. Markers may be written behind the answer to a commit.
    pub(super) fn expect_decided(&self, name: &str, partitions: i32, count: u64) -> Result<()> {
        self.await_sum(name, count, async |client| {
            let ends = ops::list_offsets(client, name, partitions, ops::LATEST).await?;
            let stable = ops::stable_offsets(client, name, partitions).await?;
            let decided = ends == stable;
            Ok((ends.iter().map(|end| end.unsigned_abs()).sum(), decided))
        })
    }

    /// Awaits that the committed offsets of `groups` in a topic are `count` together.
    pub(super) fn expect_committed(
        &self,
        groups: &[String],
        (topic, partitions): (&str, i32),
        count: u64,
    ) -> Result<()> {
        self.await_sum(topic, count, async |client| {
            let mut sum = 0;
            for name in groups {
                let offsets = group::committed(client, name, topic, partitions).await?;
                let there = offsets.iter().filter(|offset| **offset >= 0);
                sum += there.map(|offset| offset.unsigned_abs()).sum::<u64>();
            }
            Ok((sum, true))
        })
    }

    /// Asks until the sum is `count` and complete, at most 200 times, 50 ms apart.
    fn await_sum(
        &self,
        what: &str,
        count: u64,
        mut ask: impl AsyncFnMut(&mut RawClient) -> Result<(u64, bool)>,
    ) -> Result<()> {
        self.runtime.block_on(async {
            let mut client = RawClient::connect(&self.address).await?;
            let mut pace = tokio::time::interval(Duration::from_millis(50));
            let mut found = (0, false);
            for _ in 0..200 {
                pace.tick().await;
                found = ask(&mut client).await?;
                if found == (count, true) {
                    return Ok(());
                }
            }
            bail!("{what}: {count} were acknowledged, found {found:?}")
        })
    }
}

/// Runs the load generator in a process of its own, so that its processor time and memory are not
/// those of this one.
pub(super) fn loadgen(address: &str, command: &str) -> Result<Report> {
    let output = loadgen_command(address, command)?
        .output()
        .with_context(|| format!("loadgen {command}"))?;
    read_report(command, &output)
}

/// The same with a step between the preparation and the load, whose outcome is returned too.
pub(super) fn loadgen_after<T>(
    address: &str,
    command: &str,
    ready: impl FnOnce() -> Result<T>,
) -> Result<(T, Report)> {
    let mut child = loadgen_command(address, command)?
        .arg("--wait")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("loadgen {command}"))?;
    let mut stdin = child.stdin.take().context("standard input")?;
    let stdout = child.stdout.as_mut().context("standard output")?;
    // Without that line it has failed, which its output tells better.
    let between = match read_line(stdout, PREPARATION) {
        Ok(_) => Some(ready()?),
        Err(_) => None,
    };
    let told = writeln!(stdin);
    drop(stdin);
    let report = read_report(command, &child.wait_with_output()?)?;
    told?;
    Ok((between.context("the load generator was not ready")?, report))
}

/// The command that [`loadgen`] runs.
pub(super) fn loadgen_command(address: &str, command: &str) -> Result<std::process::Command> {
    let mut process = std::process::Command::new(std::env::current_exe()?);
    process
        .arg("loadgen")
        .args(command.split_whitespace())
        .args(["--bootstrap", address]);
    Ok(process)
}

/// The report that a load generator printed.
pub(super) fn read_report(command: &str, output: &std::process::Output) -> Result<Report> {
    if !output.status.success() {
        bail!(
            "loadgen {command}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    serde_json::from_slice(&output.stdout).context("report of the load generator")
}
