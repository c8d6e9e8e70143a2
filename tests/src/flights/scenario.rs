//! One writer, one reader, and a broker that is killed while the writer writes.
//!
//! The supervisor feeds the writer. It keeps at most [`WINDOW`] records between what the broker
//! shows and what the writer got, and plans the kills by what the broker shows: so a kill always
//! finds a writer with records in hand, and no writer is done before the last kill.

use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::ChildStdin;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use parking_lot::{Condvar, Mutex};

use super::broker::{Broker, Kind};
use super::child::{Running, Streams, java, with};
use super::clients::{Client, Target};
use super::input::{FLIGHTS, Flights, PARTITIONS, Placement};
use super::verdict;
use super::wall::{Deadline, LOOK_EVERY, pause};
use super::watermarks::{ABSENT, WatermarkClient, Watermarks};
use crate::process::cache_dir;

/// Most records that a writer holds and the broker does not show yet.
pub const WINDOW: usize = 20_000;
const WRITE_LIMIT: Duration = Duration::from_mins(8);
const READ_LIMIT: Duration = Duration::from_mins(4);
/// A kill comes up to this long after the broker has shown the record that triggers it.
const KILL_DELAY_US_MAX: u64 = 8_000;

/// A scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Writes every flight.
    pub writer: Client,
    /// Reads them back.
    pub reader: Client,
    /// How often the broker is killed while the writer writes.
    pub kills: usize,
    /// Decides the moments of the kills.
    pub seed: u64,
}

/// What a scenario that went well can say.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Kills under load.
    pub kills: usize,
    /// Time of the writing, with all restarts.
    pub writing: Duration,
    /// Time of the reading.
    pub reading: Duration,
}

/// Runs a scenario with its files in `dir`.
///
/// # Errors
/// If a runtime is missing, a client gives up, or what is read is not what was written.
pub fn run(kind: Kind, scenario: Scenario, dir: &Path) -> anyhow::Result<Report> {
    ensure!(
        scenario.writer != scenario.reader,
        "a client must not be its own witness"
    );
    let flights = Flights::load(&cache_dir())?;
    let mut broker = Broker::start(kind, dir)?;
    let target = Target {
        broker: broker.address(),
        topic: "flights",
    };
    if kind == Kind::Kafka {
        create_topic(target, dir)?;
    }

    let clock = Deadline::after(WRITE_LIMIT);
    let kills = write(&flights, scenario, target, &mut broker, dir)?;
    let writing = clock.elapsed();
    ensure!(
        kills == scenario.kills,
        "{kills} kills, not {}",
        scenario.kills
    );

    // The reader meets a broker that only has what is on disk.
    broker.kill()?;
    broker.restart()?;
    let deadline = Deadline::after(READ_LIMIT);
    let ends = settle(target, deadline)?;
    let read = scenario.reader.read(target, &ends, dir, deadline)?;
    verdict::judge(&flights, scenario.writer.placement(), &read)?;
    broker.kill()?;
    Ok(Report {
        kills,
        writing,
        reading: deadline.elapsed(),
    })
}

/// Creates the topic and waits until every partition has its leader.
///
/// Left to the writer's first metadata request, Apache Kafka 4.3.1 makes the broker leader of one
/// partition after the other: it can refuse a producer's first batch on a partition as not the
/// leader and then accept the second one, which was in flight already, as the first of a producer
/// that it does not know. The first is then out of order until its delivery time is over.
fn create_topic(target: Target<'_>, dir: &Path) -> anyhow::Result<()> {
    let command = java("org.apache.kafka.tools.TopicCommand")?;
    let broker = target.broker.to_string();
    let partitions = PARTITIONS.to_string();
    let command = with(command, ["--bootstrap-server", &broker, "--create"]);
    let command = with(
        command,
        ["--topic", target.topic, "--partitions", &partitions],
    );
    let stdout = Streams::Stored(dir.join("create-topic.out"));
    let deadline = Deadline::after(READ_LIMIT);
    Running::start("create-topic", command, stdout, dir)?.finish(deadline)?;
    while settle(target, deadline)?.contains(&ABSENT) {
        deadline.check("the topic's last partition")?;
        pause(LOOK_EVERY);
    }
    Ok(())
}

/// The watermarks, as soon as the broker answers for all partitions.
fn settle(target: Target<'_>, deadline: Deadline) -> anyhow::Result<Watermarks> {
    let mut client = WatermarkClient::new(target.broker, target.topic);
    loop {
        match client.latest() {
            Ok(ends) => return Ok(ends),
            Err(error) => deadline.check("an answer to ListOffsets").context(error)?,
        }
        pause(LOOK_EVERY);
    }
}

/// Visible records at which the broker is killed: one at a random place in each of `kills`
/// equal parts, all far enough from the end for the writer to have work left.
pub fn plan(kills: usize, rng: &mut fastrand::Rng) -> Vec<usize> {
    let part = FLIGHTS.saturating_sub(3 * WINDOW) / kills.max(1);
    (0..kills).map(|n| n * part + rng.usize(0..part)).collect()
}

