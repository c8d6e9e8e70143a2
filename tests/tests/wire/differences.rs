//! What Fencepost answers differently from Apache Kafka 4.3.1, each with its reason. A test asks
//! for the difference by its name; a name that no test asks for fails
//! [`every_difference_is_tested`].

/// Name and reason.
pub(crate) const KNOWN_DIFFERENCES: &[(&str, &str)] = &[
    (
        "auto-creation-at-once",
        "Metadata waits for the topic that it creates; Kafka answers 3 first and the client asks \
         again",
    ),
    (
        "broker-configs",
        "of a broker that runs the defaults of topics change, and nothing else: 42; Kafka changes \
         more keys, and stores those that it doesn't know",
    ),
    (
        "compressed-records-unread",
        "compressed batches are judged by their header and first bytes unless `validate` is full: \
         unpacking all of them would cost the path its speed; Kafka answers -1 where they do not \
         decode",
    ),
    (
        "configs-of-many-topics",
        "CreateTopics tells the configs of topics where a request has at most 64: the answer would \
         be a hundred times as large as the request; Kafka tells all",
    ),
    (
        "configs-without-mechanism",
        "a topic config that nothing acts on is refused with 40, unless it says what happens \
         anyhow; Kafka has the mechanisms",
    ),
    (
        "elements-of-a-frame",
        "a frame of many empty elements is closed before they are decoded: each would take more \
         memory than its bytes",
    ),
    (
        "length-beyond-31-bits",
        "a compact length of 2^32-1 is closed; Kafka reads it as null where null is allowed",
    ),
    (
        "end-waits",
        "EndTxn is answered when the markers are written, and so is its repeat (design, section 4: \
         EndTxn); Kafka answers before and tells the repeat to come again (T22, T25)",
    ),
    (
        "epochs-of-others",
        "EndTxn v5 with the epoch before is answered as a repeat where both epochs are one \
         session's; else 90: Kafka tells it the outcome and the epoch of another session too (T31)",
    ),
    (
        "fence-without-a-transaction",
        "after a new session of a transactional id nobody appends with an older epoch, on any \
         partition; Kafka knows it only where a marker came, or for transactional batches",
    ),
    (
        "finest-key-is-shown",
        "where several keys of the broker give a topic its value, the finest is named, also for \
         the default; Kafka names the one that was set",
    ),
    (
        "frame-limit-by-api",
        "only Produce has a use for frames over 8 MiB: others are closed before memory is spent; \
         Kafka waits for the bytes",
    ),
    (
        "refused-first-batch",
        "a first batch that is refused leaves nothing behind; in Kafka its sequence stays the \
         lowest of its transaction, and the right one is refused too (T49)",
    ),
    (
        "half-closed",
        "a client that ended its direction still gets the answers that it is owed",
    ),
    (
        "impossible-batch-length",
        "87 for the partition that has it; Kafka fails every partition with -1",
    ),
    (
        "log-dir-sizes",
        "DescribeLogDirs tells what batches take in the journal, with 64 bytes of a frame's header \
         for each; Kafka the bytes of its files",
    ),
    (
        "limits-of-transactions",
        "at most 10,000 partitions and 1,000 groups a transaction: 42, and 120 from Produce v12, \
         TxnOffsetCommit v5 and AddOffsetsToTxn v4 on; 65,536 transactional ids and 32 MiB a slot: \
         15; Kafka has no such limits",
    ),
    (
        "log-start-after-a-crash",
        "records that were deleted stay deleted; Kafka writes the log's start down once a minute",
    ),
    (
        "markers-without-a-leader",
        "a transaction is complete when all of its markers are written; where a partition has no \
         leader yet while its coordinator starts, Kafka 4.3.1 takes it for deleted and writes no \
         marker: the transaction hangs there (KAFKA-20734; T47)",
    ),
    (
        "markers-from-own-host",
        "WriteTxnMarkers, and AddPartitionsToTxn from v4 on, come from the broker's own host, 31 \
         otherwise: there are no roles to tell who may end what others have open; Kafka without an \
         authorizer takes them from anywhere",
    ),
    (
        "membership-in-memory",
        "who was a member before a crash is told 25 and joins again: membership is in memory \
         (design, groups); Kafka reads the members of a generation from its log",
    ),
    (
        "negative-byte-limits",
        "read as 0, so that the first batch comes; Kafka answers -1",
    ),
    (
        "newer-schemas",
        "WriteTxnMarkers v2 and ListOffsets v11 are neither advertised nor served: the decoder has \
         no schema for them; Kafka has both (T41, R07)",
    ),
    (
        "no-loggers",
        "loggers are not among what has configs: none are described; Kafka lists each broker's",
    ),
    (
        "null-records",
        "87; Kafka throws while logging and never answers",
    ),
    (
        "offset-deltas",
        "87; Kafka stores offsets that lie outside of their batch",
    ),
    (
        "partition-twice",
        "87 for it and nothing of it appended; Kafka keeps the last and loses the first silently",
    ),
    (
        "offset-fetch-group-error",
        "an error for the group stands at each partition too: aiokafka looks nowhere else and \
         would read everything again; Kafka names no partition from v2 on",
    ),
    (
        "offset-fetch-group-twice",
        "42 for a group that the same request names before: once is enough, and keeps the answer \
         in proportion; Kafka answers each",
    ),
    (
        "offset-fetch-partition-twice",
        "answered once, so that an answer is never larger than what is stored; Kafka answers each",
    ),
    (
        "prepared-shows-all",
        "DescribeTransactions tells every partition of a decided transaction until the last marker \
         is written; the admin port says of each whether it is open; Kafka leaves those out that \
         have their marker",
    ),
    (
        "producer-fields",
        "87 for a producer id, epoch and transactional bit that contradict each other; Kafka \
         appends them unchecked",
    ),
    (
        "recreated-in-a-transaction",
        "a topic that was deleted and created again is not in the transaction that its name was \
         added to: 48 until it is added again (design, section 5: a name is not an identity), 120 \
         in Produce v11, and from v12 on the batch adds it; Kafka appends",
    ),
    (
        "rejoin-waits",
        "a new session waits up to 100 ms for the abort of what is open (design, section 4: rejoin \
         while Ongoing aborts first); Kafka tells it to come again at once (T11)",
    ),
    (
        "replication-factor",
        "accepted: the store replicates or does not, and the answer reports one replica, or \
         `virtual.replicas`",
    ),
    (
        "text-not-utf8",
        "closed: no name that is stored can be other than UTF-8; Kafka replaces the bytes, which \
         makes different names equal",
    ),
    ("unknown-config-operation", "42; Kafka answers -1"),
    ("unknown-codec", "87; Kafka answers -1"),
    (
        "window-after-a-crash",
        "all five batches of the window survive; Kafka knows only the newest one after a restart",
    ),
];

