//! The bytes of large answers that the process holds, over all connections: of Fetch, and of what
//! describes much.
//!
//! A Fetch takes its share before it reads records and gives it back when they are written, or its
//! connection has ended. A share is a small part of what is free, so that many clients that do not
//! read leave something for one that does. Nobody waits in a line: an answer that is not polled
//! must not hold up the others. With nothing left, one answer at a time may hold a first batch
//! beyond the budget: whatever its size, a batch can be read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

/// A share is at most one part in so many of what is free.
const PARTS: usize = 32;
/// A share that is wanted is at least so many bytes, if they are free.
const SHARE_MIN: usize = 64 * 1024;

/// The budget; clones share it.
#[derive(Debug, Clone)]
pub struct AnswerBudget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    total: usize,
    held: Mutex<Held>,
    /// Changes whenever something is given back.
    released: watch::Sender<()>,
    /// Answers that wait for room.
    waiting: AtomicUsize,
    /// Whether one was refused since this was asked last.
    refused: AtomicBool,
}

#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    /// Whether an answer holds a first batch beyond the budget.
    beyond: bool,
}

/// A share of the budget; given back when dropped.
#[derive(Debug)]
pub struct Room {
    budget: AnswerBudget,
    bytes: usize,
    beyond: bool,
}

impl AnswerBudget {
    /// A budget of `total` bytes.
    pub fn new(total: usize) -> Self {
        Self(Arc::new(Inner {
            total,
            held: Mutex::default(),
            released: watch::Sender::new(()),
            waiting: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
        }))
    }

    /// Bytes that are taken.
    pub fn taken(&self) -> usize {
        self.0.held.lock().bytes
    }

    /// Room for an answer of up to `wanted` bytes, of `least` at least; `None` if there is none.
    pub fn take(&self, wanted: usize, least: usize) -> Option<Room> {
        self.take_beside(wanted, least, 0)
    }

    /// The same with `beside` bytes more, which are never less.
    pub fn take_beside(&self, wanted: usize, least: usize, beside: usize) -> Option<Room> {
        let mut held = self.0.held.lock();
        let free = self.0.total.saturating_sub(held.bytes);
        let share = free.saturating_sub(beside) / PARTS;
        let share = share.max(SHARE_MIN).min(wanted).max(least) + beside;
        let beyond = share > free;
        if beyond && held.beyond {
            self.0.refused.store(true, Ordering::Relaxed);
            return None;
        }
        let bytes = if beyond { 0 } else { share };
        held.bytes += bytes;
        held.beyond |= beyond;
        Some(Room {
            budget: self.clone(),
            bytes,
            beyond,
        })
    }

    /// Room for an answer of `bytes`, as soon as there is some.
    pub async fn room(&self, bytes: usize) -> Room {
        loop {
            // Before the try, so that nothing given back between the two is missed.
            let mut seen = self.watch();
            if let Some(room) = self.take(bytes, bytes) {
                return room;
            }
            self.released(&mut seen).await;
        }
    }

    /// Follows what is given back; to be asked for before [`AnswerBudget::take`], so that nothing
    /// between the two is missed.
    pub fn watch(&self) -> watch::Receiver<()> {
        self.0.released.subscribe()
    }

    /// Waits until something was given back since `seen` was made or waited for last.
    pub async fn released(&self, seen: &mut watch::Receiver<()>) {
        let _waiting = Waiting::new(&self.0.waiting);
        if seen.changed().await.is_err() {
            // The sender is in `self`.
            std::future::pending::<()>().await;
        }
    }

    /// Whether an answer waits for room, or was refused some since this was asked last.
    pub fn is_contended(&self) -> bool {
        let refused = self.0.refused.swap(false, Ordering::Relaxed);
        refused || self.0.waiting.load(Ordering::Relaxed) > 0
    }
}

impl Room {
    /// Bytes that may be read into it; a first batch may be larger.
    pub fn limit(&self) -> usize {
        self.bytes
    }

