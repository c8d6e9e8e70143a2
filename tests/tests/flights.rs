//! Every flight through every client while the broker is killed with SIGKILL.
//!
//! Five writers with [`KILLS_PER_WRITER`] kills each, every writer with a reader of another
//! kind. Needs `scripts/setup-clients.sh` and `--features clients-c`; what is missing fails.
//! `FENCEPOST_FLIGHTS_SEED` repeats the kills of a run, `FENCEPOST_FLIGHTS_BROKER=kafka` runs
//! the same against Apache Kafka, with fewer kills because its restarts take seconds.

use anyhow::{Context as _, bail};
use tests::flights::broker::Kind;
use tests::flights::clients::Client;
use tests::flights::scenario::{Scenario, run};

const KILLS_PER_WRITER: usize = 7;
const WRITERS: usize = 5;
const _: () = assert!(KILLS_PER_WRITER * WRITERS >= 30);

fn seed() -> anyhow::Result<u64> {
    match std::env::var("FENCEPOST_FLIGHTS_SEED") {
        Ok(text) => text
            .parse()
            .context("FENCEPOST_FLIGHTS_SEED is a number from 0 to 2^64-1"),
        Err(_) => Ok(fastrand::u64(..)),
    }
}

#[expect(
    clippy::print_stdout,
    reason = "the seed, and what a run took, for who reads the log"
)]
fn pass(writer: Client, reader: Client) -> anyhow::Result<()> {
    let kind = Kind::from_env()?;
    let kills = match kind {
        Kind::Fencepost => KILLS_PER_WRITER,
        Kind::Kafka => 2,
    };
    let seed = seed()?;
    let scenario = Scenario {
        writer,
        reader,
        kills,
        seed,
    };
    let dir = tempfile::Builder::new().prefix("flights-").tempdir()?;
    let named = format!(
        "{} to {}, FENCEPOST_FLIGHTS_SEED={seed}",
        writer.name(),
        reader.name()
    );
    println!("{named}");
    match run(kind, scenario, dir.path()) {
        Ok(report) => println!("{named}: {report:?}"),
        Err(error) => bail!("{named}, files in {}: {error:#}", dir.keep().display()),
    }
    Ok(())
}

#[test]
fn kcat_to_java_console() -> anyhow::Result<()> {
    pass(Client::Kcat, Client::JavaConsole)
}

#[test]
fn rust_rdkafka_to_franz_go() -> anyhow::Result<()> {
    pass(Client::RustRdkafka, Client::FranzGo)
}

#[test]
fn python_confluent_kafka_to_kcat() -> anyhow::Result<()> {
    pass(Client::PythonConfluent, Client::Kcat)
}

#[test]
fn java_console_to_python_confluent_kafka() -> anyhow::Result<()> {
    pass(Client::JavaConsole, Client::PythonConfluent)
}

#[test]
fn franz_go_to_rust_rdkafka() -> anyhow::Result<()> {
    pass(Client::FranzGo, Client::RustRdkafka)
}
