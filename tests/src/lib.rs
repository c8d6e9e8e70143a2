//! The kit of the black-box suites.

use std::io::Write as _;

pub mod bench;
pub mod cuts;
pub mod differential;
pub mod flights;
pub mod gatewayproc;
pub mod groups;
pub mod loadgen;
pub mod lone;
pub mod oracle;
pub mod pipes;
pub mod process;
pub mod raw;
pub mod sim;
pub mod suites;
pub mod txn_tools;
pub mod wallclock;

/// Prints a line of a test that is seen when it passes, too: what the macros print is kept then.
pub fn tell(line: &str) {
    // Whole, so that nothing comes between.
    let line = format!("{line}\n");
    drop(std::io::stderr().write_all(line.as_bytes()));
}
