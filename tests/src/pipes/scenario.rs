//! All clients at once on one broker: each moves the same records to a topic of its own, while it
//! and the broker are killed.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;

use super::Client;
use super::client::{Pipe, Way};
use super::reader::{Reader, lines};
use crate::flights::broker::{Broker, Kind};
use crate::flights::input::{Flights, PARTITIONS};
use crate::flights::supervisor::Supervisor;
use crate::flights::wall::{Deadline, LOOK_EVERY, pause};
use crate::process::cache_dir;
use crate::raw::batch::{BatchSpec, Record};
use crate::raw::{RawClient, group, ops};

const INPUT: &str = "flights";
/// Records of one batch of the input.
const CHUNK: usize = 500;
/// How long a run may take for every so many records, begun.
const LIMIT: Duration = Duration::from_mins(8);
const LIMIT_RECORDS: usize = 20_000;
/// A kill comes up to this long after what triggers it.
const KILL_DELAY_US_MAX: u64 = 20_000;

/// What is moved, and what befalls it.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Who moves it.
    pub clients: &'static [Client],
    /// Records, over all partitions.
    pub records: usize,
    /// How often the broker is killed.
    pub broker_kills: usize,
    /// How often one of the clients is killed.
    pub client_kills: usize,
    /// `transaction.version`.
    pub version: u8,
    /// Decides the moments.
    pub seed: u64,
}

/// What a good run did.
#[derive(Clone, Debug)]
pub struct Report {
    /// Transactions that each saw committed, and aborted, and lives that it ended by itself.
    pub clients: Vec<(&'static str, usize, usize, usize)>,
}

/// Runs a scenario with its files in `dir`.
///
/// # Errors
/// If a runtime is missing, a client or the broker gives up, or what came out is not what went in.
pub fn run(kind: Kind, scenario: Scenario, dir: &Path) -> anyhow::Result<Report> {
    let flights = Flights::load(&cache_dir())?;
    let values: Vec<&[u8]> = flights.values().take(scenario.records).collect();
    ensure!(values.len() == scenario.records, "so many flights");
    let version = scenario.version.to_string();
    // The records of a batch here are of 2023.
    let mut settings = vec![
        ("group.initial.rebalance.delay.ms", "100"),
        ("log.retention.ms", "-1"),
    ];
    if kind == Kind::Fencepost {
        settings.push(("transaction.version", &version));
    }
    let broker = Broker::start_with(kind, dir, &settings)?;
    let limits = u32::try_from(scenario.records.div_ceil(LIMIT_RECORDS).max(1))?;
    let mut run = Run {
        scenario,
        broker,
        supervisor: Supervisor::new()?,
        ends: [0; PARTITIONS],
        pipes: Vec::new(),
        readers: Vec::new(),
        rng: fastrand::Rng::with_seed(scenario.seed),
        deadline: Deadline::after(LIMIT * limits),
        dir,
    };
    run.prepare(&values)?;
    run.play()?;
    run.finish(&values)
}

struct Run<'a> {
    scenario: Scenario,
    broker: Broker,
    supervisor: Supervisor,
    ends: [i64; PARTITIONS],
    pipes: Vec<Pipe>,
    /// Who reads each output from before its first record.
    readers: Vec<Reader>,
    rng: fastrand::Rng,
    deadline: Deadline,
    dir: &'a Path,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    KillBroker,
    KillClient,
}

fn output(client: Client) -> String {
    format!("out-{}", client.name())
}

