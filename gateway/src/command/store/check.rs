//! `fencepost store check`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use clap::Args;
use coordinator::service::cluster::{Audit, AuditError, StartError, audit};
use serde::Serialize;
use store_adapter::local::ProcHost;
use store_adapter::offline::{Finding, Layout, StoredShard};
use store_adapter::runtime::Env;

use super::super::output::{Failure, Format, document};
use super::{Opened, beside, failed};

#[derive(Debug, Clone, Args)]
pub(super) struct Check {
    /// Read every byte of every journal file, and every batch
    #[arg(long)]
    deep: bool,
    /// How the outcome is printed
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// The outcome.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    shards: usize,
    files: usize,
    bytes: u64,
    logs: usize,
    deep: bool,
    findings: Vec<Found>,
}

#[derive(Debug, Serialize)]
struct Found {
    path: String,
    what: String,
}

impl Outcome {
    fn document(&self, format: Format) -> Result<String, Failure> {
        let shown = serde_json::to_value(self).map_err(|error| failed(&error))?;
        Ok(document(&shown, format))
    }
}

impl Check {
    /// What there is in the other formats, if that is asked: no store is needed for it.
    pub(super) fn help(&self) -> Option<Result<String, Failure>> {
        let outcome = Outcome::default();
        (self.format == Format::Help).then(|| outcome.document(self.format))
    }

    pub(super) async fn run(self, env: &Env, opened: &Opened) -> Result<String, Failure> {
        let mut findings = if opened.live {
            Vec::new()
        } else {
            audited(env, opened).await
        };
        let told: BTreeSet<String> = findings.iter().map(|one| one.path.clone()).collect();
        for (path, what) in &opened.refused {
            findings.push(Finding {
                path: path.clone(),
                what: what.clone(),
            });
        }
        let mut outcome = Outcome {
            shards: opened.shards.len() + opened.refused.len(),
            deep: self.deep,
            ..Outcome::default()
        };
        for shard in &opened.shards {
            outcome.files += shard.files().len();
            outcome.bytes += shard.files().iter().map(|file| file.bytes).sum::<u64>();
            outcome.logs += shard.logs().len();
            findings.extend(shard.check(self.deep).await);
        }
        let beside = beside::findings(opened).await.into_iter();
        findings.extend(beside.filter(|one| !told.contains(&one.path)));
        let findings = findings.into_iter();
        let findings = findings.map(|Finding { path, what }| Found { path, what });
        outcome.findings = findings.collect();
        let text = match self.format {
            Format::Json | Format::Jsonl | Format::Yaml | Format::Help => {
                outcome.document(self.format)?
            }
            Format::Table | Format::Wide => {
                let Outcome {
                    files, bytes, logs, ..
                } = outcome;
                let mut text = format!("{files} files, {bytes} bytes, {logs} logs");
                let mut layouts = opened.shards.iter().map(StoredShard::layout);
                text.push_str(if !self.deep {
                    "\n"
                } else if layouts.any(|layout| layout == Layout::Kv) {
                    ", every batch read\n"
                } else {
                    ", every byte read\n"
                });
                for one in &outcome.findings {
                    // Writing to a string does not fail.
                    writeln!(text, "{}: {}", one.path, one.what).unwrap_or_default();
                }
                text
            }
        };
        if outcome.findings.is_empty() {
            return Ok(text);
        }
        Err(Failure::Refused(format!(
            "{} findings\n{}",
            outcome.findings.len(),
            text.trim_end()
        )))
    }
}

/// What a broker would call damaged when it starts, and by and by.
async fn audited(env: &Env, opened: &Opened) -> Vec<Finding> {
    let Audit { damage, errors } = audit(env, &opened.volume, Arc::new(ProcHost)).await;
    let damage = damage.into_iter().map(|one| Finding {
        path: one.path,
        what: one.why,
    });
    let errors = errors.into_iter().map(|error| match error {
        AuditError::Start(StartError::Damaged { path, why }) => Finding {
            path,
            what: format!("{why}; the broker does not start"),
        },
        other => Finding {
            path: "__cluster".to_owned(),
            what: other.to_string(),
        },
    });
    damage.chain(errors).collect()
}
