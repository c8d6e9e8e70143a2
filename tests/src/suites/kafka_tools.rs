//! Apache Kafka's own tools and the programs of its system tests, unchanged, one after the other on
//! one broker: what each must print is what it prints of Kafka.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::run::{Bench, Ended, in_parallel};
use super::{Outcome, Suite};
use crate::flights::child::java;

/// For one program; most take the few seconds in which a JVM starts.
const LIMIT: Duration = Duration::from_mins(6);
/// Records that the programs of system tests move.
const RECORDS: &str = "200";

/// The suite.
pub const SUITE: Suite = Suite {
    id: "kafka-tools",
    client: "Apache Kafka",
    version: "4.3.1",
    what: "its tools, and the programs of its system tests",
    settings: &["group.initial.rebalance.delay.ms=0"],
    further: "",
    tests: || PROGRAMS.iter().map(|program| program.name).collect(),
    skipped: &[(
        "VerifiableConsumer --group-protocol consumer",
        "the consumer protocol (KIP-848) is off while `group.version` is 0, the default",
    )],
    run,
};

/// A program, or several that belong together.
struct Program {
    name: &'static str,
    check: fn(&Bench) -> Result<()>,
}

const PROGRAMS: &[Program] = &[
    Program {
        name: "ClientCompatibilityTest",
        check: client_compatibility,
    },
    Program {
        name: "EndToEndLatency",
        check: end_to_end_latency,
    },
    Program {
        name: "VerifiableProducer, VerifiableConsumer",
        check: verifiable,
    },
    Program {
        name: "ConsoleProducer, ConsoleConsumer",
        check: console,
    },
    Program {
        name: "TopicCommand, ConfigCommand",
        check: topics,
    },
    Program {
        name: "GetOffsetShell, DeleteRecordsCommand",
        check: offsets,
    },
    Program {
        name: "BrokerApiVersionsCommand, LogDirsCommand",
        check: describes,
    },
];

fn run() -> Result<Outcome> {
    let bench = Bench::start(SUITE.id, SUITE.settings)?;
    let outcome = in_parallel(2, PROGRAMS, |program| {
        let mut outcome = Outcome::default();
        let name = program.name.to_owned();
        match (program.check)(&bench) {
            Ok(()) => drop(outcome.passed.insert(name)),
            Err(error) => drop(outcome.failed.insert(name, format!("{error:#}"))),
        }
        Ok(outcome)
    })?;
    bench.end(outcome)
}

/// What a program prints; an error unless it ends with success.
fn prints(bench: &Bench, log: &str, class: &str, args: &[&str]) -> Result<String> {
    let mut command: Command = java(class)?;
    command.args(["--bootstrap-server", &bench.gateway.address()]);
    command.args(args);
    let ended: Ended = bench.execute(log, command, LIMIT)?;
    ensure!(ended.is_success(), "{class}: {}", ended.tail());
    Ok(ended.out)
}

fn client_compatibility(bench: &Bench) -> Result<()> {
    let class = "org.apache.kafka.tools.ClientCompatibilityTest";
    let mut args = vec!["--topic", "compatible", "--num-cluster-nodes", "1"];
    for supported in [
        "--offsets-for-times-supported",
        "--cluster-id-supported",
        "--create-topics-supported",
        "--describe-configs-supported",
        "--idempotent-producer-supported",
    ] {
        args.extend([supported, "True"]);
    }
    // There is no authorizer, and nobody to ask about one.
    args.extend(["--describe-acls-supported", "False"]);
    args.extend(["--expect-record-too-large-exception", "False"]);
    create(bench, "compatible", 1)?;
    let printed = prints(bench, "compatibility", class, &args)?;
    ensure!(printed.contains("SUCCESS"), "{printed}");
    Ok(())
}

fn end_to_end_latency(bench: &Bench) -> Result<()> {
    let class = "org.apache.kafka.tools.EndToEndLatency";
    let args = ["--topic", "latency", "--num-records", "200"];
    let args = [
        &args[..],
        &["--producer-acks", "all", "--record-size", "100"],
    ]
    .concat();
    let printed = prints(bench, "latency", class, &args)?;
    ensure!(printed.contains("Percentiles"), "{printed}");
    Ok(())
}

fn verifiable(bench: &Bench) -> Result<()> {
    create(bench, "verifiable", 1)?;
    let class = "org.apache.kafka.tools.VerifiableProducer";
    let args = ["--topic", "verifiable", "--max-messages", RECORDS];
    let args = [&args[..], &["--throughput", "-1", "--acks", "-1"]].concat();
    let printed = prints(bench, "verifiable-producer", class, &args)?;
    let last = printed.lines().rfind(|line| line.contains("tool_data"));
    let last: serde_json::Value = serde_json::from_str(last.context("no tool_data")?)?;
    ensure!(last["sent"] == 200 && last["acked"] == 200, "{last}");

    let class = "org.apache.kafka.tools.VerifiableConsumer";
    let args = ["--topic", "verifiable", "--max-messages", RECORDS];
    let args = [&args[..], &["--group-id", "verifiable", "--verbose"]].concat();
    let args = [&args[..], &["--reset-policy", "earliest"]].concat();
    let printed = prints(bench, "verifiable-consumer", class, &args)?;
    let records = printed
        .lines()
        .filter(|line| line.contains("\"record_data\""));
    ensure!(records.count() == 200, "{printed}");
    ensure!(printed.contains("\"shutdown_complete\""), "{printed}");
    Ok(())
}

