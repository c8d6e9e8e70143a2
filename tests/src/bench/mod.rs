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
mod driver;
mod groups;
mod ids;
mod machine;
mod nullserver;
mod partitions;
mod parts;
mod rdkafka;
mod results;
mod rows;
mod stall;
mod start;
mod subject;
mod transactions;

use std::fs::{File, create_dir_all};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand, ValueEnum as _};

use self::parts::Part;
use self::results::Results;
use self::rows::Session;
use self::subject::{Running, Subject};
use crate::gatewayproc;
use crate::loadgen;
use crate::process::repository;

/// Rows of the table that this command can measure.
const ROWS: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

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
    /// Also write the rows that were measured into docs/performance.md; others stay as they are.
    #[arg(long)]
    pub write: bool,
    /// Row 12: also start with cold caches (drops the page cache of the whole machine, as row 7
    /// does in any case).
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
        disk::beside(&dir, &args.rows, args.quick, &mut results)?;
        for &subject in &args.subjects {
            progress(&format!("run {} of {runs}: {}", run + 1, subject.label()));
            session(args, subject, &dir, &mut results)?;
        }
        if args.rows.contains(&6) && ours {
            stall::measure(&dir, args.quick, &mut results)?;
        }
    }
    let body = format!(
        "{}\n{}\n{}",
        machine::describe(&dir)?,
        results.table(&args.subjects),
        command_line(args, runs)
    );
    let part = Part::new(&args.rows, body)?;
    if args.write {
        write_into_docs(&part)?;
    }
    Ok(part.render())
}

/// Every row that was asked for, once; each group of rows has brokers of its own, which end before
/// the next begins.
fn session(args: &Args, subject: Subject, dir: &Path, results: &mut Results) -> Result<()> {
    let wants = |rows: &[u8]| rows.iter().any(|row| args.rows.contains(row));
    if wants(&[1, 2, 3, 4, 5, 6, 14]) {
        let broker = Running::start(subject, dir)?;
        Session::new(args, broker, results)?.measure()?;
    }
    if wants(&[9, 10, 11]) {
        transactions::measure(args, subject, dir, results)?;
    }
    if wants(&[13]) {
        ids::measure(args, subject, dir, results)?;
    }
    if wants(&[7, 13, 15]) {
        partitions::measure(args, subject, dir, results)?;
    }
    if wants(&[16]) {
        groups::measure(args, subject, dir, results)?;
    }
    if wants(&[12, 14]) {
        start::measure(args, subject, dir, results)?;
    }
    Ok(())
}

/// How to repeat this, and how many sessions there were.
fn command_line(args: &Args, runs: usize) -> String {
    let rows: Vec<String> = args.rows.iter().map(u8::to_string).collect();
    let subjects = args.subjects.iter().filter_map(Subject::to_possible_value);
    let subjects: Vec<String> = subjects
        .map(|subject| subject.get_name().to_owned())
        .collect();
    let quick = if args.quick { " --quick" } else { "" };
    format!(
        "Command: `cargo run --release -p tests --bin bench -- --rows {} --subjects {} --runs \
         {runs}{quick}`. Cells are medians over {runs} alternating sessions, with least and most \
         in brackets.\n",
        rows.join(","),
        subjects.join(",")
    )
}

fn write_into_docs(part: &Part) -> Result<()> {
    let path = repository().join("docs/performance.md");
    let page = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let page = parts::add_to_page(&page, part)?;
    File::create(&path)?.write_all(page.as_bytes())?;
    Ok(())
}

/// Says on standard error what is going on.
#[allow(clippy::print_stderr, reason = "a command's own output")]
fn progress(what: &str) {
    eprintln!("bench: {what}");
}
