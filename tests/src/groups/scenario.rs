//! One group, one topic, one broker, and a seeded plan of what befalls them.
//!
//! The supervisor writes the topic while the group reads it, at most [`WINDOW`] records ahead of
//! what is committed, and plans every event by what is committed: so every kill finds records on
//! their way. It samples committed offsets all the time: they must never move back.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;

use super::member::{Client, Gone, Member};
use super::verdict::{self, Report};
use crate::flights::broker::{Broker, Kind};
use crate::flights::input::{Flights, PARTITIONS};
use crate::flights::supervisor::Supervisor;
use crate::flights::wall::{Deadline, LOOK_EVERY, pause};
use crate::process::cache_dir;
use crate::raw::batch::{BatchSpec, Record};
use crate::raw::{RawClient, group, ops};

/// Records that the plan is laid over; more are written while a member is slow to start.
pub const RECORDS: usize = 40_000;
/// Records that may be written and not committed.
pub const WINDOW: usize = 4_000;
/// Records written to each partition at once.
const CHUNK: usize = 100;
const LIMIT: Duration = Duration::from_mins(10);
/// After so long without a commit, a record more is written to each partition: a client whose last
/// commit was refused commits again only with its next record. kcat commits every 5 s.
const STALLED: Duration = Duration::from_secs(10);
/// While a member starts, a few records come this often: it must find some to read.
const TRICKLE: Duration = Duration::from_millis(20);
/// A kill comes up to this long after what triggers it.
const KILL_DELAY_US_MAX: u64 = 8_000;
const GROUP: &str = "readers";
const TOPIC: &str = "flights";

/// A group and its kills.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Clients of the members, in turn.
    pub clients: &'static [Client],
    /// How often the broker is killed.
    pub kills: usize,
    /// Decides the moments.
    pub seed: u64,
}

/// What happens at a point of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    KillBroker,
    Join,
    KillMember,
    Leave,
}

/// Events with the committed records at which they happen.
fn plan(kills: usize, rng: &mut fastrand::Rng) -> Vec<(usize, Event)> {
    let reach = RECORDS - 2 * WINDOW;
    let part = reach / kills.max(1);
    let mut events: Vec<(usize, Event)> = (0..kills)
        .map(|n| (n * part + rng.usize(0..part), Event::KillBroker))
        .collect();
    // Two members at the start, four at most, three at the end.
    let changes = [
        Event::Join,
        Event::KillMember,
        Event::Join,
        Event::Join,
        Event::Leave,
        Event::KillMember,
        Event::Join,
    ];
    let part = reach / changes.len();
    let changes = changes.iter().enumerate();
    events.extend(changes.map(|(n, event)| (n * part + rng.usize(0..part), *event)));
    events.sort_by_key(|(at, _)| *at);
    events
}

/// Runs a scenario with its files in `dir`.
///
/// # Errors
/// If a runtime is missing, a client or the broker gives up, or the verdict is bad.
pub fn run(kind: Kind, scenario: Scenario, dir: &Path) -> anyhow::Result<Report> {
    let flights = Flights::load(&cache_dir())?;
    let values: Vec<&[u8]> = flights.values().collect();
    // The records of a batch here are of 2023.
    let settings = [
        ("group.initial.rebalance.delay.ms", "100"),
        ("log.retention.ms", "-1"),
    ];
    let broker = Broker::start_with(kind, dir, &settings)?;
    let mut run = Run {
        scenario,
        broker,
        supervisor: Supervisor::new()?,
        values: &values,
        written: 0,
        committed: vec![-1; PARTITIONS],
        rng: fastrand::Rng::with_seed(scenario.seed),
        members: Vec::new(),
        started: 0,
        gone: Vec::new(),
        deadline: Deadline::after(LIMIT),
        dir,
    };
    run.prepare()?;
    run.play()?;
    run.finish()
}

struct Run<'a> {
    scenario: Scenario,
    broker: Broker,
    supervisor: Supervisor,
    values: &'a [&'a [u8]],
    /// Records written to every partition.
    written: usize,
    /// The last sample, -1 where nothing is committed.
    committed: Vec<i64>,
    rng: fastrand::Rng,
    members: Vec<Member>,
    started: usize,
    gone: Vec<Gone>,
    deadline: Deadline,
    dir: &'a Path,
}

