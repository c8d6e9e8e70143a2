//! The configuration: flag over environment over file over default, by Kafka's key names.
//!
//! [`keys`] is the one table of keys. A wrong value is an error that says which key, where it came
//! from and what is allowed; a known key without effect, and an unknown one, are warnings.

mod compaction;
pub mod docs;
mod ignored;
pub mod keys;
mod listeners;
mod retention;
mod settings;
mod sources;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use coordinator::machine::group::classic::ClassicConfig;
use coordinator::service::groups::{GroupConfig, OffsetConfig};
use coordinator::service::txns::TxnConfig;
use store_adapter::ids::BrokerId;
use store_adapter::journal::FlushPolicy;
use store_adapter::volume::Reserve;

pub use self::listeners::{Endpoint, ListenerConfig};
pub(crate) use self::settings::check_value;
pub use self::settings::{ConfigError, Origin, Setting, Settings, Unuse, Unused};
pub use self::sources::{FileForm, read_environment, read_file};

use crate::boot::StoreKind;
use crate::broker::BrokerConfig;
use crate::partition::validate::{TimestampType, TopicRules};
use crate::server::Limits;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Pretty,
    /// For machines.
    Json,
    /// For machines, and for people who have to.
    Logfmt,
}

/// A checked configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// `node.id`.
    pub broker_id: BrokerId,
    /// `listeners` with what clients are told; at least one.
    pub listeners: Vec<ListenerConfig>,
    /// `admin.listen`; a loopback address where there is no token.
    pub admin: SocketAddr,
    /// What `admin.token.file` has.
    pub admin_token: Option<admin_api::Token>,
    /// `enable.faults`.
    pub enable_faults: bool,
    /// `log.dirs`: the volume.
    pub data_dir: PathBuf,
    /// `index.dir`.
    pub index_dir: PathBuf,
    /// `store`.
    pub store: StoreKind,
    /// `flush.policy`.
    pub flush: FlushPolicy,
    /// `journal.segment.bytes`.
    pub journal_segment_bytes: u64,
    /// `journal.reserved.bytes`.
    pub reserve: Reserve,
    /// What the broker's services use.
    pub broker: BrokerConfig,
    /// Limits of connections.
    pub limits: Limits,
    /// `socket.request.max.bytes`.
    pub frame_max: usize,
    /// `queued.max.request.bytes`.
    pub queued_bytes: usize,
    /// `shutdown.drain.ms`.
    pub drain: Duration,
    /// `logging.format`.
    pub log_format: LogFormat,
    /// `logging.filter`.
    pub log_filter: String,
    /// What the user should be told, once each.
    pub warnings: Vec<String>,
}

impl Config {
    /// Checks settings.
    ///
    /// # Errors
    /// The first value that is not allowed.
    pub fn new(settings: &Settings) -> Result<Self, ConfigError> {
        settings.check()?;
        let millis = |key| settings.number(key).map(Duration::from_millis);
        let (store, data_dir) = store(settings)?;
        let admin_token = admin_token(settings)?;
        let broker = broker(settings, log_dir(&store, &data_dir))?;
        let index_dir = match settings.get("index.dir").value.as_str() {
            "" => data_dir.join("index"),
            given => PathBuf::from(given),
        };
        Ok(Self {
            broker_id: BrokerId(settings.number("node.id")?),
            listeners: listeners::listeners(settings, hostname)?,
            admin: admin(settings, admin_token.is_some())?,
            admin_token,
            enable_faults: settings.is("enable.faults"),
            data_dir,
            index_dir,
            store,
            flush: match settings.get("flush.policy").value.as_str() {
                "os" => FlushPolicy::Os,
                _ => FlushPolicy::Fsync,
            },
            journal_segment_bytes: settings.number("journal.segment.bytes")?,
            reserve: match settings.number::<i64>("journal.reserved.bytes")? {
                0 => Reserve::None,
                bytes => u64::try_from(bytes).map_or(Reserve::Part, Reserve::Bytes),
            },
            broker,
            limits: Limits {
                connections: settings.number("max.connections")?,
                connections_per_ip: settings.number("max.connections.per.ip")?,
                idle: never(settings, "connections.max.idle.ms")?,
                write_stall: millis("connections.write.stall.ms")?,
                // -1 is not asked for.
                send_buffer: usize::try_from(settings.number::<i64>("socket.send.buffer.bytes")?)
                    .ok(),
            },
            frame_max: settings.number("socket.request.max.bytes")?,
            queued_bytes: queued_bytes(settings, "queued.max.request.bytes")?,
            drain: millis("shutdown.drain.ms")?,
            log_format: match settings.get("logging.format").value.as_str() {
                "pretty" => LogFormat::Pretty,
                "json" => LogFormat::Json,
                "logfmt" => LogFormat::Logfmt,
                _ => LogFormat::Auto,
            },
            log_filter: settings.get("logging.filter").value,
            warnings: settings.warnings().to_vec(),
        })
    }

