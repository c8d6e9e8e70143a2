//! The image for Testcontainers' modules, whose start scripts run here without Docker: each is what
//! the module of a language writes into a container, with this machine's directories and ports.

use std::fs;
use std::io::BufRead as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tests::gatewayproc::binary;
use tests::process::{Port, free_port, repository};
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::{RawClient, ops};

/// How long a broker may take to say that it serves.
const STARTUP: Duration = Duration::from_mins(1);

/// A script and all that it started, on these ports.
struct Container(Child, #[allow(dead_code, reason = "held")] [Port; 3]);

impl Drop for Container {
    fn drop(&mut self) {
        kill_process_group(Pid::from_child(&self.0), Signal::KILL).ok();
        self.0.wait().ok();
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            // With its permissions.
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// What a module does: variables, the script, and the line that it waits for. In both `{client}`
/// and `{broker}` are ports, of clients and of other containers.
struct Module {
    env: &'static [(&'static str, &'static str)],
    script: &'static str,
    awaited: &'static str,
}

const JAVA: Module = Module {
    env: &[
        (
            "KAFKA_LISTENERS",
            "PLAINTEXT://0.0.0.0:{client},BROKER://0.0.0.0:{broker},CONTROLLER://0.0.0.0:9094",
        ),
        (
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP",
            "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        ),
        ("CLUSTER_ID", "4L6g3nShT-eMCtK--X86sw"),
        ("KAFKA_INTER_BROKER_LISTENER_NAME", "BROKER"),
        ("KAFKA_PROCESS_ROLES", "broker,controller"),
        ("KAFKA_CONTROLLER_LISTENER_NAMES", "CONTROLLER"),
        ("KAFKA_CONTROLLER_QUORUM_VOTERS", "1@localhost:9094"),
        ("KAFKA_NODE_ID", "1"),
        ("KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR", "1"),
        ("KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS", "1"),
        ("KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR", "1"),
        ("KAFKA_TRANSACTION_STATE_LOG_MIN_ISR", "1"),
        ("KAFKA_LOG_FLUSH_INTERVAL_MESSAGES", "9223372036854775807"),
        ("KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS", "0"),
    ],
    script: "#!/bin/bash\n\
        export KAFKA_ADVERTISED_LISTENERS=\
        PLAINTEXT://127.0.0.1:{client},BROKER://$(hostname):{broker}\n\
        /etc/kafka/docker/run \n",
    awaited: "Transitioning from RECOVERY to RUNNING",
};

const GO: Module = Module {
    env: &[
        (
            "KAFKA_LISTENERS",
            "PLAINTEXT://0.0.0.0:{client},BROKER://0.0.0.0:{broker},CONTROLLER://0.0.0.0:9094",
        ),
        (
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP",
            "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        ),
        ("KAFKA_INTER_BROKER_LISTENER_NAME", "BROKER"),
        ("KAFKA_BROKER_ID", "1"),
        ("KAFKA_NODE_ID", "1"),
        ("KAFKA_PROCESS_ROLES", "broker,controller"),
        ("KAFKA_CONTROLLER_LISTENER_NAMES", "CONTROLLER"),
        ("KAFKA_CONTROLLER_QUORUM_VOTERS", "1@localhost:9094"),
        ("KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR", "1"),
        ("KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS", "1"),
        ("KAFKA_LOG_FLUSH_INTERVAL_MESSAGES", "9223372036854775807"),
        ("KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS", "0"),
    ],
    script: "#!/bin/bash\n\
        source /etc/confluent/docker/bash-config\n\
        export KAFKA_ADVERTISED_LISTENERS=\
        PLAINTEXT://127.0.0.1:{client},BROKER://$(hostname):{broker}\n\
        echo Starting Kafka KRaft mode\n\
        sed -i '/KAFKA_ZOOKEEPER_CONNECT/d' /etc/confluent/docker/configure\n\
        echo 'kafka-storage format --ignore-formatted -t \"$(kafka-storage random-uuid)\" \
        -c /etc/kafka/kafka.properties' >> /etc/confluent/docker/configure\n\
        echo '' > /etc/confluent/docker/ensure\n\
        /etc/confluent/docker/configure\n\
        /etc/confluent/docker/launch\n",
    awaited: "Transitioning from RECOVERY to RUNNING",
};

const PYTHON: Module = Module {
    env: &[
        (
            "KAFKA_LISTENERS",
            "PLAINTEXT://0.0.0.0:{client},BROKER://0.0.0.0:{broker}",
        ),
        (
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP",
            "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        ),
        ("KAFKA_INTER_BROKER_LISTENER_NAME", "BROKER"),
        ("KAFKA_BROKER_ID", "1"),
        ("KAFKA_ZOOKEEPER_CONNECT", "localhost:2181"),
        ("KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR", "1"),
        ("KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS", "1"),
        ("KAFKA_LOG_FLUSH_INTERVAL_MESSAGES", "10000000"),
        ("KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS", "0"),
    ],
    script: "#!/bin/bash\n\
        echo 'clientPort=2181' > zookeeper.properties\n\
        zookeeper-server-start zookeeper.properties &\n\
        echo '' > /etc/confluent/docker/ensure\n\
        export KAFKA_ADVERTISED_LISTENERS=\
        PLAINTEXT://127.0.0.1:{client},BROKER://$(hostname):{broker}\n\
        . /etc/confluent/docker/bash-config\n\
        /etc/confluent/docker/configure\n\
        /etc/confluent/docker/launch\n",
    awaited: "[KafkaServer id=1] started",
};

/// Runs a module's script in a copy of the image's layout until the line that it waits for.
fn start(module: &Module, dir: &Path) -> (Container, String) {
    let docker = repository().join("docker");
    let (etc, bin, work) = (dir.join("etc"), dir.join("bin"), dir.join("work"));
    copy(&docker.join("etc"), &etc);
    copy(&docker.join("bin"), &bin);
    fs::create_dir(&work).unwrap();
    std::os::unix::fs::symlink(binary().unwrap(), bin.join("fencepost")).unwrap();
    let ports = [(); 3].map(|()| free_port().unwrap());
    let [client, broker, admin] = ports.each_ref().map(|port| port.number().to_string());
    let here = |text: &str| {
        text.replace("{client}", &client)
            .replace("{broker}", &broker)
    };
    let script = here(module.script).replace("/etc/", &format!("{}/", etc.display()));
    fs::write(dir.join("start.sh"), script).unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut command = Command::new("bash");
    command.arg(dir.join("start.sh")).current_dir(&work);
    command.env("PATH", format!("{}:{path}", bin.display()));
    command.envs(module.env.iter().map(|(name, value)| (name, here(value))));
    command.env("FENCEPOST_ADMIN_LISTEN", format!("127.0.0.1:{admin}"));
    for name in ["FENCEPOST_BIN", "FENCEPOST_CACHE", "FENCEPOST_WIRE_TARGET"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(fs::File::create(dir.join("log")).unwrap());
    let mut child = command.process_group(0).spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let container = Container(child, ports);
    let (lines, said) = mpsc::channel();
    // Read to its end, so that the broker can go on printing.
    std::thread::spawn(move || {
        for line in std::io::BufReader::new(stdout).lines() {
            drop(lines.send(line.unwrap_or_default()));
        }
    });
    let mut seen = Vec::new();
    while !seen
        .last()
        .is_some_and(|line: &String| line.contains(module.awaited))
    {
        match said.recv_timeout(STARTUP) {
            Ok(line) => seen.push(line),
            Err(error) => panic!(
                "{error}: {seen:#?}\n{}",
                fs::read_to_string(dir.join("log")).unwrap()
            ),
        }
    }
    (container, format!("127.0.0.1:{client}"))
}

/// A client by the mapped port writes, and is told that port.
async fn serves(module: &Module) {
    let dir = tempfile::tempdir().unwrap();
    let (container, address) = start(module, dir.path());
    let mut client = RawClient::connect(&address).await.unwrap();
    let metadata = ops::create_topic(&mut client, "in-a-container", 2, &[]);
    let metadata = metadata.await.unwrap();
    assert_eq!(ops::sole_leader(&metadata).unwrap(), address);
    assert_eq!(metadata.brokers[0].node_id.0, 1);
    let spec = BatchSpec {
        records: vec![Record::value("v")],
        ..BatchSpec::default()
    };
    let sent = ops::produce(&mut client, "in-a-container", 0, spec.build()).await;
    assert_eq!(sent.unwrap().error_code, 0);
    drop(container);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_start_script_of_the_java_module_serves() {
    serves(&JAVA).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_start_script_of_the_go_module_serves() {
    serves(&GO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_start_script_of_the_python_module_serves() {
    serves(&PYTHON).await;
}

/// Where the scripts look for their files is where the image has them, and its own command runs.
#[test]
fn the_image_has_the_layout() {
    let text = fs::read_to_string(repository().join("Dockerfile")).unwrap();
    let stages: Vec<&str> = text.split("\nFROM ").collect();
    let stage = stages
        .iter()
        .find(|stage| stage.contains(" AS testcontainers\n"));
    let stage = stage.unwrap();
    for line in ["COPY docker/etc /etc", "COPY docker/bin /usr/local/bin"] {
        assert!(stage.lines().any(|found| found == line), "{line}");
    }
    // The scripts are the command: an entrypoint would take them for its arguments.
    assert!(!stage.contains("ENTRYPOINT"));
    assert!(stage.contains("CMD [\"/etc/kafka/docker/run\"]"));
    let health = text.lines().find(|line| line.starts_with("HEALTHCHECK"));
    let (_, command) = health.unwrap().split_once(" CMD ").unwrap();
    let command: Vec<String> = serde_json::from_str(command).unwrap();
    assert_eq!(command[..2], ["fencepost", "health"]);
    // A broker that is not there: the arguments are right, and the answer is "cannot reach".
    let arguments = command.iter().skip(1);
    let output = Command::new(binary().unwrap())
        .args(arguments)
        .env_clear()
        .env("FENCEPOST_ADMIN_LISTEN", "127.0.0.1:1")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}
