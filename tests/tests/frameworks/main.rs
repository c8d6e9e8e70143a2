//! Apache Kafka's own frameworks, unchanged, while they and the broker are killed with -9: Kafka
//! Streams with `exactly_once_v2` and a state store of which only the compacted changelog is left,
//! and Kafka Connect with a source that is exactly once.
//!
//! Needs `scripts/setup-clients.sh` and `--features clients-c`; what is missing fails.
//! `FENCEPOST_FLIGHTS_SEED` repeats the kills of the run that printed it,
//! `FENCEPOST_FLIGHTS_BROKER` is as in the suite `flights`, `FRAMEWORKS_KILLS` is how often each
//! side is killed.

mod connect;
mod streams;

use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure};
use tests::flights::broker::{Broker, Kind};
use tests::flights::child::{Running, tail};
use tests::flights::wall::{Deadline, pause};
use tests::pipes::scenario::committed;
use tests::raw::RawClient;
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::ops;
use tokio::runtime::Runtime;

/// How long anything that can be seen may take. A worker whose predecessor was killed waits for
/// that one's session to end.
const PATIENCE: Duration = Duration::from_mins(8);
const PACE: Duration = Duration::from_millis(100);

/// A broker, a framework on it, and the moments at which they die.
struct Scene<'a> {
    broker: Broker,
    runtime: Runtime,
    dice: fastrand::Rng,
    kills: usize,
    dir: &'a Path,
}

impl<'a> Scene<'a> {
    fn start(dir: &'a Path, settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        let kind = Kind::from_env()?;
        let seed = std::env::var("FENCEPOST_FLIGHTS_SEED");
        let seed = seed.map_or_else(|_| Ok(fastrand::u64(..)), |seed| seed.parse())?;
        let kills = std::env::var("FRAMEWORKS_KILLS");
        let kills = kills.map_or(Ok(2), |kills| kills.parse())?;
        println!("FENCEPOST_FLIGHTS_SEED={seed}, files in {}", dir.display());
        let settings = match kind {
            Kind::Fencepost => settings,
            Kind::Kafka => &[],
        };
        Ok(Self {
            broker: Broker::start_with(kind, dir, settings)?,
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?,
            dice: fastrand::Rng::with_seed(seed),
            kills,
            dir,
        })
    }

    fn address(&self) -> String {
        self.broker.address().to_string()
    }

    fn create(&self, topic: &str, partitions: i32) -> anyhow::Result<()> {
        let address = self.address();
        self.runtime.block_on(async {
            let mut client = RawClient::connect(&address).await?;
            ops::create_topic(&mut client, topic, partitions, &[]).await?;
            Ok(())
        })
    }

    fn produce(&self, topic: &str, partition: i32, values: &[String]) -> anyhow::Result<()> {
        let address = self.address();
        let spec = BatchSpec {
            records: values.iter().cloned().map(Record::value).collect(),
            ..BatchSpec::default()
        };
        let code = self.runtime.block_on(async {
            let mut client = RawClient::connect(&address).await?;
            let answer = ops::produce(&mut client, topic, partition, spec.build()).await?;
            anyhow::Ok(answer.error_code)
        })?;
        ensure!(code == 0, "{topic}-{partition}: {code}");
        Ok(())
    }

    /// Waits until `topic` shows `count` committed records or more.
    fn await_committed(
        &self,
        topic: &str,
        count: usize,
        who: &Running,
    ) -> anyhow::Result<Vec<String>> {
        let deadline = Deadline::after(PATIENCE);
        loop {
            let lines = self.committed(topic)?;
            if lines.len() >= count {
                return Ok(lines);
            }
            if let Err(late) = deadline.check(&format!("record {count} of {topic}")) {
                let there = lines.len();
                bail!(
                    "{late}, {there} are there\n{}\n{}",
                    who.tail(),
                    tail(&self.broker.log()?)
                );
            }
            pause(PACE);
        }
    }

    /// What a consumer of committed records finds: key, a tab, and value of each.
    fn committed(&self, topic: &str) -> anyhow::Result<Vec<String>> {
        let text = String::from_utf8(committed(&self.broker, topic, "%k\t%s\n")?)?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    fn restart_broker(&mut self) -> anyhow::Result<()> {
        self.broker.kill()?;
        self.broker.restart()
    }

    /// An error if the broker panicked in any of its lives.
    fn check_log(&self) -> anyhow::Result<()> {
        let log = self.broker.log()?;
        ensure!(!log.contains("panicked"), "{}", tail(&log));
        Ok(())
    }
}

/// The number of the next kill's moment: so many more records are to be seen before it.
fn some(dice: &mut fastrand::Rng, of: usize) -> usize {
    dice.usize(1..=of)
}
