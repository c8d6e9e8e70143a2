//! All producers of one partition: durable part, queued tail, open transactions.
//!
//! - INV-P1: durable state changes only by a batch that is durable ([`ProducerStates::replay`],
//!   [`ProducerStates::commit_through`]); dropping the tail leaves exactly the durable state.
//! - INV-P2: a batch is classified against the state that the tail will have made, so the five of
//!   a window are the last five of durable and queued batches together.
//!
//! The caller holds the partition's lock around every call. Producers are not limited in number
//! (Kafka does not either): expiry is the bound. The tail is bounded by who admits batches.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use store_adapter::fault::{Fault, planted};
use store_adapter::ids::{ProducerEpoch, ProducerId};

use super::entry::{ProducerEntry, Refusal, TxnChange};
use super::refused::Refused;
use super::txn_index::{AbortedTxn, TxnIndex};
use super::{BatchMeta, Duplicate, MarkerInfo, MarkerVerdict, Verdict};

/// A batch of the log by which a snapshot proves that it belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchProof {
    /// Its first offset.
    pub base_offset: i64,
    /// Its CRC-32C.
    pub crc: u32,
}

/// Durable state as plain values: what snapshots hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// Producers, in order of their ids.
    pub entries: BTreeMap<ProducerId, ProducerEntry>,
    /// Aborted transactions, in order of their markers.
    pub aborted: Vec<AbortedTxn>,
    /// Offset behind the last batch that the state covers.
    pub log_end_offset: i64,
    /// The last batch that the state covers; `None` for an empty log.
    pub last_batch: Option<BatchProof>,
}

/// A producer with queued batches: its state once they are durable.
#[derive(Debug)]
struct Queued {
    entry: ProducerEntry,
    batches: usize,
}

/// Producer state of one partition.
#[derive(Debug)]
pub struct ProducerStates {
    expiration_ms: i64,
    durable: BTreeMap<ProducerId, ProducerEntry>,
    txns: TxnIndex,
    log_start_offset: i64,
    log_end_offset: i64,
    last_batch: Option<BatchProof>,
    tail: VecDeque<BatchMeta>,
    queued: BTreeMap<ProducerId, Queued>,
    refused: Refused,
}

impl ProducerStates {
    /// The state of an empty log. A producer without an append for `expiration_ms`
    /// (`producer.id.expiration.ms`) counts as unknown.
    pub fn new(expiration_ms: i64) -> Self {
        Self::restore(Image::default(), expiration_ms)
    }

    /// The state of an image; [`Self::replay`] of what the log holds behind it completes it.
    pub fn restore(image: Image, expiration_ms: i64) -> Self {
        let open = image
            .entries
            .iter()
            .filter_map(|(id, entry)| Some((entry.current_txn_first_offset?, *id)));
        Self {
            expiration_ms,
            txns: TxnIndex::new(open, image.aborted),
            durable: image.entries,
            log_start_offset: 0,
            log_end_offset: image.log_end_offset,
            last_batch: image.last_batch,
            tail: VecDeque::new(),
            queued: BTreeMap::new(),
            refused: Refused::default(),
        }
    }

    /// Takes over what `before`, an earlier state of the same log, refused.
    pub fn remember_refusals(&mut self, before: &mut Self) {
        self.refused = std::mem::take(&mut before.refused);
    }

    /// The durable state. Queued batches are not in it.
    pub fn image(&self) -> Image {
        Image {
            entries: self.durable.clone(),
            aborted: self.txns.all_aborted().to_vec(),
            log_end_offset: self.log_end_offset,
            last_batch: self.last_batch,
        }
    }

    /// Offset behind the last durable batch that was applied: where replay goes on.
    pub fn log_end_offset(&self) -> i64 {
        self.log_end_offset
    }

    /// Queued batches.
    pub fn tail_len(&self) -> usize {
        self.tail.len()
    }

    /// Durable producers, in order of their ids. Expired ones count until [`Self::expire`].
    pub fn producers(&self) -> impl Iterator<Item = (ProducerId, &ProducerEntry)> {
        self.durable.iter().map(|(id, entry)| (*id, entry))
    }

