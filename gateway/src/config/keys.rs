//! The one table of keys: parsing, `docs/configuration.md` and the warnings come from it.
//!
//! Kafka's keys keep Kafka's names, and its defaults unless the row says otherwise.

mod compaction;
mod groups;
pub mod kafka;
mod lookup;
mod retention;
mod txns;
mod unused;

pub use lookup::{closest, find, ignored_because};

/// What a value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number.
    Int {
        /// Smallest.
        min: i64,
        /// Largest.
        max: i64,
    },
    /// A number from 0 to 1.
    Ratio,
    /// `true` or `false`.
    Bool,
    /// Any text.
    Text,
    /// One of these.
    Choice(&'static [&'static str]),
    /// Not looked at.
    Any,
}

impl Kind {
    /// What is allowed, for messages and the docs.
    pub fn allowed(self) -> String {
        match self {
            Self::Int { min, max } => format!("a whole number from {min} to {max}"),
            Self::Ratio => "a number from 0 to 1".to_owned(),
            Self::Bool => "true or false".to_owned(),
            Self::Text => "text".to_owned(),
            Self::Choice(choices) => {
                let named = choices.iter().map(|choice| match *choice {
                    "" => "nothing",
                    choice => choice,
                });
                named.collect::<Vec<_>>().join(" or ")
            }
            Self::Any => "anything".to_owned(),
        }
    }
}

/// What a key does here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It takes effect.
    Used,
    /// It is accepted and has none; the reason completes "ignored because".
    Ignored(&'static str),
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// The name.
    pub name: &'static str,
    /// Other names of it.
    pub aliases: &'static [&'static str],
    /// What a value may be.
    pub kind: Kind,
    /// The default, in the form of a value.
    pub default: &'static str,
    /// What it does.
    pub effect: Effect,
    /// One line for the docs.
    pub doc: &'static str,
}

const MILLIS: Kind = Kind::Int {
    min: 1,
    max: i64::MAX,
};
const COUNT: Kind = Kind::Int {
    min: 1,
    max: i32::MAX as i64,
};

const fn used(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Key {
    Key {
        name,
        aliases: &[],
        kind,
        default,
        effect: Effect::Used,
        doc,
    }
}

const fn ignored(name: &'static str, why: &'static str) -> Key {
    Key {
        name,
        aliases: &[],
        kind: Kind::Any,
        default: "",
        effect: Effect::Ignored(why),
        doc: "",
    }
}

/// Every key with a row of its own, in the order of the docs.
pub fn all() -> impl Iterator<Item = &'static Key> {
    let tables = [
        KEYS,
        retention::KEYS,
        compaction::KEYS,
        groups::KEYS,
        txns::KEYS,
        unused::KEYS,
    ];
    tables.into_iter().flatten()
}

