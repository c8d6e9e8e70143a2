//! A shard as it lies on the volume, read without changing anything: for people who look into a
//! store while no broker runs.
//!
//! The same code finds out what there is as in an opening: only that nothing is claimed, sealed,
//! synced or begun. Of a shard that a broker writes meanwhile it is a moving target: what it says
//! is then of no moment in particular, and a file may be gone when it is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::watch;

use super::asked::Rewrites;
use super::extents::{LogIndex, Segment};
use super::file::FileId;
use super::files::{Files, path, shard_dir};
use super::index::MemoryIndex;
use super::queue::Queue;
use super::read::Read;
use super::reader::{self, Range};
use super::recovery::{SEALS_MAX, decode_seals, index_logs, list, seals_path};
use super::scan::{Scanner, Step};
use super::shard::{Log, Shard};
use super::sources::{open_sources, read_source};
use super::table::{Replay, Table};
use super::{JournalCounters, base, newest, volume_error};
use crate::ids::{LeaderEpoch, LogId, ShardId};
use crate::store::{Bounds, Passed, StoreError, StoredBatch};
use crate::volume::{Volume, VolumePath};

/// Bytes that are read at once where all batches of a log are.
const READ_BYTES: usize = 1 << 20;

/// A log as it lies there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfflineLog {
    /// The log.
    pub id: LogId,
    /// The topic's name at creation.
    pub name: String,
    /// Start and end.
    pub bounds: Bounds,
    /// The leader epoch that holds it.
    pub epoch: Option<LeaderEpoch>,
    /// The leader epoch of its last batch.
    pub last_epoch: Option<LeaderEpoch>,
    /// Bytes of it from its start on, about.
    pub bytes: u64,
    /// Why it can't be served, if it can't.
    pub damaged: Option<StoreError>,
}

/// A journal file as it lies there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfflineFile {
    /// Its path on the volume.
    pub path: String,
    /// Bytes that count, footer included.
    pub bytes: u64,
    /// Whether it ends with a footer.
    pub footer: bool,
    /// Bytes that logs still need, about.
    pub needed: u64,
    /// Logs that need it.
    pub logs: usize,
    /// Bytes of a tail that was never acknowledged.
    pub torn_bytes: u64,
    /// Whether something in it is damaged.
    pub damaged: bool,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where.
    pub path: String,
    /// What.
    pub what: String,
}

/// A shard that was read.
#[derive(Debug)]
pub struct OfflineShard {
    shard: ShardId,
    volume: Arc<dyn Volume>,
    files: Files,
    logs: BTreeMap<LogId, (Arc<Log>, OfflineLog)>,
    found: Vec<(FileId, OfflineFile)>,
}

/// The shards of a volume, in order.
///
/// # Errors
/// When the directory can't be read.
pub async fn shards(volume: &Arc<dyn Volume>) -> Result<Vec<ShardId>, StoreError> {
    let names = match volume.list(&VolumePath::root().join("__store")).await {
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        names => names.map_err(|error| volume_error(&error))?,
    };
    let numbers = names
        .iter()
        .filter(|entry| entry.is_dir)
        .filter_map(|entry| {
            let number: u32 = entry.name.strip_prefix("shard-")?.parse().ok()?;
            (shard_dir(ShardId(number)).file_name() == entry.name).then_some(ShardId(number))
        });
    let mut shards: Vec<ShardId> = numbers.collect();
    shards.sort_unstable();
    Ok(shards)
}

