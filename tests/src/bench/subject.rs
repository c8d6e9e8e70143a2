//! Who is measured, and in which durability.

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use tempfile::TempDir;

use crate::gatewayproc::{self, Gateway, GatewayOptions};
use crate::oracle::{KafkaNode, OracleOptions};
use crate::process::Process;

/// A broker in one durability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Subject {
    /// The gateway, which syncs before it acknowledges.
    Fencepost,
    /// The gateway with `flush.policy=os`.
    FencepostOs,
    /// Apache Kafka as it comes: acknowledged from the page cache.
    Kafka,
    /// Apache Kafka with a sync on every append.
    KafkaFsync,
}

impl Subject {
    /// Heading of its column.
    pub fn label(self) -> &'static str {
        match self {
            Self::Fencepost => "Fencepost",
            Self::FencepostOs => "Fencepost, relaxed",
            Self::Kafka => "Kafka",
            Self::KafkaFsync => "Kafka, synced",
        }
    }

    /// What an acknowledgement means.
    pub fn durability(self) -> &'static str {
        match self {
            Self::Fencepost => "fdatasync per group",
            Self::FencepostOs | Self::Kafka => "page cache",
            Self::KafkaFsync => "fsync per append",
        }
    }

    /// Whether it is Apache Kafka.
    pub fn is_kafka(self) -> bool {
        matches!(self, Self::Kafka | Self::KafkaFsync)
    }

    /// Whether rows that only read, start or rest are worth measuring: not in a second durability
    /// of the same broker.
    pub fn is_main(self) -> bool {
        matches!(self, Self::Fencepost | Self::Kafka)
    }
}

/// A subject under way, with its data in a temporary directory.
#[derive(Debug)]
pub(super) struct Running {
    /// Who it is.
    pub(super) subject: Subject,
    broker: Broker,
    /// A gateway's data. Behind the broker, so that it goes when the process is gone.
    _data: Option<TempDir>,
}

#[derive(Debug)]
enum Broker {
    Kafka(Box<KafkaNode>),
    Gateway(Box<Gateway>),
}

impl Running {
    /// Starts it on no data, below `dir`.
    pub(super) fn start(subject: Subject, dir: &Path) -> Result<Self> {
        let (broker, data) = if subject.is_kafka() {
            let options = OracleOptions {
                flush_every_append: subject == Subject::KafkaFsync,
                parent_dir: Some(dir.to_owned()),
                // What a deleted topic leaves on the disk must not add up over the cases.
                properties: vec![("log.segment.delete.delay.ms".into(), "500".into())],
                ..OracleOptions::default()
            };
            (Broker::Kafka(Box::new(KafkaNode::start(&options)?)), None)
        } else {
            let parent = tempfile::Builder::new()
                .prefix("fencepost-")
                .tempdir_in(dir)?;
            let policy = if subject == Subject::FencepostOs {
                "os"
            } else {
                "fsync"
            };
            let options = GatewayOptions {
                overrides: vec![
                    format!("flush.policy={policy}"),
                    // As the peer is set up.
                    "group.initial.rebalance.delay.ms=0".to_owned(),
                ],
                // Not the binary of the tests, which checks itself as it goes.
                binary: Some(gatewayproc::build("release")?),
                ..GatewayOptions::default()
            };
            let gateway = Gateway::start(&parent.path().join("data"), &options)?;
            (Broker::Gateway(Box::new(gateway)), Some(parent))
        };
        Ok(Self {
            subject,
            broker,
            _data: data,
        })
    }

    /// HOST:PORT for clients.
    pub(super) fn address(&self) -> String {
        match &self.broker {
            Broker::Kafka(node) => node.address(),
            Broker::Gateway(gateway) => gateway.address(),
        }
    }

    /// The broker's process.
    pub(super) fn process(&mut self) -> &mut Process {
        match &mut self.broker {
            Broker::Kafka(node) => node.process(),
            Broker::Gateway(gateway) => gateway.process(),
        }
    }

    /// Syncs of files and directories so far; `None` of a broker that does not count them.
    pub(super) fn syncs(&self) -> Result<Option<u64>> {
        match &self.broker {
            Broker::Kafka(_) => Ok(None),
            Broker::Gateway(gateway) => gateway.counter("fencepost_volume_syncs_total").map(Some),
        }
    }

    /// Starts it again on its data after it was killed or stopped; returns with the port open.
    pub(super) fn restart(&mut self) -> Result<()> {
        match &mut self.broker {
            Broker::Kafka(node) => node.restart(),
            Broker::Gateway(gateway) => gateway.restart(),
        }
    }
}
