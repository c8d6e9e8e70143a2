//! What a broker has promised, and whether it is kept.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use store_adapter::control::EndTxnMarker;
use uuid::Uuid;

use super::compacted::Compacted;
use crate::raw::fetch::Stored;

/// Timestamp of batch 0, ms; that of batch `n` is `n` more, by which a stored one is recognised.
const FIRST_MS: i64 = 1_700_000_000_000;

/// Timestamp of batch `number`, ms.
pub(super) fn timestamp_of(number: usize) -> i64 {
    FIRST_MS + i64::try_from(number).unwrap_or(i64::MAX - FIRST_MS)
}

/// The number of a stored batch.
pub(super) fn number_of(stored: &Stored) -> Result<usize> {
    usize::try_from(stored.timestamp_ms - FIRST_MS).context("a batch that was never sent")
}

/// A batch that was sent, maybe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sent {
    /// CRC-32C that it carries.
    pub(super) crc: u32,
    /// Bytes of it.
    pub(super) len: usize,
}

/// A partition without transactions.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// By number.
    sent: Vec<Sent>,
    /// Numbers by base offset: acknowledged, or shown to a consumer.
    promised: BTreeMap<i64, usize>,
    end: i64,
}

impl Log {
    /// The number of the next batch.
    pub(super) fn next(&self) -> usize {
        self.sent.len()
    }

    pub(super) fn send(&mut self, sent: Sent) {
        self.sent.push(sent);
    }

    pub(super) fn acknowledged(&mut self, number: usize, base: i64) -> Result<()> {
        let before = self.promised.insert(base, number);
        ensure!(
            before.is_none_or(|before| before == number),
            "batches {number} and {before:?} were both acknowledged at {base}"
        );
        Ok(())
    }

    /// A consumer was given `stored`.
    pub(super) fn shown(&mut self, stored: &Stored) -> Result<()> {
        let number = number_of(stored)?;
        let sent = self.sent.get(number).copied();
        let found = Sent {
            crc: stored.crc,
            len: stored.bytes.len(),
        };
        ensure!(
            sent == Some(found),
            "at {}: {found:?}, but batch {number} is {sent:?}",
            stored.base
        );
        self.end = self.end.max(stored.last + 1);
        self.acknowledged(number, stored.base)
    }

    /// Takes the whole log as it was found; it ends at `end`.
    pub(super) fn check(&mut self, found: &[Stored], end: i64) -> Result<()> {
        let mut next = 0;
        let mut numbers = BTreeSet::new();
        for stored in found {
            ensure!(stored.base == next, "a hole from {next} to {}", stored.base);
            next = stored.last + 1;
            self.shown(stored)?;
            let number = number_of(stored)?;
            ensure!(numbers.insert(number), "batch {number} is there twice");
        }
        ensure!(next == end, "the log ends at {end}, its batches at {next}");
        ensure!(
            self.end <= end,
            "it was seen up to {}, ends at {end}",
            self.end
        );
        let bases: BTreeSet<i64> = found.iter().map(|stored| stored.base).collect();
        let lost = self.promised.iter().find(|(base, _)| !bases.contains(base));
        ensure!(lost.is_none(), "acknowledged or shown, and lost: {lost:?}");
        Ok(())
    }
}

/// What is known of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Transaction {
    /// What its producer asked for, or would have.
    commit: bool,
    /// Its batch was acknowledged.
    wrote: bool,
    /// Its end was asked for.
    asked: bool,
    /// Its end was acknowledged, or seen.
    ended: Option<bool>,
}

/// The transactions of one producer, which come one after the other, one batch in each.
#[derive(Debug, Default)]
pub(super) struct Transactions(Vec<Transaction>);

impl Transactions {
    /// Begins one that is to be committed, or aborted; its number.
    pub(super) fn begin(&mut self, commit: bool) -> usize {
        self.0.push(Transaction {
            commit,
            wrote: false,
            asked: false,
            ended: None,
        });
        self.0.len() - 1
    }

    pub(super) fn wrote(&mut self, number: usize) {
        self.0[number].wrote = true;
    }

    pub(super) fn asked(&mut self, number: usize) {
        self.0[number].asked = true;
    }

    pub(super) fn ended(&mut self, number: usize) {
        self.0[number].ended = Some(self.0[number].commit);
    }

    /// Takes the whole log as it was found, every transaction in it ended.
    pub(super) fn check(&mut self, found: &[Stored]) -> Result<()> {
        let mut open = None;
        let mut seen = BTreeMap::new();
        for stored in found {
            if !stored.control {
                ensure!(open.is_none(), "{open:?} has no end before {}", stored.base);
                open = Some(number_of(stored)?);
                continue;
            }
            let marker = EndTxnMarker::read(&stored.bytes).context("no marker")?;
            // An aborted transaction may have left nothing but its marker.
            if let Some(number) = open.take() {
                let before = seen.insert(number, marker.commit);
                ensure!(before.is_none(), "transaction {number} is there twice");
            }
        }
        ensure!(open.is_none(), "{open:?} has no end");
        for (number, txn) in self.0.iter_mut().enumerate() {
            let found = seen.remove(&number);
            ensure!(
                found.is_some() || !(txn.wrote || txn.ended == Some(true)),
                "transaction {number} is lost: {txn:?}"
            );
            ensure!(
                found != Some(true) || (txn.commit && txn.asked),
                "transaction {number} is committed: {txn:?}"
            );
            ensure!(
                found.is_none() || txn.ended.is_none_or(|ended| Some(ended) == found),
                "transaction {number} ended as {found:?}: {txn:?}"
            );
            txn.ended = txn.ended.or(found);
            txn.wrote |= found.is_some();
        }
        ensure!(seen.is_empty(), "never begun: {seen:?}");
        Ok(())
    }
}

/// Everything that was promised on one disk.
#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) logs: [Log; super::SIZES.len()],
    pub(super) transactions: Transactions,
    pub(super) compacted: Compacted,
    /// The committed offset: acknowledged, and highest that was sent.
    pub(super) committed: (i64, i64),
    /// Topics whose creation was acknowledged.
    pub(super) made: BTreeMap<String, Uuid>,
    /// Ids of topics whose deletion was acknowledged.
    pub(super) gone: BTreeSet<String>,
    /// Producer ids that were handed out.
    pub(super) producer_ids: BTreeSet<i64>,
    /// What was wrong while nobody checked.
    pub(super) problem: Option<String>,
}