fn write(
    flights: &Flights,
    scenario: Scenario,
    target: Target<'_>,
    broker: &mut Broker,
    dir: &Path,
) -> anyhow::Result<usize> {
    let command = scenario.writer.writer(target)?;
    let name = format!("writer-{}", scenario.writer.name());
    let mut writer = Running::start(&name, command, Streams::Fed, dir)?;
    let stdin = writer.take_stdin()?;
    let gate = Gate::default();
    let placement = scenario.writer.placement();
    std::thread::scope(|scope| {
        let feeder = scope.spawn(|| feed(flights, placement, &gate, stdin));
        let supervised = supervise(scenario, target, broker, &mut writer, &gate);
        if supervised.is_err() {
            // The feeder may sit in a write to a program that no longer reads.
            writer.kill()?;
        }
        gate.open();
        let Ok(fed) = feeder.join() else {
            bail!("the feeder panicked")
        };
        let kills = supervised?;
        fed.with_context(|| format!("feeding {name}\n{}", writer.tail()))?;
        Ok(kills)
    })
}

fn supervise(
    scenario: Scenario,
    target: Target<'_>,
    broker: &mut Broker,
    writer: &mut Running,
    gate: &Gate,
) -> anyhow::Result<usize> {
    let deadline = Deadline::after(WRITE_LIMIT);
    let mut rng = fastrand::Rng::with_seed(scenario.seed);
    let plan = plan(scenario.kills, &mut rng);
    let mut watermarks = WatermarkClient::new(target.broker, target.topic);
    let (mut kills, mut last) = (0, [ABSENT; PARTITIONS]);
    loop {
        if writer.ended()?.is_some() {
            writer.finish(deadline)?;
            return Ok(kills);
        }
        if let Err(late) = deadline.check("the end of the writing") {
            bail!(
                "{late}: {last:?} visible after {kills} kills\n{}",
                writer.tail()
            );
        }
        match watermarks.latest() {
            // For a moment after a restart Apache Kafka knows no topic.
            Ok(now) if broker.kind() == Kind::Kafka && now.contains(&ABSENT) => {}
            Ok(now) => last = grown(&last, now)?,
            // The broker was just killed, or is about to say who leads.
            Err(_) => {}
        }
        let visible = usize::try_from(last.iter().filter(|end| **end != ABSENT).sum::<i64>())?;
        gate.allow(visible + WINDOW);
        if plan.get(kills).is_some_and(|trigger| *trigger <= visible) {
            pause(Duration::from_micros(rng.u64(0..=KILL_DELAY_US_MAX)));
            ensure!(
                writer.ended()?.is_none(),
                "the writer ended early\n{}",
                writer.tail()
            );
            broker.kill()?;
            kills += 1;
            broker.restart()?;
        }
        pause(LOOK_EVERY);
    }
}

/// `now`, if nothing that was visible is gone.
fn grown(last: &Watermarks, now: Watermarks) -> anyhow::Result<Watermarks> {
    for (partition, (now, last)) in now.iter().zip(last).enumerate() {
        ensure!(
            now >= last,
            "partition {partition} was visible to {last}, now to {now}"
        );
    }
    Ok(now)
}

/// How many records the feeder may have passed on.
#[derive(Debug, Default)]
struct Gate {
    allowed: Mutex<usize>,
    moved: Condvar,
}

impl Gate {
    fn allow(&self, records: usize) {
        let mut allowed = self.allowed.lock();
        if records > *allowed {
            *allowed = records;
            self.moved.notify_one();
        }
    }

    fn open(&self) {
        self.allow(usize::MAX);
    }

    /// Waits until more than `fed` records are allowed and says how many.
    fn beyond(&self, fed: usize) -> usize {
        let mut allowed = self.allowed.lock();
        while *allowed <= fed {
            self.moved.wait(&mut allowed);
        }
        *allowed
    }
}

fn feed(
    flights: &Flights,
    placement: Placement,
    gate: &Gate,
    stdin: ChildStdin,
) -> std::io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, stdin);
    let (mut line, mut allowed) = (Vec::new(), 0);
    for (number, value) in flights.values().enumerate() {
        if number >= allowed {
            out.flush()?;
            allowed = gate.beyond(number);
        }
        placement.write_line(number, value, &mut line);
        out.write_all(&line)?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_are_spread_reproducible_and_under_load() {
        let planned = |seed| plan(7, &mut fastrand::Rng::with_seed(seed));
        for seed in 0..100 {
            let plan = planned(seed);
            assert_eq!(plan, planned(seed));
            assert_eq!(plan.len(), 7);
            assert!(plan.is_sorted());
            assert!(
                plan.iter().all(|trigger| trigger + 3 * WINDOW < FLIGHTS),
                "{plan:?}"
            );
        }
        assert_ne!(planned(1), planned(2));
    }
}
