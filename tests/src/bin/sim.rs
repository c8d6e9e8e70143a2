//! Repeats one simulated run with its event log, or tries new seeds for a while.

use std::io::Write;
use std::time::Duration;

use clap::{Parser, Subcommand};
use store_adapter::runtime::Env;
use tests::sim::scenario;

#[derive(Parser)]
struct Arguments {
    /// The seed to repeat.
    #[arg(conflicts_with = "command")]
    seed: Option<u64>,
    /// Leaves the event log out.
    #[arg(long)]
    quiet: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Tries seeds one after the other for some seconds.
    Soak {
        /// How long.
        seconds: u64,
        /// The first seed.
        #[arg(long, default_value_t = 1000)]
        from: u64,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut out = std::io::stdout().lock();
    match (arguments.seed, arguments.command) {
        (_, Some(Command::Soak { seconds, from })) => {
            let clock = Env::real().clock;
            let end = clock.monotonic() + Duration::from_secs(seconds);
            let (mut seed, mut failed) = (from, 0_u64);
            while clock.monotonic() < end {
                let report = scenario::run(seed);
                if !report.violations.is_empty() {
                    failed += 1;
                    write!(out, "{report}")?;
                }
                seed += 1;
            }
            writeln!(out, "{} seeds, {failed} failed", seed - from)?;
            anyhow::ensure!(failed == 0, "{failed} seeds failed");
        }
        (Some(seed), None) => {
            let report = scenario::run(seed);
            if !arguments.quiet {
                for line in &report.log {
                    writeln!(out, "{line}")?;
                }
            }
            write!(out, "{report}")?;
            anyhow::ensure!(report.violations.is_empty(), "seed {seed} failed");
        }
        (None, None) => anyhow::bail!("a seed, or `soak SECONDS`"),
    }
    Ok(())
}
