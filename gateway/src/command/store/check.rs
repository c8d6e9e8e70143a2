//! `fencepost store check`.

use std::fmt::Write as _;

use clap::Args;
use serde_json::json;
use store_adapter::offline::{Finding, Layout, StoredShard};

use super::super::output::{Failure, Format, document};
use super::Opened;
use super::dump::snapshot_findings;

#[derive(Debug, Clone, Args)]
pub(super) struct Check {
    /// Read every byte of every journal file, and every batch
    #[arg(long)]
    deep: bool,
    /// How the outcome is printed
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Check {
    pub(super) async fn run(self, opened: &Opened) -> Result<String, Failure> {
        let mut findings = Vec::new();
        for (path, what) in &opened.refused {
            findings.push(Finding {
                path: path.clone(),
                what: what.clone(),
            });
        }
        let (mut files, mut bytes, mut logs) = (0_usize, 0_u64, 0_usize);
        for shard in &opened.shards {
            files += shard.files().len();
            bytes += shard.files().iter().map(|file| file.bytes).sum::<u64>();
            logs += shard.logs().len();
            findings.extend(shard.check(self.deep).await);
        }
        findings.extend(snapshot_findings(opened).await);
        let text = match self.format {
            Format::Json | Format::Jsonl | Format::Yaml | Format::Help => {
                let findings = findings.iter();
                let shown = json!({
                    "shards": opened.shards.len() + opened.refused.len(),
                    "files": files,
                    "bytes": bytes,
                    "logs": logs,
                    "deep": self.deep,
                    "findings": findings
                        .map(|one| json!({ "path": one.path, "what": one.what }))
                        .collect::<Vec<_>>(),
                });
                document(&shown, self.format)
            }
            Format::Table | Format::Wide => {
                let mut text = format!("{files} files, {bytes} bytes, {logs} logs");
                let mut layouts = opened.shards.iter().map(StoredShard::layout);
                text.push_str(if !self.deep {
                    "\n"
                } else if layouts.any(|layout| layout == Layout::Kv) {
                    ", every batch read\n"
                } else {
                    ", every byte read\n"
                });
                for one in &findings {
                    // Writing to a string does not fail.
                    writeln!(text, "{}: {}", one.path, one.what).unwrap_or_default();
                }
                text
            }
        };
        if findings.is_empty() || self.format == Format::Help {
            return Ok(text);
        }
        Err(Failure::Refused(format!(
            "{} findings\n{}",
            findings.len(),
            text.trim_end()
        )))
    }
}