#[test]
fn every_difference_is_tested() {
    let sources = [
        include_str!("apis.rs"),
        include_str!("bodies.rs"),
        include_str!("broker_configs.rs"),
        include_str!("configs.rs"),
        include_str!("damage.rs"),
        include_str!("describe.rs"),
        include_str!("errors.rs"),
        include_str!("frames.rs"),
        include_str!("idempotence.rs"),
        include_str!("kill.rs"),
        include_str!("log_dirs.rs"),
        include_str!("offsets.rs"),
        include_str!("pipeline.rs"),
        include_str!("reading.rs"),
        include_str!("records.rs"),
        include_str!("sessions.rs"),
        include_str!("topics.rs"),
        include_str!("transactions/crashes.rs"),
        include_str!("transactions/held.rs"),
        include_str!("transactions/verification.rs"),
        include_str!("trimming.rs"),
        include_str!("txn_apis/adding.rs"),
        include_str!("txn_apis/markers.rs"),
        include_str!("txn_apis/ending.rs"),
        include_str!("txn_apis/sessions.rs"),
        include_str!("txn_apis/time.rs"),
    ];
    for (name, reason) in KNOWN_DIFFERENCES {
        let quoted = format!("\"{name}\"");
        assert!(
            sources.iter().any(|source| source.contains(&quoted)),
            "no test has the difference {name}"
        );
        assert!(!reason.is_empty());
    }
}
