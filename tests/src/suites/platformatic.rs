//! @platformatic/kafka: a program of ours (`tests/clients/platformatic/smoke.mjs`) makes topics,
//! writes and reads in a group, commits and aborts.

use std::process::Command;
use std::time::Duration;

use super::run::{Bench, installed};
use super::{Outcome, Suite};
use crate::process::repository;

const LIMIT: Duration = Duration::from_mins(6);

/// The suite.
pub const SUITE: Suite = Suite {
    id: "platformatic",
    client: "@platformatic/kafka",
    version: "1.35.0",
    what: "topics, a group, transactions that commit and abort",
    settings: &["group.initial.rebalance.delay.ms=0"],
    further: "",
    tests: || PARTS.to_vec(),
    skipped: &[],
    run,
};

const PARTS: [&str; 3] = ["topics", "group", "transactions"];

fn run() -> anyhow::Result<Outcome> {
    let step = "platformatic";
    let package = installed("clients/platformatic/package.json", step)?;
    let bench = Bench::start(SUITE.id, SUITE.settings)?;
    let mut command = Command::new("node");
    command.arg(repository().join("tests/clients/platformatic/smoke.mjs"));
    command.arg(package.parent().unwrap_or(&package));
    command.arg(bench.gateway.address());
    let ended = bench.execute("smoke", command, LIMIT)?;
    let mut outcome = Outcome::default();
    for part in PARTS {
        let passed = format!("PASS {part}");
        if ended.out.lines().any(|line| line == passed) {
            outcome.passed.insert(part.to_owned());
        }
    }
    if !ended.is_success() {
        let failed = PARTS.iter().find(|part| !outcome.passed.contains(**part));
        let failed = failed.unwrap_or(&"its end");
        outcome.failed.insert((*failed).to_owned(), ended.tail());
    }
    bench.end(outcome)
}
