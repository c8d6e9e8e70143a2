//! `fencepost topic`, `consume` and `produce`, run as a user runs them, and compared with Kafka's
//! own tools. They are clients of any Kafka broker: all of this holds against Apache Kafka too.

mod consume;
mod produce;
mod topic;

use std::io::Write;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tests::gatewayproc::binary;
use tests::process::free_port;
use tests::raw::RawClient;
use tests::raw::batch::{BatchSpec, Record};

use crate::kit::{Target, now_ms};

/// What a command said.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    fn new(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The output of a command that did what it was asked to.
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self.out
    }

    /// What a command that ended with `code` complained of.
    fn failed(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        assert!(!self.err.is_empty(), "no reason");
        self.err
    }

    fn rows(self) -> Vec<Value> {
        serde_json::from_str(&self.ok()).unwrap()
    }
}

/// `fencepost VERB ARGS...` of a broker, patient with a slow machine unless the arguments say
/// otherwise.
fn command(target: &Target, verb: &str, args: &[&str]) -> Command {
    let mut command = Command::new(binary().unwrap());
    command.args([verb, "--bootstrap-server", target.address()]);
    command.args(args);
    if !args.contains(&"--timeout") {
        command.args(["--timeout", "60000"]);
    }
    command
}

/// Runs a command on `input` to its end.
async fn run(mut command: Command, input: impl Into<Vec<u8>>) -> Said {
    let input = input.into();
    let run = move || {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A command that fails does not read all of it.
        let feed = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().unwrap();
        feed.join().unwrap();
        Said::new(output)
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

async fn fencepost(target: &Target, verb: &str, args: &[&str]) -> Said {
    run(command(target, verb, args), "").await
}

/// A command with pipes that is left running.
fn start(target: &Target, verb: &str, args: &[&str]) -> Child {
    let mut command = command(target, verb, args);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    piped.stderr(Stdio::piped()).spawn().unwrap()
}

async fn ended(child: Child) -> Said {
    let wait = move || Said::new(child.wait_with_output().unwrap());
    tokio::task::spawn_blocking(wait).await.unwrap()
}

/// Interrupts a command, as Ctrl-C does.
fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

/// Writes a batch of records with these values.
async fn write(client: &mut RawClient, topic: &str, partition: i32, values: &[&str]) {
    let spec = BatchSpec {
        timestamp_ms: now_ms(),
        records: values
            .iter()
            .map(|value| Record::value((*value).to_owned()))
            .collect(),
        ..BatchSpec::default()
    };
    let answer = tests::raw::ops::produce(client, topic, partition, spec.build()).await;
    assert_eq!(answer.unwrap().error_code, 0);
}

#[tokio::test]
async fn a_broker_that_is_not_there_or_silent_has_a_code_of_its_own() {
    let nobody = free_port().unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = format!("127.0.0.1:{}", nobody.number());
    let silent_at = silent.local_addr().unwrap().to_string();
    for verb in [
        &["topic", "list"][..],
        &["consume", "t", "-e"],
        &["produce", "t"],
    ] {
        for (address, timeout, code) in [(&gone, "60000", 3), (&silent_at, "300", 4)] {
            let mut command = Command::new(binary().unwrap());
            command
                .args(verb)
                .args(["-b", address, "--timeout", timeout]);
            let complaint = run(command, "x\n").await.failed(code);
            assert!(complaint.contains(address.as_str()), "{complaint}");
        }
    }
}

#[tokio::test]
async fn wrong_arguments_are_named_with_what_is_allowed() {
    let target = Target::shared();
    for (args, says) in [
        (&["topic", "create"][..], "<TOPICS>"),
        (&["topic", "create", "t", "-p", "0"], "1.."),
        (&["topic", "create", "t", "-c", "x"], "KEY=VALUE"),
        (&["topic", "alter", "t"], "--partitions"),
        (
            &["topic", "delete-records", "t", "--before", "-2"],
            "or end",
        ),
        (
            &["topic", "delete-records", "t", "--before", "1"],
            "--all-partitions",
        ),
        (&["topic", "list", "--format", "xml"], "jsonl"),
        (&["consume", "t", "-o", "stored"], "s@MS"),
        (&["consume", "t", "-f", "%z"], "%k key"),
        (&["consume", "t", "-D", "\\q"], "\\xNN"),
        (&["consume", "t", "-o", "1", "-o", "2"], "e@MS"),
        (&["consume", "t", "--isolation", "x"], "read_committed"),
        (&["produce", "t", "-K", ""], "one byte"),
        (&["produce", "t", "--txn-timeout", "5"], "--txn"),
        (&["produce", "t", "-l", "/no/such/file"], "/no/such/file"),
    ] {
        let [verb, rest @ ..] = args else { panic!() };
        let complaint = fencepost(&target, verb, rest).await.failed(2);
        assert!(complaint.contains(says), "{args:?}: {complaint}");
    }
}
