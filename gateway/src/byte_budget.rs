//! The bytes that requests of all connections may hold in memory.
//!
//! A frame that is larger than half of the budget takes half of it, and one such frame at a time
//! is let in: it may have more bytes than it takes, and the others keep their half. So requests
//! hold at most the budget and what the largest frame has beyond half of it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use store_adapter::runtime::Clock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Bytes per permit of the budget.
const UNIT: usize = 1024;

/// The budget; clones share it.
#[derive(Debug, Clone)]
pub struct ByteBudget {
    units: Gate,
    total: usize,
    /// Lets in who has more bytes than it takes.
    large: Gate,
}

/// A semaphore that tells when somebody waits.
#[derive(Debug, Clone)]
struct Gate {
    permits: Arc<Semaphore>,
    waiting: watch::Sender<usize>,
}

/// What a frame holds of the budget; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    units: OwnedSemaphorePermit,
    large: Option<OwnedSemaphorePermit>,
}

impl ByteBudget {
    /// A budget of `bytes`, at least one unit of 1 KiB.
    pub fn new(bytes: usize) -> Self {
        let total = (bytes / UNIT).clamp(1, Semaphore::MAX_PERMITS);
        Self {
            units: Gate::new(total),
            total,
            large: Gate::new(1),
        }
    }

    /// Bytes that are taken.
    pub fn taken(&self) -> usize {
        (self.total - self.units.permits.available_permits().min(self.total)) * UNIT
    }

    /// What a frame of `len` bytes takes, and whether it has more.
    fn units(&self, len: usize) -> (usize, bool) {
        let (units, most) = (units_of(len).max(1), (self.total / 2).max(1));
        (units.min(most), units > most)
    }

    /// Waits, in the order of asking, until there is room for `len` bytes.
    pub(crate) async fn take(&self, len: usize) -> io::Result<Permit> {
        let (units, is_large) = self.units(len);
        let large = if is_large {
            Some(self.large.acquire(1).await?)
        } else {
            None
        };
        let units = self.units.acquire(units).await?;
        Ok(Permit { units, large })
    }

    /// Waits until a permit has become one for `len` bytes, if it is for fewer.
    pub(crate) async fn grow(&self, mut permit: Permit, len: usize) -> io::Result<Permit> {
        let (units, is_large) = self.units(len);
        if is_large && permit.large.is_none() {
            permit.large = Some(self.large.acquire(1).await?);
        }
        let more = units.saturating_sub(permit.units.num_permits());
        if more > 0 {
            permit.units.merge(self.units.acquire(more).await?);
        }
        Ok(permit)
    }

    /// Completes when somebody has been waiting for so long for what `permit` holds.
    pub(crate) async fn contended(
        &self,
        permit: &Permit,
        clock: &Arc<dyn Clock>,
        patience: Duration,
    ) {
        if permit.large.is_none() {
            return self.units.contended(clock, patience).await;
        }
        tokio::select! {
            () = self.units.contended(clock, patience) => {}
            () = self.large.contended(clock, patience) => {}
        }
    }
}

impl Gate {
    fn new(permits: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(permits)),
            waiting: watch::Sender::new(0),
        }
    }

    async fn acquire(&self, count: usize) -> io::Result<OwnedSemaphorePermit> {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_many_owned(count) {
            return Ok(permit);
        }
        let _waiting = Waiting::new(&self.waiting);
        let permit = Arc::clone(&self.permits).acquire_many_owned(count).await;
        permit.map_err(|_| io::Error::other("the budget is closed"))
    }

    async fn contended(&self, clock: &Arc<dyn Clock>, patience: Duration) {
        let mut waiting = self.waiting.subscribe();
        // The sender is in `self`: neither of the two can fail.
        while waiting.wait_for(|count| *count > 0).await.is_ok() {
            tokio::select! {
                biased;
                nobody = waiting.wait_for(|count| *count == 0) => drop(nobody),
                () = clock.sleep(patience) => return,
            }
        }
    }
}

impl Permit {
    /// Whether it holds nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.units.num_permits() == 0 && self.large.is_none()
    }

    /// Gives back what is for more than the `received` bytes that have come.
    pub(crate) fn give_back(&mut self, received: usize) {
        let (held, needed) = (self.units.num_permits(), units_of(received));
        drop(self.units.split(held.saturating_sub(needed)));
        if needed <= held {
            self.large = None;
        }
    }
}

fn units_of(len: usize) -> usize {
    len.div_ceil(UNIT)
}

/// Counts as waiting until dropped.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl<'a> Waiting<'a> {
    fn new(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use store_adapter::runtime::Env;

    use super::*;

    const MIB: usize = 1 << 20;

    fn now<T>(of: impl Future<Output = io::Result<T>>) -> Option<T> {
        of.now_or_never().map(|taken| taken.unwrap())
    }

    #[test]
    fn a_frame_larger_than_half_leaves_the_other_half() {
        let budget = ByteBudget::new(8 * MIB);
        let large = now(budget.take(100 * MIB)).unwrap();
        assert_eq!(budget.taken(), 4 * MIB);
        assert!(now(budget.take(5 * MIB)).is_none(), "one at a time");
        let small = now(budget.take(4 * MIB)).unwrap();
        assert_eq!(budget.taken(), 8 * MIB);
        assert!(now(budget.take(1)).is_none());
        drop(large);
        assert!(now(budget.take(5 * MIB)).is_some());
        drop(small);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn what_has_come_stays_counted() {
        let budget = ByteBudget::new(8 * MIB);
        let mut permit = now(budget.take(100 * MIB)).unwrap();
        // As much as it takes: it holds all of that, and its place stays taken beyond.
        permit.give_back(50 * MIB);
        assert_eq!(budget.taken(), 4 * MIB);
        assert!(now(budget.take(5 * MIB)).is_none());
        permit.give_back(MIB);
        assert_eq!(budget.taken(), MIB);
        assert!(now(budget.take(5 * MIB)).is_some());
        permit.give_back(0);
        assert!(permit.is_empty());
        let permit = now(budget.grow(permit, 3 * MIB)).unwrap();
        let permit = now(budget.grow(permit, 2 * MIB)).unwrap();
        assert_eq!(budget.taken(), 3 * MIB);
        let permit = now(budget.grow(permit, 9 * MIB)).unwrap();
        assert!(now(budget.take(5 * MIB)).is_none());
        drop(permit);
        assert_eq!(budget.taken(), 0);
    }

    #[tokio::test]
    async fn contention_is_somebody_who_waits_for_long() {
        let clock = Env::real().clock;
        let budget = ByteBudget::new(MIB);
        let patience = Duration::from_millis(1);
        let held = budget.take(MIB / 2).await.unwrap();
        let large = budget.take(MIB).await.unwrap();
        let calm = |permit: &Permit| budget.contended(permit, &clock, patience).now_or_never();
        assert!(calm(&held).is_none() && calm(&large).is_none());
        // For a place that only one of the two holds.
        let waits = budget.take(2 * MIB);
        tokio::pin!(waits);
        assert!(waits.as_mut().now_or_never().is_none());
        budget.contended(&large, &clock, patience).await;
        assert!(calm(&held).is_none());
        // For room, of which both hold some.
        let more = budget.take(1);
        tokio::pin!(more);
        assert!(more.as_mut().now_or_never().is_none());
        budget.contended(&held, &clock, patience).await;
        budget.contended(&large, &clock, patience).await;
        drop(large);
        more.await.unwrap();
        drop(waits.await.unwrap());
        assert!(calm(&held).is_none());
    }
}
