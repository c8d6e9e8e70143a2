//! The benchmark's command.

use std::process::ExitCode;

use clap::Parser;
use tests::bench;

/// The gateway's: row 8 runs its journal in this process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command's own output"
)]
fn main() -> ExitCode {
    match bench::main(bench::Args::parse()) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("bench: {e:#}");
            ExitCode::FAILURE
        }
    }
}