const KEYS: &[Key] = &[
    Key {
        aliases: &["broker.id"],
        ..used(
            "node.id",
            Kind::Int { min: 0, max: 8190 },
            "0",
            "This broker's number. Producer ids begin with it, hence the limit.",
        )
    },
    used(
        "listeners",
        Kind::Text,
        "PLAINTEXT://127.0.0.1:9092",
        "Where clients connect: NAME://HOST:PORT, several by commas. An empty host is every \
         address; port 0 takes a free one. Kafka's own default is every address.",
    ),
    used(
        "advertised.listeners",
        Kind::Text,
        "",
        "What clients are told, by listener name. Without it they are told what `listeners` says, \
         and this host's name where that is empty.",
    ),
    used(
        "listener.security.protocol.map",
        Kind::Text,
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "The protocol of each listener name. Only PLAINTEXT is served.",
    ),
    used(
        "controller.listener.names",
        Kind::Text,
        "",
        "Listeners named here are left out: the controller has none of its own.",
    ),
    used(
        "admin.listen",
        Kind::Text,
        "127.0.0.1:9644",
        "Health, metrics and transactions over HTTP. Another address than loopback needs a token.",
    ),
    used(
        "admin.token.file",
        Kind::Text,
        "",
        "A file with the token, 16 to 1024 bytes, that callers of the admin port must show.",
    ),
    used(
        "enable.faults",
        Kind::Bool,
        "false",
        "Lets callers of the admin port inject faults. For tests.",
    ),
    Key {
        aliases: &["log.dir", "data.dir"],
        ..used(
            "log.dirs",
            Kind::Text,
            "data",
            "The volume: journals and coordinator files. One directory. Kafka's own default is \
             /tmp/kafka-logs.",
        )
    },
    used(
        "index.dir",
        Kind::Text,
        "",
        "Where the sled index lies, on a local disk; it can be rebuilt. Default: `index` in the \
         data directory.",
    ),
    used(
        "store",
        Kind::Text,
        "sled:",
        "Where records are kept: `sled:` (journals on the volume, with a sled index), \
         `sled:?layout=kv` (in sled itself, for small installs), `memory:` (nothing outlives the \
         process) or `strict:` (the same by the rules of the worst store, for tests). A data \
         directory keeps the layout that it began with.",
    ),
    used(
        "flush.policy",
        Kind::Choice(&["fsync", "os"]),
        "fsync",
        "When a batch is acknowledged: after an fdatasync, or after the write, which power loss \
         can take back.",
    ),
    used(
        "journal.segment.bytes",
        Kind::Int {
            min: 1 << 20,
            max: 1 << 40,
        },
        "134217728",
        "Size at which a journal file is closed and the next one begun.",
    ),
    used(
        "num.partitions",
        Kind::Int {
            min: 1,
            max: 10_000,
        },
        "1",
        "Partitions of a topic that is created without a number.",
    ),
    used(
        "virtual.replicas",
        Kind::Int { min: 1, max: 100 },
        "1",
        "Replicas that every partition reports, for clients and suites that insist on several: \
         this broker and brokers of the following numbers, which do not exist. It says nothing of \
         durability: records are kept once, as they are with 1. Not a key of Kafka's.",
    ),
    used(
        "auto.create.topics.enable",
        Kind::Bool,
        "true",
        "Topics are created when they are first asked for.",
    ),
    used(
        "delete.topic.enable",
        Kind::Bool,
        "true",
        "Clients may delete topics. Otherwise DeleteTopics is refused with 73 \
         TOPIC_DELETION_DISABLED.",
    ),
    used(
        "message.max.bytes",
        Kind::Int {
            min: 0,
            max: i32::MAX as i64,
        },
        "1048588",
        "Largest batch, as sent, with its header.",
    ),
    used(
        "validate",
        Kind::Choice(&["header", "full"]),
        "header",
        "How compressed batches are judged: by their header and first bytes, or unpacked (at most \
         64 MiB each) and record by record, as Kafka does: 1 MiB of a request at once, what is \
         more two batches at a time. Uncompressed ones are always walked. (A key of this broker.)",
    ),
    Key {
        aliases: &["message.timestamp.type"],
        ..used(
            "log.message.timestamp.type",
            Kind::Choice(&["CreateTime", "LogAppendTime"]),
            "CreateTime",
            "Whose clock stamps records: the producer's or the broker's.",
        )
    },
    Key {
        aliases: &["message.timestamp.before.max.ms"],
        ..used(
            "log.message.timestamp.before.max.ms",
            Kind::Int {
                min: 0,
                max: i64::MAX,
            },
            "9223372036854775807",
            "How far a producer's timestamp may lie in the past.",
        )
    },
    Key {
        aliases: &["message.timestamp.after.max.ms"],
        ..used(
            "log.message.timestamp.after.max.ms",
            Kind::Int {
                min: 0,
                max: i64::MAX,
            },
            "3600000",
            "How far a producer's timestamp may lie in the future.",
        )
    },
    used(
        "compression.type",
        Kind::Choice(&["producer"]),
        "producer",
        "Batches are kept as they were sent.",
    ),
    used(
        "producer.id.expiration.ms",
        MILLIS,
        "86400000",
        "A partition forgets a producer that appended nothing for so long.",
    ),
    used(
        "producer.id.expiration.check.interval.ms",
        MILLIS,
        "600000",
        "How often that is looked for.",
    ),
    used(
        "fetch.max.bytes",
        Kind::Int {
            min: 1024,
            max: i32::MAX as i64,
        },
        "57671680",
        "Largest Fetch answer, but for a first batch that is larger.",
    ),
    used(
        "max.incremental.fetch.session.cache.slots",
        Kind::Int {
            min: 0,
            max: 1_000_000,
        },
        "1000",
        "Fetch sessions that are kept.",
    ),
    used(
        "socket.request.max.bytes",
        Kind::Int {
            min: 1024,
            max: 104_857_600,
        },
        "104857600",
        "Largest request; for all but Produce the limit is 8 MiB. Kafka allows more than its \
         default, this broker does not.",
    ),
    used(
        "socket.send.buffer.bytes",
        Kind::Int {
            min: -1,
            max: i32::MAX as i64,
        },
        "102400",
        "What the system is asked to hold of a connection's answers until the client's system has \
         them; it may take twice as much, and has limits of its own. More is faster over long \
         distances; with a few KiB each answer waits for the client's system many times; -1 leaves \
         it to the system.",
    ),
    used(
        "queued.max.request.bytes",
        Kind::Int {
            min: -1,
            max: 1 << 40,
        },
        "50331648",
        "Bytes of requests in memory, over all connections; beyond it, connections are not read, \
         but for one frame at a time and a request of up to 4 KiB of each. A quarter is for \
         requests of up to 64 KiB. While others wait for room, a connection is closed whose \
         request does not bring 64 KiB in 5 s, or all of it in 30 s and a second for each MiB. -1 \
         is the default here: there is always a limit. (Kafka's default is none.)",
    ),
    used(
        "queued.max.response.bytes",
        Kind::Int {
            min: -1,
            max: 1 << 40,
        },
        "134217728",
        "Bytes of Fetch answers, and of others of 64 KiB and more that describe things, in memory, \
         over all connections, counted as they are sent; they may take twice as many. With little \
         left, answers of Fetch are smaller; with none, a Fetch waits for `max.wait.ms` of its \
         client and answers without records, others wait, and a connection that takes less than \
         64 KiB of its answers in 5 s is closed. One answer at a time goes beyond it. -1 is the \
         default. Not a key of Kafka's.",
    ),
    used(
        "max.connections",
        COUNT,
        "2147483647",
        "Open connections; more are closed at once.",
    ),
    used(
        "max.connections.per.ip",
        Kind::Int {
            min: 0,
            max: i32::MAX as i64,
        },
        "2147483647",
        "Open connections from one address; more are closed at once.",
    ),
    used(
        "connections.max.idle.ms",
        Kind::Int {
            min: -1,
            max: i64::MAX,
        },
        "600000",
        "A connection that is owed no answer is closed when nothing happened on it for so long; -1 \
         is never.",
    ),
    used(
        "connections.write.stall.ms",
        MILLIS,
        "30000",
        "A connection whose client takes none of its answers for so long is closed.",
    ),
    used(
        "shutdown.drain.ms",
        Kind::Int {
            min: 0,
            max: 600_000,
        },
        "5000",
        "At SIGTERM, how long requests that are under way may take; a client that takes none of \
         its answers for a quarter of that is closed before. What comes behind it has to be done, \
         too, before who stops the broker kills it: `docker stop` waits for 10 s.",
    ),
    used(
        "logging.format",
        Kind::Choice(&["auto", "pretty", "json", "logfmt"]),
        "auto",
        "Log lines for people or for machines; `auto` is pretty on a terminal, else json.",
    ),
    used(
        "logging.filter",
        Kind::Text,
        "info",
        "What is logged, in the form `level` or `target=level,...`.",
    ),
];
