//! The settings of a lone broker that a suite brings up in its own process.

use std::sync::Arc;
use std::time::Duration;

use coordinator::service::groups::GroupConfig;
use coordinator::service::txns::TxnConfig;
use gateway::boot::{BootConfig, NamedListener, StoreKind};
use gateway::broker::{Advertised, BrokerConfig, CleanerConfig};
use gateway::partition::validate::TopicRules;
use store_adapter::ids::BrokerId;
use store_adapter::journal::FlushPolicy;
use store_adapter::volume::Reserve;

/// The journal in one shard, fsynced, with small answers and the periods of the defaults. Topics
/// are not made by being named, and nothing is compacted.
pub fn config() -> BootConfig {
    BootConfig {
        broker_id: BrokerId(0),
        version: "test".to_owned(),
        shards: 1,
        store: StoreKind::Sled,
        flush: FlushPolicy::Fsync,
        journal_segment_bytes: 1 << 20,
        journal_queue_bytes: 64 << 20,
        journal_counters: Arc::default(),
        space: None,
        assigned: false,
        reserve: Reserve::None,
        listeners: vec![NamedListener {
            name: "PLAINTEXT".to_owned(),
            advertised: Advertised {
                host: "localhost".to_owned(),
                port: 9092,
            },
        }],
        broker: BrokerConfig {
            num_partitions: 1,
            virtual_replicas: 1,
            auto_create_topics: false,
            delete_topics: true,
            fetch_max_bytes: 1 << 20,
            queued_response_bytes: 1 << 20,
            fetch_session_slots: 10,
            producer_id_expiration_ms: 86_400_000,
            producer_id_check_interval: Duration::from_mins(10),
            retention_initial_delay: Duration::from_mins(5),
            retention_check_interval: Duration::from_mins(5),
            cleaner: CleanerConfig {
                enable: false,
                backoff: Duration::from_secs(15),
                dedupe_bytes: 1 << 20,
            },
            topic_defaults: TopicRules::default(),
            groups: GroupConfig::default(),
            txns: TxnConfig::default(),
            txn_partition_verification: true,
            txn_reap_interval: Duration::from_secs(10),
            txn_expire_interval: Duration::from_hours(1),
            txn_reconcile_interval: Duration::from_secs(10),
            txn_poll_interval: Duration::from_secs(2),
            log_dir: "/data".to_owned(),
            settings: Arc::default(),
        },
    }
}
