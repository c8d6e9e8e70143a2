//! Files that every broker may read, for people: fences, marker queues, blocks of producer ids.
//!
//! They are read as they are found. One that can't be read is shown with the reason; whoever owns
//! it reports it.

use std::sync::Arc;

use store_adapter::ids::{BrokerId, ProducerEpoch, ProducerId};
use store_adapter::volume::{Volume, VolumeError, VolumePath};

use crate::volume::format::{FencesFile, Format, IdBlockFile, MarkerQueueFile, decode};
use crate::volume::layout::{self, Place};

/// Queue entries that are read at most; more are counted.
pub const QUEUE_SHOWN_MAX: usize = 10_000;

/// A file of a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<T> {
    /// The broker that writes it.
    pub broker: BrokerId,
    /// What it says, or why it can't be read.
    pub content: Result<T, String>,
}

/// Markers that a broker is to write, or has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedMarkers {
    /// The broker that is to write them.
    pub to: BrokerId,
    /// The producer.
    pub pid: ProducerId,
    /// The epoch of its records.
    pub epoch: ProducerEpoch,
    /// The transaction that was confirmed; `None` while it was not.
    pub done: Option<u64>,
    /// What the entry says, or why it can't be read.
    pub content: Result<MarkerQueueFile, String>,
}

/// The files. Every method is awaited in an io task only.
#[derive(Debug, Clone)]
pub struct SharedFiles(pub Arc<dyn Volume>);

impl SharedFiles {
    /// The fences of every broker, by broker.
    ///
    /// # Errors
    /// When the directory can't be read.
    pub async fn fences(&self) -> Result<Vec<Found<FencesFile>>, VolumeError> {
        let writer = |place| match place {
            Place::ProducerFences(broker) => Some(broker),
            _ => None,
        };
        self.by_broker(&layout::fences_dir(), writer).await
    }

    /// The first producer id that each broker has not reserved, by broker.
    ///
    /// # Errors
    /// When the directory can't be read.
    pub async fn id_blocks(&self) -> Result<Vec<Found<IdBlockFile>>, VolumeError> {
        let writer = |place| match place {
            Place::ProducerIds(broker) => Some(broker),
            _ => None,
        };
        self.by_broker(&layout::producer_ids_dir(), writer).await
    }

    /// The files of a directory that have one writer each.
    async fn by_broker<T: Format>(
        &self,
        dir: &VolumePath,
        writer: impl Fn(Place) -> Option<BrokerId>,
    ) -> Result<Vec<Found<T>>, VolumeError> {
        let mut found = Vec::new();
        for path in self.list(dir).await? {
            if let Some(broker) = Place::parse(&path).and_then(&writer) {
                let content = self.read(&path).await;
                found.push(Found { broker, content });
            }
        }
        found.sort_by_key(|file| file.broker);
        Ok(found)
    }

    /// The queues of every broker, and how many entries are not read because there are more than
    /// [`QUEUE_SHOWN_MAX`].
    ///
    /// # Errors
    /// When a directory can't be read.
    pub async fn queues(&self) -> Result<(Vec<QueuedMarkers>, usize), VolumeError> {
        let mut found = Vec::new();
        let mut more = 0;
        for dir in self.list(&layout::marker_queues_dir()).await? {
            if layout::marker_queue_owner(&dir).is_none() {
                continue;
            }
            for path in self.list(&dir).await? {
                let (to, pid, epoch, done) = match Place::parse(&path) {
                    Some(Place::MarkerQueue(to, pid, epoch)) => (to, pid, epoch, None),
                    Some(Place::MarkerDone(to, pid, epoch, seq)) => (to, pid, epoch, Some(seq)),
                    _ => continue,
                };
                if found.len() >= QUEUE_SHOWN_MAX {
                    more += 1;
                    continue;
                }
                // What was confirmed or removed since the listing is no entry any more.
                let content = match self.volume().read(&path, MarkerQueueFile::LEN_MAX).await {
                    Err(error) if error.is_not_found() => continue,
                    Err(error) => Err(error.to_string()),
                    Ok(bytes) => decode(&bytes).map_err(|error| error.0),
                };
                found.push(QueuedMarkers {
                    to,
                    pid,
                    epoch,
                    done,
                    content,
                });
            }
        }
        found.sort_by_key(|entry| (entry.to, entry.pid, entry.epoch, entry.done));
        Ok((found, more))
    }

    fn volume(&self) -> &Arc<dyn Volume> {
        &self.0
    }

    /// The paths in a directory; none if it is not there.
    async fn list(&self, dir: &VolumePath) -> Result<Vec<VolumePath>, VolumeError> {
        match self.volume().list(dir).await {
            Ok(names) => Ok(names.iter().map(|entry| dir.join(&entry.name)).collect()),
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    async fn read<T: Format>(&self, path: &VolumePath) -> Result<T, String> {
        let bytes = self.volume().read(path, T::LEN_MAX).await;
        let bytes = bytes.map_err(|error| error.to_string())?;
        decode(&bytes).map_err(|error| error.0)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use store_adapter::volume::{MemoryVolume, block_on};

    use super::*;

    fn put(volume: &Arc<dyn Volume>, place: &Place, text: &'static str) {
        let path = place.path();
        block_on(async {
            volume.create_dir_all(&path.parent()).await.unwrap();
            let file = volume.create_new(&path).await.unwrap();
            file.write_at(0, &[Bytes::from_static(text.as_bytes())])
                .await
                .unwrap();
        });
    }

    #[test]
    fn what_is_there_is_shown_and_damage_has_its_reason() {
        let volume: Arc<dyn Volume> = Arc::new(MemoryVolume::new());
        let files = SharedFiles(volume.clone());
        assert_eq!(block_on(files.fences()).unwrap(), Vec::new());
        assert_eq!(block_on(files.queues()).unwrap(), (Vec::new(), 0));
        put(&volume, &Place::ProducerFences(BrokerId(1)), r#"{"7":3}"#);
        put(&volume, &Place::ProducerFences(BrokerId(0)), "torn");
        let fences = block_on(files.fences()).unwrap();
        assert_eq!(fences[0].broker, BrokerId(0));
        assert!(fences[0].content.is_err());
        assert_eq!(fences[1].content.as_ref().unwrap().fences[&7], 3);
        put(
            &volume,
            &Place::ProducerIds(BrokerId(0)),
            r#"{"nextBlock":9}"#,
        );
        let blocks = block_on(files.id_blocks()).unwrap();
        assert_eq!(blocks[0].content.as_ref().unwrap().next_block, 9);
        let (to, pid, epoch) = (BrokerId(2), ProducerId(7), ProducerEpoch(1));
        put(&volume, &Place::MarkerDone(to, pid, epoch, 4), "{");
        let entry = concat!(
            r#"{"transactionalId":"tx","producerId":7,"producerEpoch":1,"commit":true,"#,
            r#""coordinatorEpoch":1,"partitions":[],"txnSeq":5}"#
        );
        put(&volume, &Place::MarkerQueue(to, pid, epoch), entry);
        let (queued, more) = block_on(files.queues()).unwrap();
        assert_eq!((queued.len(), more), (2, 0));
        assert_eq!(queued[0].content.as_ref().unwrap().txn_seq, Some(5));
        assert_eq!(queued[1].done, Some(4));
        assert!(queued[1].content.is_err());
    }
}
