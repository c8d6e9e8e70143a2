//! The test suites of the clients' makers against a gateway, each with the settings that it wants.
//!
//! Needs `scripts/setup-clients.sh` and `--features clients`; what is missing fails. What has to
//! pass, and what is left out and why, is listed in `tests/src/suites`.

use tests::suites::{
    Suite, franz_go, kafka_python, kafka_tools, librdkafka, platformatic, quixstreams, rust_rdkafka,
};

#[expect(clippy::print_stdout, reason = "for who reads the log")]
fn check(suite: Suite) -> anyhow::Result<()> {
    let outcome = suite.check()?;
    let (client, passed) = (suite.client, outcome.passed.len());
    println!("{client} {}: {passed} passed", suite.version);
    Ok(())
}

#[test]
fn kafka_tools() -> anyhow::Result<()> {
    check(kafka_tools::SUITE)
}

#[test]
fn platformatic() -> anyhow::Result<()> {
    check(platformatic::SUITE)
}

#[test]
fn librdkafka() -> anyhow::Result<()> {
    check(librdkafka::SUITE)
}

#[test]
fn rust_rdkafka() -> anyhow::Result<()> {
    check(rust_rdkafka::SUITE)
}

#[test]
fn franz_go() -> anyhow::Result<()> {
    check(franz_go::SUITE)
}

#[test]
fn kafka_python() -> anyhow::Result<()> {
    check(kafka_python::SUITE)
}

#[test]
fn quixstreams() -> anyhow::Result<()> {
    check(quixstreams::SUITE)
}
