//! The bytes of requests that the process holds, over all connections (docs/decisions/0012).
//!
//! What is counted is buffers, as their bytes come in; a claimed length alone takes little. Frames
//! of up to [`SMALL_MAX`] have a quarter of the budget to themselves. Who finds no room waits in
//! the order of asking, or goes beyond the budget with this one frame: one at a time and part may,
//! so that frames that hold their beginnings and wait for more can't wait for each other for ever.
//! Frames of more than [`HUGE_PARTS`] of the larger part are beyond it from their start, one at a
//! time, whatever else there is.

use std::io;
use std::ops::BitOr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::admitted::Admitted;

/// Bytes per permit of the budget.
const UNIT: usize = 1024;
/// Largest frame that is small.
const SMALL_MAX: usize = 64 * 1024;
/// The part of the budget that only small frames may use: one in so many.
const SMALL_PARTS: usize = 4;
/// A frame is huge if it has more than one part in so many of the rest.
const HUGE_PARTS: usize = 4;
/// With little left, the beginning of a frame takes so many times what has come of it.
const STEP: usize = 4;

/// The budget; clones share it.
#[derive(Debug, Clone)]
pub struct ByteBudget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    small: Pool,
    large: Pool,
    huge: Arc<Semaphore>,
    /// Readers that wait, by the part that they wait for.
    waiting: [AtomicUsize; PARTS],
    /// Tells that one began to.
    wanted: Notify,
}

/// A part of the budget. Who waits for room waits for one of them, and what others hold of the
/// rest is of no use to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Part {
    Small,
    Large,
    Huge,
}

/// How many parts there are.
pub(crate) const PARTS: usize = 3;

/// Some of the parts of the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Parts(u8);

impl Parts {
    #[cfg(test)]
    pub(crate) const ALL: Self = Self(0b111);

    const fn of(part: Part) -> Self {
        Self(1 << part as u8)
    }

    /// Whether one of them is among `others`.
    pub fn meets(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// Which of all parts these are, in a fixed order.
    pub(crate) fn each(self) -> [bool; PARTS] {
        [Part::Small, Part::Large, Part::Huge].map(|part| self.meets(Self::of(part)))
    }

    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    pub(crate) fn from_bits(bits: u8) -> Self {
        Self(bits)
    }
}

impl BitOr for Parts {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

#[derive(Debug)]
struct Pool {
    part: Part,
    units: Arc<Semaphore>,
    total: usize,
    /// Who has it reads its frame to the end without asking for more.
    beyond: Arc<Semaphore>,
}

/// Room for a frame.
#[derive(Debug)]
pub(crate) struct Share {
    _permit: OwnedSemaphorePermit,
    /// The part that it is of; the place of a connection is of none.
    parts: Parts,
    /// Whether it is for the whole frame, whatever was asked for.
    pub(crate) whole: bool,
}

impl Pool {
    fn new(part: Part, total: usize) -> Self {
        Self {
            part,
            units: Arc::new(Semaphore::new(total)),
            total,
            beyond: Arc::new(Semaphore::new(1)),
        }
    }

    fn units(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT).clamp(1, self.total)).unwrap_or(u32::MAX)
    }

    fn taken(&self) -> usize {
        self.total - self.units.available_permits().min(self.total)
    }

    fn try_take(&self, bytes: usize) -> Option<Share> {
        let units = Arc::clone(&self.units);
        let permit = units.try_acquire_many_owned(self.units(bytes)).ok()?;
        Some(Share::of(Parts::of(self.part), permit, false))
    }

    async fn take(&self, bytes: usize) -> io::Result<Share> {
        let units = Arc::clone(&self.units);
        let parts = Parts::of(self.part);
        tokio::select! {
            biased;
            permit = units.acquire_many_owned(self.units(bytes)) => share(parts, permit, false),
            permit = Arc::clone(&self.beyond).acquire_owned() => share(parts, permit, true),
        }
    }
}

