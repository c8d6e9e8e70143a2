//! What the rows ask of a broker besides load: topics made, counted and removed.

use anyhow::{Context, Result, bail};
use tokio::runtime::{Builder, Runtime};

use crate::loadgen::Report;
use crate::raw::{RawClient, ops};

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
}

/// Runs the load generator in a process of its own, so that its processor time and memory are not
/// those of this one.
pub(super) fn loadgen(address: &str, command: &str) -> Result<Report> {
    let output = loadgen_command(address, command)?
        .output()
        .with_context(|| format!("loadgen {command}"))?;
    read_report(command, &output)
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
