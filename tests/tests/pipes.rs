//! Exactly once with real clients: what a read_committed consumer finds behind a pipeline is what
//! went in, whoever was killed meanwhile.
//!
//! Needs `scripts/setup-clients.sh` and `--features clients-c`; what is missing fails. A longer
//! run: `FENCEPOST_PIPES_RECORDS` (of 336,776 flights), `FENCEPOST_PIPES_KILLS` (of the broker;
//! clients are killed twice as often), `FENCEPOST_PIPES_BATCH` (most records of a transaction).
//! `FENCEPOST_FLIGHTS_SEED` and `FENCEPOST_FLIGHTS_BROKER` are as in the suite `flights`.

use anyhow::{Context as _, bail};
use tests::flights::broker::Kind;
use tests::pipes::Client;
use tests::pipes::scenario::{Scenario, run};

fn number(variable: &str, default: u64) -> anyhow::Result<u64> {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .with_context(|| format!("{variable} is no number: {text}")),
        Err(_) => Ok(default),
    }
}

#[expect(
    clippy::print_stdout,
    reason = "the seed, and what a run did, for who reads the log"
)]
fn pass(version: u8) -> anyhow::Result<()> {
    let kind = Kind::from_env()?;
    let kills = match kind {
        Kind::Fencepost => usize::try_from(number("FENCEPOST_PIPES_KILLS", 6)?)?,
        Kind::Kafka => 1,
    };
    let scenario = Scenario {
        clients: &Client::ALL,
        records: usize::try_from(number("FENCEPOST_PIPES_RECORDS", 20_000)?)?,
        broker_kills: kills,
        client_kills: 2 * kills,
        version,
        seed: number("FENCEPOST_FLIGHTS_SEED", fastrand::u64(..))?,
    };
    let dir = tempfile::Builder::new().prefix("pipes-").tempdir()?;
    println!("{scenario:?}");
    match run(kind, scenario, dir.path()) {
        Ok(report) => println!("{report:?}"),
        Err(error) => bail!("{scenario:?}, files in {}: {error:#}", dir.keep().display()),
    }
    Ok(())
}

#[test]
fn all_clients_at_once_with_version_2() -> anyhow::Result<()> {
    pass(2)
}

#[test]
fn all_clients_at_once_with_version_1() -> anyhow::Result<()> {
    pass(1)
}
