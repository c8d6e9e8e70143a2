//! Keys of transactions.

use super::{COUNT, Key, Kind, MILLIS, used};

/// In the order of the docs, behind the others.
pub(super) const KEYS: &[Key] = &[
    used(
        "transaction.version",
        Kind::Choice(&["0", "1", "2"]),
        "2",
        "Level of the feature of this name that a new cluster begins with; UpdateFeatures changes \
         it afterwards. From 2 on clients begin every transaction at another epoch (KIP-890). \
         Kafka takes it when storage is formatted.",
    ),
    used(
        "transaction.state.log.num.partitions",
        Kind::Choice(&["50"]),
        "50",
        "Slots of transactional ids; a volume has 50.",
    ),
    used(
        "transaction.max.timeout.ms",
        COUNT,
        "900000",
        "Longest timeout that a transactional id may ask for.",
    ),
    used(
        "transactional.id.expiration.ms",
        COUNT,
        "604800000",
        "A transactional id that nobody used for so long, and that has nothing open, is forgotten.",
    ),
    used(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        COUNT,
        "3600000",
        "How often that is looked for.",
    ),
    used(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        COUNT,
        "10000",
        "How often transactions are looked for that are open for longer than their timeout; they \
         are aborted.",
    ),
    used(
        "transaction.partition.verification.enable",
        Kind::Bool,
        "true",
        "The first batch of a transaction on a partition is appended only if its coordinator knows \
         the partition (Produce up to v11; later versions add it, always).",
    ),
    used(
        "transaction.reconcile.interval.ms",
        MILLIS,
        "10000",
        "How often decided transactions are looked for whose markers are not all written; they are \
         finished. (A key of this broker.)",
    ),
    used(
        "transaction.poll.interval.ms",
        MILLIS,
        "2000",
        "How often the markers and fences that other brokers left on the volume are looked for. (A \
         key of this broker.)",
    ),
];
