//! A client that is told to use the protocol by which the coordinator assigns (KIP-848), which is
//! not offered: it must say so, and at once, instead of waiting for partitions.

use std::time::Duration;

use tests::flights::child::{Running, Streams};
use tests::flights::wall::Deadline;
use tests::gatewayproc::{Gateway, GatewayOptions};
use tests::groups::member::java_member;

const PATIENCE: Duration = Duration::from_mins(1);

#[test]
fn java_names_the_setting_to_go_back_to() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let gateway = Gateway::start(&dir.path().join("data"), &GatewayOptions::default())?;
    let mut command = java_member()?;
    command.args([&*gateway.address(), "t", "g", "consumer"]);
    let lines = Streams::Led(dir.path().join("lines"));
    let mut running = Running::start("java", command, lines, dir.path())?;
    // It would be asked to leave if this were dropped.
    let stdin = running.take_stdin()?;
    let status = running.end(Deadline::after(PATIENCE))?;
    drop(stdin);
    let said = running.tail();
    assert!(!status.success(), "{said}");
    assert!(said.contains("UnsupportedVersionException"), "{said}");
    assert!(said.contains("group.protocol=classic"), "{said}");
    Ok(())
}
