//! Kafka's `kafka-transactions`, `fencepost txn` and the HTTP API, asked about the same broker:
//! they say the same of what is open, prepared, hanging, aborted, timed out and forgotten, and each
//! sees what another one ends.

use std::sync::Arc;

use coordinator::machine::txn::{EndTxn, Session};
use coordinator::slot_hash::fnv1a32;
use gateway::Gateway;
use serde_json::{Value, json};
use tests::txn_tools::{Line, kafkas, ours, run_kafkas, run_ours, word};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::kit::{Site, ask};

const LIST: [&str; 4] = [
    "TransactionalId",
    "Coordinator",
    "ProducerId",
    "TransactionState",
];
const DESCRIBE: [&str; 8] = [
    "TransactionalId",
    "CoordinatorId",
    "ProducerId",
    "ProducerEpoch",
    "TransactionState",
    "TransactionTimeoutMs",
    "CurrentTransactionStartTimeMs",
    "TopicPartitions",
];
const PRODUCERS: [&str; 6] = [
    "ProducerId",
    "ProducerEpoch",
    "LatestCoordinatorEpoch",
    "LastSequence",
    "LastTimestamp",
    "CurrentTransactionStartOffset",
];
const HANGING: [&str; 6] = [
    "Topic",
    "Partition",
    "ProducerId",
    "ProducerEpoch",
    "StartOffset",
    "LastTimestamp",
];
const FIND: &str = "find-hanging --broker-id 0 --max-transaction-timeout 0";

type Rows = Vec<Vec<String>>;

/// The named cells of every line, sorted; of partitions, in order. A cell that is not printed is
/// empty.
fn rows(lines: &[Line], names: &[&str]) -> Rows {
    let cell = |line: &Line, name: &str| {
        // Headings of ours are Kafka's in camel case.
        let (first, rest) = name.split_at(1);
        let camel = format!("{}{rest}", first.to_lowercase());
        let found = line.get(name).or_else(|| line.get(&camel));
        let mut words: Vec<&str> = found.map_or("", String::as_str).split(',').collect();
        words.sort_unstable();
        words.join(",")
    };
    let of = |line: &Line| names.iter().map(|name| cell(line, name)).collect();
    let mut rows: Rows = lines.iter().map(of).collect();
    rows.sort();
    rows
}

/// What the three say; they must agree.
struct Three {
    site: Site,
}

impl Three {
    async fn tool(
        &self,
        run: fn(&str, &str) -> anyhow::Result<Vec<Line>>,
        args: &str,
    ) -> Vec<Line> {
        let (address, args) = (self.site.0.addresses().kafka.clone(), args.to_owned());
        let run = move || run(&address, &args).unwrap();
        tokio::task::spawn_blocking(run).await.unwrap()
    }

    async fn agree(&self, args: &str, names: &[&str], http: Vec<Line>) -> Rows {
        let (theirs, own) = tokio::join!(self.tool(kafkas, args), self.tool(ours, args));
        let theirs = rows(&theirs, names);
        assert_eq!(theirs, rows(&own, names), "{args}: Kafka's tool, and ours");
        assert_eq!(theirs, rows(&http, names), "{args}: Kafka's tool, and HTTP");
        theirs
    }

    /// Every id with its state.
    async fn list(&self) -> Vec<(String, String)> {
        let list = self.site.json("/api/v1/transactions?page_size=1000").await;
        let fields = ["transactionalId", "coordinator", "producerId", "state"];
        let http = lines(&list["transactions"], &LIST, &fields);
        let agreed = self.agree("list", &LIST, http).await;
        let state = |row: Vec<String>| (row[0].clone(), row[3].clone());
        agreed.into_iter().map(state).collect()
    }

