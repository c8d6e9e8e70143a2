//! What the fuzz targets do with their input. Ordinary tests replay the corpora through the same
//! functions, so every finding stays found.
#![allow(clippy::expect_used, reason = "a panic is a finding")]

use std::sync::Arc;

use bytes::Bytes;
use gateway::api::CloseReason;
use gateway::partition::validate::{self, TimestampType, TopicRules};
use gateway::wire::{codec, header};
use store_adapter::batch::{Batch, BatchHeader, HEADER_LEN};
use store_adapter::blob::Batches;
use store_adapter::control::EndTxnMarker;
use store_adapter::ids::ShardId;
use store_adapter::journal::{OfflineShard, shards};
use store_adapter::records::{Records, first_at_or_after};
use store_adapter::store::StoreError;
use store_adapter::volume::{MemoryVolume, Volume, VolumePath, block_on};

/// What a target does with one input; a panic is a finding.
pub(crate) type Target = fn(&[u8]);

/// Every target by name; the name is the directory of its corpus.
pub(crate) const TARGETS: [(&str, Target); 4] = [
    ("request", request),
    ("blob", blob),
    ("records", records),
    ("journal", journal),
];

/// A frame, without its length: header, guard, decoder. What the guard lets pass must decode.
/// Returns whether it did.
pub(crate) fn decodes(frame: &[u8]) -> bool {
    let frame = Bytes::copy_from_slice(frame);
    let Ok((header, body)) = header::decode(&frame) else {
        return false;
    };
    match codec::decode(header.key, header.version, body) {
        Ok(request) => {
            assert_eq!(request.key(), header.key);
            true
        }
        Err(CloseReason::Malformed(why)) => {
            assert!(!why.starts_with("decoder"), "{why}");
            false
        }
        Err(_) => false,
    }
}

/// See [`decodes`].
pub(crate) fn request(frame: &[u8]) {
    decodes(frame);
}

/// The records of one partition in a Produce request, up to a batch that may be appended. What is
/// accepted reads back with offsets 0, 1, 2 and so on.
pub(crate) fn blob(blob: &[u8]) {
    let total: usize = Batches::new(blob)
        .map_while(Result::ok)
        .map(<[u8]>::len)
        .sum();
    assert!(total <= blob.len());
    validate::peek(blob);
    let blob = Bytes::copy_from_slice(blob);
    for timestamp_type in [TimestampType::CreateTime, TimestampType::LogAppendTime] {
        let rules = TopicRules {
            timestamp_type,
            compact: blob.len().is_multiple_of(2),
            unpack: blob.len().is_multiple_of(3),
            ..TopicRules::default()
        };
        let Ok(single) = validate::single_batch(Some(&blob), 9) else {
            continue;
        };
        let Ok(valid) = validate::batch(single, &rules, 1_700_000_000_000) else {
            continue;
        };
        let batch = Batch::parse(valid.batch.bytes().clone()).expect("a valid batch parses");
        if batch.header().compression() == 0 {
            let records = Records::new(batch.header(), &batch.bytes()[HEADER_LEN..]);
            for (index, record) in (0..).zip(records.expect("a valid batch has records")) {
                assert_eq!(record.expect("a valid record").offset_delta, index);
            }
        }
    }
}

/// A batch as it is read from a log, its CRC trusted: header, records, marker, search by time.
pub(crate) fn records(batch: &[u8]) {
    first_at_or_after(&Bytes::copy_from_slice(batch), 0, 0);
    EndTxnMarker::read(batch);
    let Ok(header) = BatchHeader::read(batch) else {
        return;
    };
    let Ok(records) = Records::new(&header, &batch[HEADER_LEN..]) else {
        return;
    };
    let mut count = 0_i32;
    for record in records {
        let Ok(record) = record else { return };
        count += 1;
        for (key, value) in record.headers() {
            assert!(key.len() + value.unwrap_or_default().len() <= batch.len());
        }
    }
    assert_eq!(count, header.records_count);
}

