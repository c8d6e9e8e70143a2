//! Clients that write down what they were promised, until the broker is gone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use bytes::Bytes;
use kafka_protocol::messages::{
    AddPartitionsToTxnResponse, EndTxnRequest, ProduceRequest, ProduceResponse,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::book::{Book, Sent, timestamp_of};
use super::{DATA, DECIDED, GROUP, SIZES, TRANSACTIONAL_ID};
use crate::raw::batch::{BatchSpec, CRC_AT, CRC_FROM, Record};
use crate::raw::txn::{self, Dialect};
use crate::raw::{RawClient, fetch, group, ops};

/// Batches of one partition that are sent at most, by its index: some megabytes together.
const BATCHES_MAX: [usize; SIZES.len()] = [150, 60, 10, 3];
/// Batches of one partition that wait for an answer at once.
const WINDOW: usize = 3;
/// Transactions and commits of offsets at most.
const OTHERS_MAX: usize = 25;
/// Version of Produce without transactions.
pub(super) const PRODUCE_VERSION: i16 = 9;
/// How often a request is tried again at most.
const TRIES: u32 = 1000;
/// Answers that ask for a retry.
const PASSES: [i16; 5] = [14, 15, 16, 19, 51];
/// Between a request that is asked to come again and the same.
const PACE: Duration = Duration::from_millis(5);

/// What the clients share.
#[derive(Debug, Clone)]
pub(super) struct Desk {
    pub(super) address: String,
    pub(super) book: Arc<Mutex<Book>>,
    /// Counts acknowledgements.
    pub(super) acks: watch::Sender<u64>,
}

impl Desk {
    fn promised(&self) {
        self.acks.send_modify(|acks| *acks += 1);
    }

    /// Runs a client until its connection ends; a promise that contradicts another is kept for
    /// whoever checks.
    pub(super) fn judge(&self, outcome: Result<()>) -> Result<()> {
        if let Err(error) = &outcome {
            let mut book = self.book.lock();
            book.problem.get_or_insert_with(|| format!("{error:#}"));
        }
        outcome
    }
}

/// Batch `number` of a partition, of about `size` bytes and one to three records.
pub(super) fn batch(seed: u64, partition: usize, number: usize, size: usize) -> Bytes {
    let mut random = fastrand::Rng::with_seed(seed ^ (partition * 1_000_003 + number) as u64);
    let records = 1 + number % 3;
    let value = || {
        let mut value = vec![0; (size / records).saturating_sub(64)];
        random.fill(&mut value);
        Record::value(value)
    };
    let spec = BatchSpec {
        timestamp_ms: timestamp_of(number),
        records: std::iter::repeat_with(value).take(records).collect(),
        ..BatchSpec::default()
    };
    spec.build()
}

/// What a batch is recognised by.
pub(super) fn sent(batch: &Bytes) -> Sent {
    let mut crc = [0; 4];
    crc.copy_from_slice(&batch[CRC_AT..CRC_FROM]);
    Sent {
        crc: u32::from_be_bytes(crc),
        len: batch.len(),
    }
}

/// Code and base offset.
pub(super) fn answer(response: &ProduceResponse) -> Option<(i16, i64)> {
    let partition = response.responses.first()?.partition_responses.first()?;
    Some((partition.error_code, partition.base_offset))
}

fn added(response: &AddPartitionsToTxnResponse) -> Option<i16> {
    let topic = response.results_by_topic_v3_and_below.first()?;
    Some(topic.results_by_partition.first()?.partition_error_code)
}

/// Appends to one partition, several batches at a time.
pub(super) async fn produce(desk: Desk, seed: u64, partition: usize) -> Result<()> {
    let mut client = RawClient::connect(&desk.address).await?;
    let mut waiting = VecDeque::new();
    let mut left = BATCHES_MAX[partition];
    loop {
        while left > 0 && waiting.len() < WINDOW {
            left -= 1;
            let number = desk.book.lock().logs[partition].next();
            let batch = batch(seed, partition, number, SIZES[partition]);
            desk.book.lock().logs[partition].send(sent(&batch));
            let index = i32::try_from(partition)?;
            let request = ops::produce_request(DATA, index, batch);
            waiting.push_back(number);
            client.send(&request, PRODUCE_VERSION).await?;
        }
        let Some(number) = waiting.pop_front() else {
            return Ok(());
        };
        let (_, response) = client.receive::<ProduceRequest>(PRODUCE_VERSION).await?;
        let Some((0, base)) = answer(&response) else {
            continue;
        };
        let promised = desk.book.lock().logs[partition].acknowledged(number, base);
        desk.judge(promised)?;
        desk.promised();
    }
}

/// Follows all partitions from `ends` on.
pub(super) async fn consume(desk: Desk, mut ends: Vec<(i32, i64)>) -> Result<()> {
    let mut client = RawClient::connect(&desk.address).await?;
    loop {
        for answer in fetch::fetch(&mut client, DATA, &ends, 200, 1 << 20).await? {
            if answer.error_code != 0 {
                continue;
            }
            for stored in fetch::batches(&answer.records)? {
                let index = usize::try_from(answer.partition)?;
                let shown = desk.book.lock().logs[index].shown(&stored);
                desk.judge(shown)?;
                ends[index].1 = stored.last + 1;
            }
        }
    }
}

/// Ends one transaction after the other.
pub(super) async fn transact(desk: Desk, session: txn::Session, dialect: Dialect) -> Result<()> {
    let mut client = RawClient::connect(&desk.address).await?;
    let (pid, mut epoch) = session;
    let mut pace = tokio::time::interval(PACE);
    let mut sequence = 0;
    for round in 0..OTHERS_MAX {
        let number = desk.book.lock().transactions.begin(round % 3 != 2);
        if dialect == Dialect::V1 {
            let add = txn::add_request(TRANSACTIONAL_ID, (pid, epoch), DECIDED, 0);
            let mut tries = 0;
            loop {
                match added(&client.call(&add, txn::ADD_VERSION).await?) {
                    Some(0) => break,
                    Some(code) if PASSES.contains(&code) && tries < TRIES => tries += 1,
                    other => bail!("AddPartitionsToTxn: {other:?}"),
                }
                pace.tick().await;
            }
        }
        let spec = BatchSpec {
            producer_id: pid,
            producer_epoch: epoch,
            base_sequence: sequence,
            attributes: txn::TRANSACTIONAL,
            timestamp_ms: timestamp_of(number),
            records: vec![Record::value(vec![b't'; 100])],
        };
        let request = txn::produce_request(TRANSACTIONAL_ID, DECIDED, 0, spec.build());
        let mut tries = 0;
        loop {
            let response = client.call(&request, dialect.produce_version()).await?;
            match answer(&response) {
                Some((0, _)) => break,
                // The same batch again: it is stored once.
                Some((code, _)) if PASSES.contains(&code) && tries < TRIES => tries += 1,
                other => bail!("a transactional Produce: {other:?}"),
            }
            pace.tick().await;
        }
        desk.book.lock().transactions.wrote(number);
        desk.promised();
        let commit = round % 3 != 2;
        desk.book.lock().transactions.asked(number);
        let end = txn::end_request(TRANSACTIONAL_ID, (pid, epoch), commit);
        let mut tries = 0;
        let ended = loop {
            let answer = client
                .call::<EndTxnRequest>(&end, dialect.end_version())
                .await?;
            match answer.error_code {
                0 => break answer,
                code if PASSES.contains(&code) && tries < TRIES => tries += 1,
                code => bail!("EndTxn: {code}"),
            }
            pace.tick().await;
        };
        desk.book.lock().transactions.ended(number);
        desk.promised();
        match dialect {
            Dialect::V1 => sequence += 1,
            Dialect::V2 => epoch = ended.producer_epoch,
        }
    }
    Ok(())
}

/// Commits higher and higher offsets.
pub(super) async fn commit(desk: Desk) -> Result<()> {
    let mut client = RawClient::connect(&desk.address).await?;
    for _ in 0..OTHERS_MAX {
        let offset = {
            let mut book = desk.book.lock();
            book.committed.1 += 1;
            book.committed.1
        };
        group::commit(&mut client, GROUP, ("", -1), DATA, &[(0, offset)]).await?;
        desk.book.lock().committed.0 = offset;
        desk.promised();
    }
    Ok(())
}

/// Creates topics and deletes them, and asks for producer ids.
pub(super) async fn administer(desk: Desk, round: u32) -> Result<()> {
    let mut client = RawClient::connect(&desk.address).await?;
    for number in 0..3 {
        let name = format!("made-{round}-{number}");
        let made = ops::create_topic(&mut client, &name, 1, &[]).await?;
        let id = made.topics.first().map(|topic| topic.topic_id);
        desk.book
            .lock()
            .made
            .insert(name.clone(), id.unwrap_or_default());
        desk.promised();
        let (id, _) = ops::init_producer_id(&mut client).await?;
        let fresh = desk.book.lock().producer_ids.insert(id);
        desk.judge(if fresh {
            Ok(())
        } else {
            Err(anyhow!("producer id {id} was used before"))
        })?;
        if number != 1 {
            continue;
        }
        // Whether it went is not known until the answer.
        desk.book.lock().made.remove(&name);
        ops::delete_topic(&mut client, &name).await?;
        desk.book.lock().gone.insert(name);
        desk.promised();
    }
    Ok(())
}
