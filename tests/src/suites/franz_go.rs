//! franz-go's TestGroupETL: a chain of groups that consume, produce and commit while members come
//! and go, with every balancer that it offers.

use std::process::Command;
use std::time::Duration;

use anyhow::ensure;

use super::run::{Bench, installed};
use super::{Outcome, Suite};

const LIMIT: Duration = Duration::from_mins(15);

/// The suite.
pub const SUITE: Suite = Suite {
    id: "franz-go",
    client: "franz-go",
    version: "1.22.3",
    what: "TestGroupETL of package kgo",
    settings: &["group.initial.rebalance.delay.ms=0"],
    further: "",
    tests: || {
        vec![
            "TestGroupETL",
            "TestGroupETL/range",
            // These ask for the consumer protocol (KIP-848), and go on with the classic one.
            "TestGroupETL/range/848",
            "TestGroupETL/sticky/848",
            "TestGroupETL/sticky/848/static",
            "TestGroupETL/cooperative-sticky",
            "TestGroupETL/cooperative-sticky/static",
        ]
    },
    skipped: &[],
    run,
};

fn run() -> anyhow::Result<Outcome> {
    let program = installed("clients/bin/kgo.test", "go")?;
    let bench = Bench::start(SUITE.id, SUITE.settings)?;
    let mut command = Command::new(program);
    command.args(["-test.run", "^TestGroupETL$", "-test.v", "-test.count=1"]);
    command.env("KGO_SEEDS", bench.gateway.address());
    command.env("KGO_TEST_RF", "1").env("KGO_LOG_LEVEL", "none");
    command.env("KGO_TEST_RECORDS", "20000");
    command.env("KGO_TEST_MAX_TOPIC_PARTS", "7");
    let ended = bench.execute("kgo", command, LIMIT)?;
    let mut outcome = read(&ended.out);
    if ended.is_success() {
        // Each variant that is left out is known by name: fewer would be a variant that is gone.
        ensure!(
            outcome.skipped.len() == SUITE.skipped.len(),
            "{} variants left themselves out, {} are listed",
            outcome.skipped.len(),
            SUITE.skipped.len()
        );
    } else {
        outcome
            .failed
            .insert("TestGroupETL".to_owned(), ended.tail());
    }
    bench.end(outcome)
}

/// What `go test -v` says of each test: lines such as `--- PASS: NAME (1.00s)`.
fn read(text: &str) -> Outcome {
    let mut outcome = Outcome::default();
    for line in text.lines() {
        let Some((verdict, rest)) = line
            .trim_start()
            .strip_prefix("--- ")
            .and_then(|line| line.split_once(": "))
        else {
            continue;
        };
        let name = rest.split(" (").next().unwrap_or(rest).to_owned();
        match verdict {
            "PASS" => {
                outcome.passed.insert(name);
            }
            "SKIP" => {
                outcome.skipped.insert(name);
            }
            _ => {
                outcome.failed.insert(name, String::new());
            }
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: impl IntoIterator<Item = String>) -> Vec<String> {
        names.into_iter().collect()
    }

    #[test]
    fn the_lines_of_go_test_are_understood() {
        let text = "\
            === RUN   TestA\n--- FAIL: TestA (28.03s)\n\
            \x20   --- PASS: TestA/b/c (1.00s)\n\x20   --- SKIP: TestA/d (0.00s)\nFAIL\n";
        let outcome = read(text);
        assert_eq!(names(outcome.passed), ["TestA/b/c"]);
        assert_eq!(names(outcome.skipped), ["TestA/d"]);
        assert_eq!(names(outcome.failed.into_keys()), ["TestA"]);
    }
}