impl OfflineShard {
    /// Reads what a shard holds.
    ///
    /// # Errors
    /// Where an opening would refuse the shard.
    pub async fn read(volume: Arc<dyn Volume>, shard: ShardId) -> Result<Self, StoreError> {
        #[cfg(feature = "sled")]
        crate::kv::refuse_kv(&volume, shard).await?;
        let index: Arc<MemoryIndex> = Arc::default();
        let counters = Arc::new(JournalCounters::default());
        let files = Files::new(Arc::clone(&volume), index, counters);
        let ids = list(&volume, shard).await?;
        let seals = read_seals(&volume, shard).await?;
        let sources = open_sources(&volume, &ids, &seals, &BTreeMap::new()).await?;
        let base = base::find(&sources, None).await?;
        let witness = newest::refuse_missing_of(&volume, shard, &sources, base.file).await?;
        base::refuse_rewritten(&sources, &base, witness)?;
        let mut replay = Replay::new();
        let mut reads = Vec::new();
        let mut indexes = BTreeMap::new();
        for source in &sources {
            let orphan = base.outdates(source);
            if source.is_unused() || (orphan && source.seal.is_none()) {
                if !orphan {
                    source.refuse_damaged_header().await?;
                }
                continue;
            }
            let replay = base.replays(source).then_some(&mut replay);
            let mut read = read_source(source, replay, None, files.local()).await?;
            read.settle(&files, &mut indexes);
            reads.push(read);
        }
        let table = replay.finish();
        Ok(Self::of(volume, shard, files, table, reads, indexes))
    }

    /// What readers need of what was read.
    fn of(
        volume: Arc<dyn Volume>,
        shard: ShardId,
        files: Files,
        mut table: Table,
        reads: Vec<Read>,
        mut indexes: BTreeMap<LogId, LogIndex>,
    ) -> Self {
        let refs = index_logs(shard, &mut table, &reads, &mut indexes);
        let closed = Arc::new(Shard {
            id: shard,
            queue: Queue::new(0),
            rewrites: Rewrites::default(),
        });
        let mut logs = BTreeMap::new();
        let mut needed: BTreeMap<FileId, u64> = BTreeMap::new();
        for (id, entry) in table {
            let index = indexes.remove(&id).unwrap_or_default();
            let start = entry.bounds.start;
            for segment in &index.sealed {
                *needed.entry(segment.file).or_default() += segment.bytes_from(start);
            }
            let found = OfflineLog {
                id,
                name: entry.name.to_string(),
                bounds: entry.bounds,
                epoch: entry.epoch,
                last_epoch: entry.last_epoch,
                bytes: index.bytes_from(start),
                damaged: entry.damaged.clone(),
            };
            let log = Log {
                id,
                name: entry.name,
                shard: Arc::clone(&closed),
                bounds: watch::Sender::new(entry.bounds),
                index: RwLock::new(index),
                // What is left of a damaged log is read: every batch is checked by itself.
                damaged: None,
            };
            logs.insert(id, (Arc::new(log), found));
        }
        let mut found = Vec::new();
        for read in reads {
            let file = OfflineFile {
                path: path(read.id).to_string(),
                bytes: read.closed.len,
                footer: read.closed.footer,
                needed: needed.get(&read.id).copied().unwrap_or(0),
                logs: refs.get(&read.id).copied().unwrap_or(0),
                torn_bytes: read.torn_bytes,
                damaged: read.damaged,
            };
            found.push((read.id, file));
        }
        Self {
            shard,
            volume,
            files,
            logs,
            found,
        }
    }

    /// The shard.
    pub fn id(&self) -> ShardId {
        self.shard
    }

    /// Its logs, in order of their ids.
    pub fn logs(&self) -> impl Iterator<Item = &OfflineLog> {
        self.logs.values().map(|(_, found)| found)
    }

    /// Its files, in order.
    pub fn files(&self) -> impl Iterator<Item = &OfflineFile> {
        self.found.iter().map(|(_, file)| file)
    }

    /// The parts of a log in the files: path, first and last offset, bytes, largest timestamp (ms).
    pub fn segments(&self, id: LogId) -> Vec<(String, i64, i64, u64, i64)> {
        let Some((log, _)) = self.logs.get(&id) else {
            return Vec::new();
        };
        let index = log.index.read();
        let shown = |s: &Segment| {
            let path = path(s.file).to_string();
            (path, s.base, s.last, s.bytes, s.max_timestamp)
        };
        index.sealed.iter().map(shown).collect()
    }

