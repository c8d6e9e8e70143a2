//! Groups of every client, under kills of members and of the broker.
//!
//! Each reads about [`tests::groups::scenario::RECORDS`] of the 336,776 flights: a group that is
//! thrown over every second needs seconds for each thousand, and more records add no new case.
//! `FENCEPOST_FLIGHTS_SEED` and `FENCEPOST_FLIGHTS_BROKER` are as in the suite `flights`.

use anyhow::{Context as _, bail};
use tests::flights::broker::Kind;
use tests::groups::member::Client;
use tests::groups::scenario::{Scenario, run};

/// Kills of the broker in one group of each client.
const MANY_KILLS: usize = 20;
/// Kills of the broker in every other group.
const KILLS: usize = 6;

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
    reason = "the seed, and what a run found, for who reads the log"
)]
fn pass(clients: &'static [Client], kills: usize) -> anyhow::Result<()> {
    let kind = Kind::from_env()?;
    let kills = match kind {
        Kind::Fencepost => kills,
        Kind::Kafka => 2,
    };
    let seed = seed()?;
    let scenario = Scenario {
        clients,
        kills,
        seed,
    };
    let dir = tempfile::Builder::new().prefix("groups-").tempdir()?;
    let named = format!("{clients:?}, {kills} kills, FENCEPOST_FLIGHTS_SEED={seed}");
    println!("{named}");
    match run(kind, scenario, dir.path()) {
        Ok(report) => println!("{named}: {report:?}"),
        Err(error) => bail!("{named}, files in {}: {error:#}", dir.keep().display()),
    }
    Ok(())
}

#[test]
fn librdkafka_cooperative_sticky() -> anyhow::Result<()> {
    pass(&[Client::Rdkafka("cooperative-sticky")], MANY_KILLS)
}

#[test]
fn librdkafka_range() -> anyhow::Result<()> {
    pass(&[Client::Rdkafka("range")], KILLS)
}

#[test]
fn librdkafka_roundrobin() -> anyhow::Result<()> {
    pass(&[Client::Rdkafka("roundrobin")], KILLS)
}

#[test]
fn kcat() -> anyhow::Result<()> {
    pass(&[Client::Kcat], KILLS)
}

#[test]
fn java_console() -> anyhow::Result<()> {
    pass(&[Client::JavaConsole], KILLS)
}

/// A consumer that waits for its commits ends by an error that it does not know.
#[test]
fn java_cooperative_sticky() -> anyhow::Result<()> {
    pass(&[Client::Java("cooperative-sticky")], MANY_KILLS)
}

#[test]
fn java_static_members() -> anyhow::Result<()> {
    pass(&[Client::JavaStatic("range")], KILLS)
}

#[test]
fn franz_go_static_members() -> anyhow::Result<()> {
    pass(&[Client::FranzGoStatic("cooperative-sticky")], KILLS)
}

#[test]
fn franz_go_cooperative_sticky() -> anyhow::Result<()> {
    pass(&[Client::FranzGo("cooperative-sticky")], MANY_KILLS)
}

#[test]
fn franz_go_sticky() -> anyhow::Result<()> {
    pass(&[Client::FranzGo("sticky")], KILLS)
}

/// Two implementations of one assignor in one group.
#[test]
fn franz_go_and_librdkafka_range() -> anyhow::Result<()> {
    pass(&[Client::FranzGo("range"), Client::Rdkafka("range")], KILLS)
}

#[test]
fn kafka_python_range() -> anyhow::Result<()> {
    pass(&[Client::KafkaPython("range")], MANY_KILLS)
}

#[test]
fn kafka_python_sticky() -> anyhow::Result<()> {
    pass(&[Client::KafkaPython("sticky")], KILLS)
}

#[test]
fn aiokafka_roundrobin() -> anyhow::Result<()> {
    pass(&[Client::Aiokafka("roundrobin")], MANY_KILLS)
}

#[test]
fn kafkajs() -> anyhow::Result<()> {
    pass(&[Client::Kafkajs], MANY_KILLS)
}
