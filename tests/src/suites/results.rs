//! Results of suites: each run leaves a file in the cache; `docs/compatibility.json` has those that
//! the page shows.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use super::{ALL, Outcome, Suite};
use crate::process::{cache_dir, repository};

/// What a run did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// The client's version.
    pub version: String,
    /// Tests that passed.
    pub passed: usize,
    /// Tests that failed.
    pub failed: usize,
    /// Tests that were left out, or left themselves out.
    pub skipped: usize,
    /// Day of the run (UTC), in the form 2026-01-31.
    pub date: String,
}

/// The last run of each suite, by its id.
pub type Runs = BTreeMap<String, Run>;

fn kept(suite: &Suite) -> PathBuf {
    let name = format!("{}.json", suite.id);
    cache_dir().join("suites").join(name)
}

/// Keeps the result of a run in the cache.
pub(super) fn write(suite: &Suite, outcome: &Outcome) -> anyhow::Result<()> {
    let output = Command::new("date").args(["-u", "+%F"]).output()?;
    ensure!(output.status.success(), "date: {}", output.status);
    let run = Run {
        version: suite.version.to_owned(),
        passed: outcome.passed.len(),
        failed: outcome.failed.len(),
        skipped: suite.skipped.len(),
        date: String::from_utf8(output.stdout)?.trim().to_owned(),
    };
    let path = kept(suite);
    std::fs::create_dir_all(path.with_file_name(""))?;
    std::fs::write(&path, serde_json::to_string_pretty(&run)?)?;
    Ok(())
}

/// What `docs/compatibility.json` has.
pub fn shown() -> anyhow::Result<Runs> {
    let path = repository().join("docs/compatibility.json");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).context("docs/compatibility.json")
}

/// The same with what runs have left in the cache since, and without suites that are gone.
pub fn renewed() -> anyhow::Result<Runs> {
    let mut runs = shown().unwrap_or_default();
    runs.retain(|id, _| ALL.iter().any(|suite| suite.id == id));
    for suite in &ALL {
        if let Ok(text) = std::fs::read_to_string(kept(suite)) {
            runs.insert(suite.id.to_owned(), serde_json::from_str(&text)?);
        }
    }
    Ok(runs)
}
