//! What must hold in the end: the whole log against the history, and the dedupe window against a
//! naive model that only replays the log.

use std::collections::{BTreeMap, BTreeSet};

use gateway::api::ApiResponse;
use kafka_protocol::error::ResponseError;

use super::admin;
use super::clients::{Client, ReadBatch, Target, read_batches};
use super::history::{BatchId, Place, RecordId};
use super::net::Connection;
use super::producer::produce_request;
use super::reader::{contiguous, fetch_request};
use super::txns;
use crate::raw::batch::{BatchSpec, Record};

/// Batches of the dedupe window.
const WINDOW: usize = 5;
/// How often a question is repeated that was answered by "try again".
const TRIES: u32 = 200;

/// Why a check could not be made.
pub(crate) type Failure = String;

/// Checks everything against a broker without faults.
pub(crate) async fn check(client: &Client) -> Result<(), Failure> {
    let connection = client.connect().await;
    let (targets, offline) = topics(client, &connection).await?;
    for target in targets
        .iter()
        .filter(|target| !txns::is_topic(&target.name))
    {
        for partition in 0..target.partitions {
            let place = (target.id, partition);
            if offline.contains(&place) {
                continue;
            }
            let log = read_log(client, &connection, place, 0).await?;
            let committed = read_log(client, &connection, place, 1).await?;
            if log.batches.len() != committed.batches.len() {
                client
                    .history
                    .violation("the isolations differ without transactions");
            }
            against_history(client, place, &log);
            if client.history.failed() {
                return Ok(());
            }
            if log.start == 0 && !client.history.compacts() {
                window(client, &connection, target, place, &log.batches).await?;
            }
        }
    }
    let known: BTreeSet<_> = targets.iter().map(|target| target.id).collect();
    for place in client.history.places() {
        if !known.contains(&place.0) && !client.history.may_be_deleted(place.0) {
            let what = format!("{place:?} is gone, and nobody deleted its topic");
            client.history.violation(&what);
        }
    }
    Ok(())
}

/// The topics: whole, and those that must exist. Besides them the partitions that a power cut
/// without syncs damaged.
async fn topics(
    client: &Client,
    connection: &Connection,
) -> Result<(Vec<Target>, BTreeSet<Place>), Failure> {
    let mut offline = BTreeSet::new();
    let listed = client.metadata(connection, None, false).await;
    let listed = listed.ok_or("no answer to Metadata")?;
    let mut targets = Vec::new();
    for topic in &listed {
        admin::seen(client, topic);
        let whole = topic.error_code == 0
            && topic
                .partitions
                .iter()
                .all(|p| p.error_code == 0 && p.leader_id.0 == 0);
        let damaged = topic.partitions.iter().filter(|p| p.error_code == 56);
        offline.extend(damaged.map(|p| (topic.topic_id, p.partition_index)));
        if !whole && client.history.durable() {
            client
                .history
                .violation(&format!("topic {topic:?} is not whole"));
        }
        targets.push(Target {
            id: topic.topic_id,
            name: topic
                .name
                .as_ref()
                .map_or_else(String::new, |n| n.to_string()),
            partitions: i32::try_from(topic.partitions.len()).unwrap_or(0),
        });
    }
    for (id, fate) in client.history.topics() {
        let there = targets.iter().any(|target| target.id == id);
        if there && fate.deleted {
            client.history.violation(&format!("{fate:?} {id} is back"));
        }
        if !there && !fate.delete_sent {
            client.history.violation(&format!("{fate:?} {id} is gone"));
        }
    }
    Ok((targets, offline))
}

/// All of a log, as a reader of some isolation sees it.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) batches: Vec<ReadBatch>,
    /// Where it begins: what was before is gone, by retention.
    pub(crate) start: i64,
    /// Producer ids and first offsets of aborted transactions, each once.
    pub(crate) aborted: Vec<(i64, i64)>,
    pub(crate) high_watermark: i64,
    pub(crate) last_stable: i64,
}

