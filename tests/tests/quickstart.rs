//! The commands of the README about a consumer that waits, one after the other as they stand there.
//!
//! Needs kcat and curl (`scripts/setup-clients.sh`) and `--features clients`.

#![allow(missing_docs, reason = "a test")]

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tests::gatewayproc::{Gateway, GatewayOptions};
use tests::process::repository;
use tests::wallclock::poll_until;

/// The commands below a heading: what is indented.
fn commands(heading: &str) -> Vec<String> {
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let (_, section) = readme.split_once(&format!("## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let lines = section.lines().filter_map(|line| line.strip_prefix("    "));
    // A line that ends in a backslash goes on in the next one.
    let text = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    text.lines().map(str::to_owned).collect()
}

struct Reader<'a> {
    gateway: &'a Gateway,
    dir: &'a Path,
}

impl Reader<'_> {
    /// The command on the ports of this broker.
    fn here(&self, command: &str) -> String {
        assert!(command.contains("127.0.0.1:9092") || command.contains("127.0.0.1:9644"));
        command
            .replace("127.0.0.1:9092", &self.gateway.address())
            .replace("127.0.0.1:9644", &self.gateway.admin_address())
    }

    /// Types a command, and what it prints.
    fn types(&self, command: &str) -> String {
        let mut bash = Command::new("bash");
        bash.args(["-c", &self.here(command)]).current_dir(self.dir);
        let output = bash.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Asks again and again until the answer is as `wanted`; the last one.
    fn asks_until(&self, command: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut seen = Value::Null;
        let came = poll_until(Duration::from_mins(3), Duration::from_millis(50), || {
            let mut bash = Command::new("bash");
            let output = bash.args(["-c", &self.here(command)]).output().unwrap();
            seen = serde_json::from_slice(&output.stdout).unwrap_or_default();
            wanted(&seen)
        });
        assert!(came, "{seen:#}");
        seen
    }
}

/// A client that is left running, and ends with the test.
struct Client(Child);

impl Drop for Client {
    fn drop(&mut self) {
        // Its pipe, too.
        kill_process_group(Pid::from_child(&self.0), Signal::KILL).ok();
        self.0.wait().ok();
    }
}

#[test]
fn a_person_sees_why_a_consumer_waits_and_helps_it() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&dir.path().join("data"), &GatewayOptions::default()).unwrap();
    let reader = Reader {
        gateway: &gateway,
        dir: dir.path(),
    };
    let commands = commands("See why a consumer waits");
    let [open, behind, read, why, abort, read_again] = commands.as_slice() else {
        panic!("{commands:#?}");
    };
    let open = open.strip_suffix(" &").unwrap();
    let client = Command::new("bash")
        .args(["-c", &format!("exec 2>/dev/null; {}", reader.here(open))])
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let _client = Client(client);
    // A person types slower than a client opens a transaction and sends what it has.
    let seen = reader.asks_until(why, |seen| {
        seen["holder"]["standing"] == "ongoing" && seen["heldBack"].as_i64() > Some(1000)
    });
    assert_eq!(seen["holder"]["transactionalId"], "demo", "{seen:#}");
    reader.types(behind);
    assert_eq!(reader.types(read), "");
    let seen: Value = serde_json::from_str(&reader.types(why)).unwrap();
    assert_eq!(
        seen["remedies"][1]["request"],
        "POST /api/v1/transactions/demo/abort"
    );
    let aborted: Value = serde_json::from_str(&reader.types(abort)).unwrap();
    // Where the disk is slow, the marker comes behind the answer.
    let outcome = aborted["outcome"].as_str();
    assert!(
        matches!(outcome, Some("aborted" | "deciding")),
        "{aborted:#}"
    );
    reader.asks_until(why, |seen| seen["heldBack"] == 0);
    assert_eq!(reader.types(read_again), "behind\n");
}