impl Run<'_> {
    fn prepare(&mut self) -> anyhow::Result<()> {
        let address = self.broker.address();
        let partitions = i32::try_from(PARTITIONS)?;
        let client = self.supervisor.runtime.block_on(async {
            let mut client = RawClient::connect(address).await?;
            ops::create_topic(&mut client, TOPIC, partitions, &[]).await?;
            group::await_coordinator(&mut client, GROUP).await?;
            anyhow::Ok(client)
        })?;
        self.supervisor.client = Some(client);
        self.join()?;
        self.join()
    }

    fn play(&mut self) -> anyhow::Result<()> {
        let mut events = plan(self.scenario.kills, &mut self.rng)
            .into_iter()
            .peekable();
        let mut trickled = Deadline::after(TRICKLE);
        let mut moved = (Vec::new(), Deadline::after(STALLED));
        loop {
            self.sample().context("committed offsets")?;
            if moved.0 != self.committed {
                moved = (self.committed.clone(), Deadline::after(STALLED));
            }
            let done: i64 = self.committed.iter().map(|offset| (*offset).max(0)).sum();
            let (done, written) = (usize::try_from(done)?, self.written * PARTITIONS);
            let starting = match self.members.last() {
                Some(member) => !member.has_spoken()?,
                None => false,
            };
            if starting {
                if written - done < WINDOW && trickled.elapsed() > TRICKLE {
                    trickled = Deadline::after(TRICKLE);
                    self.write(1)?;
                }
            } else if events.peek().is_some_and(|(at, _)| *at <= done) {
                let event = events.next().map(|(_, event)| event);
                self.happen(event.context("an event that was there")?)?;
            } else if written < RECORDS && written - done < WINDOW {
                self.write(CHUNK)?;
            } else if done == written && events.peek().is_some() {
                self.write(1)?;
            } else if done == written {
                return Ok(());
            } else if written - done < WINDOW && moved.1.elapsed() > STALLED {
                moved.1 = Deadline::after(STALLED);
                self.write(1)?;
            } else {
                pause(LOOK_EVERY);
            }
            for member in &mut self.members {
                member.check()?;
            }
            let state = format!(
                "the end ({written} written, committed {:?})",
                self.committed
            );
            self.deadline.check(&state)?;
        }
    }

    fn happen(&mut self, event: Event) -> anyhow::Result<()> {
        let member = self.rng.usize(0..self.members.len().max(1));
        let may_end = self.scenario.clients.iter().all(|client| client.may_end());
        match event {
            Event::KillMember | Event::Leave if !may_end => Ok(()),
            Event::KillBroker => {
                pause(Duration::from_micros(self.rng.u64(0..=KILL_DELAY_US_MAX)));
                self.supervisor.client = None;
                self.broker.kill()?;
                self.broker.restart()
            }
            Event::Join => self.join(),
            Event::KillMember => {
                let gone = self.members.remove(member).kill()?;
                self.gone.push(gone);
                Ok(())
            }
            Event::Leave => {
                let gone = self.members.remove(member).leave(self.deadline)?;
                self.gone.push(gone);
                Ok(())
            }
        }
    }

    fn join(&mut self) -> anyhow::Result<()> {
        let clients = self.scenario.clients;
        let client = clients[self.started % clients.len()];
        let target = (self.broker.address(), TOPIC, GROUP);
        let floor = self.committed.clone();
        // Of a static member that was killed, the next one takes the place.
        let taken = |instance| self.members.iter().any(|m| m.instance == instance);
        let instance = (0..=self.members.len()).find(|instance| !taken(*instance));
        let instance = instance.context("every place is taken")?;
        let numbers = (self.started, instance);
        let member = Member::start(client, numbers, target, floor, self.dir)?;
        self.members.push(member);
        self.started += 1;
        Ok(())
    }

    /// Takes the committed offsets.
    fn sample(&mut self) -> anyhow::Result<()> {
        let (address, deadline) = (self.broker.address(), self.deadline);
        let supervisor = &mut self.supervisor;
        let offsets = supervisor.committed(address, GROUP, TOPIC, PARTITIONS, deadline)?;
        self.moved_to(offsets)
    }

    fn moved_to(&mut self, offsets: Vec<i64>) -> anyhow::Result<()> {
        for (partition, (now, last)) in offsets.iter().zip(&self.committed).enumerate() {
            ensure!(
                now >= last,
                "partition {partition} was committed to {last}, now to {now}"
            );
            ensure!(
                *now <= i64::try_from(self.written)?,
                "partition {partition} is committed to {now}, written to {}",
                self.written
            );
        }
        self.committed = offsets;
        Ok(())
    }

    /// Writes `count` records to every partition. The broker lives: only this thread kills it.
    fn write(&mut self, count: usize) -> anyhow::Result<()> {
        let client = self.supervisor.client.as_mut().context("a connection")?;
        let (values, written) = (self.values, self.written);
        self.supervisor.runtime.block_on(async {
            for partition in 0..PARTITIONS {
                let records = (written..written + count).map(|row| {
                    let value = values.get(row * PARTITIONS + partition);
                    let value = value.context("the flights are all written")?;
                    Ok(Record::value(Bytes::copy_from_slice(value)))
                });
                let spec = BatchSpec {
                    records: records.collect::<anyhow::Result<_>>()?,
                    ..BatchSpec::default()
                };
                let partition = i32::try_from(partition)?;
                let answer = ops::produce(client, TOPIC, partition, spec.build()).await?;
                ops::check(answer.error_code, "Produce")?;
                ensure!(answer.base_offset == i64::try_from(written)?, "{answer:?}");
            }
            anyhow::Ok(())
        })?;
        self.written += count;
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<Report> {
        while let Some(member) = self.members.pop() {
            self.gone.push(member.leave(self.deadline)?);
        }
        self.sample()?;
        let end = i64::try_from(self.written)?;
        ensure!(
            self.committed.iter().all(|offset| *offset == end),
            "committed {:?}, written to {end}",
            self.committed
        );
        let (values, written) = (self.values, self.written);
        let report = verdict::judge(&self.gone, PARTITIONS, end, |partition, offset| {
            let row = usize::try_from(offset).ok().filter(|row| *row < written)?;
            values.get(row * PARTITIONS + partition).copied()
        })?;
        self.broker.kill()?;
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_reproducible_and_never_empties_the_group() {
        for seed in 0..100 {
            let planned = plan(20, &mut fastrand::Rng::with_seed(seed));
            assert_eq!(planned, plan(20, &mut fastrand::Rng::with_seed(seed)));
            let kills = planned.iter().filter(|(_, e)| *e == Event::KillBroker);
            assert_eq!(kills.count(), 20);
            assert!(planned.is_sorted_by_key(|(at, _)| *at));
            let mut members = 2;
            for (at, event) in planned {
                assert!(at < RECORDS - WINDOW);
                members += match event {
                    Event::Join => 1,
                    Event::KillMember | Event::Leave => -1,
                    Event::KillBroker => 0,
                };
                assert!((2..=4).contains(&members), "{members}");
            }
        }
    }
}
