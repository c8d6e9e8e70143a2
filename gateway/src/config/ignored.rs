//! Families of Kafka's keys that have no effect here, and reasons that several keys share.

pub(super) const NO_THREADS: &str = "there is one worker a core";
pub(super) const NO_RECOMPRESSION: &str = "batches are kept as they were sent";
const OWN_FILES: &str = "it is about Kafka's own log files";
pub(super) const NO_CLASSES: &str = "there are no Java classes to load";
pub(super) const PLAINTEXT: &str = "only plaintext listeners are served";

/// Families of keys that are known and have no effect, by prefix.
pub(super) const FAMILIES: &[(&str, &str)] = &[
    ("log.roll.jitter.", "segments have no files of their own"),
    ("log.flush.", "`flush.policy` says when a batch is durable"),
    (
        "log.cleaner.",
        "compaction is one task, slower than the disk and without buffers of its own",
    ),
    ("log.index.", "the index has no files of Kafka's form"),
    ("log.preallocate", OWN_FILES),
    ("log.segment.delete.", OWN_FILES),
    ("log.dir.failure.", OWN_FILES),
    ("log.local.retention.", "there is no tiered storage"),
    (
        "log.message.downconversion.",
        "only message format v2 is served",
    ),
    ("log.message.format.", "only message format v2 is served"),
    ("group.", "only classic groups are served"),
    ("offsets.", "offsets are files of the volume, not a topic"),
    ("share.", "share groups are not served"),
    (
        "transaction.state.",
        "transactional ids are files of the volume, not a topic",
    ),
    (
        "transaction.two.phase.",
        "no version that has two-phase commit is served",
    ),
    (
        "controller.",
        "the controller lives on the volume and needs no settings",
    ),
    ("metadata.", "cluster metadata are files on the volume"),
    ("quorum.", "there is no quorum: the volume decides"),
    ("zookeeper.", "there is no ZooKeeper"),
    ("replica.", "there are no replicas to copy"),
    ("replication.quota.", "there are no replicas to copy"),
    ("leader.", "there are no replicas to balance"),
    ("auto.leader.", "there are no replicas to balance"),
    ("follower.", "there are no replicas to copy"),
    ("num.network.", NO_THREADS),
    ("num.io.", NO_THREADS),
    ("num.recovery.", NO_THREADS),
    ("num.replica.", "there are no replicas to copy"),
    ("socket.", "the operating system sizes receive buffers"),
    ("sasl.", PLAINTEXT),
    ("ssl.", PLAINTEXT),
    ("security.", PLAINTEXT),
    (
        "super.",
        "there are no access rules: every client may do everything",
    ),
    ("delegation.", PLAINTEXT),
    ("password.", PLAINTEXT),
    ("listener.name.", PLAINTEXT),
    ("quota.", "there are no quotas"),
    ("client.quota.", "there are no quotas"),
    ("metrics.", "metrics are served on the admin port"),
    ("remote.", "there is no tiered storage"),
    ("telemetry.", "clients' own metrics are not collected"),
    ("kafka.metrics.", "metrics are served on the admin port"),
    (
        "broker.heartbeat.",
        "the volume keeps track of live brokers",
    ),
    ("broker.session.", "the volume keeps track of live brokers"),
    ("early.start.", PLAINTEXT),
    ("unstable.", "no unstable version is served"),
    ("eligible.", "there are no replicas"),
    ("initial.broker.", "the volume keeps track of live brokers"),
    ("fetch.purgatory.", "waiting requests need no purging"),
    ("producer.purgatory.", "waiting requests need no purging"),
    (
        "delete.records.purgatory.",
        "waiting requests need no purging",
    ),
    ("alter.log.", "there are no replicas to move"),
];
