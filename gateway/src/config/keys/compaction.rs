//! What compaction leaves of records that are not the newest of their key, and when.

use super::{Key, Kind, MILLIS, used};

const FROM_ZERO: Kind = Kind::Int {
    min: 0,
    max: i64::MAX,
};

pub(super) const KEYS: &[Key] = &[
    used(
        "log.cleanup.policy",
        Kind::Choice(&["delete", "compact", "compact,delete", "delete,compact", ""]),
        "delete",
        "How old records go: by age and size, because there is a newer one of their key, both, or, \
         if it is empty, not at all.",
    ),
    used(
        "log.cleaner.enable",
        Kind::Bool,
        "true",
        "Whether topics with `cleanup.policy` compact are compacted.",
    ),
    used(
        "log.cleaner.backoff.ms",
        MILLIS,
        "15000",
        "How often it is looked for partitions that need it.",
    ),
    used(
        "log.cleaner.dedupe.buffer.size",
        Kind::Int {
            min: 1 << 20,
            max: 1 << 40,
        },
        "134217728",
        "Bytes of memory for the keys of the partitions that are compacted together. What has more \
         is compacted part by part.",
    ),
    used(
        "log.cleaner.min.cleanable.ratio",
        Kind::Ratio,
        "0.5",
        "How much of a partition must be new before it is compacted.",
    ),
    used(
        "log.cleaner.min.compaction.lag.ms",
        FROM_ZERO,
        "0",
        "How long a record is left alone.",
    ),
    used(
        "log.cleaner.max.compaction.lag.ms",
        MILLIS,
        "9223372036854775807",
        "After so long a record is compacted, however little is new.",
    ),
    used(
        "log.cleaner.delete.retention.ms",
        FROM_ZERO,
        "86400000",
        "How long a record without value stays once it is the only one of its key.",
    ),
];
