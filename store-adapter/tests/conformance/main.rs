//! The store suite over every adapter of this crate: one line for every point of the list in
//! `docs/store-conformance.md`, one column for every adapter.
//!
//! An argument is a part of a point's line: only such points run. `FENCEPOST_CONFORMANCE=full`
//! runs the sizes of the list, which take minutes and some gigabytes of disk; without it they are
//! smaller. Points with limits of time come last then, one after the other.
//!
//! What failed is named, and can be asked for by `--exact`, as with the harness of other tests: so
//! scripts/test.sh asks for it once more. Names of other programs' tests are none here.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and this one has no harness"
)]

mod adapters;
mod counts;
mod damage;
mod failing;
mod faults;
mod kills;
mod opening;
mod process;
mod space;
mod speed;
mod stores;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use store_adapter::conformance::{Harness, Run, full, points};
use tokio::runtime::Runtime;

use self::adapters::ADAPTERS;
use self::stores::Layout;

/// Tests that take longer say so.
const SLOW: Duration = Duration::from_secs(3);
/// Tests that run side by side.
const SIDE_BY_SIDE: usize = 4;
/// Tests with limits of time, which count at full size: there each runs by itself, behind all.
const TIMED: [&str; 3] = ["a_thousand_logs", "opening_time", "speed"];

/// One cell of the table.
struct Case {
    number: u8,
    name: &'static str,
    adapter: usize,
    work: Work,
}

enum Work {
    Suite(fn() -> Box<dyn Harness>, Run),
    Layout(Layout, OfLayout),
}

/// A point that needs a directory, processes or damage.
type OfLayout = fn(Layout) -> Pin<Box<dyn Future<Output = ()>>>;

/// The points that need more than a harness, by number, and what runs them.
fn of_layouts() -> Vec<(u8, &'static str, &'static [Layout], OfLayout)> {
    macro_rules! points {
        ($($number:literal $module:ident::$name:ident $layouts:expr,)*) => {
            vec![$((
                $number,
                stringify!($name),
                $layouts,
                |layout| Box::pin($module::$name(layout)),
            )),*]
        };
    }
    const BOTH: &[Layout] = &[Layout::Journal, Layout::Kv];
    const KV: &[Layout] = &[Layout::Kv];
    points![
        0 opening::memory_behind_many_batches BOTH,
        12 kills::killed_processes BOTH,
        14 damage::cuts_and_losses KV,
        15 damage::flips KV,
        17 failing::every_step_fails_once BOTH,
        17 faults::failing_syncs_and_a_full_disk KV,
        19 space::space BOTH,
        25 opening::a_thousand_logs BOTH,
        26 opening::a_second_process BOTH,
        27 opening::a_newer_format BOTH,
        28 opening::opening_time &[Layout::Journal],
        30 speed::speed &[Layout::Journal],
        31 faults::fenced_between_sync_and_answer BOTH,
    ]
}

/// What was found, by line and column.
type Outcomes = BTreeMap<(u8, &'static str), Vec<Option<bool>>>;

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // These first: they take longest.
    for (number, name, layouts, run) in of_layouts() {
        for layout in layouts {
            let column = adapters::column_of(*layout);
            cases.push(Case {
                number,
                name,
                adapter: column,
                work: Work::Layout(*layout, run),
            });
        }
    }
    for point in points() {
        for (column, adapter) in ADAPTERS.iter().enumerate() {
            if adapter.left_out.contains(&point.number) || adapter.cannot.contains(&point.name) {
                continue;
            }
            cases.push(Case {
                number: point.number,
                name: point.name,
                adapter: column,
                work: Work::Suite(adapter.harness, point.run),
            });
        }
    }
    cases
}

impl Case {
    fn line(&self) -> String {
        format!(
            "{} {} {}",
            self.number, self.name, ADAPTERS[self.adapter].name
        )
    }

    /// Its name among tests.
    fn test(&self) -> String {
        let adapter = ADAPTERS[self.adapter].name;
        let words = adapter.split(|letter: char| !letter.is_ascii_alphanumeric());
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        format!("conformance::{}::{}", self.name, words.join("_"))
    }

    /// Runs on a thread of its own, so that a failure is this case's alone. The runtime is
    /// everybody's: what a case leaves behind may still use it.
    fn run(&self, runtime: &Runtime) -> bool {
        thread::scope(|scope| {
            let work = || match self.work {
                Work::Layout(layout, run) => runtime.block_on(run(layout)),
                Work::Suite(harness, run) => runtime.block_on(async {
                    let harness = harness();
                    run(&*harness).await;
                }),
            };
            let thread = thread::Builder::new().name(self.line());
            thread.spawn_scoped(scope, work).unwrap().join().is_ok()
        })
    }
}

/// What came of the cases that were run.
#[derive(Default)]
struct Found {
    outcomes: Outcomes,
    /// Names of those that failed.
    failed: Vec<String>,
}

/// Runs what waits, so many at a time.
fn run(
    waiting: &Mutex<VecDeque<Case>>,
    side_by_side: usize,
    runtime: &Runtime,
    found: &Mutex<Found>,
) {
    thread::scope(|scope| {
        for _ in 0..side_by_side {
            scope.spawn(|| {
                loop {
                    let Some(case) = waiting.lock().pop_front() else {
                        return;
                    };
                    let began = Instant::now();
                    let passed = case.run(runtime);
                    let took = began.elapsed();
                    if took > SLOW {
                        println!("{}: {:.1} s", case.line(), took.as_secs_f64());
                    }
                    let mut found = found.lock();
                    if !passed {
                        found.failed.push(case.test());
                    }
                    let line = (case.number, case.name);
                    let line = found.outcomes.entry(line).or_default();
                    line.resize(ADAPTERS.len(), None);
                    line[case.adapter] = Some(passed);
                }
            });
        }
    });
}

