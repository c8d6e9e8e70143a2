//! Kafka's own TransactionalMessageCopier, as Kafka's system tests use it, copies a topic exactly
//! once while it and the broker are killed with -9: what a reader of committed records finds is
//! what was there, each once. The suite `pipes` has the other clients.
//!
//! Needs kcat and the jars of Apache Kafka (`scripts/setup-clients.sh`), and `--features clients`;
//! what is missing fails. `TXN_CLIENTS_SEED` repeats the kills of the run that printed it.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tests::flights::child::java;
use tests::gatewayproc::{Gateway, GatewayOptions};
use tests::process::Process;
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::{RawClient, group, ops};
use tests::wallclock::poll_until;
use tokio::runtime::Runtime;

/// Records to copy.
const COUNT: usize = 1_500;
/// Kills of the client, and of the broker.
const KILLS: usize = 6;
/// How long a client may take for anything that can be seen. One whose predecessor was killed waits
/// for the end of that one's session.
const PATIENCE: Duration = Duration::from_mins(6);
const PACE: Duration = Duration::from_millis(20);

fn copier(broker: &str) -> Command {
    let mut command = java("org.apache.kafka.tools.TransactionalMessageCopier").unwrap();
    command.args(["--broker-list", broker, "--enable-random-aborts"]);
    command.args(["--input-topic", "in", "--input-partition", "0"]);
    command.args(["--output-topic", "out", "--consumer-group", "copiers"]);
    command.args(["--transactional-id", "copier", "--transaction-size", "50"]);
    command
}

struct Run {
    gateway: Gateway,
    runtime: Runtime,
    dir: tempfile::TempDir,
    dice: fastrand::Rng,
    starts: usize,
}

impl Run {
    fn start(transaction_version: u8, seed: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = GatewayOptions {
            overrides: vec![format!("transaction.version={transaction_version}")],
            ..GatewayOptions::default()
        };
        let gateway = Gateway::start(&dir.path().join("data"), &options).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let run = Self {
            gateway,
            runtime,
            dir,
            dice: fastrand::Rng::with_seed(seed),
            starts: 0,
        };
        run.runtime.block_on(async {
            let mut client = RawClient::connect(&run.gateway.address()).await.unwrap();
            for topic in ["in", "out"] {
                ops::create_topic(&mut client, topic, 1, &[]).await.unwrap();
            }
            let spec = BatchSpec {
                records: (0..COUNT)
                    .map(|i| Record::value(format!("{i:05}")))
                    .collect(),
                ..BatchSpec::default()
            };
            let answer = ops::produce(&mut client, "in", 0, spec.build()).await;
            assert_eq!(answer.unwrap().error_code, 0);
        });
        run
    }

    /// Lines that the clients have printed so far.
    fn said(&self) -> usize {
        let text = std::fs::read_to_string(self.dir.path().join("said")).unwrap_or_default();
        text.lines().count()
    }

    fn client(&mut self) -> Process {
        let open = |name: &str| {
            let path = self.dir.path().join(name);
            File::options()
                .create(true)
                .append(true)
                .open(path)
                .unwrap()
        };
        let mut command = copier(&self.gateway.address());
        command.stdin(Stdio::null());
        command.stdout(open("said")).stderr(open("client.log"));
        self.starts += 1;
        assert!(self.starts < 40, "the copier does not come to an end");
        Process::new(command.spawn().expect("run scripts/setup-clients.sh"))
    }

    /// Copies everything; the client is started again whenever it ends before.
    fn copy(&mut self) {
        let mut client = self.client();
        let mut kills = 0;
        loop {
            let next = self.said() + self.dice.usize(1..4);
            let mut ended = false;
            let moved = poll_until(PATIENCE, PACE, || {
                ended = !client.is_running().unwrap();
                ended || (kills < KILLS && self.said() >= next)
            });
            assert!(moved, "the copier neither moves nor ends");
            if ended {
                let status = client.child().wait().unwrap();
                if status.success() {
                    assert!(kills > 0, "the copier was never killed");
                    return;
                }
                // A client may give up when its broker goes away; nothing is lost with it.
                assert!(kills > 0, "the copier: {status}");
                client = self.client();
                continue;
            }
            kills += 1;
            if kills % 2 == 0 {
                self.gateway.process().kill().unwrap();
                self.gateway.restart().unwrap();
            } else {
                client.kill().unwrap();
                client = self.client();
            }
        }
    }

    /// What a reader of committed records finds.
    fn copied(&self) -> Vec<String> {
        let output = Command::new("kcat")
            .args(["-b", &self.gateway.address(), "-C", "-t", "out", "-e", "-q"])
            .args(["-X", "isolation.level=read_committed"])
            .output()
            .expect("run scripts/setup-clients.sh");
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn committed(&self) -> Vec<i64> {
        self.runtime.block_on(async {
            let mut client = RawClient::connect(&self.gateway.address()).await.unwrap();
            group::committed(&mut client, "copiers", "in", 1)
                .await
                .unwrap()
        })
    }
}

fn log_of(dir: &Path) -> String {
    let log = std::fs::read_to_string(dir.join("client.log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

fn exactly_once(transaction_version: u8) {
    let seed = std::env::var("TXN_CLIENTS_SEED");
    let seed = seed.map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("transaction.version {transaction_version}: TXN_CLIENTS_SEED={seed}");
    let mut run = Run::start(transaction_version, seed);
    run.copy();
    let expected: Vec<String> = (0..COUNT).map(|i| format!("{i:05}")).collect();
    let log = log_of(run.dir.path());
    assert!(run.copied() == expected, "not what was there; {log}");
    assert_eq!(run.committed(), [i64::try_from(COUNT).unwrap()]);
    let log = run.gateway.log().unwrap();
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn in_the_second_dialect() {
    exactly_once(2);
}

#[test]
fn in_the_first_dialect() {
    exactly_once(1);
}