/// Reads a log up to what its isolation shows.
pub(crate) async fn read_log(
    client: &Client,
    connection: &Connection,
    place: Place,
    isolation: i8,
) -> Result<Log, Failure> {
    let mut log = Log::default();
    let mut next = 0;
    let mut tries = 0;
    loop {
        let request = fetch_request(&BTreeMap::from([(place, next)]), 0, -1, isolation, 0);
        let answer = client.ask(connection, request, 13).await;
        let Some(ApiResponse::Fetch(reply)) = answer else {
            return Err(format!("no answer to a read of {place:?}"));
        };
        let partition = reply
            .topics
            .first()
            .and_then(|topic| topic.partitions.first());
        let partition = partition.ok_or("an empty answer to Fetch")?;
        match ResponseError::try_from_code(partition.error_code) {
            None => {}
            Some(ResponseError::OffsetOutOfRange) if next == 0 && client.history.trims() => {
                let start = client.earliest(connection, place).await;
                log.start = start
                    .filter(|start| *start > 0)
                    .ok_or("a log without a start")?;
                next = log.start;
                continue;
            }
            Some(error) if error.is_retriable() && tries < TRIES => {
                tries += 1;
                client.pause(10, 20).await;
                continue;
            }
            Some(error) => return Err(format!("a read of {place:?} from {next}: {error:?}")),
        }
        let batches = read_batches(&partition.records)?;
        let behind = contiguous(next, &batches, client.history.compacts());
        next = behind.map_err(|why| format!("{place:?}: {why}"))?;
        log.batches.extend(batches);
        log.aborted
            .extend(partition.aborted_transactions.iter().flatten());
        log.high_watermark = partition.high_watermark;
        log.last_stable = partition.last_stable_offset;
        let end = match isolation {
            0 => partition.high_watermark,
            _ => partition.last_stable_offset,
        };
        if next >= end {
            log.aborted.sort_unstable();
            log.aborted.dedup();
            return Ok(log);
        }
    }
}

/// Offsets, promises, order.
fn against_history(client: &Client, place: Place, log: &Log) {
    let history = &client.history;
    let mut at: BTreeMap<RecordId, i64> = BTreeMap::new();
    let mut newest: BTreeMap<u8, i64> = BTreeMap::new();
    let mut last: BTreeMap<u32, i32> = BTreeMap::new();
    let mut end = log.start;
    for batch in &log.batches {
        end = batch.header.last_offset() + 1;
        for (offset, record) in batch.placed() {
            history.seen(place, offset, record);
            newest.insert(record.key(), offset);
            if let Some(before) = at.insert(record, offset) {
                history.violation(&format!("{record:?} is at {before} and at {offset}"));
            }
            let before = last.insert(record.session, record.sequence);
            if before.is_some_and(|before| before >= record.sequence) {
                history.violation(&format!("{record:?} at {offset} lies behind {before:?}"));
            }
            if history.producer_id(record.session) != Some(batch.header.producer_id.0) {
                history.violation(&format!("{record:?} at {offset} has another producer id"));
            }
        }
    }
    for (batch, ack) in history.acknowledged() {
        if batch.first.place != place {
            continue;
        }
        let records = batch.records().zip(ack.offset..);
        for (record, offset) in records.filter(|(_, offset)| *offset >= log.start) {
            let found = at.get(&record).copied();
            let newer = newest
                .get(&record.key())
                .is_some_and(|newest| *newest > offset);
            if found.is_none() && newer && history.compacts() {
                continue;
            }
            if found != Some(offset) {
                history.violation(&format!(
                    "{record:?} was acknowledged at {offset} by {} and is at {found:?}",
                    ack.server
                ));
                return;
            }
        }
    }
    let (seen, shown) = history.known(place);
    let gone = seen.range(end..).next();
    if gone.is_some() || shown > end {
        history.violation(&format!(
            "{place:?} ends at {end}; {gone:?} was seen, and an end of {shown} was shown"
        ));
    }
    for batch in history.refusals() {
        let justified = last
            .get(&batch.first.session)
            .is_some_and(|sequence| *sequence > batch.first.sequence);
        // What justifies it may be gone with the beginning of the log.
        let whole = log.start == 0 && !history.compacts();
        if batch.first.place == place && history.durable() && whole && !justified {
            history.violation(&format!(
                "{batch:?} was next and was refused as out of order"
            ));
        }
    }
}

/// What a naive reader of the log expects of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Duplicate(i64),
    Appended(i64),
    OutOfOrder,
}

/// Producer states by nothing but a replay.
#[derive(Default)]
struct Model {
    end: i64,
    producers: BTreeMap<i64, Vec<(i32, i32, i64)>>,
}

