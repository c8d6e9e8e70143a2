//! What is inside a compressed batch: for whoever has to look at single records of one. Nothing on
//! the way from a producer to a consumer does, unless it was asked to (`validate`).
//!
//! Every codec is decoded as a stream and stopped at a limit, so that a few bytes can't become
//! gigabytes. What the writers of Kafka's clients make is understood: several gzip members or zstd
//! frames, one lz4 frame, and both forms of snappy (a raw block, or the framing of `snappy-java`).

use std::io::{self, Read, Write};

use bytes::Bytes;

use crate::batch::BatchHeader;

/// The most bytes that the records of one batch may have when they are unpacked. Kafka has no
/// limit; a batch as sent is at most `max.message.bytes`.
pub const UNPACKED_MAX: usize = 64 << 20;

/// Largest window of a zstd frame, as a power of two: [`UNPACKED_MAX`].
const ZSTD_WINDOW_LOG_MAX: u32 = 26;
/// Begins the records of a batch that `snappy-java` wrote; two version numbers follow.
const SNAPPY_JAVA_MAGIC: &[u8] = b"\x82SNAPPY\0";
const SNAPPY_JAVA_HEADER_LEN: usize = 16;
/// Bytes of one block of snappy that is written.
const SNAPPY_BLOCK: usize = 32 << 10;
/// The level at which zstd packs.
const ZSTD_LEVEL: i32 = 3;
/// A copy of 64 bytes takes three: no block of snappy unpacks to more than this many times itself.
const SNAPPY_RATIO_MAX: usize = 32;

/// Why records could not be unpacked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError {
    /// A codec that is not defined.
    #[error("compression codec {0} is not defined")]
    UnknownCodec(u8),
    /// More bytes than the limit.
    #[error("the records unpack to more than {max} bytes")]
    TooLarge {
        /// The limit.
        max: usize,
    },
    /// Not what the codec writes.
    #[error("the compressed records are damaged: {0}")]
    Damaged(String),
}

/// The records of a batch, unpacked: at most `max` bytes. `records` is everything behind its
/// header, and is returned as it is when the batch is not compressed.
pub fn unpack(header: &BatchHeader, records: &Bytes, max: usize) -> Result<Bytes, UnpackError> {
    match header.compression() {
        0 => Ok(records.clone()),
        1 => stream(flate2::read::MultiGzDecoder::new(&records[..]), max),
        2 => snappy(records, max),
        3 => stream(lz4_flex::frame::FrameDecoder::new(&records[..]), max),
        4 => {
            let mut decoder = zstd::Decoder::with_buffer(&records[..]).map_err(damaged)?;
            decoder
                .window_log_max(ZSTD_WINDOW_LOG_MAX)
                .map_err(damaged)?;
            stream(decoder, max)
        }
        codec => Err(UnpackError::UnknownCodec(codec)),
    }
}

/// Records packed by a codec, at the default level of Kafka's producer.
pub(crate) fn pack(codec: u8, records: Bytes) -> Result<Bytes, UnpackError> {
    let packed = match codec {
        0 => return Ok(records),
        1 => {
            let level = flate2::Compression::default();
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
            encoder.write_all(&records).map_err(damaged)?;
            encoder.finish().map_err(damaged)?
        }
        2 => pack_snappy(&records)?,
        3 => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
            encoder.write_all(&records).map_err(damaged)?;
            encoder.finish().map_err(|error| damaged(error.into()))?
        }
        4 => zstd::encode_all(&records[..], ZSTD_LEVEL).map_err(damaged)?,
        codec => return Err(UnpackError::UnknownCodec(codec)),
    };
    Ok(Bytes::from(packed))
}

