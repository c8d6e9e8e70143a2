//! How long records are kept, and how full the disk may get.

use super::{COUNT, Key, Kind, MILLIS, used};

pub(super) const KEYS: &[Key] = &[
    used(
        "journal.reserved.bytes",
        Kind::Int {
            min: -1,
            max: 1 << 50,
        },
        "-1",
        "With less free on the file system, Produce is refused with 56 KAFKA_STORAGE_ERROR, which \
         clients retry, until there is more; deleting, offsets and transactions go on. -1 is a \
         hundredth of the file system, at most 256 MiB; 0 is none. As much again, at most 16 MiB, \
         is held in a file (`__cluster/room-kaas-<id>`), and given up when records or topics are \
         to be deleted where others have filled the file system. Not a key of Kafka's.",
    ),
    used(
        "log.retention.ms",
        Kind::Int {
            min: -1,
            max: i64::MAX,
        },
        "604800000",
        "How long records are kept, by the largest timestamp of their segment; -1 is for ever. \
         Without it `log.retention.minutes` counts, and without both `log.retention.hours`.",
    ),
    used(
        "log.retention.minutes",
        Kind::Int {
            min: -1,
            max: i32::MAX as i64,
        },
        "10080",
        "The same in minutes.",
    ),
    used(
        "log.retention.hours",
        Kind::Int {
            min: -1,
            max: i32::MAX as i64,
        },
        "168",
        "The same in hours.",
    ),
    used(
        "log.retention.bytes",
        Kind::Int {
            min: i64::MIN,
            max: i64::MAX,
        },
        "-1",
        "Bytes of a partition, as the store keeps them, beyond which its oldest segments go; -1 is \
         no limit.",
    ),
    used(
        "log.retention.check.interval.ms",
        MILLIS,
        "300000",
        "How often that is looked for.",
    ),
    used(
        "log.initial.task.delay.ms",
        Kind::Int {
            min: 0,
            max: i64::MAX,
        },
        "30000",
        "How long after the start it is looked for first.",
    ),
    used(
        "log.segment.bytes",
        Kind::Int {
            min: 1 << 20,
            max: i32::MAX as i64,
        },
        "1073741824",
        "Bytes of a segment, which is what goes as a whole. Journal files have \
         `journal.segment.bytes`.",
    ),
    used(
        "log.roll.ms",
        MILLIS,
        "604800000",
        "How far the timestamps of a segment reach. Without it `log.roll.hours` counts.",
    ),
    used("log.roll.hours", COUNT, "168", "The same in hours."),
];