impl Run<'_> {
    fn prepare(&mut self, values: &[&[u8]]) -> anyhow::Result<()> {
        let address = self.broker.address();
        let partitions = i32::try_from(PARTITIONS)?;
        let (clients, ends) = (self.scenario.clients, &mut self.ends);
        let client = self.supervisor.runtime.block_on(async {
            let mut client = RawClient::connect(address).await?;
            ops::create_topic(&mut client, INPUT, partitions, &[]).await?;
            for one in clients {
                ops::create_topic(&mut client, &output(*one), partitions, &[]).await?;
                group::await_coordinator(&mut client, one.name()).await?;
            }
            for (number, chunk) in values.chunks(CHUNK).enumerate() {
                let partition = number % PARTITIONS;
                let record = |value: &&[u8]| Record::value(Bytes::copy_from_slice(value));
                let spec = BatchSpec {
                    records: chunk.iter().map(record).collect(),
                    ..BatchSpec::default()
                };
                let index = i32::try_from(partition)?;
                let answer = ops::produce(&mut client, INPUT, index, spec.build()).await?;
                ops::check(answer.error_code, "Produce")?;
                ends[partition] += i64::try_from(chunk.len())?;
            }
            anyhow::Ok(client)
        })?;
        self.supervisor.client = Some(client);
        for client in clients {
            let output = output(*client);
            let reader = Reader::start(address, &output, values.len(), self.dir)?;
            self.readers.push(reader);
            let way = way(address, &output, self.dir);
            self.pipes.push(Pipe::start(*client, way, PARTITIONS)?);
        }
        Ok(())
    }

    fn plan(&mut self) -> Vec<(usize, Event)> {
        let reach = self.scenario.records * self.scenario.clients.len() * 9 / 10;
        let kinds = [
            (self.scenario.broker_kills, Event::KillBroker),
            (self.scenario.client_kills, Event::KillClient),
        ];
        let mut events = Vec::new();
        for (count, event) in kinds {
            let part = reach / count.max(1);
            let rng = &mut self.rng;
            events.extend((0..count).map(|n| (n * part + rng.usize(0..part.max(1)), event)));
        }
        events.sort_by_key(|(at, _)| *at);
        events
    }

    fn play(&mut self) -> anyhow::Result<()> {
        let mut events = self.plan().into_iter().peekable();
        let all: i64 = self.ends.iter().sum();
        let all = usize::try_from(all)? * self.pipes.len();
        loop {
            self.sample()?;
            let committed = self.pipes.iter().flat_map(|pipe| &pipe.committed);
            let done: i64 = committed.map(|offset| (*offset).max(0)).sum();
            let done = usize::try_from(done)?;
            if let Some((_, event)) = events.next_if(|(at, _)| *at <= done) {
                self.happen(event)?;
            } else if done == all {
                return Ok(());
            } else {
                pause(LOOK_EVERY * 10);
            }
            let address = self.broker.address();
            for pipe in &mut self.pipes {
                let output = output(pipe.client);
                pipe.tend(way(address, &output, self.dir), self.scenario.broker_kills)?;
            }
            for reader in &mut self.readers {
                reader.check()?;
            }
            let state = || {
                let one = |pipe: &Pipe| format!("{} {:?}", pipe.client.name(), pipe.committed);
                let pipes: Vec<String> = self.pipes.iter().map(one).collect();
                format!("the end ({}; of {:?})", pipes.join(", "), self.ends)
            };
            self.deadline.check(&state())?;
        }
    }

    fn happen(&mut self, event: Event) -> anyhow::Result<()> {
        pause(Duration::from_micros(self.rng.u64(0..=KILL_DELAY_US_MAX)));
        match event {
            Event::KillBroker => {
                self.supervisor.client = None;
                self.broker.kill()?;
                self.broker.restart()
            }
            Event::KillClient => {
                let index = self.rng.usize(0..self.pipes.len());
                let address = self.broker.address();
                let pipe = self.pipes.get_mut(index).context("a pipe")?;
                let output = output(pipe.client);
                pipe.kill(way(address, &output, self.dir))
            }
        }
    }

    /// Takes the committed offsets of all groups.
    fn sample(&mut self) -> anyhow::Result<()> {
        for index in 0..self.pipes.len() {
            let name = self.pipes[index].client.name();
            let (address, deadline) = (self.broker.address(), self.deadline);
            let supervisor = &mut self.supervisor;
            let offsets = supervisor.committed(address, name, INPUT, PARTITIONS, deadline)?;
            let before = &mut self.pipes[index].committed;
            for (partition, (now, last)) in offsets.iter().zip(before.iter()).enumerate() {
                ensure!(
                    now >= last && *now <= self.ends[partition],
                    "{name}: partition {partition} was committed to {last}, now to {now}"
                );
            }
            *before = offsets;
        }
        Ok(())
    }

    fn finish(mut self, values: &[&[u8]]) -> anyhow::Result<Report> {
        for pipe in &mut self.pipes {
            pipe.stop(self.deadline)?;
        }
        let mut expected: Vec<&[u8]> = values.to_vec();
        expected.sort_unstable();
        let mut clients = Vec::new();
        for (pipe, reader) in self.pipes.iter().zip(&mut self.readers) {
            let name = pipe.client.name();
            let came = committed(&self.broker, &output(pipe.client), "%p\t%o\t%k\t%s\n")?;
            let came = lines(&came)?;
            let mut found: Vec<&[u8]> = came.iter().map(|line| line.value).collect();
            found.sort_unstable();
            let differs = expected.iter().zip(&found).find(|(a, b)| a != b);
            ensure!(
                found == expected,
                "{name}: {} records went in, {} came out; first difference {:?}",
                expected.len(),
                found.len(),
                differs.map(|(a, b)| (String::from_utf8_lossy(a), String::from_utf8_lossy(b)))
            );
            // Nothing that is gone again, nothing twice: what it saw is what there is.
            reader.saw(came, self.deadline)?;
            let (committed, aborted) = said(self.dir, name)?;
            clients.push((name, committed, aborted, pipe.ended));
        }
        self.broker.kill()?;
        Ok(Report { clients })
    }
}

fn way<'a>(broker: std::net::SocketAddr, output: &'a str, dir: &'a Path) -> Way<'a> {
    Way {
        broker,
        input: INPUT,
        output,
        dir,
    }
}

/// Every record that a read_committed consumer gets of a topic, as `format` of kcat has it.
///
/// # Errors
/// If kcat is missing, or fails.
pub fn committed(broker: &Broker, topic: &str, format: &str) -> anyhow::Result<Vec<u8>> {
    let address = broker.address().to_string();
    let mut command = Command::new("timeout");
    command.args(["120", "kcat", "-C", "-e", "-q", "-o", "beginning"]);
    command.args(["-b", &address, "-t", topic, "-f", format]);
    command.args(["-X", "isolation.level=read_committed"]);
    let output = command.output().context("kcat")?;
    ensure!(
        output.status.success(),
        "kcat of {topic}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}

/// Transactions that the lives of a client said were committed, and aborted.
fn said(dir: &Path, name: &str) -> anyhow::Result<(usize, usize)> {
    let (mut committed, mut aborted) = (0, 0);
    for number in 0.. {
        let path = dir.join(format!("{name}-{number}.out"));
        if !path.exists() {
            return Ok((committed, aborted));
        }
        let text = std::fs::read_to_string(&path)?;
        committed += text
            .lines()
            .filter(|line| line.starts_with("committed"))
            .count();
        aborted += text
            .lines()
            .filter(|line| line.starts_with("aborted"))
            .count();
    }
    Ok((committed, aborted))
}