/// Two journal files of one shard, as recovery finds them. The first byte: 1 to mend the checksums
/// that the input breaks, so that what they guard is reached, 0 to take it as it is. Then the
/// length of the first file, big endian, and the bytes of both.
///
/// The shard is refused with a path, or each log is refused with a path, or it reads from its start
/// to its end without a gap. Mended lies are believed, so what a batch holds is not judged here.
pub(crate) fn journal(input: &[u8]) {
    let Some((&[mend, hi, lo], files)) = input.split_first_chunk::<3>() else {
        return;
    };
    let len = usize::from(u16::from_be_bytes([hi, lo])).min(files.len());
    let (first, second) = files.split_at(len);
    let contents = (0_u64..).zip([first, second]);
    let contents = contents.filter(|(_, bytes)| !bytes.is_empty());
    block_on(async {
        let volume = MemoryVolume::new();
        let dir = VolumePath::root()
            .join("__store")
            .join("shard-0")
            .join("journal");
        volume.create_dir_all(&dir).await.expect("a directory");
        for (seq, bytes) in contents {
            let mut bytes = bytes.to_vec();
            if mend & 1 == 1 {
                mend_checksums(seq, &mut bytes);
            }
            let file = volume
                .create_new(&dir.join(&format!("1.1-{seq}.log")))
                .await;
            let file = file.expect("a file");
            file.write_at(0, &[Bytes::from(bytes)])
                .await
                .expect("a write");
        }
        recover(Arc::new(volume)).await;
    });
}

async fn recover(volume: Arc<dyn Volume>) {
    let found = shards(&volume).await.expect("the directory is there");
    assert_eq!(found, [ShardId(0)]);
    let shard = match OfflineShard::read(volume, ShardId(0)).await {
        Ok(shard) => shard,
        Err(error) => return refused(&error),
    };
    for log in shard.logs() {
        if let Some(error) = &log.damaged {
            refused(error);
            continue;
        }
        let (mut next, end) = (log.bounds.start, log.bounds.end);
        assert!(0 <= next && next <= end, "{:?}", log.bounds);
        while next < end {
            let batches = match shard.batches(log.id, next).await {
                Ok(batches) => batches,
                Err(error) => {
                    refused(&error);
                    break;
                }
            };
            assert!(!batches.is_empty(), "nothing at {next} of {:?}", log.bounds);
            for batch in batches {
                assert!(
                    batch.base_offset <= next && next <= batch.last_offset,
                    "{next}: {batch:?}"
                );
                next = batch.last_offset + 1;
            }
        }
    }
    let deep = shard.check(true).await;
    assert!(
        deep.iter().all(|finding| !finding.path.is_empty()),
        "{deep:?}"
    );
}

/// A refusal names its path.
fn refused(error: &StoreError) {
    match error {
        StoreError::Corrupt { path, why } => assert!(!path.is_empty() && !why.is_empty()),
        StoreError::Offline(why) => assert!(why.contains("__store"), "{why}"),
        other => panic!("{other:?}"),
    }
}

const JOURNAL_HEADER: usize = 64;

/// Writes the checksums that the format asks for: of the file's header, of each frame, and of each
/// round in its commit frame. Follows lengths as long as they make sense.
fn mend_checksums(seq: u64, file: &mut [u8]) {
    let Some(header) = file.get_mut(..JOURNAL_HEADER) else {
        return;
    };
    let crc = crc32c::crc32c(&header[..60]);
    header[60..].copy_from_slice(&crc.to_be_bytes());
    let identity = [
        &[0; 4][..],
        &1_u32.to_be_bytes(),
        &1_u64.to_be_bytes(),
        &seq.to_be_bytes(),
    ];
    let identity = crc32c::crc32c(&identity.concat());
    let mut at = JOURNAL_HEADER;
    let mut round = 0;
    while let Some(len) = file.get(at + 4..at + 8) {
        let len = u32::from_be_bytes(len.try_into().expect("four bytes")) as usize;
        let position = crc32c::crc32c_append(identity, &(at as u64).to_be_bytes());
        let Some(frame) = file.get_mut(at..at.saturating_add(len)) else {
            return;
        };
        let kind = frame.get(8).copied().unwrap_or(0);
        match (kind, frame.len()) {
            (_, ..64) => return,
            // A batch answers for itself behind its own checksum.
            (1, 85..) => {
                let crc = crc32c::crc32c(&frame[85..]);
                frame[81..85].copy_from_slice(&crc.to_be_bytes());
            }
            (7, 68..) => frame[64..68].copy_from_slice(&u32::to_be_bytes(round)),
            _ => {}
        }
        let covered = if kind == 1 {
            frame.len().min(85)
        } else {
            frame.len()
        };
        let crc = crc32c::crc32c_append(position, &frame[4..covered]).to_be_bytes();
        frame[..4].copy_from_slice(&crc);
        round = if kind == 7 {
            0
        } else {
            crc32c::crc32c_append(round, &crc)
        };
        at += len;
    }
}
