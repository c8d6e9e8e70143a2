//! `fencepost txn` and Kafka's `kafka-transactions`, run against a broker, in the same words.

use std::collections::BTreeMap;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::gatewayproc::binary;
use crate::oracle;

/// Kafka's tool.
pub const TRANSACTIONS: &str = "org.apache.kafka.tools.TransactionsCommand";

/// One row of a table: cells by heading.
pub type Line = BTreeMap<String, String>;

/// Runs Kafka's tool. Blocks.
pub fn run_kafkas(address: &str, args: &str) -> Result<Output> {
    let mut command = oracle::tool(&oracle::class_path()?, TRANSACTIONS);
    command.args(["--bootstrap-server", address]);
    Ok(command.args(args.split_whitespace()).output()?)
}

/// Runs ours. Blocks.
pub fn run_ours(address: &str, args: &str) -> Result<Output> {
    let mut command = Command::new(binary()?);
    command.args(["txn", "--bootstrap-server", address]);
    command.args(["--timeout", "60000"]);
    Ok(command.args(args.split_whitespace()).output()?)
}

/// The table that Kafka's tool prints. Cells that are empty are left out.
pub fn kafkas_lines(printed: &str) -> Vec<Line> {
    let mut lines = printed.lines().map(|line| {
        let cells = line.split('\t').map(|cell| cell.trim().to_owned());
        cells.filter(|cell| !cell.is_empty()).collect::<Vec<_>>()
    });
    let headings = lines.next().unwrap_or_default();
    lines
        .filter(|cells| !cells.is_empty())
        .map(|cells| headings.iter().cloned().zip(cells).collect())
        .collect()
}

/// Rows of JSON in the words of Kafka's tables: `None` is nothing. Keys stay as they are.
pub fn json_lines(json: &[u8]) -> Result<Vec<Line>> {
    let rows: Vec<BTreeMap<String, Value>> = serde_json::from_slice(json)?;
    let line = |row: &BTreeMap<String, Value>| {
        let cells = row.iter();
        cells
            .map(|(key, value)| (key.clone(), word(value)))
            .collect()
    };
    Ok(rows.iter().map(line).collect())
}

/// A value in the words of Kafka's tables.
pub fn word(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(word).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// What Kafka's tool says. Blocks.
pub fn kafkas(address: &str, args: &str) -> Result<Vec<Line>> {
    let output = run_kafkas(address, args).context("kafka-transactions")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{args}: {errors}");
    Ok(kafkas_lines(&String::from_utf8_lossy(&output.stdout)))
}

/// What ours says. Blocks.
pub fn ours(address: &str, args: &str) -> Result<Vec<Line>> {
    let output = run_ours(address, &format!("{args} --format json"))?;
    rows_of(args, &output)
}

/// The rows of JSON that ours has printed. What hangs is a finding: exit code 1.
pub fn rows_of(args: &str, output: &Output) -> Result<Vec<Line>> {
    let errors = String::from_utf8_lossy(&output.stderr);
    let rows = json_lines(&output.stdout).with_context(|| format!("{args}: {errors}"))?;
    let finding = args.starts_with("find-hanging") && !rows.is_empty();
    let code = output.status.code();
    ensure!(
        code == Some(i32::from(finding)),
        "{args}: {code:?} {errors}"
    );
    Ok(rows)
}
