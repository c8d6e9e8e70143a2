//! Keys of groups and of their offsets.

use super::{COUNT, Key, Kind, MILLIS, used};

const GROUP_MILLIS: Kind = Kind::Int {
    min: 0,
    max: i32::MAX as i64,
};

/// In the order of the docs, behind the others.
pub(super) const KEYS: &[Key] = &[
    used(
        "group.initial.rebalance.delay.ms",
        GROUP_MILLIS,
        "3000",
        "How long the first members of an empty group wait for others, again with each that comes, \
         up to their rebalance timeout.",
    ),
    used(
        "group.min.session.timeout.ms",
        GROUP_MILLIS,
        "6000",
        "Shortest session timeout that a member may ask for.",
    ),
    used(
        "group.max.session.timeout.ms",
        GROUP_MILLIS,
        "1800000",
        "Longest session timeout that a member may ask for.",
    ),
    used(
        "group.max.size",
        COUNT,
        "2147483647",
        "Members of a group; more are refused.",
    ),
    used(
        "offset.metadata.max.bytes",
        COUNT,
        "4096",
        "Longest metadata of a committed offset, in UTF-16 code units as Kafka counts them: never \
         more than its bytes.",
    ),
    used(
        "offsets.retention.minutes",
        COUNT,
        "10080",
        "How long offsets are kept when a group has no members, or does not consume the topic any \
         more; of a group that never had members, since their commit.",
    ),
    used(
        "offsets.retention.check.interval.ms",
        MILLIS,
        "600000",
        "How often that is looked for.",
    ),
];
