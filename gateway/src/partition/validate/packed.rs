//! What can be seen of compressed records without unpacking them.

const GZIP: &[u8] = &[0x1f, 0x8b];
const LZ4: &[u8] = &[0x04, 0x22, 0x4d, 0x18];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// Whether records may be what a codec writes, by how they begin. Snappy's begin in any way.
pub(super) fn may_be(codec: u8, records: &[u8]) -> bool {
    match codec {
        1 => records.starts_with(GZIP),
        3 => records.starts_with(LZ4),
        // Decoders pass over frames of the second kind.
        4 => records.starts_with(ZSTD) || matches!(records, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]),
        _ => true,
    }
}