impl Share {
    fn of(parts: Parts, permit: OwnedSemaphorePermit, whole: bool) -> Self {
        Self {
            _permit: permit,
            parts,
            whole,
        }
    }

    /// The place of a connection, beside the budget.
    pub(crate) fn place(permit: OwnedSemaphorePermit) -> Self {
        Self::of(Parts::default(), permit, true)
    }
}

fn share<E>(
    parts: Parts,
    permit: Result<OwnedSemaphorePermit, E>,
    whole: bool,
) -> io::Result<Share> {
    let permit = permit.map_err(|_| io::Error::other("the budget is closed"))?;
    Ok(Share::of(parts, permit, whole))
}

impl ByteBudget {
    /// A budget of `bytes`, at least two units of 1 KiB.
    pub fn new(bytes: usize) -> Self {
        let total = (bytes / UNIT).clamp(2, Semaphore::MAX_PERMITS);
        let small = (total / SMALL_PARTS).max(1);
        Self(Arc::new(Inner {
            small: Pool::new(Part::Small, small),
            large: Pool::new(Part::Large, total - small),
            huge: Arc::new(Semaphore::new(1)),
            waiting: <[AtomicUsize; PARTS]>::default(),
            wanted: Notify::new(),
        }))
    }

    /// Bytes that are taken; what is beyond the budget is not among them.
    pub fn taken(&self) -> usize {
        (self.0.small.taken() + self.0.large.taken()) * UNIT
    }

    /// The parts that readers wait for.
    pub fn contended(&self) -> Parts {
        let parts = [Part::Small, Part::Large, Part::Huge];
        let wanted = parts.into_iter().zip(&self.0.waiting);
        let wanted = wanted.filter(|(_, waiting)| waiting.load(Ordering::Relaxed) > 0);
        wanted.fold(Parts::default(), |all, (part, _)| all | Parts::of(part))
    }

    /// Completes when a reader waits for one of `held`.
    pub(crate) async fn wanted(&self, held: Parts) {
        loop {
            // Made before the look, so that nothing between the two is missed.
            let wanted = self.0.wanted.notified();
            if self.contended().meets(held) {
                return;
            }
            wanted.await;
        }
    }

    /// How many bytes of a frame with `end` in all, of which `len` have come, are to be admitted
    /// next: all while more than half would still be free, or if the connection has brought a
    /// frame of about `end` bytes before. More than has come is taken by who has earned it.
    pub(crate) fn step(&self, end: usize, len: usize, last: usize) -> usize {
        if self.is_huge(end) || end <= SMALL_MAX || end / 2 <= last {
            return end;
        }
        let large = &self.0.large;
        let free = large.units.available_permits() * UNIT;
        if free.saturating_sub(end) >= large.total * UNIT / 2 {
            return end;
        }
        len.saturating_mul(STEP).min(end)
    }

    /// Room for `bytes` of a frame with `end` in all, if there is some.
    pub(crate) fn try_take(&self, end: usize, bytes: usize) -> Option<Share> {
        if self.is_huge(end) {
            let permit = Arc::clone(&self.0.huge).try_acquire_owned().ok()?;
            return Some(Share::of(Parts::of(Part::Huge), permit, true));
        }
        let small = (end <= SMALL_MAX).then(|| self.0.small.try_take(bytes));
        small.flatten().or_else(|| self.0.large.try_take(bytes))
    }

    /// The same, as soon as there is some. May be dropped.
    ///
    /// # Errors
    /// None while the process lives.
    pub(crate) async fn take(&self, end: usize, bytes: usize) -> io::Result<Share> {
        if self.is_huge(end) {
            let _waiting = Waiting::new(&self.0, Part::Huge);
            let permit = Arc::clone(&self.0.huge).acquire_owned().await;
            return share(Parts::of(Part::Huge), permit, true);
        }
        let pool = if end <= SMALL_MAX {
            &self.0.small
        } else {
            &self.0.large
        };
        let _waiting = Waiting::new(&self.0, pool.part);
        pool.take(bytes).await
    }

