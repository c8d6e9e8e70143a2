//! Moves the lines of the flights suite through librdkafka's Rust binding.
//!
//! `produce BOOTSTRAP TOPIC` takes lines `partition TAB value` from standard input;
//! `consume BOOTSTRAP TOPIC PARTITIONS COUNT` reads every partition from its start, without a
//! group, until COUNT records have come, and prints `partition TAB offset TAB key TAB value`.

use std::io::{BufRead as _, BufWriter, Write as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use parking_lot::Mutex;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
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
        _ => bail!("usage: produce BOOTSTRAP TOPIC | consume BOOTSTRAP TOPIC PARTITIONS COUNT"),
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
        let message = message?;
        write!(out, "{}\t{}\t", message.partition(), message.offset())?;
        out.write_all(message.key().unwrap_or_default())?;
        out.write_all(b"\t")?;
        out.write_all(message.payload().unwrap_or_default())?;
        out.write_all(b"\n")?;
        left -= 1;
    }
    Ok(out.flush()?)
}
