//! librdkafka's own `test-runner`, with the sub-tests that are slow: it is never told to be quick,
//! for then it leaves out most of them and still reports success.

use std::process::Command;
use std::time::Duration;

use super::run::{Bench, Ended, in_parallel, installed};
use super::{Outcome, Suite};

/// Version in `scripts/setup-clients.sh`.
const VERSION: &str = "2.15.1";
const RUNNER: &str = "librdkafka-2.15.1/tests/test-runner";
/// Tests at once; each has a gateway of its own, and most of them wait most of the time.
const WIDTH: usize = 8;
/// How long a test may take.
const LIMIT: Duration = Duration::from_mins(15);

/// The suite.
pub const SUITE: Suite = Suite {
    id: "librdkafka",
    client: "librdkafka",
    version: VERSION,
    what: "its test-runner: producers, consumers, groups, offsets, transactions, admin",
    settings: &["num.partitions=4", "group.initial.rebalance.delay.ms=0"],
    further: "0103: `virtual.replicas=3`; 0102, 0113 and 0118: \
              `group.initial.rebalance.delay.ms=3000`",
    tests: || CASES.iter().map(|case| case.name).collect(),
    skipped: SKIPPED,
    run: || in_parallel(WIDTH, CASES, run),
};

/// A test of the runner, or a part of one.
struct Case {
    /// The test's number, and the sub-test if it is only that.
    name: &'static str,
    /// Sub-tests that it has to report as passed.
    passes: usize,
    /// Further settings of the gateway.
    settings: &'static [&'static str],
    /// Whether its connections go through the runner's socket emulator.
    emulated: bool,
}

const fn case(name: &'static str, passes: usize) -> Case {
    with(name, passes, &[])
}