fn console(bench: &Bench) -> Result<()> {
    create(bench, "console", 1)?;
    let input = bench.dir().join("console.in");
    std::fs::write(&input, "a:1\nb:2\nc:3\n")?;
    let mut command = java("org.apache.kafka.tools.ConsoleProducer")?;
    command.args(["--bootstrap-server", &bench.gateway.address()]);
    command.args(["--topic", "console", "--command-property", "acks=all"]);
    command.args(["--reader-property", "parse.key=true"]);
    command.args(["--reader-property", "key.separator=:"]);
    // The program reads its standard input, which a bench has none of.
    let mut shell = Command::new("bash");
    shell.args(["-c", "file=$1; shift; exec \"$@\" <\"$file\"", "bash"]);
    shell
        .arg(&input)
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    let ended = bench.execute("console-producer", shell, LIMIT)?;
    ensure!(ended.is_success(), "{}", ended.tail());

    let class = "org.apache.kafka.tools.consumer.ConsoleConsumer";
    let args = [
        "--topic",
        "console",
        "--from-beginning",
        "--max-messages",
        "3",
    ];
    let args = [&args[..], &["--timeout-ms", "60000", "--group", "console"]].concat();
    let mut args = [&args[..], &["--isolation-level", "read_committed"]].concat();
    for shown in [
        "print.key=true",
        "print.offset=true",
        "print.partition=true",
    ] {
        args.extend(["--formatter-property", shown]);
    }
    let printed = prints(bench, "console-consumer", class, &args)?;
    let expected = "Partition:0\tOffset:0\ta\t1\n\
                    Partition:0\tOffset:1\tb\t2\n\
                    Partition:0\tOffset:2\tc\t3\n";
    ensure!(printed == expected, "{printed}");
    Ok(())
}

const TOPICS: &str = "org.apache.kafka.tools.TopicCommand";

fn create(bench: &Bench, topic: &str, partitions: u32) -> Result<()> {
    let partitions = partitions.to_string();
    let args = ["--create", "--topic", topic, "--partitions", &partitions];
    let printed = prints(bench, &format!("create-{topic}"), TOPICS, &args)?;
    ensure!(printed.contains("Created topic"), "{printed}");
    Ok(())
}

fn topics(bench: &Bench) -> Result<()> {
    create(bench, "topics", 2)?;
    let of = ["--topic", "topics"];
    let alter = [&["--alter", "--partitions", "3"], &of[..]].concat();
    prints(bench, "topics-alter", TOPICS, &alter)?;
    let describe = [&["--describe"], &of[..]].concat();
    let printed = prints(bench, "topics-describe", TOPICS, &describe)?;
    ensure!(printed.contains("PartitionCount: 3"), "{printed}");

    let class = "kafka.admin.ConfigCommand";
    let of = ["--entity-type", "topics", "--entity-name", "topics"];
    let alter = [&["--alter", "--add-config", "retention.ms=1000"], &of[..]].concat();
    prints(bench, "configs-alter", class, &alter)?;
    let describe = [&["--describe"], &of[..]].concat();
    let printed = prints(bench, "configs-describe", class, &describe)?;
    ensure!(printed.contains("retention.ms=1000"), "{printed}");
    Ok(())
}

fn offsets(bench: &Bench) -> Result<()> {
    create(bench, "offsets", 1)?;
    let class = "org.apache.kafka.tools.VerifiableProducer";
    let args = ["--topic", "offsets", "--max-messages", "10"];
    prints(bench, "offsets-producer", class, &args)?;
    let file = bench.dir().join("offsets.json");
    let wanted = r#"{"partitions":[{"topic":"offsets","partition":0,"offset":4}],"version":1}"#;
    std::fs::write(&file, wanted)?;
    let file = file.display().to_string();
    let class = "org.apache.kafka.tools.DeleteRecordsCommand";
    let printed = prints(bench, "delete", class, &["--offset-json-file", &file])?;
    ensure!(printed.contains("low_watermark: 4"), "{printed}");
    let class = "org.apache.kafka.tools.GetOffsetShell";
    for (time, expected) in [("earliest", "offsets:0:4\n"), ("latest", "offsets:0:10\n")] {
        let args = ["--topic", "offsets", "--time", time];
        let printed = prints(bench, &format!("offsets-{time}"), class, &args)?;
        ensure!(printed == expected, "{time}: {printed}");
    }
    Ok(())
}

fn describes(bench: &Bench) -> Result<()> {
    create(bench, "described", 1)?;
    let class = "org.apache.kafka.tools.BrokerApiVersionsCommand";
    let printed = prints(bench, "versions", class, &[])?;
    ensure!(
        printed.contains("DescribeLogDirs(35): 1 to 4 [usable: 4]"),
        "{printed}"
    );
    let class = "org.apache.kafka.tools.LogDirsCommand";
    let args = ["--describe", "--topic-list", "described"];
    let printed = prints(bench, "log-dirs", class, &args)?;
    ensure!(
        printed.contains("\"partition\":\"described-0\""),
        "{printed}"
    );
    Ok(())
}