    /// One id: its cells, in the order of `DESCRIBE`.
    async fn describe(&self, id: &str) -> Vec<String> {
        let one = self.site.json(&format!("/api/v1/transactions/{id}")).await;
        let fields = [
            "transactionalId",
            "coordinator",
            "producerId",
            "producerEpoch",
            "state",
            "timeoutMs",
            "startMs",
        ];
        let mut http = lines(&json!([one]), &DESCRIBE, &fields);
        let topics = one["partitions"].as_array().unwrap().iter();
        let places = topics.flat_map(|topic| {
            let name = topic["topic"].as_str().unwrap();
            let numbers = topic["partitions"].as_array().unwrap().iter();
            numbers.map(move |number| format!("{name}-{number}"))
        });
        // The wire knows groups as the partitions that have their offsets.
        let groups = one["groups"].as_array().unwrap().iter();
        let groups = groups.map(|group| {
            let slot = fnv1a32(group.as_str().unwrap().as_bytes()) % 50;
            format!("__consumer_offsets-{slot}")
        });
        let places: Vec<String> = places.chain(groups).collect();
        http[0].insert("TopicPartitions".to_owned(), places.join(","));
        let args = format!("describe --transactional-id {id}");
        self.agree(&args, &DESCRIBE, http).await.remove(0)
    }

    async fn producers(&self, topic: &str) -> Rows {
        let path = format!("/api/v1/topics/{topic}/partitions/0/producers?page_size=1000");
        let fields = [
            "producerId",
            "producerEpoch",
            "coordinatorEpoch",
            "lastSequence",
            "lastTimestampMs",
            "currentTxnStartOffset",
        ];
        let http = lines(
            &self.site.json(&path).await["producers"],
            &PRODUCERS,
            &fields,
        );
        let args = format!("describe-producers --topic {topic} --partition 0");
        self.agree(&args, &PRODUCERS, http).await
    }

    /// What hangs on the first partition of any of these topics.
    async fn hanging(&self, topics: &[&str]) -> Rows {
        let mut http = Vec::new();
        for topic in topics {
            let path = format!("/api/v1/topics/{topic}/partitions/0/lso");
            let lso = self.site.json(&path).await;
            let open = lso["openTransactions"].as_array().unwrap().iter();
            let mut open: Vec<Value> = open
                .filter(|one| one["standing"] == "hanging")
                .cloned()
                .collect();
            for one in &mut open {
                one["topic"] = json!(topic);
                one["partition"] = json!(0);
            }
            let fields = [
                "topic",
                "partition",
                "producerId",
                "producerEpoch",
                "firstOffset",
                "lastTimestampMs",
            ];
            http.extend(lines(&json!(open), &HANGING, &fields));
        }
        self.agree(FIND, &HANGING, http).await
    }

    async fn post(&self, path: &str, body: &str) -> Value {
        let address = &self.site.0.addresses().admin;
        let answer = ask(address, "POST", path, Some(body)).await;
        assert!(answer.status < 300, "{path}: {answer:?}");
        answer.json()
    }

    async fn end(&self, id: &str, session: Session, commit: bool) {
        let request = end(session, commit);
        let ended = self.site.0.broker().txns().end_txn(id, &request).await;
        ended.unwrap();
    }
}

fn end(session: Session, commit: bool) -> EndTxn {
    EndTxn {
        version: 4,
        session,
        commit,
        client: None,
    }
}

/// Objects of the API as lines with Kafka's headings.
fn lines(list: &Value, names: &[&str], fields: &[&str]) -> Vec<Line> {
    let line = |one: &Value| {
        let cells = names.iter().zip(fields);
        let cells = cells.map(|(name, field)| ((*name).to_owned(), word(&one[*field])));
        cells.collect()
    };
    list.as_array().unwrap().iter().map(line).collect()
}