    /// Everything that is wrong with the listeners.
    pub fn wrong_listeners(settings: &Settings) -> Vec<ConfigError> {
        listeners::judged(settings, hostname).1
    }

    /// What an acknowledgement means: the value of `flush.policy` in force, `memory` where nothing
    /// outlives the process.
    pub fn durability(&self) -> &'static str {
        match (&self.store, self.flush) {
            (store, _) if store.is_volatile() => "memory",
            (_, FlushPolicy::Fsync) => "fsync",
            (_, FlushPolicy::Os) => "os",
        }
    }
}

impl Endpoint {
    /// The addresses to bind, to be tried in this order.
    ///
    /// # Errors
    /// If the host name cannot be resolved.
    pub fn bind_addresses(&self) -> io::Result<Vec<SocketAddr>> {
        if self.host.is_empty() {
            // Both families by one socket; without IPv6, the other.
            return Ok(vec![
                SocketAddr::from(([0_u16; 8], self.port)),
                SocketAddr::from(([0_u8; 4], self.port)),
            ]);
        }
        Ok((self.host.as_str(), self.port).to_socket_addrs()?.collect())
    }
}

fn broker(settings: &Settings, log_dir: String) -> Result<BrokerConfig, ConfigError> {
    Ok(BrokerConfig {
        log_dir,
        settings: Arc::new(retention::shown(settings)?),
        num_partitions: settings.number("num.partitions")?,
        virtual_replicas: settings.number("virtual.replicas")?,
        auto_create_topics: settings.is("auto.create.topics.enable"),
        delete_topics: settings.is("delete.topic.enable"),
        fetch_max_bytes: settings.number("fetch.max.bytes")?,
        queued_response_bytes: queued_bytes(settings, "queued.max.response.bytes")?,
        fetch_session_slots: settings.number("max.incremental.fetch.session.cache.slots")?,
        producer_id_expiration_ms: settings.number("producer.id.expiration.ms")?,
        producer_id_check_interval: Duration::from_millis(
            settings.number("producer.id.expiration.check.interval.ms")?,
        ),
        cleaner: compaction::cleaner(settings)?,
        topic_defaults: TopicRules {
            max_message_bytes: settings.number("message.max.bytes")?,
            timestamp_type: match settings.get("log.message.timestamp.type").value.as_str() {
                "LogAppendTime" => TimestampType::LogAppendTime,
                _ => TimestampType::CreateTime,
            },
            timestamp_before_max_ms: settings.number("log.message.timestamp.before.max.ms")?,
            timestamp_after_max_ms: settings.number("log.message.timestamp.after.max.ms")?,
            compact: compaction::has(settings, "compact"),
            unpack: settings.get("validate").value == "full",
            delete: compaction::has(settings, "delete"),
            retention: retention::rules(settings)?,
            compaction: compaction::rules(settings)?,
        },
        retention_initial_delay: Duration::from_millis(
            settings.number("log.initial.task.delay.ms")?,
        ),
        retention_check_interval: Duration::from_millis(
            settings.number("log.retention.check.interval.ms")?,
        ),
        txns: TxnConfig {
            max_timeout_ms: settings.number("transaction.max.timeout.ms")?,
            expiration_ms: settings.number("transactional.id.expiration.ms")?,
            version: settings.number("transaction.version")?,
        },
        txn_partition_verification: settings.is("transaction.partition.verification.enable"),
        txn_reap_interval: interval(
            settings,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        )?,
        txn_expire_interval: interval(
            settings,
            "transaction.remove.expired.transaction.cleanup.interval.ms",
        )?,
        txn_reconcile_interval: interval(settings, "transaction.reconcile.interval.ms")?,
        txn_poll_interval: interval(settings, "transaction.poll.interval.ms")?,
        groups: groups(settings)?,
    })
}

/// Milliseconds of which -1 is for ever.
fn never(settings: &Settings, key: &str) -> Result<Duration, ConfigError> {
    let ms = settings.number::<i64>(key)?;
    Ok(u64::try_from(ms).map_or(Duration::MAX, Duration::from_millis))
}

fn interval(settings: &Settings, key: &str) -> Result<Duration, ConfigError> {
    settings.number(key).map(Duration::from_millis)
}

