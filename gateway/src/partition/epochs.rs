//! Where leader epochs end. The log itself is the history: every batch carries the epoch under
//! which it was appended, and epochs only grow along a log, so halving finds the place.

use store_adapter::batch::BatchHeader;
use store_adapter::store::StoreError;

use super::{ListedOffset, Partition, ReadError, Visible, caught_up};

/// The largest epoch of the log that is not above the one asked for, and the offset behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochEnd {
    /// Leader epoch, -1 when the one asked for is above every known one.
    pub epoch: i32,
    /// Offset, -1 likewise.
    pub end_offset: i64,
}

impl EpochEnd {
    /// The epoch asked for is not known.
    pub const UNKNOWN: Self = Self {
        epoch: -1,
        end_offset: -1,
    };
}

impl Partition {
    /// Where `epoch` ends in this log, of what is durable.
    ///
    /// # Errors
    /// If the log can't be read.
    pub async fn end_of_epoch(&self, epoch: i32) -> Result<EpochEnd, ReadError> {
        loop {
            let visible = self.visible();
            match self.end_within(epoch, visible).await {
                Err(StoreError::OutOfRange { .. }) => self.overtaken(visible)?,
                found => return Ok(found?),
            }
        }
    }

    /// The first offset of the log, and the epoch of what is there: the current one while there is
    /// nothing, none if it can't be read.
    ///
    /// # Errors
    /// If the log begins nowhere any more.
    pub async fn earliest(&self) -> Result<ListedOffset, ReadError> {
        loop {
            let visible = self.visible();
            let (start, end) = (visible.log_start, visible.high_watermark);
            let leader_epoch = if start < end {
                match self.epoch_at(start, end).await {
                    Err(StoreError::OutOfRange { .. }) => {
                        self.overtaken(visible)?;
                        continue;
                    }
                    found => found.map_or(-1, |(_, _, epoch)| epoch),
                }
            } else {
                self.epoch_for_clients()
            };
            return Ok(ListedOffset {
                offset: start,
                timestamp: -1,
                leader_epoch,
            });
        }
    }

    /// A trim has overtaken a look at what was visible: where the log begins now it goes on.
    fn overtaken(&self, seen: Visible) -> Result<(), ReadError> {
        self.follow_log_start();
        if self.visible().log_start == seen.log_start {
            return Err(ReadError::OffsetOutOfRange);
        }
        Ok(())
    }

    async fn end_within(&self, epoch: i32, visible: Visible) -> Result<EpochEnd, StoreError> {
        let current = i32::try_from(self.epoch.0).unwrap_or(i32::MAX);
        if epoch < 0 || epoch > current {
            return Ok(EpochEnd::UNKNOWN);
        }
        let (start, end) = (visible.log_start, visible.high_watermark);
        if epoch == current {
            return Ok(EpochEnd {
                epoch,
                end_offset: end,
            });
        }
        // The first batch above `epoch` begins in `low..=high`; below `low` none is above it.
        let (mut low, mut high) = (start, end);
        // Behind the epoch, at the most: where that was is not known once compaction took its last
        // batches, and who was told of less would believe that records were lost.
        let mut behind = end;
        // Of the epoch asked for there may be nothing: it ends where the log begins.
        let mut floor = epoch;
        while low < high {
            let middle = low + (high - low) / 2;
            let (base, last, at) = self.epoch_at(middle, end).await?;
            if at > epoch {
                behind = base.max(start);
                high = behind.min(middle);
            } else {
                low = last + 1;
                floor = at;
            }
        }
        Ok(EpochEnd {
            epoch: floor,
            end_offset: behind,
        })
    }

    /// First offset, last offset and leader epoch of the batch that holds `offset`.
    async fn epoch_at(&self, offset: i64, end: i64) -> Result<(i64, i64, i32), StoreError> {
        let store = &*self.deps.store;
        let batches = caught_up::read(store, self.id, offset, 1, end).await?;
        let corrupt = |why: String| StoreError::Corrupt {
            path: format!("offset {offset}"),
            why,
        };
        let batch = batches
            .first()
            .ok_or_else(|| corrupt("no batch".to_owned()))?;
        let header = BatchHeader::read(&batch.bytes).map_err(|error| corrupt(error.to_string()))?;
        Ok((batch.base_offset, batch.last_offset, header.leader_epoch))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use store_adapter::batch::Batch;

    use super::super::testing::{NOBODY, created, header, lead};
    use super::*;
    use crate::admitted::Admitted;

    async fn append(partition: &Arc<Partition>, batches: usize) {
        let header = BatchHeader {
            last_offset_delta: 1,
            records_count: 2,
            ..header(0, NOBODY)
        };
        let batch = Batch::assemble(header, &[12, 0, 0, 0, 1, 0, 0, 12, 0, 0, 2, 1, 0, 0]);
        for _ in 0..batches {
            let ticket = partition.append(&batch, Admitted::default());
            ticket.outcome().await.unwrap();
        }
    }

    async fn ends(partition: &Partition, epochs: &[i32]) -> Vec<(i32, i64)> {
        let mut ends = Vec::new();
        for epoch in epochs {
            let end = partition.end_of_epoch(*epoch).await.unwrap();
            ends.push((end.epoch, end.end_offset));
        }
        ends
    }

    #[tokio::test]
    async fn r21_epochs_end_where_the_next_one_begins() {
        let store = created().await;
        append(&lead(&store, 1).await, 10).await;
        let led = lead(&store, 3).await;
        assert_eq!(ends(&led, &[3, 2, 1]).await, [(3, 20), (1, 20), (1, 20)]);
        append(&led, 5).await;
        let asked = [3, 2, 1, 0, 9, -1];
        let expected = [(3, 30), (1, 20), (1, 20), (0, 0), (-1, -1), (-1, -1)];
        assert_eq!(ends(&led, &asked).await, expected);
        // The answer is the same wherever the log begins, as long as the epoch has records.
        led.delete_records(15).await.unwrap();
        assert_eq!(ends(&led, &[2, 0]).await, [(1, 20), (0, 15)]);
        append(&lead(&store, 7).await, 1).await;
        let led = lead(&store, 8).await;
        let expected = [(8, 32), (7, 32), (3, 30), (3, 30), (1, 20)];
        assert_eq!(ends(&led, &[8, 7, 6, 3, 2]).await, expected);
    }

    #[tokio::test]
    async fn the_first_offset_has_the_epoch_of_what_is_there() {
        let store = created().await;
        let earliest = async |led: &Partition| {
            let listed = led.earliest().await.unwrap();
            assert_eq!(listed.timestamp, -1);
            (listed.offset, listed.leader_epoch)
        };
        lead(&store, 1).await;
        let led = lead(&store, 2).await;
        assert_eq!(
            earliest(&led).await,
            (0, 2),
            "of the leader, without records"
        );
        append(&led, 2).await;
        let led = lead(&store, 5).await;
        assert_eq!(earliest(&led).await, (0, 2));
        append(&led, 2).await;
        for (trimmed, epoch) in [(3, 2), (4, 5), (8, 5)] {
            led.delete_records(trimmed).await.unwrap();
            assert_eq!(earliest(&led).await, (trimmed, epoch));
        }
        let led = lead(&store, 6).await;
        assert_eq!(
            earliest(&led).await,
            (8, 6),
            "of the leader, without records"
        );
    }
}
