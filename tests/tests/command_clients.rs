//! `fencepost produce` and `consume`, kcat, and Kafka's console tools on one topic: what one writes
//! every other reads alike.
//!
//! Needs kcat (`scripts/setup-clients.sh`) and `--features clients`.

#![allow(missing_docs, reason = "a test")]

use std::io::Write;
use std::process::{Command, Stdio};

use tests::flights::child::java;
use tests::gatewayproc::{Gateway, GatewayOptions, binary};

/// Partitions of every topic: keys are spread over them by the writer.
const PARTITIONS: &str = "3";
const RECORDS: usize = 500;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    Ours,
    Kcat,
    Java,
}

const TOOLS: [Tool; 3] = [Tool::Ours, Tool::Kcat, Tool::Java];

fn run(mut command: Command, input: &str) -> String {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.stderr(Stdio::inherit()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let feed = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    feed.join().unwrap().unwrap();
    assert!(output.status.success(), "{command:?}: {}", output.status);
    // What is no text is compared all the same.
    let text = String::from_utf8(output.stdout);
    text.unwrap_or_else(|error| error.into_bytes().escape_ascii().to_string())
}

fn ours(verb: &str, address: &str, args: &[&str]) -> Command {
    let mut command = Command::new(binary().unwrap());
    command.args([verb, "-b", address]).args(args);
    command.args(["--timeout", "60000"]);
    command
}

impl Tool {
    fn writer(self, address: &str, topic: &str) -> Command {
        match self {
            Self::Ours => ours("produce", address, &[topic, "-K", "\\t", "-q"]),
            Self::Kcat => {
                let mut command = Command::new("kcat");
                command.args(["-P", "-b", address, "-t", topic, "-K", "\t"]);
                command
            }
            Self::Java => {
                let mut command = java("org.apache.kafka.tools.ConsoleProducer").unwrap();
                command.args(["--bootstrap-server", address, "--topic", topic]);
                command.args(["--reader-property", "parse.key=true"]);
                command.args(["--reader-property", "key.separator=\t"]);
                command
            }
        }
    }

    /// A reader that prints partition, offset, key and value of every record.
    fn reader(self, address: &str, topic: &str) -> Command {
        match self {
            Self::Ours => {
                let format = "%p\\t%o\\t%k\\t%s\\n";
                ours("consume", address, &[topic, "-e", "-f", format])
            }
            Self::Kcat => {
                let mut command = Command::new("kcat");
                command.args([
                    "-C",
                    "-b",
                    address,
                    "-t",
                    topic,
                    "-o",
                    "beginning",
                    "-e",
                    "-q",
                ]);
                command.args(["-f", "%p\t%o\t%k\t%s\n"]);
                command
            }
            Self::Java => {
                let mut command = java("org.apache.kafka.tools.consumer.ConsoleConsumer").unwrap();
                command.args(["--bootstrap-server", address, "--topic", topic]);
                command.args(["--from-beginning", "--isolation-level", "read_committed"]);
                command.args([
                    "--max-messages",
                    &RECORDS.to_string(),
                    "--timeout-ms",
                    "60000",
                ]);
                for part in ["key", "partition", "offset"] {
                    command.args(["--formatter-property", &format!("print.{part}=true")]);
                }
                command
            }
        }
    }

    /// Partition, offset, key and value of every record, in order.
    fn read(self, address: &str, topic: &str) -> Vec<String> {
        let printed = run(self.reader(address, topic), "");
        let mut lines: Vec<String> = printed
            .lines()
            .map(|line| line.replace("Partition:", "").replace("Offset:", ""))
            .collect();
        lines.sort();
        lines
    }
}

fn broker(dir: &std::path::Path) -> Gateway {
    Gateway::start(&dir.join("data"), &GatewayOptions::default()).unwrap()
}

#[test]
fn what_one_tool_writes_every_other_reads_alike() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = broker(dir.path());
    let address = gateway.address();
    let input: Vec<String> = (0..RECORDS)
        .map(|n| format!("key {}\tvalue {n}: ü€\n", n % 50))
        .collect();
    let input = input.concat();
    for writer in TOOLS {
        let topic = format!("of-{writer:?}");
        run(
            ours("topic", &address, &["create", &topic, "-p", PARTITIONS]),
            "",
        );
        run(writer.writer(&address, &topic), &input);
        let read = Tool::Ours.read(&address, &topic);
        assert_eq!(read.len(), RECORDS, "{writer:?}");
        for reader in [Tool::Kcat, Tool::Java] {
            assert_eq!(
                reader.read(&address, &topic),
                read,
                "{writer:?} to {reader:?}"
            );
        }
        // Within a key, in the order of the input.
        let mut values: Vec<Vec<usize>> = vec![Vec::new(); 50];
        let mut lines: Vec<Vec<&str>> = read.iter().map(|l| l.split('\t').collect()).collect();
        lines.sort_by_key(|cells| cells[1].parse::<i64>().unwrap());
        for cells in lines {
            let key: usize = cells[2].strip_prefix("key ").unwrap().parse().unwrap();
            let value = cells[3].strip_prefix("value ").unwrap();
            let value = value.strip_suffix(": ü€").unwrap();
            values[key].push(value.parse().unwrap());
        }
        for (key, values) in values.iter().enumerate() {
            let expected: Vec<usize> = (0..RECORDS / 50).map(|n| key + 50 * n).collect();
            assert_eq!(*values, expected, "{writer:?}: key {key}");
        }
    }
    // Java's producer and ours agree where a key belongs.
    let places = |topic: &str| {
        let format = ["-e", "-f", "%k %p\\n"];
        let printed = run(
            ours("consume", &address, &[&[topic], &format[..]].concat()),
            "",
        );
        let mut places: Vec<String> = printed.lines().map(str::to_owned).collect();
        places.sort();
        places.dedup();
        places
    };
    assert_eq!(places("of-Ours"), places("of-Java"));
}

