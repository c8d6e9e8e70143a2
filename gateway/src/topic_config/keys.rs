//! The table of topic configs: every one that Kafka 4.3 lists, with what it does here.

use super::served;
use crate::partition::validate::TopicRules;

/// The types of configs, by their codes in DescribeConfigs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i8)]
pub enum ConfigType {
    /// `true` or `false`.
    Boolean = 1,
    /// Text.
    String = 2,
    /// 32 bits.
    Int = 3,
    /// 16 bits.
    Short = 4,
    /// 64 bits.
    Long = 5,
    /// A decimal number.
    Double = 6,
    /// Texts, divided by commas.
    List = 7,
    /// The name of a Java class.
    Class = 8,
    /// A secret.
    Password = 9,
}

impl ConfigType {
    /// The code on the wire.
    pub fn code(self) -> i8 {
        match self {
            Self::Boolean => 1,
            Self::String => 2,
            Self::Int => 3,
            Self::Short => 4,
            Self::Long => 5,
            Self::Double => 6,
            Self::List => 7,
            Self::Class => 8,
            Self::Password => 9,
        }
    }
}

/// What happens to a value.
#[derive(Clone, Copy)]
pub enum Use {
    /// It takes effect by changing the rules of the topic, or is refused.
    Rules(fn(&mut TopicRules, &str) -> Result<(), String>),
    /// Kafka's default and this value, if there is one, are what happens anyhow; any other value is
    /// refused until its mechanism is there.
    Fixed(Option<&'static str>),
}

impl std::fmt::Debug for Use {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rules(_) => f.write_str("Rules"),
            Self::Fixed(value) => f.debug_tuple("Fixed").field(value).finish(),
        }
    }
}

/// A topic config.
#[derive(Debug, Clone, Copy)]
pub struct TopicKey {
    /// Kafka's name.
    pub name: &'static str,
    /// Its type.
    pub config_type: ConfigType,
    /// Kafka's default.
    pub default: &'static str,
    /// The broker's key that gives the value of topics that set none.
    pub broker: Option<&'static str>,
    /// What it is for.
    pub doc: &'static str,
    /// What happens to a value.
    pub usage: Use,
}

const ANYHOW: Use = Use::Fixed(None);

macro_rules! keys {
    ($($name:literal $kind:ident $default:literal $broker:expr, $usage:expr, $doc:literal;)*) => {
        /// Every topic config, in order of names.
        pub const TOPIC_KEYS: &[TopicKey] = &[$(TopicKey {
            name: $name,
            config_type: ConfigType::$kind,
            default: $default,
            broker: $broker,
            doc: $doc,
            usage: $usage,
        },)*];
    };
}

