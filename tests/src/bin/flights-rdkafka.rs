//! Moves the lines of the flights suite through librdkafka's Rust binding.
//!
//! `produce BOOTSTRAP TOPIC` takes lines `partition TAB value` from standard input;
//! `consume BOOTSTRAP TOPIC PARTITIONS COUNT` reads every partition from its start, without a
//! group, until COUNT records have come, and prints `partition TAB offset TAB key TAB value`;
//! `group BOOTSTRAP TOPIC GROUP STRATEGY [INSTANCE]` is a member of a group until standard input
//! ends, in the words of `tests/clients/README.md`; with INSTANCE a static one. The STRATEGY
//! `consumer` is the protocol by which the group coordinator assigns.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufWriter, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use parking_lot::Mutex;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientConfig, ClientContext, Message as _, Offset, TopicPartitionList};

const DELIVERY: Duration = Duration::from_mins(3);
const POLL: Duration = Duration::from_millis(100);
const CALLBACK_EVERY: usize = 2_000;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["produce", bootstrap, topic] => produce(bootstrap, topic),
        ["consume", bootstrap, topic, partitions, count] => {
            let partitions = partitions.parse().context("PARTITIONS")?;
            consume(
                bootstrap,
                topic,
                partitions,
                count.parse().context("COUNT")?,
            )
        }
        ["group", bootstrap, topic, group, strategy] => {
            member(bootstrap, topic, group, strategy, None)
        }
        ["group", bootstrap, topic, group, strategy, instance] => {
            member(bootstrap, topic, group, strategy, Some(instance))
        }
        _ => bail!(
            "usage: produce BOOTSTRAP TOPIC | consume BOOTSTRAP TOPIC PARTITIONS COUNT | group \
             BOOTSTRAP TOPIC GROUP STRATEGY [INSTANCE]"
        ),
    }
}

/// Settings that outlive a broker that is away for a moment.
fn patient(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("reconnect.backoff.ms", "10")
        .set("reconnect.backoff.max.ms", "100")
        .set("retry.backoff.ms", "20");
    config
}

/// Keeps the first failure.
#[derive(Clone, Default)]
struct Failure(Arc<Mutex<Option<String>>>);

impl Failure {
    fn note(&self, text: impl FnOnce() -> String) {
        self.0.lock().get_or_insert_with(text);
    }

    fn check(&self) -> anyhow::Result<()> {
        self.0.lock().take().map_or(Ok(()), |text| bail!(text))
    }
}

impl ClientContext for Failure {
    fn error(&self, error: KafkaError, reason: &str) {
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
            self.note(|| format!("{error}: {reason}"));
        }
    }
}

impl ProducerContext for Failure {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, message)) = result {
            self.note(|| format!("partition {}: {error}", message.partition()));
        }
    }
}

fn produce(bootstrap: &str, topic: &str) -> anyhow::Result<()> {
    let failure = Failure::default();
    let producer: BaseProducer<Failure> = patient(bootstrap)
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("message.timeout.ms", DELIVERY.as_millis().to_string())
        .set("compression.type", "lz4")
        .set("linger.ms", "2")
        .create_with_context(failure.clone())?;
    for (number, line) in std::io::stdin().lock().split(b'\n').enumerate() {
        let line = line.context("standard input")?;
        let tab = line
            .iter()
            .position(|byte| *byte == b'\t')
            .context("a line without a tab")?;
        let partition: i32 = std::str::from_utf8(&line[..tab])?
            .parse()
            .context("partition")?;
        let value = line.get(tab + 1..).unwrap_or_default();
        let mut record = BaseRecord::<(), [u8]>::to(topic)
            .partition(partition)
            .payload(value);
        while let Err((error, back)) = producer.send(record) {
            let full = error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull);
            ensure!(full, "partition {partition}: {error}");
            producer.poll(POLL);
            record = back;
        }
        if number.is_multiple_of(CALLBACK_EVERY) {
            producer.poll(Duration::ZERO);
            failure.check()?;
        }
    }
    producer.flush(DELIVERY)?;
    failure.check()
}

