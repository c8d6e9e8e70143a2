//! A compacted topic under power cuts: the newest record of a key that was acknowledged or shown is
//! there, or a newer one; none is there that was not sent.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use kafka_protocol::messages::ProduceRequest;

use super::book::{Sent, number_of, timestamp_of};
use super::load::{Desk, PRODUCE_VERSION, answer, sent};
use crate::raw::batch::{BatchSpec, HEADER_LEN, Record};
use crate::raw::fetch::Stored;
use crate::raw::{RawClient, ops};

/// The topic, of one partition.
pub(super) const TOPIC: &str = "compacted";
/// Compacted at every look at which there is something to do.
pub(super) const CONFIGS: [(&str, &str); 4] = [
    ("cleanup.policy", "compact"),
    ("min.cleanable.dirty.ratio", "0.01"),
    ("max.compaction.lag.ms", "1"),
    ("segment.ms", "1"),
];
/// Keys that are written in turn.
const KEYS: usize = 4;
/// Batches that are sent at most, while other clients work.
const BATCHES_MAX: usize = 400;
/// Where the count of records lies in a batch.
const COUNT_AT: usize = HEADER_LEN - 4;

/// What was promised of the topic.
#[derive(Debug, Default)]
pub(super) struct Compacted {
    /// By number.
    sent: Vec<Sent>,
    /// Numbers by offset: acknowledged, or shown.
    promised: BTreeMap<i64, usize>,
    /// Offsets of promised records that were found to be gone.
    gone: BTreeSet<i64>,
}

impl Compacted {
    fn promise(&mut self, number: usize, offset: i64) -> Result<()> {
        let before = self.promised.insert(offset, number);
        ensure!(
            before.is_none_or(|before| before == number),
            "batches {number} and {before:?} were both promised at {offset}"
        );
        Ok(())
    }

    /// How many records were promised, and are gone since, as newer ones of their keys are there.
    pub(super) fn gone(&self) -> usize {
        self.gone.len()
    }

    /// Takes the whole log as it was found; it ends at `end`.
    pub(super) fn check(&mut self, found: &[Stored], end: i64) -> Result<()> {
        let (mut next, mut there, mut newest) = (0, BTreeSet::new(), [-1; KEYS]);
        for stored in found {
            ensure!(stored.base >= next, "{} behind {next}", stored.base);
            next = stored.last + 1;
            if stored.bytes[COUNT_AT..HEADER_LEN] == [0; 4] {
                // It only answers for its offsets.
                continue;
            }
            let number = number_of(stored)?;
            let known = self.sent.get(number).copied();
            let is = Sent {
                crc: stored.crc,
                len: stored.bytes.len(),
            };
            ensure!(known == Some(is), "at {next}: {is:?} is not {known:?}");
            self.promise(number, stored.base)?;
            there.insert(stored.base);
            newest[number % KEYS] = stored.base;
        }
        ensure!(next == end, "the log ends at {end}, its batches at {next}");
        for (offset, number) in &self.promised {
            if there.contains(offset) {
                continue;
            }
            ensure!(
                newest[number % KEYS] > *offset,
                "batch {number} was promised at {offset}, and is lost"
            );
            self.gone.insert(*offset);
        }
        Ok(())
    }
}

/// A record of the key whose turn it is.
fn batch(number: usize) -> Bytes {
    let spec = BatchSpec {
        timestamp_ms: timestamp_of(number),
        records: vec![Record {
            key: Some(Bytes::from(format!("key-{}", number % KEYS))),
            value: Some(Bytes::from(vec![b'v'; 2_000])),
        }],
        ..BatchSpec::default()
    };
    spec.build()
}

/// Appends one record after the other. Its promises are not what a cycle waits for.
pub(super) async fn produce(desk: Desk) -> Result<()> {
    let mut client = RawClient::connect(&desk.address).await?;
    for _ in 0..BATCHES_MAX {
        let (number, batch) = {
            let compacted = &mut desk.book.lock().compacted;
            let number = compacted.sent.len();
            let batch = batch(number);
            compacted.sent.push(sent(&batch));
            (number, batch)
        };
        let request = ops::produce_request(TOPIC, 0, batch);
        let response = client
            .call::<ProduceRequest>(&request, PRODUCE_VERSION)
            .await?;
        match answer(&response).context("no answer")? {
            (0, base) => {
                let promised = desk.book.lock().compacted.promise(number, base);
                desk.judge(promised)?;
            }
            (code, _) => bail!("Produce {TOPIC}: {code}"),
        }
    }
    Ok(())
}