    fn is_huge(&self, end: usize) -> bool {
        end > SMALL_MAX.max(self.0.large.total / HUGE_PARTS * UNIT)
    }
}

/// Counts as waiting until dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(budget: &'a Inner, part: Part) -> Self {
        let waiting = match part {
            Part::Small => &budget.waiting[0],
            Part::Large => &budget.waiting[1],
            Part::Huge => &budget.waiting[2],
        };
        waiting.fetch_add(1, Ordering::Relaxed);
        budget.wanted.notify_waiters();
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What admits the frames of one connection.
#[derive(Debug)]
pub struct Admission {
    /// What all connections share.
    pub(crate) budget: ByteBudget,
    /// Room for one small request of this connection, beside the budget.
    pub(crate) place: Arc<Semaphore>,
}

impl Admission {
    /// Of a new connection.
    pub(crate) fn new(budget: ByteBudget) -> Arc<Self> {
        let place = Arc::new(Semaphore::new(1));
        Arc::new(Self { budget, place })
    }

    /// What frames hold whose buffer has these shares.
    pub(crate) fn admitted(self: &Arc<Self>, shares: Shares) -> Admitted {
        Admitted::new(shares, false, Arc::clone(self))
    }

    /// Admits a request of `bytes` that is there already: into the budget, or into the place that
    /// its connection has beside it, whatever others hold. May be dropped.
    ///
    /// # Errors
    /// None while the process lives.
    pub(crate) async fn admit(self: &Arc<Self>, bytes: usize) -> io::Result<Admitted> {
        let free = self.budget.try_take(bytes, bytes);
        let (share, is_place) = if let Some(share) = free {
            (share, false)
        } else if let Ok(permit) = Arc::clone(&self.place).try_acquire_owned() {
            (Share::place(permit), true)
        } else {
            tokio::select! {
                biased;
                taken = self.budget.take(bytes, bytes) => (taken?, false),
                place = Arc::clone(&self.place).acquire_owned() => {
                    (share(Parts::default(), place, true)?, true)
                }
            }
        };
        let shares = Shares::from_iter([share]);
        Ok(Admitted::new(shares, is_place, Arc::clone(self)))
    }
}

/// What one buffer holds of the budget: seldom more than one.
pub(crate) type Shares = smallvec::SmallVec<[Share; 2]>;

