//! The load generator's command: options in, one JSON line out.

use std::process::ExitCode;

use clap::Parser;
use tests::loadgen::{Args, run};

#[allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command's own output"
)]
fn main() -> ExitCode {
    let report = run(&Args::parse()).and_then(|report| Ok(serde_json::to_string(&report)?));
    match report {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("loadgen: {e:#}");
            ExitCode::FAILURE
        }
    }
}