fn main() -> ExitCode {
    if process::run_child() {
        return ExitCode::SUCCESS;
    }
    let wanted = Wanted::of(std::env::args().skip(1));
    let began = Instant::now();
    let cases = cases().into_iter();
    let cases: Vec<Case> = cases.filter(|case| wanted.has(case)).collect();
    let ran = cases.len();
    let timed = |case: &Case| full() && TIMED.contains(&case.name);
    let (alone, others): (VecDeque<_>, VecDeque<_>) = cases.into_iter().partition(timed);
    let runtime = Runtime::new().unwrap();
    let found: Mutex<Found> = Mutex::default();
    for (cases, side_by_side) in [(others, SIDE_BY_SIDE), (alone, 1)] {
        run(&Mutex::new(cases), side_by_side, &runtime, &found);
    }
    let Found { outcomes, failed } = found.into_inner();
    print(&outcomes);
    let mut undocumented = undocumented();
    undocumented.retain(|_| wanted.names.is_empty());
    for what in &undocumented {
        println!("docs/store-conformance.md: {what}");
    }
    println!(
        "{ran} tests in {:.1} s{}: {} processes killed, {} brokers stopped, {} power cuts of \
         volumes in memory, {} flips and truncations, {} failed steps",
        began.elapsed().as_secs_f64(),
        if full() { " at full size" } else { "" },
        counts::KILLS.get(),
        counts::STOPS.get(),
        counts::CUTS.get(),
        counts::FLIPS.get(),
        counts::FAULTS.get(),
    );
    summary(ran, &failed, undocumented.len())
}

/// What is told of the failed ones, in the form in which scripts/test.sh looks for it.
fn summary(ran: usize, failed: &[String], undocumented: usize) -> ExitCode {
    if !failed.is_empty() {
        println!("\nfailures:");
        for name in failed {
            println!("    {name}");
        }
    }
    let (passed, failed) = (ran - failed.len(), failed.len() + undocumented);
    let outcome = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {outcome}. {passed} passed; {failed} failed");
    match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Which cases are asked for.
struct Wanted {
    /// All of them, if there are none.
    names: Vec<String>,
    /// Names of tests; else the first is a part of lines.
    exact: bool,
}

impl Wanted {
    fn of(arguments: impl Iterator<Item = String>) -> Self {
        let (mut names, mut exact, mut is_value) = (Vec::new(), false, false);
        for argument in arguments {
            match argument.as_str() {
                _ if is_value => is_value = false,
                "--exact" => exact = true,
                "--test-threads" => is_value = true,
                flag if flag.starts_with('-') => {}
                _ => names.push(argument),
            }
        }
        Self { names, exact }
    }

    fn has(&self, case: &Case) -> bool {
        if self.exact {
            return self.names.contains(&case.test());
        }
        let wanted = self.names.first();
        wanted.is_none_or(|wanted| case.line().contains(wanted.as_str()))
    }
}

/// What the list in the documentation and this suite do not have in common.
fn undocumented() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = fs::read_to_string(root.join("../docs/store-conformance.md")).unwrap();
    let line_of = |number: u8| {
        let head = format!("| {number} |");
        list.lines().find(|line| line.starts_with(&head))
    };
    let mut wrong = Vec::new();
    for number in 1..=32 {
        if line_of(number).is_none() {
            wrong.push(format!("no point {number}"));
        }
    }
    for (number, name) in cases().iter().map(|case| (case.number, case.name)) {
        let place = if number == 0 {
            Some(&*list)
        } else {
            line_of(number)
        };
        if !place.is_some_and(|place| place.contains(&format!("`{name}`"))) {
            wrong.push(format!("point {number} does not name {name}"));
        }
    }
    // Functions that are named with a file are in it.
    for line in list.lines() {
        let words: Vec<&str> = line.split('`').collect();
        for pair in words.windows(2) {
            let file = pair[1].strip_prefix(" (").and_then(|rest| {
                let end = rest.find(".rs")?;
                Some(&rest[..end + 3])
            });
            if let Some(file) = file {
                let text = fs::read_to_string(root.join("tests").join(file)).unwrap_or_default();
                if !text.contains(&format!("fn {}(", pair[0])) {
                    wrong.push(format!("{file} has no {}", pair[0]));
                }
            }
        }
    }
    wrong
}

fn print(outcomes: &Outcomes) {
    let names: Vec<&str> = ADAPTERS.iter().map(|adapter| adapter.name).collect();
    println!("\n   {:<34} {}", "point", names.join(" | "));
    for ((number, name), cells) in outcomes {
        let shown: Vec<String> = names
            .iter()
            .zip(cells)
            .map(|(name, cell)| {
                let text = match cell {
                    Some(true) => "ok",
                    Some(false) => "FAILED",
                    None => "-",
                };
                format!("{text:<width$}", width = name.len())
            })
            .collect();
        let number = if *number == 0 {
            "  ".to_owned()
        } else {
            format!("{number:>2}")
        };
        println!("{number} {name:<34} {}", shown.join(" | "));
    }
}
