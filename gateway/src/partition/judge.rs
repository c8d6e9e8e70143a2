//! Batches that have to be unpacked to be judged: on a worker while that is little, otherwise on a
//! thread of their own and few at a time.

use std::sync::Arc;

use store_adapter::compression::{UNPACKED_MAX, UnpackError};
use tokio::sync::oneshot;

use super::Partition;
use super::validate::{self, InvalidRecord, Single, TopicRules, Valid, ValidateError};

/// Bytes to which the batches of one request may unpack on a worker.
pub const UNPACKED_ON_WORKER_MAX: usize = 1 << 20;

impl Partition {
    /// As [`validate::batch`]. `room` is what may still be unpacked on a worker, and is taken from.
    ///
    /// # Errors
    /// Why the batch is refused.
    pub async fn judge_batch(
        &self,
        single: &Single,
        rules: &TopicRules,
        now_ms: i64,
        room: &mut usize,
    ) -> Result<Valid, ValidateError> {
        match validate::batch_within(single.clone(), rules, now_ms, room) {
            Err(error) if wants_room(&error) => {}
            verdict => return verdict,
        }
        let permit = Arc::clone(&self.deps.unpacking).acquire_owned().await;
        let (answer, verdict) = oneshot::channel();
        let (batch, of) = (single.clone(), rules.clone());
        let task = Box::pin(async move {
            let verdict = validate::batch(batch, &of, now_ms);
            drop(permit);
            // The asker may have gone.
            answer.send(verdict).unwrap_or_default();
        });
        drop(self.deps.env.runtime.spawn_io("judge", task));
        match verdict.await {
            Ok(verdict) => verdict,
            // There is no thread to be had.
            Err(_) => validate::batch(single.clone(), rules, now_ms),
        }
    }
}

/// Whether there was only too little room.
fn wants_room(error: &ValidateError) -> bool {
    let ValidateError::InvalidRecord(InvalidRecord::Packed(why)) = error else {
        return false;
    };
    matches!(why, UnpackError::TooLarge { max } if *max < UNPACKED_MAX)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::FutureExt;
    use store_adapter::batch::Batch;
    use store_adapter::memory::MemoryStore;

    use super::super::testing::{NOBODY, header, lead_keeping};
    use super::*;

    /// A batch whose records, of which none decodes, unpack to so many times 64 bytes and one more.
    fn packed(times: usize) -> Single {
        // Snappy: the length, a byte as it is, and 64 times the byte before, again and again.
        let mut records = Vec::new();
        let mut len = times * 64 + 1;
        while len > 0x7f {
            records.push(u8::try_from(len & 0x7f).unwrap() | 0x80);
            len >>= 7;
        }
        records.extend([u8::try_from(len).unwrap(), 0, 0]);
        records.extend([63 << 2 | 2, 1, 0].repeat(times));
        let bytes: Bytes = Batch::assemble(header(2, NOBODY), &records).bytes().clone();
        validate::single_batch(Some(&bytes), 11).unwrap()
    }

    fn is_judged(verdict: &Result<Valid, ValidateError>) -> bool {
        let Err(ValidateError::InvalidRecord(why)) = verdict else {
            return false;
        };
        matches!(why, InvalidRecord::Record(_))
    }

    #[tokio::test]
    async fn what_unpacks_to_much_is_judged_on_a_thread() {
        let (led, kept) = lead_keeping(Arc::new(MemoryStore::new())).await;
        let rules = TopicRules {
            unpack: true,
            max_message_bytes: i64::MAX,
            ..TopicRules::default()
        };
        let mut room = UNPACKED_ON_WORKER_MAX;
        // Little by little: 16 of these find room.
        let short = packed(1000);
        for _ in 0..16 {
            let verdict = led.judge_batch(&short, &rules, 0, &mut room).now_or_never();
            assert!(is_judged(&verdict.unwrap()));
        }
        assert!(kept.take().is_empty());
        for batch in [short, packed(40_000)] {
            let mut verdict = Box::pin(led.judge_batch(&batch, &rules, 0, &mut room));
            assert!(verdict.as_mut().now_or_never().is_none());
            let tasks = kept.take();
            assert_eq!(tasks.len(), 1);
            for task in tasks {
                task.now_or_never().unwrap();
            }
            assert!(is_judged(&verdict.now_or_never().unwrap()));
        }
        // Beyond the limit it is refused, wherever it is judged.
        let large = packed(1 << 20);
        let mut verdict = Box::pin(led.judge_batch(&large, &rules, 0, &mut room));
        assert!(verdict.as_mut().now_or_never().is_none());
        for task in kept.take() {
            task.now_or_never().unwrap();
        }
        let verdict = verdict.now_or_never().unwrap();
        let packed = |why: &InvalidRecord| matches!(why, InvalidRecord::Packed(_));
        assert!(matches!(verdict, Err(ValidateError::InvalidRecord(why)) if packed(&why)));
    }
}