fn groups(settings: &Settings) -> Result<GroupConfig, ConfigError> {
    let min_session_timeout_ms = settings.number("group.min.session.timeout.ms")?;
    let max_session_timeout_ms = settings.number("group.max.session.timeout.ms")?;
    if min_session_timeout_ms > max_session_timeout_ms {
        let allowed = "at least group.min.session.timeout.ms";
        return Err(settings.refuse("group.max.session.timeout.ms", allowed));
    }
    Ok(GroupConfig {
        classic: ClassicConfig {
            initial_rebalance_delay_ms: settings.number("group.initial.rebalance.delay.ms")?,
            min_session_timeout_ms,
            max_session_timeout_ms,
            max_size: settings.number("group.max.size")?,
            ..ClassicConfig::default()
        },
        offsets: OffsetConfig {
            metadata_max_bytes: settings.number("offset.metadata.max.bytes")?,
            retention_ms: settings.number::<i64>("offsets.retention.minutes")? * 60_000,
            retention_check_interval: Duration::from_millis(
                settings.number("offsets.retention.check.interval.ms")?,
            ),
            producer_id_expiration_ms: settings.number("producer.id.expiration.ms")?,
        },
        ..GroupConfig::default()
    })
}

fn store(settings: &Settings) -> Result<(StoreKind, PathBuf), ConfigError> {
    let dirs = settings.get("log.dirs").value;
    if dirs.is_empty() || dirs.contains(',') {
        return Err(settings.refuse("log.dirs", "one directory"));
    }
    let url = settings.get("store").value;
    let refuse = || settings.refuse("store", "sled:, sled:?layout=kv, memory: or strict:");
    let (scheme, rest) = url.split_once(':').ok_or_else(refuse)?;
    let (path, option) = match rest.split_once('?') {
        Some((path, option)) => (path, option.split_once('=').ok_or_else(refuse)?),
        None => (rest, ("", "")),
    };
    let named = Path::new(path.strip_prefix("//").unwrap_or(path));
    let names_another = !path.is_empty() && named != Path::new(&dirs);
    if scheme == "sled" && names_another && settings.given("log.dirs").is_some() {
        let allowed = format!("sled: alone, or sled:{dirs}, which is log.dirs");
        return Err(settings.refuse("store", allowed));
    }
    let data_dir = if path.is_empty() {
        PathBuf::from(dirs)
    } else {
        named.to_owned()
    };
    let kind = match (scheme, path, option) {
        ("sled", _, ("", "") | ("layout", "journal")) => StoreKind::Sled,
        ("sled", _, ("layout", "kv")) => StoreKind::Kv {
            root: data_dir.clone(),
        },
        ("memory", "", ("", "")) => StoreKind::Memory,
        ("strict", "", ("", "")) => StoreKind::Strict { uncertain_every: 0 },
        ("strict", "", ("uncertain", every)) => StoreKind::Strict {
            uncertain_every: every.parse().map_err(|_| refuse())?,
        },
        _ => return Err(refuse()),
    };
    Ok((kind, data_dir))
}

/// What clients are told of where the records are.
fn log_dir(store: &StoreKind, data_dir: &Path) -> String {
    if *store == StoreKind::Memory {
        return "memory:".to_owned();
    }
    let whole = std::path::absolute(data_dir);
    whole.as_deref().unwrap_or(data_dir).display().to_string()
}

/// A budget in bytes; -1 is its default.
fn queued_bytes(settings: &Settings, key: &str) -> Result<usize, ConfigError> {
    let bytes = match settings.number::<i64>(key)? {
        -1 => keys::find(key).and_then(|key| key.default.parse().ok()),
        bytes if bytes < 1 << 20 => None,
        bytes => usize::try_from(bytes).ok(),
    };
    bytes.ok_or_else(|| settings.refuse(key, "-1 or at least 1048576"))
}

/// The token in the file that is named. It is not shown, wherever it comes from.
fn admin_token(settings: &Settings) -> Result<Option<admin_api::Token>, ConfigError> {
    let refuse = |why: String| settings.refuse("admin.token.file", why);
    let path = settings.get("admin.token.file").value;
    if path.is_empty() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path)
        .map_err(|error| refuse(format!("a file with a token ({error})")))?;
    let token = admin_api::Token::new(&text);
    token
        .map(Some)
        .map_err(|why| refuse(format!("a file with a token ({why})")))
}

fn admin(settings: &Settings, has_token: bool) -> Result<SocketAddr, ConfigError> {
    let refuse = |why: &str| settings.refuse("admin.listen", why);
    let text = settings.get("admin.listen").value;
    let address = text
        .to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| refuse("HOST:PORT"))?;
    if !has_token && !address.ip().to_canonical().is_loopback() {
        return Err(refuse(
            "a loopback address, such as 127.0.0.1:9644; any other needs --admin-token-file: \
             without it the admin port has no authentication",
        ));
    }
    Ok(address)
}

/// This host's name, as the kernel knows it.
fn hostname() -> Option<String> {
    let name = rustix::system::uname();
    let name = name.nodename().to_str().ok()?;
    (!name.is_empty() && name != "(none)").then(|| name.to_owned())
}

#[cfg(test)]
mod tests;
