//! The loop that drives all connections of a run from one thread.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::report::Tally;
use super::wire::Wire;
use crate::wallclock;

/// When a run ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    /// Nothing new is due from here on.
    pub(super) end: Option<Instant>,
    /// Bytes to move before the run ends.
    pub(super) bytes: Option<u64>,
    /// Longest time without any answer.
    pub(super) stall: Duration,
}

impl Span {
    /// Whether nothing new is due at `now`, `moved` bytes having been asked for.
    pub(super) fn is_over(&self, now: Instant, moved: u64) -> bool {
        self.end.is_some_and(|end| now >= end) || self.bytes.is_some_and(|bytes| moved >= bytes)
    }
}

/// One connection's part in a run.
pub(super) trait Peer {
    /// The connection.
    fn wire(&mut self) -> &mut Wire;
    /// Queues every request that is due, and writes what the socket takes.
    fn send(&mut self, now: Instant, span: &Span, tally: &mut Tally) -> Result<()>;
    /// Judges one answer, of which `frame` is the place in the connection's inbox.
    fn answer(
        &mut self,
        frame: std::ops::Range<usize>,
        now: Instant,
        tally: &mut Tally,
    ) -> Result<()>;
    /// When the next request is due, if that and not an answer is what the peer waits for.
    fn due(&self) -> Option<Instant>;
    /// Whether the peer neither waits for an answer nor will send again.
    fn is_done(&self, now: Instant, span: &Span, tally: &Tally) -> bool;
}

const EVENTS_MAX: usize = 256;
/// Event data of the timer; connections have their index.
const TIMER: u64 = u64::MAX;

/// Runs all peers to their end.
pub(super) fn drive<P: Peer>(peers: &mut [P], span: &Span, tally: &mut Tally) -> Result<()> {
    let poller = Poller::new()?;
    for (index, peer) in (0..).zip(&mut *peers) {
        poller.watch(peer.wire(), index, false)?;
    }
    let mut writable = vec![false; peers.len()];
    let mut ready: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
    let mut last_answer = wallclock::now();
    loop {
        let now = wallclock::now();
        let mut due: Option<Instant> = None;
        let mut open = false;
        for (index, peer) in peers.iter_mut().enumerate() {
            peer.send(now, span, tally)?;
            let backlog = peer.wire().has_backlog();
            if backlog != writable[index] {
                poller.rewatch(peer.wire(), index as u64, backlog)?;
                writable[index] = backlog;
            }
            due = due.into_iter().chain(peer.due()).min();
            open |= !peer.is_done(now, span, tally);
        }
        if !open {
            return Ok(());
        }
        if now.duration_since(last_answer) > span.stall {
            bail!("no answer for {:?}", span.stall);
        }
        poller.wait(&mut ready, due, now)?;
        for event in ready.drain(..) {
            let Ok(index) = usize::try_from(event.data.u64()) else {
                continue;
            };
            let Some(peer) = peers.get_mut(index) else {
                continue;
            };
            if receive(peer, tally).with_context(|| format!("connection {index}"))? {
                last_answer = wallclock::now();
            }
        }
    }
}

/// Reads what is there, at most once per readiness; true when an answer was among it.
fn receive<P: Peer>(peer: &mut P, tally: &mut Tally) -> Result<bool> {
    let mut answered = false;
    if peer.wire().fill()? {
        let now = wallclock::now();
        while let Some(frame) = peer.wire().next_frame()? {
            peer.answer(frame, now, tally)?;
            answered = true;
        }
    }
    Ok(answered)
}

#[derive(Debug)]
struct Poller {
    epoll: OwnedFd,
    /// epoll's own time-out may be rounded to milliseconds; rates need better.
    timer: OwnedFd,
}

impl Poller {
    fn new() -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        Ok(Self { epoll, timer })
    }

    fn watch(&self, wire: &Wire, index: u64, writable: bool) -> Result<()> {
        let interest = interest(writable);
        Ok(epoll::add(
            &self.epoll,
            wire.stream(),
            EventData::new_u64(index),
            interest,
        )?)
    }

    fn rewatch(&self, wire: &Wire, index: u64, writable: bool) -> Result<()> {
        let interest = interest(writable);
        Ok(epoll::modify(
            &self.epoll,
            wire.stream(),
            EventData::new_u64(index),
            interest,
        )?)
    }

    /// Waits for a socket, for `due`, or for 100 ms.
    fn wait(&self, ready: &mut Vec<Event>, due: Option<Instant>, now: Instant) -> Result<()> {
        // Also with nothing due: setting the timer clears an expiry that was not read.
        let wait = due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now));
        let mut patience = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        if due.is_some() && wait.is_zero() {
            patience.tv_nsec = 0;
        }
        let value = Timespec {
            tv_sec: i64::try_from(wait.as_secs())?,
            tv_nsec: wait.subsec_nanos().into(),
        };
        let timer = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: value,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer)?;
        ready.clear();
        match epoll::wait(&self.epoll, spare_capacity(ready), Some(&patience)) {
            Ok(_) => Ok(()),
            Err(e) if e == rustix::io::Errno::INTR => Ok(()),
            Err(e) => Err(e).context("epoll"),
        }
    }
}

fn interest(writable: bool) -> EventFlags {
    if writable {
        EventFlags::IN | EventFlags::OUT
    } else {
        EventFlags::IN
    }
}
