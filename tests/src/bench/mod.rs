//! The benchmark: Apache Kafka and the gateway on the same machine, in turn, by the same clients.
//!
//! One *session* is a fresh broker, a warm-up, and every case of the rows that were asked for.
//! Sessions of the subjects alternate, so that a change in the machine's mood meets all of them;
//! never are two brokers under load at once. A case that sees an error, a lost record or a
//! duplicate ends the benchmark: there are no figures from a broken run.
//!
//! Nothing here passes or fails by a time: it measures and prints.

mod client;
mod disk;
mod groups;
mod machine;
mod nullserver;
mod rdkafka;
mod results;
mod rows;
mod stall;
mod start;
mod subject;

use std::fs::{File, create_dir_all};
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

use self::results::Results;
use self::rows::Session;
use self::subject::{Running, Subject};
use crate::gatewayproc;
use crate::loadgen;
use crate::process::repository;

/// Rows of the table that this command can measure.
const ROWS: &[u8] = &[1, 2, 3, 4, 5, 6, 8, 12, 14, 16];

/// Options of the benchmark.
#[derive(Debug, Parser)]
#[command(
    name = "bench",
    about = "Fencepost beside Apache Kafka on this machine"
)]
pub struct Args {
    /// Rows to measure, separated by commas.
    #[arg(long, value_delimiter = ',', default_values_t = ROWS.to_vec())]
    pub rows: Vec<u8>,
    /// Who is measured, separated by commas.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_values_t = [Subject::Fencepost, Subject::Kafka, Subject::KafkaFsync]
    )]
    pub subjects: Vec<Subject>,
    /// Sessions of each subject; medians are of these.
    #[arg(long, default_value_t = 5)]
    pub runs: usize,
    /// One short session of each: shows that everything works, measures little.
    #[arg(long)]
    pub quick: bool,
    /// Where the brokers keep their data; must be on the disk that is meant.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Also write the table into docs/performance.md.
    #[arg(long)]
    pub write: bool,
    /// Row 12: also start with cold caches (drops the page cache of the whole machine).
    #[arg(long)]
    pub cold: bool,
    /// Instead of the benchmark, be one of its tools.
    #[command(subcommand)]
    pub tool: Option<Tool>,
}

/// What the benchmark runs as processes of their own.
#[derive(Debug, Subcommand)]
pub enum Tool {
    /// The load generator.
    Loadgen(Box<loadgen::Args>),
    /// A server that acknowledges at once and keeps nothing: what the client alone can do.
    NullServer {
        /// Partitions of every topic.
        #[arg(long, default_value_t = 16)]
        partitions: i32,
    },
}

/// Runs the benchmark or the tool and returns what is to be printed.
pub fn main(args: Args) -> Result<String> {
    match args.tool {
        Some(Tool::Loadgen(load)) => Ok(serde_json::to_string(&loadgen::run(&load)?)?),
        Some(Tool::NullServer { partitions }) => nullserver::serve(partitions),
        None => benchmark(&args),
    }
}

fn benchmark(args: &Args) -> Result<String> {
    if let Some(row) = args.rows.iter().find(|row| !ROWS.contains(row)) {
        bail!("--rows {row}: one of {ROWS:?}");
    }
    if args.runs == 0 || args.runs > 100 {
        bail!("--runs {}: 1 to 100", args.runs);
    }
    let dir = args
        .dir
        .clone()
        .unwrap_or_else(|| repository().join("target/bench"));
    create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    if args.subjects.iter().any(|subject| !subject.is_kafka()) {
        gatewayproc::build("release")?;
    }
    let runs = if args.quick { 1 } else { args.runs };
    let mut results = Results::default();
    let ours = args.subjects.contains(&Subject::Fencepost);
    if args.rows.contains(&8) {
        disk::measure(&dir, runs, args.quick, &mut results)?;
    }
    if args.rows.contains(&1) {
        nullserver::ceilings(args.quick, &mut results)?;
    }
    for run in 0..runs {
        for &subject in &args.subjects {
            progress(&format!("run {} of {runs}: {}", run + 1, subject.label()));
            let broker = Running::start(subject, &dir)?;
            let mut session = Session::new(args, broker, &mut results)?;
            session.measure()?;
            // The broker ends here: the next one has the machine to itself.
            drop(session);
            if args.rows.contains(&16) {
                let mut broker = Running::start(subject, &dir)?;
                groups::measure(args, &mut broker, &mut results)?;
            }
            if args.rows.contains(&12) {
                start::measure(args, subject, &dir, &mut results)?;
            }
        }
        if args.rows.contains(&6) && ours {
            stall::measure(&dir, args.quick, &mut results)?;
        }
    }
    let report = format!(
        "{}\n{}\n{}",
        machine::describe(&dir)?,
        results.table(&args.subjects),
        command_line(args, runs)
    );
    if args.write {
        write_into_docs(&report)?;
    }
    Ok(report)
}

/// How to repeat this, and how many sessions there were.
fn command_line(args: &Args, runs: usize) -> String {
    let rows: Vec<String> = args.rows.iter().map(u8::to_string).collect();
    let quick = if args.quick { " --quick" } else { "" };
    format!(
        "Command: `cargo run --release -p tests --bin bench -- --rows {} --runs {runs}{quick}`. \
         Cells are medians over {runs} alternating sessions, with least and most in brackets.\n",
        rows.join(",")
    )
}

const BEGIN: &str = "<!-- bench:begin -->";
const END: &str = "<!-- bench:end -->";

fn write_into_docs(report: &str) -> Result<()> {
    let path = repository().join("docs/performance.md");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let replaced = replace_section(&text, report)?;
    File::create(&path)?.write_all(replaced.as_bytes())?;
    Ok(())
}

fn replace_section(text: &str, report: &str) -> Result<String> {
    let (before, rest) = text
        .split_once(BEGIN)
        .with_context(|| format!("no {BEGIN}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("no {END}"))?;
    Ok(format!("{before}{BEGIN}\n{report}{END}{after}"))
}

/// Says on standard error what is going on.
#[allow(clippy::print_stderr, reason = "a command's own output")]
fn progress(what: &str) {
    eprintln!("bench: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_marked_section_is_replaced() {
        let text = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let new = replace_section(&text, "new\n").unwrap();
        assert_eq!(new, format!("a\n{BEGIN}\nnew\n{END}\nb\n"));
        assert!(replace_section("no markers", "new").is_err());
    }

    #[test]
    fn the_performance_page_has_the_markers() {
        let page = std::fs::read_to_string(repository().join("docs/performance.md")).unwrap();
        replace_section(&page, "x").unwrap();
    }
}
