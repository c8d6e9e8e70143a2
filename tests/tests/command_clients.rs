//! `fencepost produce` and `consume`, kcat, and Kafka's console tools on one topic: what one writes
//! every other reads alike.
//!
//! Needs kcat (`scripts/setup-clients.sh`) and `--features clients`.

#![allow(missing_docs, reason = "a test")]

use std::io::Write;
use std::process::{Command, Stdio};

use tests::flights::child::java;
use tests::gatewayproc::{Gateway, GatewayOptions, binary};
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::txn::{self, Dialect};
use tests::raw::{RawClient, ops};

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

/// Key, value and headers of a record; none is null.
type Parts = (
    Option<&'static str>,
    Option<&'static str>,
    &'static [(&'static str, Option<&'static str>)],
);

const OF_EVERY_KIND: [Parts; 5] = [
    (Some("k1"), Some("v1"), &[("a", Some("b"))]),
    (None, Some("v2"), &[]),
    (Some("k3"), None, &[("a", Some("b")), ("n", None)]),
    (Some("k4"), Some(""), &[("n", None), ("n", Some("again"))]),
    (None, Some("\u{fc}\u{20ac}"), &[("e", Some(""))]),
];

/// A header as a flag of ours and of kcat, and as all tools print it but for the colon of Java's.
fn shown((name, value): &(&str, Option<&str>), null: &str) -> String {
    match value {
        Some(value) => format!("{name}={value}"),
        None => format!("{name}{null}"),
    }
}

impl Tool {
    /// Writes `records` to partition 0, in their order.
    fn write_all(self, address: &str, topic: &str, records: &[Parts]) {
        if self == Self::Java {
            let lines = records.iter().map(|(key, value, headers)| {
                let headers = headers.iter().map(|header| shown(header, "=NULL"));
                let headers = headers.collect::<Vec<_>>().join(",").replace('=', ":");
                let parts = [(!headers.is_empty()).then_some(&*headers), *key, *value];
                parts.map(|part| part.unwrap_or("NULL")).join("\t") + "\n"
            });
            let mut command = java("org.apache.kafka.tools.ConsoleProducer").unwrap();
            command.args(["--bootstrap-server", address, "--topic", topic]);
            for property in ["parse.key=true", "parse.headers=true", "null.marker=NULL"] {
                command.args(["--reader-property", property]);
            }
            run(command, &lines.collect::<String>());
            return;
        }
        // Theirs are flags of all that a command writes.
        for (key, value, headers) in records {
            let mut args = vec!["-p".to_owned(), "0".to_owned()];
            for header in *headers {
                args.extend(["-H".to_owned(), shown(header, "")]);
            }
            let mut line = format!("{}\n", value.unwrap_or_default());
            if let Some(key) = key {
                args.extend(["-K".to_owned(), ":".to_owned()]);
                line = format!("{key}:{line}");
            }
            if value.is_none() {
                args.push("-Z".to_owned());
            }
            let command = if self == Self::Ours {
                let mut command = ours("produce", address, &[topic, "-q"]);
                command.args(args);
                command
            } else {
                let mut command = Command::new("kcat");
                command.args(["-P", "-b", address, "-t", topic]).args(args);
                command
            };
            run(command, &line);
        }
    }

    /// Offset, headers, key and value of every record of partition 0.
    fn read_all(self, address: &str, topic: &str, count: usize) -> Vec<String> {
        if self == Self::Java {
            let mut command = java("org.apache.kafka.tools.consumer.ConsoleConsumer").unwrap();
            command.args(["--bootstrap-server", address, "--topic", topic]);
            command.args(["--from-beginning", "--isolation-level", "read_committed"]);
            command.args(["--max-messages", &count.to_string()]);
            command.args(["--timeout-ms", "60000"]);
            for part in ["key", "offset", "headers"] {
                command.args(["--formatter-property", &format!("print.{part}=true")]);
            }
            command.args(["--formatter-property", "null.literal=NULL"]);
            let printed = run(command, "").replace("Offset:", "");
            let printed = printed.replace("NO_HEADERS", "").replace(':', "=");
            return printed.lines().map(str::to_owned).collect();
        }
        let format = "%o\\t%h\\t%K %k\\t%S %s\\n";
        let command = if self == Self::Ours {
            ours("consume", address, &[topic, "-e", "-f", format])
        } else {
            let mut command = Command::new("kcat");
            command.args(["-C", "-b", address, "-t", topic, "-p", "0", "-e", "-q"]);
            command.args(["-o", "beginning", "-f", format]);
            command
        };
        let part = |counted: &str| match counted.split_once(' ').unwrap() {
            ("-1", _) => "NULL".to_owned(),
            (_, part) => part.to_owned(),
        };
        let line = |line: &str| {
            let cells: Vec<&str> = line.split('\t').collect();
            [cells[0], cells[1], &part(cells[2]), &part(cells[3])].join("\t")
        };
        run(command, "").lines().map(line).collect()
    }
}

