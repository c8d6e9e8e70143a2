//! What a partition's leader left beside its log: manifest and snapshots. Without them a log is
//! replayed as a whole, and nothing is lost; but they tell of what was durable.

use std::collections::BTreeSet;

use coordinator::volume::format::{
    Format, Manifest, ProducerSnapshot, TopicIdFile, TxnIndexSnapshot, decode,
};
use coordinator::volume::layout::{Place, is_reserved, partition_of, topic_dir};
use store_adapter::ids::LogId;
use store_adapter::offline::{Finding, OfflineLog, StoredShard};
use store_adapter::volume::{VolumeError, VolumePath};
use uuid::Uuid;

use super::{Opened, named};

/// Files that are damaged, and logs that are less than such a file tells of, or gone.
pub(super) async fn findings(opened: &Opened) -> Vec<Finding> {
    let mut findings = Vec::new();
    for log in opened.shards.iter().flat_map(StoredShard::logs) {
        // Of a store that is written, what lies beside a log is the younger one.
        let whole = !opened.live && log.damaged.is_none();
        let place = |of: fn(String, u32) -> Place| of(log.name.clone(), log.id.partition);
        let manifest = place(Place::Manifest);
        match read::<Manifest>(opened, &manifest).await {
            Ok(found) => {
                let found = found.filter(|found| whole && is_of(log, found.topic_id));
                let told = found.and_then(|found| contradiction(log, &found));
                findings.extend(told.map(|what| finding(&manifest, what)));
            }
            Err(damaged) => findings.push(damaged),
        }
        let producers = place(Place::ProducerState);
        match read::<ProducerSnapshot>(opened, &producers).await {
            Ok(found) => {
                let found = found.filter(|found| whole && is_of(log, found.topic_id));
                let told = found.and_then(|found| lost_end(log, found.log_end_offset?));
                findings.extend(told.map(|what| finding(&producers, what)));
            }
            Err(damaged) => findings.push(damaged),
        }
        let txns = read::<TxnIndexSnapshot>(opened, &place(Place::TxnIndex)).await;
        findings.extend(txns.err());
    }
    // A log may lie in what could not be read.
    if !opened.live && opened.refused.is_empty() {
        findings.extend(lost_logs(opened).await);
    }
    findings
}

/// Logs of which there is nothing but what lies beside them.
async fn lost_logs(opened: &Opened) -> Vec<Finding> {
    let logs = opened.shards.iter().flat_map(StoredShard::logs);
    let known: BTreeSet<LogId> = logs.map(|log| log.id).collect();
    let mut findings = Vec::new();
    for topic in dirs(opened, &VolumePath::root(), &mut findings).await {
        if is_reserved(&topic) {
            continue;
        }
        let id = match read::<TopicIdFile>(opened, &Place::TopicId(topic.clone())).await {
            Ok(Some(found)) if !found.deleted => found.topic_id,
            Ok(_) => continue,
            Err(damaged) => {
                findings.push(damaged);
                continue;
            }
        };
        let gone = Place::TopicDeleted(id).path();
        if opened.volume.open(&gone).await.is_ok() {
            continue;
        }
        for partition in dirs(opened, &topic_dir(&topic), &mut findings).await {
            let Some(partition) = partition_of(&partition) else {
                continue;
            };
            let log = LogId {
                topic: id,
                partition,
            };
            let manifest = Place::Manifest(topic.clone(), partition);
            let told = match read::<Manifest>(opened, &manifest).await {
                Ok(Some(told)) if !known.contains(&log) => told,
                // What is damaged beside a log was found there.
                _ => continue,
            };
            if told.topic_id == Some(id) && told.high_watermark > 0 {
                let end = told.high_watermark;
                findings.push(finding(
                    &manifest,
                    format!(
                        "the store has no log of {topic}-{partition} ({id}), of which records were \
                         durable up to {end}"
                    ),
                ));
            }
        }
    }
    findings
}

/// The directories in a directory.
async fn dirs(opened: &Opened, dir: &VolumePath, findings: &mut Vec<Finding>) -> Vec<String> {
    match opened.volume.list(dir).await {
        Ok(entries) => {
            let dirs = entries.into_iter().filter(|entry| entry.is_dir);
            dirs.map(|entry| entry.name).collect()
        }
        // It is being deleted.
        Err(VolumeError::NotFound { .. }) => Vec::new(),
        Err(error) => {
            findings.push(Finding {
                path: dir.to_string(),
                what: error.to_string(),
            });
            Vec::new()
        }
    }
}

/// A file as a broker reads it; `None` when there is none.
async fn read<T: Format>(opened: &Opened, place: &Place) -> Result<Option<T>, Finding> {
    match opened.volume.read(&place.path(), T::LEN_MAX).await {
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(finding(place, error.to_string())),
        // Other writers leave such a file for "none".
        Ok(bytes) if bytes.is_empty() => Ok(None),
        Ok(bytes) => decode(&bytes)
            .map(Some)
            .map_err(|error| finding(place, error.to_string())),
    }
}

fn finding(place: &Place, what: String) -> Finding {
    Finding {
        path: place.path().to_string(),
        what,
    }
}

/// A topic of the same name that was before leaves files that say nothing of this one.
fn is_of(log: &OfflineLog, topic: Option<Uuid>) -> bool {
    topic == Some(log.id.topic)
}

/// How a log is not what its manifest tells of.
fn contradiction(log: &OfflineLog, told: &Manifest) -> Option<String> {
    let (start, epoch) = (log.bounds.start, log.epoch.map_or(0, |epoch| epoch.0));
    if let Some(lost) = lost_end(log, told.high_watermark) {
        return Some(lost);
    }
    if told.log_start_offset > start {
        let told = told.log_start_offset;
        let log = named(log);
        return Some(format!(
            "{log} begins at {start}, and this tells that it began at {told}: records that were \
             deleted are there again"
        ));
    }
    let older = log.epoch.is_some() && told.epoch > epoch;
    let (log, told) = (named(log), told.epoch);
    older.then(|| {
        format!(
            "{log} is held under leader epoch {epoch}, and this tells of {told}: what came of it \
             is lost"
        )
    })
}

fn lost_end(log: &OfflineLog, told: i64) -> Option<String> {
    let end = log.bounds.end;
    (told > end).then(|| {
        format!(
            "{} ends at {end}, and this tells of what was durable up to {told}: records at its end \
             are lost",
            named(log)
        )
    })
}