const fn with(name: &'static str, passes: usize, settings: &'static [&'static str]) -> Case {
    Case {
        name,
        passes,
        settings,
        emulated: false,
    }
}

/// A test that delays and cuts its own connections.
const fn emulated(name: &'static str, passes: usize) -> Case {
    Case {
        emulated: true,
        ..with(name, passes, &[])
    }
}

const VIRTUAL: &[&str] = &["virtual.replicas=3"];
/// Kafka's default. These tests count on members that join one generation together.
const DELAY: &[&str] = &["group.initial.rebalance.delay.ms=3000"];

/// The longest first.
const CASES: &[Case] = &[
    with("0113 subscription_variation: 0", 2, DELAY),
    with("0113 subscription_variation: 1", 2, DELAY),
    with("0113 subscription_variation: 2", 2, DELAY),
    with("0103", 13, VIRTUAL),
    case("0045", 4),
    with("0102", 2, DELAY),
    with("0113 s_subscribe_when_rebalancing", 6, DELAY),
    with("0113 t_max_poll_interval_exceeded", 3, DELAY),
    with("0113 v_commit_during_rebalance", 3, DELAY),
    case("0026", 4),
    case("0137", 6),
    case("0122", 2),
    case("0033", 0),
    with("0113 b_subscribe_with_cb_test", 1, DELAY),
    with("0113 c_subscribe_no_cb_test", 2, DELAY),
    with("0113 d_change_subscription_add_topic", 2, DELAY),
    with("0113 e_change_subscription_remove_topic", 2, DELAY),
    with("0113 n_wildcard", 1, DELAY),
    case("0081 do_test_DescribeConsumerGroups", 4),
    case("0081 do_test_ListConsumerGroupOffsets", 12),
    case("0081 do_test_AlterConsumerGroupOffsets", 8),
    case("0081 do_test_DeleteConsumerGroupOffsets", 6),
    case("0018", 3),
    case("0050", 3),
    case("0030", 9),
    with("0113 a_assign_tests", 1, DELAY),
    with("0113 f_assign_call_cooperative", 1, DELAY),
    with("0113 g_incremental_assign_call_eager", 1, DELAY),
    with("0113 h_delete_topic", 1, DELAY),
    with("0113 i_delete_topic_2", 1, DELAY),
    with("0113 j_delete_topic_no_rb_callback", 1, DELAY),
    with("0113 k_add_partition", 1, DELAY),
    with("0113 l_unsubscribe", 1, DELAY),
    with("0113 m_unsubscribe_2", 1, DELAY),
    with("0113 x_incremental_rebalances", 1, DELAY),
    emulated("0076", 0),
    emulated("0094", 0),
    emulated("0049", 0),
    case("0051", 0),
    case("0129", 0),
    case("0125", 0),
    case("0011 test_message_partitioner", 1),
    case("0011 test_single_partition", 1),
    case("0011 test_partitioner", 1),
    case("0011 test_per_message_partition_flag", 1),
    case("0011 test_message_single_partition_record_fail", 2),
    with("0118", 0, DELAY),
    case("0086", 0),
    case("0019", 2),
    case("0090", 0),
    case("0132", 2),
    case("0056", 0),
    case("0012", 0),
    case("0099", 0),
    case("0140", 1),
    case("0130", 1),
    case("0031", 0),
    case("0022", 2),
    case("0081 do_test_DeleteTopics", 2),
    case("0081 do_test_CreatePartitions", 2),
    case("0081 do_test_DescribeConfigs:", 2),
    case("0081 do_test_DeleteRecords", 4),
    case("0081 do_test_DeleteGroups", 4),
    case("0081 do_test_ListConsumerGroups", 8),
    case("0081 do_test_DescribeTopics", 8),
    case("0081 do_test_DescribeCluster", 8),
    case("0081 do_test_ListOffsets", 4),
];

const SKIPPED: &[(&str, &str)] = &[
    (
        "0045, 0107 and others in the scenario noautocreate",
        "not tried",
    ),
    (
        "0081 do_test_CreateTopics",
        "sets compression.type=lz4, which is refused: batches are kept as they were sent",
    ),
    (
        "0081 do_test_DescribeConfigs_groups",
        "configs of groups are those of the consumer protocol (KIP-848)",
    ),
    (
        "0081 do_test_CreateAcls, do_test_DescribeAcls, do_test_DeleteAcls",
        "need an authorizer",
    ),
    (
        "0081 do_test_UserScramCredentials",
        "only plaintext listeners are served",
    ),
    (
        "0081 do_test_AlterConfigs, do_test_IncrementalAlterConfigs",
        "set compression.type and flush.ms of topics, which nothing here acts on, and configs of \
         groups: refused",
    ),
    (
        "0092",
        "sets message.format.version, which Kafka 4 does not have: 40 there too",
    ),
    ("0109", "needs an authorizer"),
    ("0113 o_java_interop", "compiles a Java program of its own"),
    ("0127", "asserts times, and fails under load on Kafka too"),
    (
        "0153",
        "leaves itself out without the consumer protocol (KIP-848)",
    ),
];

fn run(case: &Case) -> anyhow::Result<Outcome> {
    let runner = installed(RUNNER, "librdkafka")?;
    let settings = [SUITE.settings, case.settings].concat();
    let bench = Bench::start(case.name, &settings)?;
    let conf = bench.dir().join("test.conf");
    let address = bench.gateway.address();
    let text = format!("metadata.broker.list={address}\ntest.timeout.multiplier=2\n");
    std::fs::write(&conf, text)?;

    let (number, part) = case.name.split_once(' ').unwrap_or((case.name, ""));
    let mut command = Command::new(&runner);
    command.args(["-p1", "-L"]);
    if !case.emulated {
        command.arg("-E");
    }
    let tests = runner.with_file_name("");
    command.current_dir(&tests);
    command.env("TESTS", number).env("RDKAFKA_TEST_CONF", conf);
    command.env("TEST_KAFKA_VERSION", "4.1.0");
    command.env("BROKERS", &address);
    let libraries = ["src", "src-cpp"].map(|dir| tests.join("..").join(dir));
    command.env("LD_LIBRARY_PATH", std::env::join_paths(libraries)?);
    if !part.is_empty() {
        command.env("SUBTESTS", part);
    }
    let ended = bench.execute("runner", command, LIMIT)?;
    let mut outcome = Outcome::default();
    match complaint(case, number, &ended) {
        None => {
            outcome.passed.insert(case.name.to_owned());
        }
        Some(why) => {
            let output = format!("{why}: {}", ended.tail());
            outcome.failed.insert(case.name.to_owned(), output);
        }
    }
    bench.end(outcome)
}

/// Why a run is no success. Local and mock variants are left out, and shown as such.
fn complaint(case: &Case, number: &str, ended: &Ended) -> Option<String> {
    if !ended.is_success() {
        return Some("failed".to_owned());
    }
    let passed = ended
        .out
        .lines()
        .any(|line| line.contains(number) && line.contains("PASSED"));
    if !passed {
        return Some("the summary has no test that passed".to_owned());
    }
    let passes = ended.err.matches(": PASS (").count();
    (passes != case.passes).then(|| format!("{} sub-tests listed, {passes} passed", case.passes))
}
