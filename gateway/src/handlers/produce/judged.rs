//! Batches that have to be unpacked are judged before anything of their request is ordered.

use std::collections::BTreeMap;

use super::{Place, Unordered};
use crate::partition::UNPACKED_ON_WORKER_MAX;
use crate::partition::validate::{self, Valid, ValidateError};

/// What becomes of a batch.
pub(super) type Verdict = Result<Valid, ValidateError>;

/// By the place of each.
pub(super) type Judged = BTreeMap<Place, Verdict>;

impl Unordered {
    /// Judges them. What the client sends behind the request is not read meanwhile.
    pub(super) async fn judge(&mut self) {
        if self.whole.is_some() {
            return;
        }
        let mut judged = Judged::new();
        let mut room = UNPACKED_ON_WORKER_MAX;
        let topics = self.request.topic_data.iter().zip(&self.hosted);
        for (t, (topic, hosted)) in topics.enumerate() {
            let Some(hosted) = hosted
                .as_ref()
                .ok()
                .filter(|hosted| hosted.rules.look_inside())
            else {
                continue;
            };
            for (p, data) in topic.partition_data.iter().enumerate() {
                let records = data.records.as_ref();
                let single = validate::single_batch(records, self.context.version);
                let (Ok(single), Some(partition)) = (single, hosted.any_partition(data.index))
                else {
                    continue;
                };
                if !single.is_compressed() || self.duplicates.contains(&(t, p)) {
                    continue;
                }
                let now_ms = self.broker.env().clock.wall_ms();
                let verdict = partition.judge_batch(&single, &hosted.rules, now_ms, &mut room);
                judged.insert((t, p), verdict.await);
            }
        }
        self.judged = judged;
    }
}