/// In the framing of `snappy-java`, which every client reads.
fn pack_snappy(records: &[u8]) -> Result<Vec<u8>, UnpackError> {
    let mut packed = SNAPPY_JAVA_MAGIC.to_vec();
    packed.extend([0, 0, 0, 1, 0, 0, 0, 1]);
    for block in records.chunks(SNAPPY_BLOCK) {
        let block = snap::raw::Encoder::new().compress_vec(block);
        let block = block.map_err(|error| UnpackError::Damaged(error.to_string()))?;
        let len = u32::try_from(block.len()).unwrap_or(u32::MAX);
        packed.extend(len.to_be_bytes());
        packed.extend(block);
    }
    Ok(packed)
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn damaged(error: io::Error) -> UnpackError {
    UnpackError::Damaged(error.to_string())
}

fn stream(decoder: impl Read, max: usize) -> Result<Bytes, UnpackError> {
    let mut unpacked = Vec::new();
    // One more than the limit, to see that it is passed.
    let mut limited = decoder.take(u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1));
    limited.read_to_end(&mut unpacked).map_err(damaged)?;
    if unpacked.len() > max {
        return Err(UnpackError::TooLarge { max });
    }
    Ok(Bytes::from(unpacked))
}

fn snappy(records: &[u8], max: usize) -> Result<Bytes, UnpackError> {
    let mut unpacked = Vec::new();
    if !records.starts_with(SNAPPY_JAVA_MAGIC) {
        snappy_block(records, &mut unpacked, max)?;
        return Ok(Bytes::from(unpacked));
    }
    let cut = || UnpackError::Damaged("cut short".to_owned());
    let mut rest = records.get(SNAPPY_JAVA_HEADER_LEN..).ok_or_else(cut)?;
    while !rest.is_empty() {
        let (length, behind) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| cut())?;
        let (block, behind) = behind.split_at_checked(length).ok_or_else(cut)?;
        snappy_block(block, &mut unpacked, max)?;
        rest = behind;
    }
    Ok(Bytes::from(unpacked))
}