    /// Makes the room as large as what was read; false if that cannot be had.
    pub fn fit(&mut self, bytes: usize) -> bool {
        let inner = &self.budget.0;
        let mut held = inner.held.lock();
        let free = inner.total.saturating_sub(held.bytes);
        if bytes.saturating_sub(self.bytes) <= free {
            held.bytes = held.bytes - self.bytes + bytes;
            self.bytes = bytes;
            held.beyond &= !std::mem::take(&mut self.beyond);
            drop(held);
            inner.released.send_replace(());
            return true;
        }
        let fits = self.beyond || !held.beyond;
        self.beyond |= fits;
        held.beyond |= fits;
        drop(held);
        if !fits {
            inner.refused.store(true, Ordering::Relaxed);
        }
        fits
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let inner = &self.budget.0;
        {
            let mut held = inner.held.lock();
            held.bytes -= self.bytes;
            held.beyond &= !self.beyond;
        }
        inner.released.send_replace(());
    }
}

/// Counts as waiting until dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What an answer holds of the budget; not part of what it says, so all are equal.
#[derive(Debug, Clone, Default)]
pub struct AnswerRoom {
    _held: Option<Arc<Room>>,
}

impl From<Room> for AnswerRoom {
    fn from(room: Room) -> Self {
        Self {
            _held: Some(Arc::new(room)),
        }
    }
}

impl PartialEq for AnswerRoom {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for AnswerRoom {}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn many_answers_leave_room_for_one_more_and_never_pass_the_budget() {
        let budget = AnswerBudget::new(32 * MIB);
        let mut held = Vec::new();
        for _ in 0..80 {
            let mut room = budget.take(10 * MIB, 0).unwrap();
            assert!(room.limit() >= SHARE_MIN && room.limit() <= MIB);
            let limit = room.limit();
            assert!(room.fit(limit));
            held.push(room);
        }
        assert!(budget.taken() <= 32 * MIB);
        assert!(!budget.is_contended());
        let small = budget.take(1000, 0).unwrap();
        assert_eq!(small.limit(), 1000);
        held.push(small);
        // What is left goes in least shares, then one first batch, then nothing.
        while let Some(room) = budget.take(10 * MIB, 0) {
            held.push(room);
        }
        assert!(budget.taken() <= 32 * MIB);
        assert_eq!(held.iter().filter(|room| room.limit() == 0).count(), 1);
        assert!(budget.is_contended());
        assert!(!budget.is_contended());
        held.clear();
        assert_eq!(budget.taken(), 0);
        assert_eq!(budget.take(MIB, 0).unwrap().limit(), MIB);
    }

    #[test]
    fn a_batch_larger_than_the_budget_is_held_by_one_answer_at_a_time() {
        let budget = AnswerBudget::new(MIB);
        let mut first = budget.take(MIB, 0).unwrap();
        let mut second = budget.take(MIB, 0).unwrap();
        assert!(first.fit(3 * MIB));
        assert!(!second.fit(3 * MIB), "one at a time");
        drop(second);
        assert!(budget.take(MIB, 3 * MIB).is_none());
        let mut seen = budget.watch();
        assert!(budget.released(&mut seen).now_or_never().is_none());
        drop(first);
        assert!(budget.released(&mut seen).now_or_never().is_some());
        let mut second = budget.take(MIB, 3 * MIB).unwrap();
        assert_eq!(second.limit(), 0);
        // What turned out to fit into the budget is not beyond it any more.
        assert!(second.fit(MIB / 2));
        assert_eq!(budget.taken(), MIB / 2);
        assert_eq!(budget.take(MIB, 3 * MIB).unwrap().limit(), 0);
    }

    #[test]
    fn what_stands_beside_the_records_has_room_whatever_is_left_for_them() {
        let budget = AnswerBudget::new(32 * MIB);
        let held = budget.take_beside(10 * MIB, 0, 20 * MIB).unwrap();
        assert_eq!(held.limit(), 20 * MIB + 12 * MIB / PARTS);
        // More than there is is there once.
        let beyond = budget.take_beside(10 * MIB, 0, 20 * MIB).unwrap();
        assert_eq!(beyond.limit(), 0);
        assert!(budget.take_beside(10 * MIB, 0, 20 * MIB).is_none());
        drop(held);
        let again = budget.take_beside(1000, 0, 20 * MIB).unwrap();
        assert_eq!(again.limit(), 20 * MIB + 1000);
        drop((beyond, again));
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn what_was_not_needed_is_given_back() {
        let budget = AnswerBudget::new(MIB);
        let mut room = budget.take(64 * 1024, 0).unwrap();
        assert!(room.fit(100));
        assert_eq!(budget.taken(), 100);
        let answer = AnswerRoom::from(room);
        let copy = answer.clone();
        drop(answer);
        assert_eq!(budget.taken(), 100);
        drop(copy);
        assert_eq!(budget.taken(), 0);
    }
}
