//! A program of a suite, and the gateway that it runs against.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use parking_lot::Mutex;

use super::Outcome;
use crate::flights::child::{Running, Streams};
use crate::flights::wall::Deadline;
use crate::gatewayproc::{Gateway, GatewayOptions};
use crate::process::cache_dir;

/// Lines of output that a failure shows.
const TAIL_LINES: usize = 60;

/// What a program printed, and how it ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// `None` if it took too long and was killed.
    pub(super) status: Option<ExitStatus>,
    /// Standard output.
    pub(super) out: String,
    /// Standard error.
    pub(super) err: String,
}

impl Ended {
    /// Whether it ended by itself and with success.
    pub(super) fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// How it ended, and the last lines of what it printed, each behind a bar: what it says of its
    /// own tests must not be taken for what is said of ours.
    pub(super) fn tail(&self) -> String {
        let how = match self.status {
            Some(status) => status.to_string(),
            None => "killed, because it took too long".to_owned(),
        };
        let mut tail = how;
        for text in [&self.err, &self.out] {
            let all: Vec<&str> = text.lines().collect();
            for line in &all[all.len().saturating_sub(TAIL_LINES)..] {
                tail.push_str("\n| ");
                tail.push_str(line);
            }
        }
        tail
    }
}

/// A gateway of its own, in a directory that is kept when something fails.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) gateway: Gateway,
    dir: tempfile::TempDir,
}

impl Bench {
    /// Starts a gateway on empty data.
    pub(super) fn start(name: &str, settings: &[&str]) -> anyhow::Result<Self> {
        let prefix = format!("suite-{}-", name.replace(' ', "-"));
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir()?;
        let options = GatewayOptions {
            overrides: settings.iter().map(|one| (*one).to_owned()).collect(),
            ..GatewayOptions::default()
        };
        let gateway = Gateway::start(&dir.path().join("data"), &options)?;
        Ok(Self { gateway, dir })
    }

    /// Where the suite may write.
    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Runs a program to its end, or kills it after `limit`.
    pub(super) fn execute(
        &self,
        name: &str,
        command: Command,
        limit: Duration,
    ) -> anyhow::Result<Ended> {
        let out = self.dir().join(format!("{name}.out"));
        let streams = Streams::Stored(out.clone());
        let mut running = Running::start(name, command, streams, self.dir())?;
        let deadline = Deadline::after(limit);
        let status = running.end(deadline).ok();
        running.kill()?;
        let read = |path: &Path| -> anyhow::Result<String> {
            let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(Ended {
            status,
            out: read(&out)?,
            err: read(&self.dir().join(format!("{name}.log")))?,
        })
    }

    /// Ends the gateway. Of a run that failed the directory is kept, and named in every failure,
    /// with the last lines of the gateway's log.
    pub(super) fn end(self, mut outcome: Outcome) -> anyhow::Result<Outcome> {
        if outcome.failed.is_empty() {
            return Ok(outcome);
        }
        let log = self.gateway.log()?;
        let lines: Vec<&str> = log.lines().collect();
        let log = lines[lines.len().saturating_sub(10)..].join("\n");
        drop(self.gateway);
        let dir = self.dir.keep();
        for output in outcome.failed.values_mut() {
            let files = dir.display();
            *output = format!("{output}\ngateway:\n{log}\nfiles in {files}");
        }
        Ok(outcome)
    }
}

/// A file of an installed suite.
pub(super) fn installed(path: &str, step: &str) -> anyhow::Result<PathBuf> {
    let file = cache_dir().join(path);
    let there = file.is_file();
    ensure!(
        there,
        "{} is not there: run scripts/setup-clients.sh {step}",
        file.display()
    );
    Ok(file)
}

/// Runs the parts of a suite, `width` at a time, in order.
pub(super) fn in_parallel<T: Sync>(
    width: usize,
    parts: &[T],
    one: impl Fn(&T) -> anyhow::Result<Outcome> + Sync,
) -> anyhow::Result<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..width {
            scope.spawn(|| {
                while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = one(part);
                    outcomes.lock().push(outcome);
                }
            });
        }
    });
    let mut all = Outcome::default();
    for outcome in outcomes.into_inner() {
        all.add(outcome?);
    }
    Ok(all)
}
