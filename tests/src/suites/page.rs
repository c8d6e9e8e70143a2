//! `docs/compatibility.md`, from the lists of the suites and the results of their runs.

use std::fmt::Write as _;

use super::ALL;
use super::results::Runs;
use crate::oracle::apis::{KAFKA_APIS, LACKING};

const HEAD: &str = "# Compatibility

Generated from the lists of suites (`tests/src/suites`) and the results of their runs
(`docs/compatibility.json`); a test keeps the lists true. A run leaves its result in the cache, and
`UPDATE_GOLDEN=1 cargo test -p tests --test docs` takes it from there.

## Test suites of the clients' makers

The suites run unchanged, as they come in the clients' packages, in every run of `scripts/test.sh`.
A test that fails, that does not run, or that leaves itself out without being listed fails the run.

| client | version | suite | passed | failed | skipped | date |
|---|---|---|---|---|---|---|
";

/// Clients whose part in scenarios of ours is in every run too: client, where its version is set,
/// and what it does.
const SCENARIOS: &[(&str, Pin, &str)] = &[
    (
        "Apache Kafka's Java clients and tools",
        Pin::Pom,
        "flights, groups, pipes; TransactionalMessageCopier; its command line tools",
    ),
    (
        "Kafka Streams, Kafka Connect",
        Pin::Pom,
        "exactly once, while they and the broker are killed with -9",
    ),
    (
        "confluent-kafka (librdkafka)",
        Pin::Python("confluent-kafka"),
        "flights, pipes",
    ),
    ("kafka-python", Pin::Python("kafka-python"), "groups, pipes"),
    ("aiokafka", Pin::Python("aiokafka"), "groups, pipes"),
    ("kafkajs", Pin::Node("kafkajs"), "groups, pipes"),
    ("franz-go", Pin::Go, "flights, groups, pipes"),
    ("kcat", Pin::Debian, "flights, groups"),
];

/// Where a client's version is set.
#[derive(Debug, Clone, Copy)]
enum Pin {
    Pom,
    Python(&'static str),
    Node(&'static str),
    Go,
    Debian,
}

impl Pin {
    fn version(self) -> String {
        let text = |path: &str| {
            let path = crate::process::repository().join(path);
            std::fs::read_to_string(&path).unwrap_or_default()
        };
        let after = |text: &str, start: &str, end: &[char]| {
            let rest = text.split_once(start).map_or("", |(_, rest)| rest);
            rest.split(end).next().unwrap_or_default().to_owned()
        };
        match self {
            Self::Pom => after(&text("tests/oracle/pom.xml"), "<kafka.version>", &['<']),
            Self::Python(name) => {
                let text = text("tests/clients/python/requirements.txt");
                after(&text, &format!("{name}=="), &['\n'])
            }
            Self::Node(name) => {
                let text = text("tests/clients/node/package.json");
                after(&text, &format!("\"{name}\": \""), &['"'])
            }
            Self::Go => after(&text("tests/clients/go/go.mod"), "franz-go v", &['\n']),
            Self::Debian => "Debian's".to_owned(),
        }
    }
}

/// The page. A suite without a run has no figures.
pub fn page(runs: &Runs) -> String {
    let mut page = HEAD.to_owned();
    let mut line = |text: std::fmt::Arguments<'_>| {
        page.write_fmt(text).unwrap();
        page.push('\n');
    };
    for suite in &ALL {
        let (client, version, what) = (suite.client, suite.version, suite.what);
        match runs.get(suite.id) {
            Some(run) => line(format_args!(
                "| {client} | {version} | {what} | {} | {} | {} | {} |",
                run.passed, run.failed, run.skipped, run.date
            )),
            None => line(format_args!("| {client} | {version} | {what} | | | | |")),
        }
    }
    for suite in &ALL {
        line(format_args!("\n### {} {}\n", suite.client, suite.version));
        let settings: Vec<String> = suite.settings.iter().map(|s| format!("`{s}`")).collect();
        line(format_args!("Settings: {}.\n", settings.join(", ")));
        if !suite.further.is_empty() {
            line(format_args!("{}.\n", suite.further));
        }
        let tests: Vec<String> = (suite.tests)().iter().map(|t| format!("`{t}`")).collect();
        line(format_args!("Passes:\n{}.", tests.join(",\n")));
        if !suite.skipped.is_empty() {
            line(format_args!("\n| not run | because |\n|---|---|"));
            for (name, why) in suite.skipped {
                line(format_args!("| `{name}` | {why} |"));
            }
        }
    }
    line(format_args!(
        "\n## APIs that Apache Kafka 4.3.1 has and Fencepost has not\n\n\
         | key | API | Kafka's versions | because |\n|---|---|---|---|"
    ));
    for (key, why) in LACKING {
        let (_, name, min, max) = KAFKA_APIS.iter().find(|(one, ..)| one == key).unwrap();
        line(format_args!("| {key} | {name} | {min}-{max} | {why} |"));
    }
    line(format_args!(
        "\n## Scenarios of ours with real clients\n\n\
         Also in every run: flights (records through writers and readers), groups (members of one \
         group)\nand pipes (records moved in transactions), while clients and broker are killed \
         with -9; see\n`tests/clients/README.md`.\n\n\
         | client | version | scenarios |\n|---|---|---|"
    ));
    for (client, pin, what) in SCENARIOS {
        line(format_args!("| {client} | {} | {what} |", pin.version()));
    }
    page
}
