//! The long poll of Fetch: looks at partitions, and waits until another look is worth it.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use kafka_protocol::error::ResponseError;
use tokio::sync::watch;

use super::{FEW, Limits, Target};
use crate::admitted::Admitted;
use crate::answer_budget::{AnswerBudget, Room};
use crate::broker::Broker;
use crate::error_code;
use crate::fetch_session::FetchWish;
use crate::partition::{EpochEnd, Isolation, Partition, Visible};
use crate::wire::fetch::FetchPartitionReply;
use crate::wire::segment::Segment;

/// Bytes that a partition takes in an answer beside its records, in memory and encoded.
const REPLY: usize = 256;

/// What one look at the partitions gave.
pub(super) struct Look {
    pub(super) replies: Vec<FetchPartitionReply>,
    /// Bytes of records.
    pub(super) bytes: usize,
    /// What it holds of the budget, if it has records: for the partitions too, if they are many.
    pub(super) room: Option<Room>,
    /// Records were left out for lack of room: how many bytes would do.
    starved: Option<usize>,
    /// More may be there than the room allowed.
    cut: bool,
}

/// Reads, and while there is too little and no error, waits for more. Nothing is held meanwhile:
/// what there is when enough has come, or the time has passed, is read again.
pub(super) async fn poll(
    broker: &Broker,
    targets: &mut [Target],
    limits: Limits,
    held: Option<&Admitted>,
) -> Look {
    let mut deadline = broker.env().clock.sleep(limits.max_wait);
    let mut last = limits.max_wait.is_zero();
    let mut least = 0;
    loop {
        let watch = |target| Watch::new(broker, target, limits.by_id);
        let watches: Vec<Watch> = targets.iter_mut().filter_map(watch).collect();
        let mut released = broker.answers().watch();
        let look = look(broker.answers(), targets, limits, least).await;
        let settled = look
            .replies
            .iter()
            .any(|reply| reply.error_code != 0 || reply.diverging_epoch.is_some());
        let enough = look.bytes >= limits.min_bytes && look.starved.is_none();
        if enough || look.cut || settled || last || watches.is_empty() {
            return look;
        }
        least = look.starved.unwrap_or(0);
        let starved = look.starved.is_some();
        let missing = limits.min_bytes.saturating_sub(look.bytes);
        drop(look);
        tokio::select! {
            biased;
            // The broker stops, the time has passed, or others wait for what the request holds:
            // answer with what there is.
            () = broker.stopping() => last = true,
            () = &mut deadline => last = true,
            () = wanted(held) => last = true,
            () = gathered(watches, missing, limits.isolation) => {}
            () = broker.answers().released(&mut released), if starved => {}
        }
    }
}

/// A partition, and what there was of it before the look.
struct Watch {
    partition: Arc<Partition>,
    from: i64,
    then: Visible,
    changes: watch::Receiver<Visible>,
    /// Bytes that have come since.
    more: u64,
}

impl Watch {
    /// To be made before the look, so that nothing between the two is missed.
    fn new(broker: &Broker, target: &mut Target, by_id: bool) -> Option<Self> {
        loop {
            let partition = target.partition.as_ref().ok()?.clone();
            let changes = partition.watch();
            if target.has_changed(broker, by_id) {
                continue;
            }
            let then = *changes.borrow();
            return Some(Self {
                partition,
                from: target.wish.fetch_offset,
                then,
                changes,
                more: 0,
            });
        }
    }

    /// Itself, once something has happened.
    async fn changed(mut self) -> Self {
        // The sender is in the partition.
        self.changes.changed().await.unwrap_or_default();
        self
    }

    /// Counts what has come; `None` if there may be an error to tell.
    fn count(&mut self, isolation: Isolation) -> Option<u64> {
        let now = *self.changes.borrow_and_update();
        if now.log_start > self.from || self.partition.is_closed() {
            return None;
        }
        self.more = now.bytes_since(&self.then, isolation);
        Some(self.more)
    }
}

/// Waits until so many bytes have come that a look is worth it, since each reads all that there is;
/// or until there may be an error to tell. Only what changed is looked at, however many there are.
async fn gathered(watches: Vec<Watch>, missing: usize, isolation: Isolation) {
    let mut changes: FuturesUnordered<_> = watches.into_iter().map(Watch::changed).collect();
    let mut more = 0_u64;
    while let Some(mut watch) = changes.next().await {
        let before = watch.more;
        let Some(now) = watch.count(isolation) else {
            return;
        };
        more = more.saturating_sub(before).saturating_add(now);
        if more >= missing as u64 {
            return;
        }
        changes.push(watch.changed());
    }
}

async fn wanted(held: Option<&Admitted>) {
    match held {
        Some(held) => held.wanted().await,
        None => std::future::pending().await,
    }
}

/// Reads as much as there is room for; without records if there is none.
async fn look(
    answers: &AnswerBudget,
    targets: &[Target],
    mut limits: Limits,
    least: usize,
) -> Look {
    let mut starved = None;
    let beside = beside_records(targets.len());
    let wanted = wanted_bytes(targets, limits);
    if let Some(wanted) = wanted {
        starved = Some(least);
        if let Some(mut room) = answers.take_beside(wanted, least, beside) {
            let limit = room.limit().saturating_sub(beside);
            limits.max_bytes = limits.max_bytes.min(limit);
            let replies = read_all(targets, limits, true).await;
            let bytes = replies.iter().flat_map(|reply| &reply.records);
            let bytes: usize = bytes.map(Segment::len).sum();
            if room.fit(bytes + beside) {
                return Look {
                    replies,
                    bytes,
                    room: Some(room),
                    starved: None,
                    cut: limit < wanted && bytes > 0 && bytes >= limit / 2,
                };
            }
            starved = Some(bytes);
        }
    }
    Look {
        replies: read_all(targets, limits, false).await,
        bytes: 0,
        room: None,
        starved,
        cut: false,
    }
}