/// The parts of the budget that these are of.
pub(crate) fn parts(shares: &[Share]) -> Parts {
    let each = shares.iter().map(|share| share.parts);
    each.fold(Parts::default(), Parts::bitor)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const KIB: usize = 1024;
    const MIB: usize = 1 << 20;

    #[test]
    fn large_frames_leave_a_quarter_to_small_ones() {
        let budget = ByteBudget::new(16 * MIB);
        let mut held = Vec::new();
        while let Some(share) = budget.try_take(MIB, MIB) {
            held.push(share);
        }
        assert_eq!(budget.taken(), 12 * MIB);
        let small = budget.try_take(SMALL_MAX, SMALL_MAX).unwrap();
        assert_eq!(budget.taken(), 12 * MIB + SMALL_MAX);
        drop((held, small));
        assert_eq!(budget.taken(), 0);
        // Small ones may have everything.
        let mut held = Vec::new();
        while let Some(share) = budget.try_take(SMALL_MAX, SMALL_MAX) {
            held.push(share);
        }
        assert_eq!(budget.taken(), 16 * MIB);
    }

    #[test]
    fn with_little_left_only_what_was_earned_is_taken() {
        let budget = ByteBudget::new(16 * MIB);
        assert_eq!(budget.step(2 * MIB, 4 * KIB, 0), 2 * MIB, "there is plenty");
        let held = budget.try_take(2 * MIB, 6 * MIB).unwrap();
        assert_eq!(budget.step(2 * MIB, 4 * KIB, 0), 16 * KIB);
        assert_eq!(budget.step(2 * MIB, 16 * KIB, 0), 64 * KIB);
        assert_eq!(budget.step(2 * MIB, MIB, 0), 2 * MIB);
        assert_eq!(
            budget.step(2 * MIB, 4 * KIB, MIB),
            2 * MIB,
            "it had such a frame before"
        );
        assert_eq!(budget.step(SMALL_MAX, 4 * KIB, 0), SMALL_MAX);
        drop(held);
    }

    #[test]
    fn one_frame_goes_beyond_and_one_huge_frame_beside_it() {
        let budget = ByteBudget::new(16 * MIB);
        let all = budget.try_take(MIB, 12 * MIB).unwrap();
        assert!(budget.try_take(MIB, MIB).is_none());
        assert_eq!(budget.contended(), Parts::default());
        let beyond = budget.take(MIB, MIB).now_or_never().unwrap().unwrap();
        assert!(beyond.whole);
        let mut second = Box::pin(budget.take(MIB, MIB));
        assert!(second.as_mut().now_or_never().is_none());
        let large = Parts::of(Part::Large);
        assert_eq!(budget.contended(), large);
        assert_eq!(parts(std::slice::from_ref(&all)), large);
        assert!(budget.wanted(large).now_or_never().is_some());
        // One of more than 3 MiB needs nothing of it.
        let huge = budget.try_take(50 * MIB, 50 * MIB).unwrap();
        assert!(huge.whole && budget.taken() == 12 * MIB);
        assert!(budget.try_take(4 * MIB, 4 * MIB).is_none(), "one at a time");
        assert!(budget.wanted(huge.parts).now_or_never().is_none());
        drop(beyond);
        assert!(second.now_or_never().unwrap().unwrap().whole);
        assert_eq!(budget.contended(), Parts::default());
        drop((all, huge));
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn who_waits_wants_only_what_is_of_use_to_it() {
        let budget = ByteBudget::new(16 * MIB);
        let (small, large) = (Parts::of(Part::Small), Parts::of(Part::Large));
        let huge = budget.try_take(50 * MIB, 50 * MIB).unwrap();
        let mut second = Box::pin(budget.take(50 * MIB, 50 * MIB));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(budget.wanted(huge.parts).now_or_never().is_some());
        assert!(budget.wanted(small | large).now_or_never().is_none());
        assert!(budget.wanted(Parts::default()).now_or_never().is_none());
        assert_eq!(budget.contended().each(), [false, false, true]);
        drop(huge);
        let second = second.now_or_never().unwrap().unwrap();
        assert_eq!(second.parts, Parts::of(Part::Huge));
        // What a small frame took of the large part, large ones may want back.
        let all = budget.try_take(SMALL_MAX, 4 * MIB).unwrap();
        let more = budget.try_take(SMALL_MAX, MIB).unwrap();
        assert_eq!((all.parts, more.parts), (small, large));
        assert_eq!(parts(&[all, more]), small | large);
    }

    #[test]
    fn a_small_request_of_a_connection_waits_for_nobody_else() {
        let budget = ByteBudget::new(MIB);
        let mut held = Vec::new();
        while let Some(share) = budget.try_take(SMALL_MAX, KIB) {
            held.push(share);
        }
        let admission = Admission::new(budget.clone());
        let first = admission.admit(4 * KIB).now_or_never().unwrap().unwrap();
        let parked = first.parked().unwrap();
        // Another takes what goes beyond the budget.
        let beyond = budget.take(SMALL_MAX, SMALL_MAX).now_or_never().unwrap();
        assert!(beyond.unwrap().whole);
        let beyond = budget.take(SMALL_MAX, SMALL_MAX).now_or_never().unwrap();
        let mut second = Box::pin(admission.admit(4 * KIB));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert!(second.as_mut().now_or_never().is_none(), "it is kept");
        drop(parked);
        assert!(second.now_or_never().is_some());
        drop((held, beyond));
        assert_eq!(budget.taken(), 0);
    }
}
