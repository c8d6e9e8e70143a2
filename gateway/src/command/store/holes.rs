//! What can't be read of the logs that were asked for.

use store_adapter::offline::{OfflineLog, StoredShard};
use store_adapter::store::StoredBatch;

use super::super::output::Failure;
use super::{Opened, named};

/// Holes that are named; of more, how many there are.
const NAMED_MAX: usize = 100;

/// Parts that could not be read.
#[derive(Debug, Default)]
pub(super) struct Holes {
    named: Vec<String>,
    count: usize,
}

impl Holes {
    /// Batches of `log` from `next` on, below `end`: of a part that can't be read, which is noted,
    /// those behind it. None when nothing more is there.
    pub(super) async fn batches(
        &mut self,
        (shard, log): (&StoredShard, &OfflineLog),
        next: i64,
        end: i64,
    ) -> Vec<StoredBatch> {
        let mut next = next;
        while next < end {
            let error = match shard.batches(log.id, next).await {
                Ok(batches) => return batches,
                Err(error) => error,
            };
            let behind = shard.behind(log.id, next).await.unwrap_or(end).min(end);
            self.note(log, (next, behind - 1), &error);
            next = behind;
        }
        Vec::new()
    }

    /// Notes that records of these offsets, the first and the last, can't be read.
    pub(super) fn note(&mut self, log: &OfflineLog, part: (i64, i64), why: &dyn std::fmt::Display) {
        let (first, last) = part;
        let log = named(log);
        self.add(format!("{log}, offsets {first} to {last}: {why}"));
    }

    /// Notes what may lie behind the end of a log whose end was asked for.
    pub(super) fn look_behind(&mut self, log: &OfflineLog, end: i64) {
        if let Some(why) = log.damaged.as_ref().filter(|_| end >= log.bounds.end) {
            self.add(format!("{}: it is damaged: {why}", named(log)));
        }
    }

    fn add(&mut self, hole: String) {
        self.count += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push(hole);
        }
    }

    /// Refuses to pass for all that was asked for where something could not be read.
    pub(super) fn refuse(self, opened: &Opened) -> Result<(), Failure> {
        if self.count == 0 {
            return opened.whole();
        }
        let more = match self.count - self.named.len() {
            0 => String::new(),
            more => format!("\nand {more} more"),
        };
        let refused = match opened.whole() {
            Ok(()) => String::new(),
            Err(Failure::Refused(why)) => format!("\n{why}"),
            Err(other) => return Err(other),
        };
        let named = self.named.join("\n");
        Err(Failure::Refused(format!(
            "this could not be read, and is left out:\n{named}{more}{refused}"
        )))
    }
}