/// What an answer of so many partitions takes beside its records, if that is much.
pub(super) fn beside_records(partitions: usize) -> usize {
    if partitions > FEW {
        partitions * REPLY
    } else {
        0
    }
}

/// Bytes that the records of an answer may have, going by the limits; `None` without any.
fn wanted_bytes(targets: &[Target], limits: Limits) -> Option<usize> {
    let readable = targets.iter().filter(|target| {
        let led = target.partition.as_ref().ok();
        led.is_some_and(|led| target.wish.fetch_offset < led.readable_end(limits.isolation))
    });
    let bytes = |target: &Target| usize::try_from(target.wish.max_bytes).unwrap_or(0);
    let sums = readable.map(bytes).reduce(usize::saturating_add);
    sums.map(|sum| sum.min(limits.max_bytes).max(1))
}

async fn read_all(targets: &[Target], limits: Limits, records: bool) -> Vec<FetchPartitionReply> {
    let mut left = limits.max_bytes;
    let mut any = false;
    let mut replies = Vec::with_capacity(targets.len());
    for target in targets {
        let reply = match &target.partition {
            Ok(partition) => {
                // Without records only what needs no reading is answered.
                let left = records.then_some(left);
                read_one(partition, target, limits, left, any).await
            }
            Err(code) => Err(*code),
        };
        let reply = reply.unwrap_or_else(|code| failed(target.key.partition, code));
        let bytes: usize = reply.records.iter().map(Segment::len).sum();
        any |= bytes > 0;
        left = left.saturating_sub(bytes);
        replies.push(reply);
    }
    replies
}

async fn read_one(
    partition: &Partition,
    target: &Target,
    limits: Limits,
    left: Option<usize>,
    any: bool,
) -> Result<FetchPartitionReply, ResponseError> {
    let wish = &target.wish;
    // Fetch takes any negative one for none.
    partition
        .check_leader_epoch(wish.current_leader_epoch.max(-1))
        .map_err(|error| error_code::read(&error))?;
    if let Some(end) = diverging(partition, wish).await? {
        let mut reply = reply(target.key.partition, partition.visible(), limits.isolation);
        reply.diverging_epoch = Some((end.epoch, end.end_offset));
        return Ok(reply);
    }
    let Some(left) = left else {
        let visible = partition.visible_from(wish.fetch_offset);
        let visible = visible.map_err(|error| error_code::read(&error))?;
        return Ok(reply(target.key.partition, visible, limits.isolation));
    };
    let limit = usize::try_from(wish.max_bytes).unwrap_or(0).min(left);
    if any && limit == 0 {
        let visible = partition.visible();
        return Ok(reply(target.key.partition, visible, limits.isolation));
    }
    let (from, isolation) = (wish.fetch_offset, limits.isolation);
    // Only the first batch of the answer may be larger than what is asked for.
    let outcome = if any {
        partition.read_within(from, limit, isolation).await
    } else {
        partition.read(from, limit, isolation).await
    };
    let outcome = outcome.map_err(|error| error_code::read(&error))?;
    let mut reply = reply(target.key.partition, outcome.visible, isolation);
    reply.records = outcome.batches.into_iter().map(Segment::from).collect();
    reply.aborted_transactions = outcome.aborted;
    Ok(reply)
}

/// Where the reader's log and this one part, if they do: the epoch of what it read last ended here
/// before the offset that it asks for.
async fn diverging(
    partition: &Partition,
    wish: &FetchWish,
) -> Result<Option<EpochEnd>, ResponseError> {
    if wish.last_fetched_epoch < 0 {
        return Ok(None);
    }
    let end = partition.end_of_epoch(wish.last_fetched_epoch).await;
    let end = end.map_err(|error| error_code::read(&error))?;
    if end == EpochEnd::UNKNOWN {
        return Err(ResponseError::OffsetOutOfRange);
    }
    let parted = end.epoch < wish.last_fetched_epoch || end.end_offset < wish.fetch_offset;
    Ok(parted.then_some(end))
}

fn reply(partition: i32, visible: Visible, isolation: Isolation) -> FetchPartitionReply {
    FetchPartitionReply {
        partition,
        error_code: 0,
        high_watermark: visible.high_watermark,
        last_stable_offset: visible.last_stable,
        log_start_offset: visible.log_start,
        diverging_epoch: None,
        current_leader: None,
        aborted_transactions: (isolation == Isolation::ReadCommitted).then(Vec::new),
        records: Vec::new(),
    }
}

fn failed(partition: i32, code: ResponseError) -> FetchPartitionReply {
    FetchPartitionReply {
        partition,
        error_code: code.code(),
        high_watermark: -1,
        last_stable_offset: -1,
        log_start_offset: -1,
        diverging_epoch: None,
        current_leader: None,
        aborted_transactions: None,
        records: Vec::new(),
    }
}
