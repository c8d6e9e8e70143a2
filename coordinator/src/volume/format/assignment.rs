//! `assignment.json`: which broker owns what, under which epoch. The controller writes it, every
//! broker reads it and takes the highest (`controllerEpoch`, `assignmentVersion`).

use serde::{Deserialize, Serialize};
use store_adapter::ids::BrokerId;

use super::{Extra, Format, FormatError, Listener, broker_name};

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssignmentFile {
    /// Grows with every controller.
    pub controller_epoch: u64,
    /// Grows with every write, also across controllers.
    pub assignment_version: u64,
    /// When it was written, RFC 3339.
    pub generated_at: String,
    /// Who wrote it.
    #[serde(with = "broker_name")]
    pub controller: BrokerId,
    /// Every broker of the cluster, dead ones too, by number: the divisor of the placement rule.
    pub brokers: Vec<BrokerEntry>,
    /// Every partition, by topic and number.
    pub partitions: Vec<PartitionEntry>,
    /// Transaction slots, by number.
    #[serde(default)]
    pub txn_slots: Vec<SlotEntry>,
    /// Group slots, by number.
    #[serde(default)]
    pub group_slots: Vec<SlotEntry>,
    /// Shards of the embedded store, by number.
    #[serde(default)]
    pub shards: Vec<SlotEntry>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A broker's health as the controller sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Serves.
    Alive,
    /// Is giving up what it owns.
    Draining,
    /// Owns nothing.
    Dead,
}

/// One broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BrokerEntry {
    /// Its id.
    #[serde(with = "broker_name")]
    pub id: BrokerId,
    /// Its health.
    pub health: Health,
    /// When the controller last saw its heartbeat, RFC 3339; for people.
    #[serde(default)]
    pub last_seen: serde_json::Value,
    /// What clients are told.
    #[serde(default)]
    pub listeners: Vec<Listener>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The only role that a partition's broker has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Leads.
    Leader,
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartitionEntry {
    /// Its topic's name.
    pub topic: String,
    /// Its number.
    pub partition: u32,
    /// Its leader.
    #[serde(with = "broker_name")]
    pub broker: BrokerId,
    /// Leader epoch: one more with every change of the broker.
    pub epoch: u32,
    /// Always `leader`.
    pub role: Role,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One slot or shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlotEntry {
    /// Its number.
    pub slot: u32,
    /// Its owner.
    #[serde(with = "broker_name")]
    pub broker: BrokerId,
    /// Epoch of the ownership: one more with every change of the broker.
    pub epoch: u32,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

impl Format for AssignmentFile {
    const LEN_MAX: u64 = 256 << 20;

    fn check(&self) -> Result<(), FormatError> {
        let lists = [
            ("txnSlots", &self.txn_slots),
            ("groupSlots", &self.group_slots),
            ("shards", &self.shards),
        ];
        for (name, slots) in lists {
            if !(0..).zip(slots).all(|(n, entry): (u32, _)| entry.slot == n) {
                return Err(FormatError(format!("{name} are not numbered from 0")));
            }
        }
        if !self.brokers.is_sorted_by(|a, b| a.id < b.id) {
            return Err(FormatError("brokers are not in order".into()));
        }
        let key = |entry: &PartitionEntry| (entry.topic.clone(), entry.partition);
        let mut keys: Vec<_> = self.partitions.iter().map(key).collect();
        keys.sort_unstable();
        match keys.array_windows().find(|[a, b]| a == b) {
            Some([(topic, partition), _]) => Err(FormatError(format!(
                "partition {topic}-{partition} is listed twice"
            ))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{golden, keeps_unknown};
    use super::super::{decode, rfc3339};
    use super::*;

    const SAMPLE: &str = concat!(
        r#"{"controllerEpoch":3,"assignmentVersion":7,"generatedAt":"2026-09-21T14:13:20.000Z","#,
        r#""controller":"kaas-0","brokers":[{"id":"kaas-0","health":"alive","#,
        r#""lastSeen":"2026-09-21T14:13:20.000Z","#,
        r#""listeners":[{"name":"PLAINTEXT","host":"localhost","port":9092}]}],"#,
        r#""partitions":[{"topic":"orders","partition":0,"broker":"kaas-0","epoch":0,"#,
        r#""role":"leader"}],"txnSlots":[{"slot":0,"broker":"kaas-0","epoch":1}],"#,
        r#""groupSlots":[{"slot":0,"broker":"kaas-0","epoch":1}],"#,
        r#""shards":[{"slot":0,"broker":"kaas-0","epoch":1}]}"#
    );

    fn slots() -> Vec<SlotEntry> {
        vec![SlotEntry {
            slot: 0,
            broker: BrokerId(0),
            epoch: 1,
            extra: Extra::new(),
        }]
    }

    #[test]
    fn sample() {
        let at = rfc3339(1_790_000_000_000);
        let value = AssignmentFile {
            controller_epoch: 3,
            assignment_version: 7,
            generated_at: at.clone(),
            controller: BrokerId(0),
            brokers: vec![BrokerEntry {
                id: BrokerId(0),
                health: Health::Alive,
                last_seen: at.into(),
                listeners: vec![Listener {
                    name: "PLAINTEXT".into(),
                    host: "localhost".into(),
                    port: 9092,
                }],
                extra: Extra::new(),
            }],
            partitions: vec![PartitionEntry {
                topic: "orders".into(),
                partition: 0,
                broker: BrokerId(0),
                epoch: 0,
                role: Role::Leader,
                extra: Extra::new(),
            }],
            txn_slots: slots(),
            group_slots: slots(),
            shards: slots(),
            extra: Extra::new(),
        };
        golden(SAMPLE, &value);
        keeps_unknown::<AssignmentFile>(SAMPLE);
    }

    #[test]
    fn a_file_without_our_fields_is_read() {
        let old = r#"{"controllerEpoch":1,"assignmentVersion":2,"generatedAt":"x",
            "controller":"kaas-1","brokers":[{"id":"kaas-1","health":"dead"}],
            "partitions":[],"consumerGroups":[{"groupId":"g","broker":"kaas-1","epoch":4}]}"#;
        let read: AssignmentFile = decode(old.as_bytes()).unwrap();
        assert!(read.shards.is_empty() && read.extra.contains_key("consumerGroups"));
    }

    #[test]
    fn contradictory_lists_are_damage() {
        let twice = SAMPLE.replace(
            r#""partitions":["#,
            r#""partitions":[{"topic":"orders","partition":0,"broker":"kaas-1","epoch":0,"role":"leader"},"#,
        );
        assert!(decode::<AssignmentFile>(twice.as_bytes()).is_err());
        let gap = SAMPLE.replace(r#""shards":[{"slot":0"#, r#""shards":[{"slot":1"#);
        assert!(decode::<AssignmentFile>(gap.as_bytes()).is_err());
    }
}