async fn started() -> Three {
    let builder = Gateway::builder().ephemeral().set("enable.faults", "true");
    // Nobody asks the coordinator about a first batch: so a transaction can hang. What is late is
    // reaped when it is asked for.
    let builder = builder
        .set("transaction.partition.verification.enable", "false")
        .set(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            "2000000000",
        );
    let site = Site(builder.start().await.unwrap()).loaded().await;
    Three { site }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_three_say_the_same() {
    let three = started().await;
    let site = &three.site;
    let topics = ["open", "held", "hang", "aborted", "late"];
    for topic in topics {
        site.create(topic).await;
    }
    site.init("idle").await;
    let open = site.open("open", "open").await;
    let aborted = site.open("aborted", "aborted").await;
    three.end("aborted", aborted, false).await;
    site.open_for("late", "late", 1).await;
    let late = |list: &Value| list["matched"] == 1;
    site.until("/api/v1/transactions?overdue=true", late).await;
    let pass = three.post("/api/v1/reaper/run", "").await;
    assert_eq!(pass["done"], json!(["late"]));
    let hang = site.init("hang").await;
    assert_eq!(site.produce("hang", hang, "hang").await, 0);
    let fault = r#"{"kind":"hold-markers","transactionalId":"held"}"#;
    three.post("/api/v1/faults", fault).await;
    let held = site.open("held", "held").await;
    let txns = site.0.broker().txns().clone();
    let ending = tokio::spawn(async move { txns.end_txn("held", &end(held, true)).await });
    let fired = |faults: &Value| faults["faults"][0]["fired"].as_u64() > Some(0);
    site.until("/api/v1/faults", fired).await;

    let states = [
        ("aborted", "CompleteAbort"),
        ("hang", "Empty"),
        ("held", "PrepareCommit"),
        ("idle", "Empty"),
        ("late", "CompleteAbort"),
        ("open", "Ongoing"),
    ];
    let listed = three.list().await;
    let as_expected: Vec<(&str, &str)> = listed.iter().map(|(a, b)| (&**a, &**b)).collect();
    assert_eq!(as_expected, states);
    for (id, state) in states {
        let cells = three.describe(id).await;
        assert_eq!((&*cells[0], &*cells[4]), (id, state));
        let places = match id {
            "open" => "open-0",
            "held" => "held-0",
            _ => "",
        };
        assert_eq!(cells[7], places, "{id}");
    }
    // Who holds a partition back, and who does not.
    for (topic, start) in [
        ("open", "0"),
        ("held", "0"),
        ("hang", "0"),
        ("late", "None"),
    ] {
        let producers = three.producers(topic).await;
        assert_eq!(producers.len(), 1, "{topic}");
        assert_eq!(producers[0][5], start, "{topic}");
    }
    // Only one hangs: the others are ended by somebody.
    let hanging = three.hanging(&topics).await;
    assert_eq!(hanging.len(), 1, "{hanging:?}");
    assert_eq!((&*hanging[0][0], &*hanging[0][4]), ("hang", "0"));

    ends_are_seen(&three, (open, hang)).await;
    let released = ask(
        &site.0.addresses().admin,
        "DELETE",
        "/api/v1/faults/1",
        None,
    )
    .await;
    assert_eq!(released.status, 204);
    let done = |one: &Value| one["state"] == "CompleteCommit";
    site.until("/api/v1/transactions/held", done).await;
    assert_eq!(three.describe("held").await[4], "CompleteCommit");
    ending.await.unwrap().ok();
    assert!(three.site.0.shutdown().await);
}

/// Each of the three ends something, of which all tell.
async fn ends_are_seen(three: &Three, (open, hang): (Session, Session)) {
    let address = three.site.0.addresses().kafka.clone();
    // Kafka's tool forces one: a session that nobody has begins, two epochs on.
    let force = "forceTerminateTransaction --transactionalId open";
    let forced = move || run_kafkas(&address, force).unwrap();
    let forced = tokio::task::spawn_blocking(forced).await.unwrap();
    assert!(forced.status.success(), "{forced:?}");
    let empty = |one: &Value| one["state"] == "Empty";
    three.site.until("/api/v1/transactions/open", empty).await;
    let cells = three.describe("open").await;
    let expected = [open.pid.0.to_string(), (open.epoch.0 + 2).to_string()];
    assert_eq!((&cells[2..4], &*cells[7]), (&expected[..], ""));
    assert_eq!(three.producers("open").await[0][5], "None");
    let history = three.site.json("/api/v1/transactions/open/history").await;
    let causes = history["transitions"].as_array().unwrap().iter();
    assert!(causes.into_iter().any(|one| one["cause"] == "new-session"));

    // Ours ends what hangs, by the command that HTTP names.
    let lso = "/api/v1/topics/hang/partitions/0/lso";
    let told = three.site.json(lso).await;
    let told = told["remedies"][0]["command"].as_str().unwrap();
    let args = "abort --topic hang --partition 0 --start-offset 0";
    let address = three.site.0.addresses().kafka.clone();
    assert_eq!(told, format!("fencepost txn -b {address} {args}"));
    let ended = move || run_ours(&address, args).unwrap();
    let ended = tokio::task::spawn_blocking(ended).await.unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(three.hanging(&["hang"]).await, Rows::new());
    let producers = three.producers("hang").await;
    assert_eq!(producers[0][0], hang.pid.0.to_string());
    assert_eq!(producers[0][5], "None");
    assert_eq!(three.site.json(lso).await["heldBack"], 0);

    // HTTP ends the next one.
    let next = three.site.open("next", "open").await;
    let path = "/api/v1/transactions/next/abort";
    let done = three.post(path, r#"{"reason":"left open"}"#).await;
    assert_eq!(done["outcome"], "aborted");
    let cells = three.describe("next").await;
    assert_eq!(
        (&*cells[2], &*cells[4]),
        (&*next.pid.0.to_string(), "CompleteAbort")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_three_have_forgotten_the_same() {
    let builder = Gateway::builder().ephemeral();
    let builder = builder.set("transactional.id.expiration.ms", "1").set(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "10",
    );
    let site = Site(builder.start().await.unwrap()).loaded().await;
    let three = Three { site };
    three.site.init("gone").await;
    let none = |list: &Value| list["matched"] == 0;
    three.site.until("/api/v1/transactions", none).await;
    assert_eq!(three.list().await, []);
    let answer = three.site.get("/api/v1/transactions/gone").await;
    assert_eq!(answer.status, 404);
    let history = three.site.json("/api/v1/transactions/gone/history").await;
    let last = history["transitions"].as_array().unwrap().last().unwrap();
    assert_eq!(last["cause"], "expired");
    let args = "describe --transactional-id gone";
    for run in [run_kafkas, run_ours] {
        let address = three.site.0.addresses().kafka.clone();
        let run = move || run(&address, args).unwrap();
        let output = tokio::task::spawn_blocking(run).await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("gone"), "{said}");
    }
    assert!(three.site.0.shutdown().await);
}

/// Key of ListTransactions.
const LIST_TRANSACTIONS: [u8; 2] = [0, 66];

/// Hands requests on; before the first ListTransactions it lets somebody else do something.
async fn between(listener: TcpListener, broker: String, asked: Arc<Notify>, go_on: Arc<Notify>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let server = TcpStream::connect(&broker).await.unwrap();
        let (from, to) = (client.into_split(), server.into_split());
        let (asked, go_on) = (Arc::clone(&asked), Arc::clone(&go_on));
        tokio::spawn(async move {
            let mut back = (to.0, from.1);
            tokio::join!(requests(from.0, to.1, &asked, &go_on), async {
                tokio::io::copy(&mut back.0, &mut back.1).await.ok()
            })
        });
    }
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, asked: &Notify, go_on: &Notify) {
    while let Ok(len) = from.read_u32().await {
        let mut body = vec![0; len.try_into().unwrap()];
        from.read_exact(&mut body).await.unwrap();
        if body.starts_with(&LIST_TRANSACTIONS) {
            asked.notify_one();
            go_on.notified().await;
        }
        to.write_u32(len).await.unwrap();
        to.write_all(&body).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_looks_again_before_it_says_that_something_hangs() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let builder = Gateway::builder().ephemeral();
    let told = format!("PLAINTEXT://{address}");
    let builder = builder.set("advertised.listeners", &told);
    let site = Site(builder.start().await.unwrap()).loaded().await;
    site.create("orders").await;
    let session = site.open("tx", "orders").await;
    let (asked, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let broker = site.0.addresses().kafka.clone();
    let proxy = between(listener, broker, Arc::clone(&asked), Arc::clone(&go_on));
    let proxy = tokio::spawn(proxy);
    let mut find = tokio::task::spawn_blocking(move || ours(&address, FIND).unwrap());
    tokio::select! {
        () = asked.notified() => {}
        found = &mut find => panic!("it did not ask whose it is: {found:?}"),
    }
    // It has seen the open transaction, and now asks whose it is. That one ends.
    let txns = site.0.broker().txns();
    txns.end_txn("tx", &end(session, true)).await.unwrap();
    go_on.notify_one();
    assert_eq!(find.await.unwrap(), Vec::<Line>::new());
    proxy.abort();
    assert!(site.0.shutdown().await);
}