/// A transaction with one record that is aborted.
async fn abort_one(address: &str, topic: &str) {
    let mut client = RawClient::connect(address).await.unwrap();
    let ids = ["aborts".to_owned()];
    txn::await_coordinator(&mut client, &ids[0]).await.unwrap();
    let session = txn::begin_all(&mut client, &ids, 600_000).await.unwrap()[0];
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    let batch = BatchSpec {
        producer_id: session.0,
        producer_epoch: session.1,
        base_sequence: 0,
        attributes: txn::TRANSACTIONAL,
        timestamp_ms: i64::try_from(now.as_millis()).unwrap(),
        records: vec![Record::value("never seen")],
    };
    let batch = batch.build();
    let mut pace = tokio::time::interval(std::time::Duration::from_millis(50));
    // A coordinator whose disk is slow asks to come again.
    loop {
        let request = txn::produce_request(&ids[0], topic, 0, batch.clone());
        let version = Dialect::V2.produce_version();
        let answer = client.call(&request, version).await.unwrap();
        match answer.responses[0].partition_responses[0].error_code {
            0 => break,
            19 | txn::CONCURRENT => {}
            code => ops::check(code, "Produce").unwrap(),
        }
        pace.tick().await;
    }
    loop {
        let request = txn::end_request(&ids[0], session, false);
        let answer = client.call(&request, Dialect::V2.end_version()).await;
        match answer.unwrap().error_code {
            0 => break,
            14..=16 | txn::CONCURRENT => {}
            code => ops::check(code, "EndTxn").unwrap(),
        }
        pace.tick().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_nulls_and_transactions_are_the_same_to_every_tool() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = broker(dir.path());
    let address = gateway.address();
    let topic = "every-kind";
    run(ours("topic", &address, &["create", topic, "-p", "1"]), "");
    let mut expected = Vec::new();
    let mut expect = |offset: usize, (key, value, headers): &Parts| {
        let headers = headers.iter().map(|header| shown(header, "=NULL"));
        let headers = headers.collect::<Vec<_>>().join(",");
        let parts = [Some(&*headers), *key, *value];
        let parts = parts.map(|part| part.unwrap_or("NULL")).join("\t");
        expected.push(format!("{offset}\t{parts}"));
    };
    let mut next = 0;
    for writer in TOOLS {
        writer.write_all(&address, topic, &OF_EVERY_KIND);
        for record in &OF_EVERY_KIND {
            expect(next, record);
            next += 1;
        }
    }
    // Each transaction ends with a marker.
    let id = ["-X", "transactional.id=kcat-every-kind"];
    let mut kcat = Command::new("kcat");
    kcat.args(["-P", "-b", &address, "-t", topic, "-p", "0"])
        .args(id);
    run(kcat, "of kcat\n");
    expect(next, &(None, Some("of kcat"), &[]));
    abort_one(&address, topic).await;
    let txn = [topic, "-q", "--txn", "ours-every-kind"];
    run(ours("produce", &address, &txn), "of ours\n");
    expect(next + 4, &(None, Some("of ours"), &[]));
    let last: [Parts; 1] = [(Some("last"), Some("of all"), &[])];
    Tool::Kcat.write_all(&address, topic, &last);
    expect(next + 6, &last[0]);
    for reader in TOOLS {
        let read = reader.read_all(&address, topic, expected.len());
        assert_eq!(read, expected, "{reader:?}");
    }
}
