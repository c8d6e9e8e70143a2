//! The bytes of one file: what the page cache shows, and what the disk would keep.

use bytes::Bytes;

/// What a disk writes whole or not at all, bytes.
const SECTOR: usize = 512;

/// Where a write stands on its way to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// In the cache; the next sync writes it.
    Dirty,
    /// A sync failed on it: it reads back from the cache, and no later sync writes it. Some of it
    /// may be on the disk.
    Doomed,
    /// On the disk. Kept apart only while an older doomed write may yet lie below it.
    Synced,
}

#[derive(Debug)]
struct Write {
    offset: usize,
    data: Bytes,
    stage: Stage,
}

/// One file's bytes.
#[derive(Debug, Default)]
pub(super) struct Content {
    cache: Vec<u8>,
    disk: Vec<u8>,
    writes: Vec<Write>,
}

impl Content {
    /// A file of which everything is on the disk.
    pub(super) fn durable(disk: Vec<u8>) -> Self {
        Self {
            cache: disk.clone(),
            disk,
            writes: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.cache.len()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.cache
    }

    pub(super) fn write(&mut self, offset: usize, data: Bytes) {
        put(&mut self.cache, offset, &data);
        self.writes.push(Write {
            offset,
            data,
            stage: Stage::Dirty,
        });
    }

    pub(super) fn read(&self, offset: usize, len: usize) -> Bytes {
        let start = offset.min(self.cache.len());
        let end = start.saturating_add(len).min(self.cache.len());
        Bytes::copy_from_slice(&self.cache[start..end])
    }

    /// A sync that succeeds.
    pub(super) fn sync(&mut self) {
        for write in &mut self.writes {
            if write.stage == Stage::Dirty {
                write.stage = Stage::Synced;
            }
        }
        if self.writes.iter().all(|write| write.stage == Stage::Synced) {
            for write in self.writes.drain(..) {
                put(&mut self.disk, write.offset, &write.data);
            }
        }
    }

    /// A sync that fails: the kernel reports it once and drops the pages' dirty marks.
    pub(super) fn fail_sync(&mut self) {
        for write in &mut self.writes {
            if write.stage == Stage::Dirty {
                write.stage = Stage::Doomed;
            }
        }
    }

    /// What is on the disk after a power cut. Of what was not synced: nothing, everything, a
    /// beginning that ends anywhere, or any sectors, later ones without earlier ones too.
    pub(super) fn after_power_cut(&self, rng: &mut fastrand::Rng) -> Vec<u8> {
        let mut disk = self.disk.clone();
        let unsynced = |write: &&Write| write.stage != Stage::Synced;
        let mut left: usize = self
            .writes
            .iter()
            .filter(unsynced)
            .map(|w| w.data.len())
            .sum();
        let kind = rng.u8(0..4);
        left = match kind {
            0 => 0,
            1 => left,
            _ => rng.usize(0..=left),
        };
        for write in &self.writes {
            if write.stage == Stage::Synced {
                put(&mut disk, write.offset, &write.data);
            } else if kind == 3 {
                put_sectors(&mut disk, write, rng);
            } else {
                let kept = left.min(write.data.len());
                left -= kept;
                if kept > 0 {
                    put(&mut disk, write.offset, &write.data[..kept]);
                }
            }
        }
        disk
    }
}

/// Writes over `bytes` at `offset`, which may lie behind its end: the hole reads as zeros.
fn put(bytes: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    let end = offset + data.len();
    if offset == bytes.len() {
        bytes.extend_from_slice(data);
        return;
    }
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(data);
}

/// Writes each sector of `write`, or not.
fn put_sectors(disk: &mut Vec<u8>, write: &Write, rng: &mut fastrand::Rng) {
    let mut at = 0;
    while at < write.data.len() {
        let offset = write.offset + at;
        let len = (SECTOR - offset % SECTOR).min(write.data.len() - at);
        if rng.bool() {
            put(disk, offset, &write.data[at..at + len]);
        }
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(content: &Content, seed: u64) -> Vec<u8> {
        content.after_power_cut(&mut fastrand::Rng::with_seed(seed))
    }

    #[test]
    fn what_was_synced_survives_and_the_rest_may() {
        let mut content = Content::default();
        content.write(0, Bytes::from(vec![1; 1024]));
        content.sync();
        content.write(1024, Bytes::from(vec![2; 2048]));
        assert_eq!(content.len(), 3072);
        let kept: Vec<_> = (0..100).map(|seed| after(&content, seed)).collect();
        assert!(kept.iter().all(|disk| disk[..1024] == [1; 1024]));
        assert!(kept.iter().any(|disk| disk.len() == 1024));
        assert!(
            kept.iter()
                .any(|disk| disk.len() == 3072 && !disk[1024..].contains(&0))
        );
        // A torn end, and a later sector without an earlier one.
        assert!(kept.iter().any(|disk| disk.len() % SECTOR != 0));
        let hole = |disk: &Vec<u8>| disk.len() > 2048 && disk[1024..1536] == [0; 512];
        assert!(kept.iter().any(hole));
        assert_eq!(after(&content, 7), after(&content, 7));
    }

    #[test]
    fn a_failed_sync_is_not_made_good_by_the_next() {
        let mut content = Content::default();
        content.write(0, Bytes::from_static(b"lost"));
        content.fail_sync();
        content.sync();
        content.write(4, Bytes::from_static(b"kept"));
        content.sync();
        assert_eq!(content.bytes(), b"lostkept");
        let kept: Vec<_> = (0..50).map(|seed| after(&content, seed)).collect();
        assert!(kept.iter().all(|disk| disk[4..] == *b"kept"));
        assert!(kept.iter().any(|disk| disk[..4] == [0; 4]));
        assert!(kept.iter().any(|disk| disk[..4] == *b"lost"));
    }
}
