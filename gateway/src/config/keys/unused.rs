//! Keys that are accepted and have no effect.

use super::super::ignored::{NO_CLASSES, NO_RECOMPRESSION, NO_THREADS, PLAINTEXT};
use super::{Key, ignored};

pub(super) const KEYS: &[Key] = &[
    ignored(
        "default.replication.factor",
        "the store replicates or does not; topics report one replica per live broker, or \
         `virtual.replicas`",
    ),
    ignored(
        "min.insync.replicas",
        "an acknowledgement already means what `flush.policy` says",
    ),
    ignored(
        "inter.broker.listener.name",
        "brokers do not connect to each other",
    ),
    ignored(
        "security.inter.broker.protocol",
        "brokers do not connect to each other",
    ),
    ignored("process.roles", "every broker can be the controller"),
    ignored(
        "authorizer.class.name",
        "there are no access rules: every client may do everything",
    ),
    ignored(
        "queued.max.requests",
        "`queued.max.request.bytes` bounds what waits",
    ),
    ignored(
        "add.partitions.to.txn.retry.backoff.ms",
        "a Produce waits for its coordinator, which is not asked again",
    ),
    ignored(
        "add.partitions.to.txn.retry.backoff.max.ms",
        "a Produce waits for its coordinator, which is not asked again",
    ),
    ignored("background.threads", NO_THREADS),
    ignored("config.providers", NO_CLASSES),
    ignored(
        "controlled.shutdown.enable",
        "there are no leaders to move elsewhere before a stop",
    ),
    ignored("cordoned.log.dirs", "there is one directory"),
    ignored("compression.gzip.level", NO_RECOMPRESSION),
    ignored("compression.lz4.level", NO_RECOMPRESSION),
    ignored("compression.zstd.level", NO_RECOMPRESSION),
    ignored("broker.rack", "there are no replicas to place"),
    ignored("reserved.broker.max.id", "node ids are always given"),
    ignored("broker.id.generation.enable", "node ids are always given"),
    ignored(
        "unclean.leader.election.enable",
        "there is no replica that could lag",
    ),
    ignored("metric.reporters", "metrics are served on the admin port"),
    ignored(
        "request.timeout.ms",
        "there are no requests between brokers",
    ),
    ignored("create.topic.policy.class.name", NO_CLASSES),
    ignored("alter.config.policy.class.name", NO_CLASSES),
    ignored("principal.builder.class", NO_CLASSES),
    ignored("connection.failed.authentication.delay.ms", PLAINTEXT),
    ignored("connections.max.reauth.ms", PLAINTEXT),
    ignored(
        "max.connection.creation.rate",
        "connections are limited by number only",
    ),
    ignored(
        "max.connections.per.ip.overrides",
        "one limit holds for every address",
    ),
    ignored(
        "max.request.partition.size.limit",
        "requests are limited by bytes",
    ),
];