    /// Batches from the one that holds `from` on, about 1 MiB of them; none at the end.
    ///
    /// # Errors
    /// As of [`crate::store::LogStore::read`].
    pub async fn batches(&self, id: LogId, from: i64) -> Result<Vec<StoredBatch>, StoreError> {
        let (log, _) = self.logs.get(&id).ok_or(StoreError::NotFound)?;
        let range = Range {
            from,
            max_bytes: READ_BYTES,
            upto: i64::MAX,
            within: false,
            passes: None,
        };
        let read = reader::read(&self.files, log, range).await?;
        Ok(read.into_iter().filter_map(Passed::read).collect())
    }

    /// Where the batches go on behind one from `offset` on that can't be read: the first offset of
    /// the first whole one. `None` when there is none.
    pub async fn behind(&self, id: LogId, offset: i64) -> Option<i64> {
        let (log, _) = self.logs.get(&id)?;
        reader::behind(&self.files, log, offset).await
    }

    /// What is not as it should be: damaged logs and files; `deep`, every byte of every file and
    /// every batch of every log.
    pub async fn check(&self, deep: bool) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (_, log) in self.logs.values() {
            if let Some(error) = &log.damaged {
                findings.push(finding(&log.name, log.id, error));
            }
        }
        for (_, file) in self.found.iter().filter(|(_, file)| file.damaged) {
            findings.push(Finding {
                path: file.path.clone(),
                what: "something in this file is damaged".to_owned(),
            });
        }
        if deep {
            for (id, file) in &self.found {
                self.check_file(*id, file, &mut findings).await;
            }
            for (_, log) in self.logs.values().filter(|(_, log)| log.damaged.is_none()) {
                self.check_log(log, &mut findings).await;
            }
        }
        findings
    }

    /// Reads a whole file, frame by frame.
    async fn check_file(&self, id: FileId, file: &OfflineFile, findings: &mut Vec<Finding>) {
        let read = async {
            let open = self.volume.open(&path(id)).await?;
            let mut scanner = Scanner::new(&*open, id.seed(), file.bytes, true);
            let mut damage = Vec::new();
            while let Step::Round(round) = scanner.next().await? {
                damage.extend(round.damaged_at);
            }
            Ok::<_, crate::volume::VolumeError>(damage)
        };
        match read.await {
            Ok(damage) => findings.extend(damage.into_iter().map(|at| Finding {
                path: file.path.clone(),
                what: format!("damage at byte {at}"),
            })),
            Err(error) => findings.push(Finding {
                path: file.path.clone(),
                what: error.to_string(),
            }),
        }
    }

    async fn check_log(&self, log: &OfflineLog, findings: &mut Vec<Finding>) {
        let mut next = log.bounds.start;
        while next < log.bounds.end {
            match self.batches(log.id, next).await {
                Ok(batches) => match batches.last() {
                    Some(last) => next = last.last_offset.saturating_add(1),
                    None => return,
                },
                Err(error) => {
                    findings.push(finding(&log.name, log.id, &error));
                    return;
                }
            }
        }
    }
}

/// What there is to say of a log that can't be read.
pub(crate) fn finding(name: &str, id: LogId, error: &StoreError) -> Finding {
    let what = match error {
        StoreError::Corrupt { path, why } => {
            return Finding {
                path: path.clone(),
                what: format!("{name}-{} ({}): {why}", id.partition, id.topic),
            };
        }
        other => other.to_string(),
    };
    Finding {
        path: "__store".to_owned(),
        what: format!("{name}-{} ({}): {what}", id.partition, id.topic),
    }
}

async fn read_seals(
    volume: &Arc<dyn Volume>,
    shard: ShardId,
) -> Result<BTreeMap<String, u64>, StoreError> {
    let bytes = match volume.read(&seals_path(shard), SEALS_MAX).await {
        Err(error) if error.is_not_found() => return Ok(BTreeMap::new()),
        bytes => bytes.map_err(|error| volume_error(&error))?,
    };
    decode_seals(shard, &bytes)
}
