//! Clients that are told to use the protocol by which the coordinator assigns (KIP-848), which is
//! not offered: each must say so, and at once, or go on with the classic protocol, instead of
//! waiting for partitions.

use std::process::Command;
use std::time::Duration;

use tests::flights::child::{Running, Streams, with};
use tests::flights::wall::{Deadline, LOOK_EVERY, pause};
use tests::gatewayproc::{Gateway, GatewayOptions};
use tests::groups::member::{franz_go_member, java_member, rdkafka_member};
use tests::raw::{RawClient, ops};

const PATIENCE: Duration = Duration::from_mins(4);

/// A broker with the topic `t`.
fn broker(dir: &std::path::Path) -> anyhow::Result<Gateway> {
    let options = GatewayOptions {
        overrides: vec!["group.initial.rebalance.delay.ms=0".to_owned()],
        ..GatewayOptions::default()
    };
    let gateway = Gateway::start(&dir.join("data"), &options)?;
    let address = gateway.address();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut client = RawClient::connect(&address).await?;
        ops::create_topic(&mut client, "t", 1, &[]).await
    })?;
    Ok(gateway)
}

/// What a member says that ends by itself, and not well.
fn ends(name: &str, command: Command) -> anyhow::Result<String> {
    let dir = tempfile::tempdir()?;
    let gateway = broker(dir.path())?;
    let address = gateway.address();
    let mut command = with(command, [&*address, "t", "g", "consumer"]);
    // What it says last is looked at.
    command.env("RUST_BACKTRACE", "0");
    let lines = Streams::Led(dir.path().join("lines"));
    let mut running = Running::start(name, command, lines, dir.path())?;
    // It would be asked to leave if this were dropped.
    let stdin = running.take_stdin()?;
    let status = running.end(Deadline::after(PATIENCE))?;
    drop(stdin);
    let said = running.tail();
    assert!(!status.success(), "{said}");
    Ok(said)
}

#[test]
fn java_names_the_setting_to_go_back_to() -> anyhow::Result<()> {
    let said = ends("java", java_member()?)?;
    assert!(said.contains("UnsupportedVersionException"), "{said}");
    assert!(said.contains("group.protocol=classic"), "{said}");
    Ok(())
}

#[test]
fn librdkafka_ends_by_a_fatal_error() -> anyhow::Result<()> {
    let said = ends("rdkafka", rdkafka_member()?)?;
    let fatal = "(Fatal) Message consumption error: UnsupportedVersion";
    assert!(said.contains(fatal), "{said}");
    Ok(())
}

#[test]
fn franz_go_goes_on_with_the_classic_protocol() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let gateway = broker(dir.path())?;
    let address = gateway.address();
    let command = with(franz_go_member()?, [&*address, "t", "g", "consumer"]);
    let lines = dir.path().join("lines");
    let mut running = Running::start("go", command, Streams::Led(lines.clone()), dir.path())?;
    let stdin = running.take_stdin()?;
    let deadline = Deadline::after(PATIENCE);
    while !std::fs::read_to_string(&lines)?.contains("assigned\t") {
        deadline.check("an assignment")?;
        assert!(running.ended()?.is_none(), "{}", running.tail());
        pause(LOOK_EVERY);
    }
    drop(stdin);
    running.finish(deadline)?;
    Ok(())
}
