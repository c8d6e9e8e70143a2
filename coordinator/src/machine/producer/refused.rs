//! Producers that are not known yet and whose first batch was refused with a retriable answer.
//!
//! An unknown producer may start at any sequence, so a batch that was in flight behind a refused
//! one could be taken first; the retry of the refused one would then be out of order for ever.
//! Apache Kafka has that gap. Here the refused batch comes first, or nothing of that epoch does.
//!
//! Memory only: a crash breaks the connections, and clients send what is unacknowledged in order.

use std::collections::BTreeMap;

use store_adapter::ids::{ProducerEpoch, ProducerId, Sequence};

use super::BatchMeta;

/// The most producers that are remembered; of those beyond it any sequence is taken, as in Kafka.
const PRODUCERS_MAX: usize = 65_536;

#[derive(Debug, Clone, Copy)]
struct First {
    epoch: ProducerEpoch,
    seq: Sequence,
    refused_ms: i64,
}

impl First {
    fn holds(&self, batch: &BatchMeta, limit_ms: i64) -> bool {
        batch.append_ms.saturating_sub(self.refused_ms) < limit_ms
    }
}

/// What must come first.
#[derive(Debug, Default)]
pub(super) struct Refused(BTreeMap<ProducerId, First>);

impl Refused {
    /// A batch of an unknown producer was refused. The first one of its epoch counts, for
    /// `limit_ms`.
    pub(super) fn note(&mut self, batch: &BatchMeta, limit_ms: i64) {
        let first = First {
            epoch: batch.producer_epoch,
            seq: batch.first_seq,
            refused_ms: batch.append_ms,
        };
        let room = self.0.len() < PRODUCERS_MAX;
        match self.0.get_mut(&batch.producer_id) {
            Some(known) if known.epoch >= first.epoch && known.holds(batch, limit_ms) => {}
            Some(known) => *known = first,
            None if room => {
                self.0.insert(batch.producer_id, first);
            }
            None => {}
        }
    }

    /// Whether another batch must come before this one. Forgotten after `limit_ms`.
    pub(super) fn forbids(&self, batch: &BatchMeta, limit_ms: i64) -> bool {
        self.0.get(&batch.producer_id).is_some_and(|first| {
            first.epoch == batch.producer_epoch
                && first.seq != batch.first_seq
                && first.holds(batch, limit_ms)
        })
    }

    /// The log knows the producer now.
    pub(super) fn known(&mut self, id: ProducerId) {
        self.0.remove(&id);
    }

    /// Forgets what was refused `limit_ms` ago.
    pub(super) fn expire(&mut self, now_ms: i64, limit_ms: i64) {
        self.0
            .retain(|_, first| now_ms.saturating_sub(first.refused_ms) < limit_ms);
    }
}