keys! {
    "cleanup.policy" List "delete" Some("log.cleanup.policy"), Use::Rules(served::cleanup_policy),
        "How old records go: delete, by age and size; compact, for a newer one of their key; \
         both; or, if it is empty, not at all.";
    "compression.gzip.level" Int "-1" Some("compression.gzip.level"), ANYHOW,
        "Level of gzip, if the broker compressed.";
    "compression.lz4.level" Int "9" Some("compression.lz4.level"), ANYHOW,
        "Level of lz4, if the broker compressed.";
    "compression.type" String "producer" Some("compression.type"), ANYHOW,
        "The codec of stored batches; producer keeps them as they were sent.";
    "compression.zstd.level" Int "3" Some("compression.zstd.level"), ANYHOW,
        "Level of zstd, if the broker compressed.";
    "delete.retention.ms" Long "86400000" Some("log.cleaner.delete.retention.ms"),
        Use::Rules(served::delete_retention_ms),
        "How long compaction keeps a tombstone once it is the only record of its key.";
    "file.delete.delay.ms" Long "60000" Some("log.segment.delete.delay.ms"), ANYHOW,
        "How long a file that is not needed any more stays.";
    "flush.messages" Long "9223372036854775807" Some("log.flush.interval.messages"), ANYHOW,
        "Records between two forced flushes; here flush.policy decides.";
    "flush.ms" Long "9223372036854775807" None, ANYHOW,
        "Time between two forced flushes; here flush.policy decides.";
    "follower.replication.throttled.replicas" List "" None, ANYHOW,
        "Followers whose copying is slowed down.";
    "index.interval.bytes" Int "4096" Some("log.index.interval.bytes"), ANYHOW,
        "Bytes of records between two entries of the offset index.";
    "leader.replication.throttled.replicas" List "" None, ANYHOW,
        "Leaders whose copying is slowed down.";
    "local.retention.bytes" Long "-2" Some("log.local.retention.bytes"), ANYHOW,
        "Size kept here when older records lie in tiered storage.";
    "local.retention.ms" Long "-2" Some("log.local.retention.ms"), ANYHOW,
        "Time kept here when older records lie in tiered storage.";
    "max.compaction.lag.ms" Long "9223372036854775807" Some("log.cleaner.max.compaction.lag.ms"),
        Use::Rules(served::max_compaction_lag_ms),
        "After so long a record is compacted, however little is new.";
    "max.message.bytes" Int "1048588" Some("message.max.bytes"),
        Use::Rules(served::max_message_bytes),
        "Largest batch in bytes, as sent, header included.";
    "message.timestamp.after.max.ms" Long "3600000" Some("log.message.timestamp.after.max.ms"),
        Use::Rules(served::timestamp_after),
        "How far a timestamp may lie in the future.";
    "message.timestamp.before.max.ms" Long "9223372036854775807"
        Some("log.message.timestamp.before.max.ms"),
        Use::Rules(served::timestamp_before),
        "How far a timestamp may lie in the past.";
    "message.timestamp.type" String "CreateTime" Some("log.message.timestamp.type"),
        Use::Rules(served::timestamp_type),
        "Whose clock stamps records: CreateTime or LogAppendTime.";
    "min.cleanable.dirty.ratio" Double "0.5" Some("log.cleaner.min.cleanable.ratio"),
        Use::Rules(served::min_dirty_ratio),
        "How much of a log must be new before compaction begins.";
    "min.compaction.lag.ms" Long "0" Some("log.cleaner.min.compaction.lag.ms"),
        Use::Rules(served::min_compaction_lag_ms),
        "How long compaction leaves a record alone.";
    "min.insync.replicas" Int "1" Some("min.insync.replicas"), ANYHOW,
        "Replicas that must have a batch before acks=all is answered.";
    "preallocate" Boolean "false" Some("log.preallocate"), ANYHOW,
        "Whether files get their size when they are made.";
    "remote.log.copy.disable" Boolean "false" None, ANYHOW,
        "Whether nothing more is copied to tiered storage.";
    "remote.log.delete.on.disable" Boolean "false" None, ANYHOW,
        "Whether records in tiered storage go when it is switched off.";
    "remote.storage.enable" Boolean "false" None, ANYHOW,
        "Whether older records move to tiered storage.";
    "retention.bytes" Long "-1" Some("log.retention.bytes"), Use::Rules(served::retention_bytes),
        "Size of a partition beyond which its oldest records go; -1 is no limit.";
    "retention.ms" Long "604800000" Some("log.retention.ms"), Use::Rules(served::retention_ms),
        "Age beyond which records go, by their timestamps; -1 is no limit.";
    "segment.bytes" Int "1073741824" Some("log.segment.bytes"), Use::Rules(served::segment_bytes),
        "Size of a segment, which goes as a whole; journal.segment.bytes sizes the files.";
    "segment.index.bytes" Int "10485760" Some("log.index.size.max.bytes"), ANYHOW,
        "Size of an index file.";
    "segment.jitter.ms" Long "0" None, ANYHOW,
        "Random part of the time after which a file is closed.";
    "segment.ms" Long "604800000" Some("log.roll.ms"), Use::Rules(served::segment_ms),
        "How far the timestamps of a segment reach.";
    "unclean.leader.election.enable" Boolean "false" Some("unclean.leader.election.enable"), ANYHOW,
        "Whether a replica that lacks records may lead.";
}

/// The row of a name.
pub fn find(name: &str) -> Option<&'static TopicKey> {
    TOPIC_KEYS.iter().find(|key| key.name == name)
}

/// The row whose value for topics that set none is a broker's config of this name: what can be set
/// of a broker that runs.
pub fn find_dynamic(name: &str) -> Option<&'static TopicKey> {
    TOPIC_KEYS.iter().find(|key| key.broker == Some(name))
}

/// The number of every type that has one; `None` if `value` is none.
pub(super) fn same(config_type: ConfigType, one: &str, other: &str) -> bool {
    match config_type {
        ConfigType::Short | ConfigType::Int | ConfigType::Long => {
            matches!((one.parse::<i64>(), other.parse::<i64>()), (Ok(a), Ok(b)) if a == b)
        }
        ConfigType::Double => {
            matches!((one.parse::<f64>(), other.parse::<f64>()),
                (Ok(a), Ok(b)) if a.total_cmp(&b).is_eq())
        }
        ConfigType::Boolean => one.eq_ignore_ascii_case(other),
        ConfigType::String | ConfigType::List | ConfigType::Class | ConfigType::Password => {
            one == other
        }
    }
}
