//! `fencepost store dump`.

use clap::Args;
use coordinator::volume::layout::Place;
use serde_json::{Value, json};
use store_adapter::offline::{Layout, OfflineLog, StoredShard};

use super::super::output::Failure;
use super::holes::Holes;
use super::{Opened, Part, json, print};

/// Largest snapshot that is read, bytes.
const SNAPSHOT_MAX: u64 = 1 << 30;

#[derive(Debug, Clone, Args)]
pub(super) struct Dump {
    /// A topic, of which batches are shown too; without one, the store as a whole
    topic: Option<String>,
    #[command(flatten)]
    part: Part,
    /// Show what is in the batches
    #[arg(long, requires = "topic")]
    records: bool,
}

impl Dump {
    /// One JSON object a line: shards with their files, then logs, each followed by its batches.
    /// What can't be read of a topic is named at the end, which is then a failure.
    pub(super) async fn run(self, opened: &Opened) -> Result<String, Failure> {
        let Some(topic) = &self.topic else {
            for (path, why) in &opened.refused {
                print(&json!({ "shard": path, "refused": why }))?;
            }
            for shard in &opened.shards {
                print(&files(shard))?;
                for found in shard.logs() {
                    if !print(&log(opened, shard, found).await)? {
                        return Ok(String::new());
                    }
                }
            }
            return Ok(String::new());
        };
        let mut holes = Holes::default();
        for (shard, found) in opened.topic(topic, &self.part)? {
            print(&log(opened, shard, found).await)?;
            let range = self.part.of(found);
            let mut next = range.start;
            while next < range.end {
                let batches = holes.batches((shard, found), next, range.end).await;
                let Some(last) = batches.last() else { break };
                next = last.last_offset.saturating_add(1);
                for stored in batches.iter().filter(|batch| batch.base_offset < range.end) {
                    if !print(&json::batch(stored, self.records))? {
                        return Ok(String::new());
                    }
                }
            }
            holes.look_behind(found, range.end);
        }
        holes.refuse(opened)?;
        Ok(String::new())
    }
}

fn files(shard: &StoredShard) -> Value {
    let files = shard.files().into_iter().map(|file| {
        json!({
            "path": file.path,
            "bytes": file.bytes,
            "footer": file.footer,
            "needed": file.needed,
            "logs": file.logs,
            "tornBytes": file.torn_bytes,
            "damaged": file.damaged,
        })
    });
    let layout = match shard.layout() {
        Layout::Journal => "journal",
        Layout::Kv => "kv",
    };
    let files = files.collect::<Vec<_>>();
    json!({ "shard": shard.id().0, "layout": layout, "files": files })
}

async fn log(opened: &Opened, shard: &StoredShard, found: &OfflineLog) -> Value {
    let segments = shard.segments(found.id).into_iter();
    let segments = segments.map(|(path, base, last, bytes, max_timestamp)| {
        json!({
            "path": path,
            "baseOffset": base,
            "lastOffset": last,
            "bytes": bytes,
            "maxTimestamp": max_timestamp,
        })
    });
    json!({
        "topic": found.name,
        "topicId": found.id.topic,
        "partition": found.id.partition,
        "shard": shard.id().0,
        "startOffset": found.bounds.start,
        "endOffset": found.bounds.end,
        "leaderEpoch": found.epoch.map(|epoch| epoch.0),
        "lastBatchEpoch": found.last_epoch.map(|epoch| epoch.0),
        "bytes": found.bytes,
        "damaged": found.damaged.as_ref().map(ToString::to_string),
        "segments": segments.collect::<Vec<_>>(),
        "producerState": snapshot(opened, found, Place::ProducerState).await,
        "txnIndex": snapshot(opened, found, Place::TxnIndex).await,
    })
}

/// A snapshot file of a partition; null when there is none, or it is no JSON.
async fn snapshot(opened: &Opened, log: &OfflineLog, place: fn(String, u32) -> Place) -> Value {
    let path = place(log.name.clone(), log.id.partition).path();
    let bytes = opened.volume.read(&path, SNAPSHOT_MAX).await;
    let json = bytes
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok());
    json.unwrap_or_default()
}