fn consume(bootstrap: &str, topic: &str, partitions: i32, count: u64) -> anyhow::Result<()> {
    // The client demands a group id; nothing joins or commits.
    let consumer: BaseConsumer = patient(bootstrap)
        .set("group.id", "unused")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "error")
        .set("isolation.level", "read_committed")
        .create()?;
    let mut assignment = TopicPartitionList::new();
    for partition in 0..partitions {
        assignment.add_partition_offset(topic, partition, Offset::Beginning)?;
    }
    consumer.assign(&assignment)?;
    let mut out = BufWriter::with_capacity(1 << 20, std::io::stdout().lock());
    let mut left = count;
    while left > 0 {
        let Some(message) = consumer.poll(POLL) else {
            continue;
        };
        let message = match message {
            Err(error) if is_away(&error) => {
                complain(&error);
                continue;
            }
            message => message?,
        };
        write!(out, "{}\t{}\t", message.partition(), message.offset())?;
        out.write_all(message.key().unwrap_or_default())?;
        out.write_all(b"\t")?;
        out.write_all(message.payload().unwrap_or_default())?;
        out.write_all(b"\n")?;
        left -= 1;
    }
    Ok(out.flush()?)
}

/// Whether it only says that the broker can't be reached: the client tries again by itself.
fn is_away(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{AllBrokersDown, BrokerTransportFailure, OperationTimedOut};
    let away = [AllBrokersDown, BrokerTransportFailure, OperationTimedOut];
    error
        .rdkafka_error_code()
        .is_some_and(|code| away.contains(&code))
}

/// Records between two commits, at most.
const BATCH: usize = 200;
/// How long a batch may take to fill.
const BATCH_PATIENCE: Duration = Duration::from_millis(20);

/// Says what the member was given, before it asks where to begin.
#[derive(Clone)]
struct Assigned;

impl ClientContext for Assigned {}

impl ConsumerContext for Assigned {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(list) = rebalance {
            let partitions: Vec<String> = list
                .elements()
                .iter()
                .map(|element| element.partition().to_string())
                .collect();
            say(&format!(
                "assigned\t{}\t{}\n",
                now_ms(),
                partitions.join(",")
            ));
        }
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "members of several processes are compared by the time of day"
)]
fn now_ms() -> u128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis())
}

/// Writes whole lines at once, so that a kill leaves no half of one behind the next.
fn say(lines: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(lines.as_bytes())
        .and_then(|()| out.flush())
        .expect("standard output");
}

fn member(
    bootstrap: &str,
    topic: &str,
    group: &str,
    strategy: &str,
    instance: Option<&str>,
) -> anyhow::Result<()> {
    let mut config = patient(bootstrap);
    config
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest");
    if strategy == "consumer" {
        config.set("group.protocol", "consumer");
    } else {
        config
            .set("partition.assignment.strategy", strategy)
            .set("session.timeout.ms", "6000")
            .set("heartbeat.interval.ms", "200");
    }
    if let Some(instance) = instance {
        config.set("group.instance.id", instance);
    }
    let consumer: BaseConsumer<Assigned> = config.create_with_context(Assigned)?;
    consumer.subscribe(&[topic])?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    std::thread::spawn(move || {
        std::io::stdin().lock().read_to_end(&mut Vec::new()).ok();
        stopped.store(true, Ordering::Release);
    });
    while !stop.load(Ordering::Acquire) {
        let (lines, ends) = batch(&consumer)?;
        if ends.is_empty() {
            continue;
        }
        say(&lines);
        let each = |word: &str| {
            let lines = ends.iter().map(|(p, end)| format!("{word}\t{p}\t{end}\n"));
            lines.collect::<String>()
        };
        say(&each("commit"));
        let mut list = TopicPartitionList::new();
        for (partition, end) in &ends {
            list.add_partition_offset(topic, *partition, Offset::Offset(*end))?;
        }
        match consumer.commit(&list, CommitMode::Sync) {
            Ok(()) => say(&each(&format!("committed\t{}", now_ms()))),
            // Another member has the partitions now, or the broker is away: who reads on from
            // the last commit reads these again.
            Err(error) => complain(&error),
        }
    }
    Ok(())
}

/// What came within the patience, as lines, and the next offset of each partition.
fn batch(consumer: &BaseConsumer<Assigned>) -> anyhow::Result<(String, BTreeMap<i32, i64>)> {
    let (mut lines, mut ends) = (String::new(), BTreeMap::new());
    for _ in 0..BATCH {
        let message = match consumer.poll(BATCH_PATIENCE) {
            None => break,
            Some(Ok(message)) => message,
            Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => return Err(error.into()),
            Some(Err(error)) => {
                complain(&error);
                continue;
            }
        };
        let (partition, offset) = (message.partition(), message.offset());
        let value = std::str::from_utf8(message.payload().unwrap_or_default())?;
        writeln!(lines, "record\t{partition}\t{offset}\t{value}")?;
        ends.insert(partition, offset + 1);
    }
    Ok((lines, ends))
}

#[allow(clippy::print_stderr, reason = "a command's own output")]
fn complain(error: &KafkaError) {
    eprintln!("{error}");
}
