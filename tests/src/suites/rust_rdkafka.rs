//! rust-rdkafka's own tests, with the librdkafka that it brings.

use std::process::Command;
use std::time::Duration;

use super::run::{Bench, in_parallel, installed};
use super::{Outcome, Suite};

const LIMIT: Duration = Duration::from_mins(10);
/// Test programs at once, each with a gateway of its own.
const WIDTH: usize = 4;

/// The suite.
pub const SUITE: Suite = Suite {
    id: "rust-rdkafka",
    client: "rust-rdkafka",
    version: "0.39.0",
    what: "its tests, with librdkafka 2.12.1",
    settings: &[
        "num.partitions=3",
        "node.id=0",
        "group.initial.rebalance.delay.ms=0",
    ],
    further: "",
    tests: || TESTS.to_vec(),
    skipped: SKIPPED,
    run: || in_parallel(WIDTH, &PROGRAMS, |program| run(program)),
};

const PROGRAMS: [&str; 8] = [
    "test_low_consumers",
    "test_transactions",
    "test_high_consumers",
    "test_admin",
    "test_low_producers",
    "test_metadata",
    "test_high_producers",
    "test_topic_partition_list",
];

/// Program and test. The module `utils` is part of every program but one, with a test of its own.
const TESTS: &[&str] = &[
    "test_transactions::test_transaction_abort",
    "test_transactions::test_transaction_commit",
    "test_transactions::utils::tests::test_populate_topic",
    "test_high_consumers::test_invalid_max_poll_interval",
    "test_high_consumers::test_produce_consume_base",
    "test_high_consumers::test_produce_consume_base_concurrent",
    "test_high_consumers::test_produce_consume_base_assign",
    "test_high_consumers::test_produce_consume_base_unassign",
    "test_high_consumers::test_produce_consume_base_incremental_assign_and_unassign",
    "test_high_consumers::test_produce_consume_with_timestamp",
    "test_high_consumers::test_consumer_commit_message",
    "test_high_consumers::test_consumer_store_offset_commit",
    "test_high_consumers::test_consumer_commit_metadata",
    "test_high_consumers::test_consume_partition_order",
    "test_high_consumers::utils::tests::test_populate_topic",
    "test_low_consumers::test_produce_consume_seek",
    "test_low_consumers::test_produce_consume_seek_partitions",
    "test_low_consumers::test_produce_consume_iter",
    "test_low_consumers::test_pause_resume_consumer_iter",
    "test_low_consumers::test_consume_partition_order",
    "test_low_consumers::test_produce_consume_message_queue_nonempty_callback",
    "test_low_consumers::test_invalid_consumer_position",
    "test_low_consumers::utils::tests::test_populate_topic",
    "test_low_producers::test_base_producer_queue_full",
    "test_low_producers::test_base_producer_headers",
    "test_low_producers::test_threaded_producer_send",
    "test_low_producers::test_base_producer_opaque_arc",
    "test_low_producers::test_fatal_errors",
    "test_low_producers::test_register_custom_partitioner_linger_non_zero_key_null",
    "test_low_producers::test_custom_partitioner_base_producer",
    "test_low_producers::test_custom_partitioner_threaded_producer",
    "test_low_producers::utils::tests::test_populate_topic",
    "test_admin::test_topics",
    "test_admin::test_delete_records",
    "test_admin::test_groups",
    "test_admin::test_event_errors",
    "test_admin::utils::tests::test_populate_topic",
    "test_metadata::test_subscription",
    "test_metadata::test_group_membership",
    "test_metadata::test_client_config",
    "test_metadata::utils::tests::test_populate_topic",
    "test_high_producers::test_future_producer_send_full",
    "test_high_producers::test_future_undelivered",
    "test_high_producers::utils::tests::test_populate_topic",
    "test_topic_partition_list::test_fmt_debug",
];

const SKIPPED: &[(&str, &str)] = &[
    (
        "test_low_producers::test_base_producer_timeout",
        "counts on a topic that takes longer than 100 ms to be there; here it is there at once",
    ),
    (
        "test_admin::test_configs",
        "changes log.flush.interval.messages of the broker, which nothing here acts on: refused",
    ),
    (
        "test_metadata::test_metadata",
        "asserts that the broker is localhost:9092",
    ),
    (
        "test_high_producers::test_future_producer_send",
        "dials localhost:9092, whatever it is told",
    ),
    (
        "test_high_producers::test_future_producer_send_fail",
        "dials localhost:9092, whatever it is told",
    ),
];

fn run(program: &str) -> anyhow::Result<Outcome> {
    let path = installed(&format!("clients/suites-rust/bin/{program}"), "suites-rust")?;
    let bench = Bench::start(program, SUITE.settings)?;
    let mut command = Command::new(path);
    command.args(["--test-threads=1", "--exact"]);
    for (name, _) in SKIPPED {
        if let Some((of, test)) = name.split_once("::")
            && of == program
        {
            command.args(["--skip", test]);
        }
    }
    command.env("KAFKA_HOST", bench.gateway.address());
    command.env("KAFKA_VERSION", "3.9");
    let ended = bench.execute(program, command, LIMIT)?;
    let mut outcome = read(program, &ended.out);
    if !ended.is_success() {
        let first = outcome.failed.keys().next().cloned();
        outcome.failed.insert(
            first.unwrap_or_else(|| format!("{program} as a whole")),
            ended.tail(),
        );
    }
    bench.end(outcome)
}

/// What a test program of Rust's says of each test: `test NAME ... ok`.
fn read(program: &str, text: &str) -> Outcome {
    let mut outcome = Outcome::default();
    for line in text.lines() {
        let Some((test, verdict)) = line
            .strip_prefix("test ")
            .and_then(|line| line.split_once(" ... "))
        else {
            continue;
        };
        let name = format!("{program}::{test}");
        match verdict {
            "ok" => {
                outcome.passed.insert(name);
            }
            verdict if verdict.starts_with("ignored") => {
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
    fn the_lines_of_a_test_program_are_understood() {
        let text = "\nrunning 3 tests\ntest a::b ... ok\ntest c ... FAILED\n\
                    test d ... ignored, because\n\ntest result: FAILED. 1 passed; 1 failed\n";
        let outcome = read("p", text);
        assert_eq!(names(outcome.passed), ["p::a::b"]);
        assert_eq!(names(outcome.skipped), ["p::d"]);
        assert_eq!(names(outcome.failed.into_keys()), ["p::c"]);
    }
}