impl Model {
    fn replay(log: &[ReadBatch]) -> Self {
        let mut model = Self::default();
        for batch in log {
            let header = &batch.header;
            let first = header.base_sequence.0;
            model.append(header.producer_id.0, first, header.records_count);
        }
        model
    }

    fn append(&mut self, producer_id: i64, first: i32, count: i32) {
        let batches = self.producers.entry(producer_id).or_default();
        batches.push((first, first + count - 1, self.end));
        self.end += i64::from(count);
    }

    fn expect(&self, producer_id: i64, first: i32, count: i32) -> Expected {
        let Some(batches) = self.producers.get(&producer_id) else {
            return Expected::Appended(self.end);
        };
        let window = batches.iter().rev().take(WINDOW);
        let mut same = window.filter(|(f, l, _)| *f == first && *l == first + count - 1);
        if let Some((_, _, offset)) = same.next() {
            return Expected::Duplicate(*offset);
        }
        match batches.last() {
            Some((_, last, _)) if *last + 1 == first => Expected::Appended(self.end),
            _ => Expected::OutOfOrder,
        }
    }
}

/// Sends what every producer of the log sent last, something older, and what comes next.
async fn window(
    client: &Client,
    connection: &Connection,
    target: &Target,
    place: Place,
    log: &[ReadBatch],
) -> Result<(), Failure> {
    let mut model = Model::replay(log);
    let mut sessions: BTreeMap<u32, Vec<BatchId>> = BTreeMap::new();
    for batch in log {
        if let Some(first) = batch.records.first() {
            let id = BatchId {
                first: *first,
                count: batch.header.records_count,
            };
            sessions.entry(first.session).or_default().push(id);
        }
    }
    for (batch, _) in client.history.forgotten() {
        if batch.first.place == place {
            sessions.entry(batch.first.session).or_default().push(batch);
        }
    }
    for (session, mut batches) in sessions {
        batches.sort_unstable();
        batches.dedup();
        let behind = batches.len().saturating_sub(WINDOW + 3);
        let mut probes = batches.split_off(behind);
        let Some(last) = probes.last().copied() else {
            continue;
        };
        let next = last.first.sequence + last.count;
        for (sequence, count) in [(next + 7, 1), (next, 2), (next, 2), (next + 2, 1)] {
            let first = RecordId {
                session,
                place,
                sequence,
            };
            probes.push(BatchId { first, count });
        }
        for batch in probes {
            probe(client, connection, target, &mut model, batch).await?;
        }
    }
    Ok(())
}

async fn probe(
    client: &Client,
    connection: &Connection,
    target: &Target,
    model: &mut Model,
    batch: BatchId,
) -> Result<(), Failure> {
    let producer_id = client.history.producer_id(batch.first.session);
    let producer_id = producer_id.ok_or("a session that nobody began")?;
    let spec = BatchSpec {
        producer_id,
        producer_epoch: 0,
        base_sequence: batch.first.sequence,
        timestamp_ms: client.env.clock.wall_ms(),
        records: batch
            .records()
            .map(|r| Record::value(r.payload(0)))
            .collect(),
        ..BatchSpec::default()
    };
    let request = produce_request(target, true, batch.first.place.1, &spec.build());
    let answer = client.ask(connection, request, 13).await;
    let Some(ApiResponse::Produce(answer)) = answer else {
        return Err("no answer to Produce".to_owned());
    };
    let partition = answer
        .responses
        .first()
        .and_then(|topic| topic.partition_responses.first());
    let partition = partition.ok_or("an empty answer to Produce")?;
    let expected = model.expect(producer_id, batch.first.sequence, batch.count);
    let (code, offset) = (partition.error_code, partition.base_offset);
    let right = match expected {
        Expected::Duplicate(at) | Expected::Appended(at) => code == 0 && offset == at,
        Expected::OutOfOrder => {
            ResponseError::try_from_code(code) == Some(ResponseError::OutOfOrderSequenceNumber)
        }
    };
    if !right {
        client.history.violation(&format!(
            "{batch:?} of {producer_id} was answered with {code} at {offset}; the log says \
             {expected:?}"
        ));
    }
    if let Expected::Appended(_) = expected {
        model.append(producer_id, batch.first.sequence, batch.count);
    }
    Ok(())
}