/// Appends what is in one raw block.
fn snappy_block(block: &[u8], unpacked: &mut Vec<u8>, max: usize) -> Result<(), UnpackError> {
    let damaged = |error: snap::Error| UnpackError::Damaged(error.to_string());
    let length = snap::raw::decompress_len(block).map_err(damaged)?;
    let start = unpacked.len();
    if length > max.saturating_sub(start) {
        return Err(UnpackError::TooLarge { max });
    }
    if length / SNAPPY_RATIO_MAX > block.len() {
        let why = format!("{length} bytes from {}", block.len());
        return Err(UnpackError::Damaged(why));
    }
    unpacked.resize(start + length, 0);
    let written = snap::raw::Decoder::new().decompress(block, &mut unpacked[start..]);
    unpacked.truncate(start + written.map_err(damaged)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::{ProducerEpoch, ProducerId, Sequence};

    fn header(codec: i16) -> BatchHeader {
        BatchHeader {
            base_offset: 0,
            batch_length: 0,
            leader_epoch: 0,
            magic: 2,
            crc: 0,
            attributes: codec,
            last_offset_delta: 0,
            base_timestamp: 0,
            max_timestamp: 0,
            producer_id: ProducerId(-1),
            producer_epoch: ProducerEpoch(-1),
            base_sequence: Sequence(-1),
            records_count: 1,
        }
    }

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    fn lz4(plain: &[u8]) -> Vec<u8> {
        let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(plain: &[u8]) -> Vec<u8> {
        zstd::encode_all(plain, 3).unwrap()
    }

    fn raw_snappy(plain: &[u8]) -> Vec<u8> {
        snap::raw::Encoder::new().compress_vec(plain).unwrap()
    }

    fn java_snappy(plain: &[u8]) -> Vec<u8> {
        let mut framed = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
        for chunk in plain.chunks(1000) {
            let block = raw_snappy(chunk);
            framed.extend(u32::try_from(block.len()).unwrap().to_be_bytes());
            framed.extend(block);
        }
        framed
    }

    type Pack = fn(&[u8]) -> Vec<u8>;
    const CODECS: [(i16, Pack); 5] = [
        (1, gzip),
        (2, raw_snappy),
        (2, java_snappy),
        (3, lz4),
        (4, zstd),
    ];

    fn plain() -> Vec<u8> {
        (0..10_000_u32)
            .flat_map(|i| (i / 7).to_le_bytes())
            .collect()
    }

    #[test]
    fn every_codec_comes_back() {
        for (codec, pack) in CODECS {
            let packed = Bytes::from(pack(&plain()));
            assert!(packed.len() < plain().len());
            let unpacked = unpack(&header(codec), &packed, UNPACKED_MAX).unwrap();
            assert_eq!(&unpacked[..], &plain()[..], "codec {codec}");
        }
        let plain = Bytes::from(plain());
        assert_eq!(unpack(&header(0), &plain, 1).unwrap(), plain);
    }

    #[test]
    fn what_is_packed_here_comes_back() {
        for codec in 0..5_u8 {
            let packed = pack(codec, Bytes::from(plain())).unwrap();
            assert!(codec == 0 || packed.len() < plain().len(), "codec {codec}");
            let unpacked = unpack(&header(codec.into()), &packed, UNPACKED_MAX).unwrap();
            assert_eq!(&unpacked[..], &plain()[..], "codec {codec}");
        }
    }

    #[test]
    fn frames_one_behind_the_other_are_one_stream() {
        for (codec, pack) in [(1, gzip as Pack), (4, zstd)] {
            let two = Bytes::from([pack(b"one "), pack(b"two")].concat());
            let unpacked = unpack(&header(codec), &two, 100).unwrap();
            assert_eq!(&unpacked[..], b"one two", "codec {codec}");
        }
    }

    #[test]
    fn a_limit_stops_it() {
        let bomb = vec![0; 1 << 20];
        for (codec, pack) in CODECS {
            let packed = Bytes::from(pack(&bomb));
            let max = (1 << 20) - 1;
            let refused = unpack(&header(codec), &packed, max).unwrap_err();
            assert_eq!(refused, UnpackError::TooLarge { max }, "codec {codec}");
            assert!(unpack(&header(codec), &packed, 1 << 20).is_ok());
        }
    }

    #[test]
    fn a_length_that_is_only_claimed_costs_nothing() {
        // A block of two bytes that claims 32 MiB.
        let claim = Bytes::from_static(b"\x80\x80\x80\x10\x00");
        let refused = unpack(&header(2), &claim, UNPACKED_MAX).unwrap_err();
        assert!(matches!(refused, UnpackError::Damaged(_)), "{refused}");
    }

    #[test]
    fn undefined_codecs_and_cut_ends_are_refused() {
        for codec in 5..8 {
            let refused = unpack(&header(codec), &Bytes::from_static(b"x"), 100).unwrap_err();
            let number = u8::try_from(codec).unwrap();
            assert_eq!(refused, UnpackError::UnknownCodec(number));
        }
        for (codec, pack) in CODECS {
            let packed = Bytes::from(pack(&plain()));
            let cut = packed.slice(..packed.len() - 5);
            let refused = unpack(&header(codec), &cut, UNPACKED_MAX).unwrap_err();
            assert!(matches!(refused, UnpackError::Damaged(_)), "codec {codec}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_pass_the_limit(
            codec in 0_i16..8,
            prefix in prop::sample::select(vec![
                &b""[..],
                b"\x1f\x8b\x08\0\0\0\0\0\0\x03",
                b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01",
                b"\x04\x22\x4d\x18\x60\x40\x82",
                b"\x28\xb5\x2f\xfd",
            ]),
            noise in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let bytes = Bytes::from([prefix, &noise].concat());
            if let Ok(unpacked) = unpack(&header(codec), &bytes, 1000) {
                prop_assert!(unpacked.len() <= 1000 || codec == 0);
            }
        }
    }
}