#[test]
fn formats_and_transactions_agree_with_kcat() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = broker(dir.path());
    let address = gateway.address();
    let kcat = |args: &[&str], input: &str| {
        let mut command = Command::new("kcat");
        command
            .args(["-b", &address, "-t", "both", "-p", "0"])
            .args(args);
        run(command, input)
    };
    let written = ["-P", "-K", ":", "-H", "a=b", "-H", "n", "-Z"];
    kcat(&written, "k:v\nno key\n:empty key\nek:\n");
    let args = [
        "both", "-p", "0", "-K", ":", "-H", "a=b", "-H", "n", "-Z", "-q",
    ];
    run(
        ours("produce", &address, &args),
        "k:v\nno key\n:empty key\nek:\n",
    );
    let id = ["-X", "transactional.id=kcat-both"];
    kcat(&[&["-P"], &id[..]].concat(), "in a transaction\n");
    run(
        ours("produce", &address, &["both", "--txn", "ours-both", "-q"]),
        "and in ours\n",
    );
    for format in [
        "%t[%p]@%o %T %k(%K) %s(%S) %h\\n",
        "%R|%s\\n",
        "\\x41%s%%\\t\\n",
    ] {
        let theirs = kcat(&["-C", "-e", "-q", "-f", format], "");
        let args = ["both", "-p", "0", "-e", "-f", format];
        assert_eq!(
            run(ours("consume", &address, &args), ""),
            theirs,
            "{format}"
        );
    }
    for args in [
        &["-K", "|", "-Z"][..],
        &["-D", ";"],
        &["-o", "-3"],
        &["-c", "2"],
        &["-o", "4"],
    ] {
        let theirs = kcat(&[&["-C", "-e", "-q"], args].concat(), "");
        let ours_args = [&["both", "-p", "0", "-e"], args].concat();
        assert_eq!(
            run(ours("consume", &address, &ours_args), ""),
            theirs,
            "{args:?}"
        );
    }
    let json = |text: String| -> Vec<serde_json::Value> {
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let theirs = json(kcat(&["-C", "-e", "-q", "-J"], ""));
    assert_eq!(theirs.len(), 10);
    let ours_json = run(
        ours("consume", &address, &["both", "-p", "0", "-e", "-J"]),
        "",
    );
    assert_eq!(json(ours_json), theirs);
}
