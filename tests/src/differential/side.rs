//! A broker on which scripts play.

use anyhow::Result;
use tempfile::TempDir;

use crate::gatewayproc::{Gateway, GatewayOptions};
use crate::oracle::{KafkaNode, OracleOptions};

/// What brokers are set to, beside what all of them are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setting {
    /// Nothing else.
    Plain,
    /// No room for fetch sessions, and producers are forgotten soon.
    Forgetful,
}

/// Settings of every broker, by Kafka's names.
const SHARED: [(&str, &str); 4] = [
    ("node.id", "1"),
    ("num.partitions", "4"),
    ("group.initial.rebalance.delay.ms", "0"),
    // Some records are meant to be old.
    ("log.retention.ms", "-1"),
];

const FORGETFUL: [(&str, &str); 3] = [
    ("max.incremental.fetch.session.cache.slots", "0"),
    ("producer.id.expiration.ms", "1000"),
    ("producer.id.expiration.check.interval.ms", "200"),
];

impl Setting {
    pub(super) const ALL: [Self; 2] = [Self::Plain, Self::Forgetful];

    fn settings(self) -> Vec<(String, String)> {
        let further: &[(&str, &str)] = match self {
            Self::Plain => &[],
            Self::Forgetful => &FORGETFUL,
        };
        let all = SHARED.iter().chain(further);
        all.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }
}

/// A running broker of either kind.
#[derive(Debug)]
pub enum Side {
    /// Apache Kafka.
    Kafka(Box<KafkaNode>),
    /// Fencepost, with its data.
    Fencepost(Box<Gateway>, TempDir),
}

impl Side {
    pub(super) fn start(setting: Setting, is_kafka: bool) -> Result<Self> {
        let properties = setting.settings();
        if is_kafka {
            let options = OracleOptions {
                properties,
                heap_mib: 512,
                ..OracleOptions::default()
            };
            return Ok(Self::Kafka(Box::new(KafkaNode::start(&options)?)));
        }
        let dir = tempfile::tempdir()?;
        let pairs = properties.iter();
        let options = GatewayOptions {
            overrides: pairs.map(|(key, value)| format!("{key}={value}")).collect(),
            ..GatewayOptions::default()
        };
        let gateway = Gateway::start(&dir.path().join("data"), &options)?;
        Ok(Self::Fencepost(Box::new(gateway), dir))
    }

    /// For messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kafka(_) => "Apache Kafka",
            Self::Fencepost(..) => "Fencepost",
        }
    }

    pub(super) fn address(&self) -> String {
        match self {
            Self::Kafka(node) => node.address(),
            Self::Fencepost(gateway, _) => gateway.address(),
        }
    }

    /// Kills it with -9 and starts it again on the same data and port.
    pub(super) fn kill_and_restart(&mut self) -> Result<()> {
        match self {
            Self::Kafka(node) => {
                node.process().kill()?;
                node.restart()
            }
            Self::Fencepost(gateway, _) => {
                gateway.process().kill()?;
                gateway.restart()
            }
        }
    }
}