    /// What is durable of one producer. An expired one counts until [`Self::expire`].
    pub fn producer(&self, id: ProducerId) -> Option<&ProducerEntry> {
        self.durable.get(&id)
    }

    /// Open transactions of the durable log: first offset and producer, in order of offsets.
    pub fn open_txns(&self) -> impl Iterator<Item = (i64, ProducerId)> + '_ {
        self.txns.open()
    }

    /// Judges a data batch of a client against durable state and queued tail. Its offsets are not
    /// looked at; its `append_ms` decides whether the producer has expired.
    pub fn classify(&self, batch: &BatchMeta) -> Verdict {
        let id = batch.producer_id;
        if batch.is_control || id.0 < -1 {
            return Verdict::InvalidRecord;
        }
        if id.0 == -1 {
            return if batch.is_transactional {
                Verdict::InvalidRecord
            } else {
                Verdict::Accept
            };
        }
        if batch.producer_epoch.0 < 0 || batch.first_seq.0 < 0 {
            return Verdict::InvalidRecord;
        }
        let Some(entry) = self.projected(id, batch.append_ms) else {
            let tv2_start = batch.is_transactional && batch.implicit_add;
            let not_first = tv2_start && batch.first_seq.0 != 0;
            return if not_first || self.refused.forbids(batch, self.expiration_ms) {
                Verdict::OutOfOrder
            } else {
                Verdict::Accept
            };
        };
        if let Some(found) = entry.duplicate(batch) {
            let duplicate = Duplicate {
                base_offset: found.base_offset,
                last_offset: found.last_offset(),
                timestamp: found.timestamp,
            };
            let durable = self
                .durable
                .get(&id)
                .and_then(|entry| entry.duplicate(batch))
                .is_some_and(|durable| durable.base_offset == found.base_offset);
            return if durable || planted(Fault::DuplicateEarly) {
                Verdict::DuplicateDurable(duplicate)
            } else {
                Verdict::DuplicateQueued(duplicate)
            };
        }
        match entry.follow(batch) {
            Ok(()) => Verdict::Accept,
            Err(Refusal::StaleEpoch) => Verdict::StaleEpoch,
            Err(Refusal::OutOfOrder) => Verdict::OutOfOrder,
            Err(Refusal::InvalidTxnState) => Verdict::InvalidTxnState,
        }
    }

    /// Whether a transactional batch goes on in a transaction that its session has open here, by a
    /// durable or a queued batch.
    pub fn is_in_txn(&self, batch: &BatchMeta) -> bool {
        let entry = self.projected(batch.producer_id, batch.append_ms);
        entry.is_some_and(|entry| {
            entry.current_txn_first_offset.is_some() && entry.epoch == batch.producer_epoch
        })
    }

    /// Whether the coordinator has to be asked before a transactional batch may be taken: it is in
    /// no open transaction, is no repetition, and is not refused whatever the answer is
    /// (kafka-contract 1.5).
    pub fn wants_verification(&self, batch: &BatchMeta) -> bool {
        if !batch.is_transactional || self.is_in_txn(batch) {
            return false;
        }
        match self.classify(batch) {
            Verdict::Accept | Verdict::OutOfOrder | Verdict::InvalidTxnState => true,
            Verdict::DuplicateDurable(_)
            | Verdict::DuplicateQueued(_)
            | Verdict::StaleEpoch
            | Verdict::InvalidRecord => false,
        }
    }

    /// Whether the transaction of this number, to which the coordinator counts a batch, is ended
    /// here, by a durable or a queued marker: it is not to be opened again.
    pub fn has_ended(&self, batch: &BatchMeta, txn_seq: u64) -> bool {
        let entry = self.projected(batch.producer_id, batch.append_ms);
        let last = entry.and_then(|entry| entry.last_marker);
        last.is_some_and(|last| last.covers(batch.producer_epoch, txn_seq))
    }

    /// Judges a marker against durable state and queued tail: number, epoch, coordinator epoch, as
    /// `ProducerAppendInfo` of Kafka orders the latter two. The coordinator epoch is that of one
    /// without a number only: whoever numbers decides once, in a file that has one owner, and what
    /// an administrator put in must not stop it.
    pub fn judge_marker(
        &self,
        id: ProducerId,
        epoch: ProducerEpoch,
        marker: &MarkerInfo,
        now_ms: i64,
    ) -> MarkerVerdict {
        let Some(entry) = self.projected(id, now_ms) else {
            return MarkerVerdict::Append;
        };
        if entry.has_ended(epoch, marker) && !planted(Fault::MarkerRepeated) {
            let durable = self.durable.get(&id);
            return if durable.is_some_and(|entry| entry.has_ended(epoch, marker)) {
                MarkerVerdict::Durable
            } else {
                MarkerVerdict::Queued
            };
        }
        if epoch < entry.epoch {
            MarkerVerdict::StaleEpoch
        } else if marker.txn_seq.is_none() && marker.coordinator_epoch < entry.coordinator_epoch {
            MarkerVerdict::CoordinatorFenced
        } else {
            MarkerVerdict::Append
        }
    }

    /// Puts a batch that was accepted, or a marker, behind the tail. Offsets are assigned, each
    /// above the ones before. Batches without a producer id are queued too: a snapshot names the
    /// last batch of the log whoever wrote it.
    pub fn queue(&mut self, batch: BatchMeta) {
        if planted(Fault::WindowBeforeCommit) {
            self.apply(&batch);
        } else if has_state(&batch) {
            let id = batch.producer_id;
            let durable = self.durable.get(&id);
            let queued = self.queued.entry(id).or_insert_with(|| Queued {
                entry: durable
                    .cloned()
                    .unwrap_or_else(|| ProducerEntry::new(&batch)),
                batches: 0,
            });
            renew_if_expired(&mut queued.entry, &batch, self.expiration_ms);
            queued.entry.apply(&batch);
            queued.batches += 1;
        }
        self.tail.push_back(batch);
    }

    /// The log is durable through `last_offset`: queued batches up to there become durable state.
    pub fn commit_through(&mut self, last_offset: i64) {
        while let Some(batch) = self
            .tail
            .pop_front_if(|batch| batch.last_offset <= last_offset)
        {
            self.cover(&batch);
            if !planted(Fault::WindowBeforeCommit) {
                self.apply(&batch);
            }
            if has_state(&batch) {
                self.release(batch.producer_id);
            }
        }
    }

    /// A commit failed or is uncertain: nothing that was queued counts. What the log turns out to
    /// hold behind [`Self::log_end_offset`] is replayed before the next batch is classified.
    pub fn drop_tail(&mut self) {
        self.queued.clear();
        for batch in std::mem::take(&mut self.tail) {
            self.refuse(&batch);
        }
    }

    /// A data batch of a client was refused with an answer that makes it come again. Until it
    /// does, no later one of a producer without state is taken in its place.
    pub fn refuse(&mut self, batch: &BatchMeta) {
        let data = has_state(batch) && !batch.is_control && batch.first_seq.0 >= 0;
        if data && self.projected(batch.producer_id, batch.append_ms).is_none() {
            self.refused.note(batch, self.expiration_ms);
        }
    }

    /// Takes a durable batch of the log. Never refuses. Batches come in order of offsets; one that
    /// is covered already changes nothing. The tail must be empty.
    pub fn replay(&mut self, batch: &BatchMeta) {
        if batch.last_offset >= self.log_end_offset {
            self.cover(batch);
            self.apply(batch);
        }
    }

    /// Drops producers that have expired by `now_ms`, except those with queued batches. Frees
    /// memory only: an expired producer counts as unknown whether it was dropped or not.
    pub fn expire(&mut self, now_ms: i64) {
        let (queued, limit_ms) = (&self.queued, self.expiration_ms);
        self.refused.expire(now_ms, limit_ms);
        self.durable
            .retain(|id, entry| queued.contains_key(id) || !entry.is_expired(now_ms, limit_ms));
    }

    /// The log now starts at `log_start_offset`; also to be said after [`Self::restore`].
    /// Producers stay (KIP-360); aborted transactions below it go.
    pub fn trim(&mut self, log_start_offset: i64) {
        self.log_start_offset = self.log_start_offset.max(log_start_offset);
        self.log_end_offset = self.log_end_offset.max(log_start_offset);
        self.txns.trim(self.log_start_offset);
    }

    /// The last durable batch.
    pub fn last_batch(&self) -> Option<BatchProof> {
        self.last_batch
    }

    /// Every aborted transaction, in order of their markers.
    pub fn all_aborted(&self) -> &[AbortedTxn] {
        self.txns.all_aborted()
    }

    /// Forgets aborted transactions of which no record is left, by the offsets of their markers;
    /// how many it were. A reader that knew of one would hide what its producer wrote later, once
    /// the marker is gone too.
    pub fn forget_aborted(&mut self, markers: &BTreeSet<i64>) -> usize {
        self.txns.forget(markers)
    }

    /// The last stable offset: the first offset of the earliest open transaction, or the high
    /// watermark; never below the log's start. `high_watermark` is the durable end that the last
    /// [`Self::commit_through`] or [`Self::replay`] reached, so a transaction that a queued marker
    /// will end is still open here and one that a queued batch will open lies behind it.
    pub fn last_stable_offset(&self, high_watermark: i64) -> i64 {
        let first_open = self.txns.first_open().unwrap_or(high_watermark);
        first_open.max(self.log_start_offset).min(high_watermark)
    }

    /// The aborted transactions that a read_committed reader of `from..upto` must know, in order
    /// of first offsets.
    pub fn aborted(&self, from: i64, upto: i64) -> Vec<AbortedTxn> {
        self.txns.aborted(from, upto)
    }

    /// The entry that `id` will have when the tail is durable, unless it has expired.
    fn projected(&self, id: ProducerId, now_ms: i64) -> Option<&ProducerEntry> {
        let queued = self.queued.get(&id).map(|queued| &queued.entry);
        queued
            .or_else(|| self.durable.get(&id))
            .filter(|entry| !entry.is_expired(now_ms, self.expiration_ms))
    }

    /// One batch of `id` has left the tail.
    fn release(&mut self, id: ProducerId) {
        if let Some(queued) = self.queued.get_mut(&id) {
            queued.batches = queued.batches.saturating_sub(1);
            if queued.batches == 0 {
                self.queued.remove(&id);
            }
        }
    }

    /// The durable log now ends behind `batch`.
    fn cover(&mut self, batch: &BatchMeta) {
        self.log_end_offset = batch.last_offset.saturating_add(1);
        self.last_batch = Some(BatchProof {
            base_offset: batch.base_offset,
            crc: batch.crc,
        });
    }

    fn apply(&mut self, batch: &BatchMeta) {
        if !has_state(batch) {
            return;
        }
        let id = batch.producer_id;
        self.refused.known(id);
        let entry = self
            .durable
            .entry(id)
            .or_insert_with(|| ProducerEntry::new(batch));
        renew_if_expired(entry, batch, self.expiration_ms);
        match entry.apply(batch) {
            TxnChange::None => {}
            TxnChange::Opened => self.txns.opened(batch.base_offset, id),
            TxnChange::Ended {
                first_offset,
                commit,
            } => self.txns.ended(id, first_offset, batch.last_offset, commit),
        }
    }
}

/// Whether a batch concerns a producer at all: control records of unknown types do not, nor do
/// ids without an epoch, which other systems let into a log.
fn has_state(batch: &BatchMeta) -> bool {
    batch.producer_id.0 >= 0
        && batch.producer_epoch.0 >= 0
        && (!batch.is_control || batch.marker.is_some())
}

/// An expired producer begins anew, whether a sweep came by or not: state stays a function of the
/// log.
fn renew_if_expired(entry: &mut ProducerEntry, batch: &BatchMeta, limit_ms: i64) {
    if entry.is_expired(batch.append_ms, limit_ms) {
        *entry = ProducerEntry::new(batch);
    }
}
