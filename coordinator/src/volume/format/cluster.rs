//! `cluster.json`: what cluster this volume is, the features that it has finalized, and the configs
//! of its brokers that were set while they ran. Begun on an empty volume only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Extra, Format, FormatError};

/// The only version of the volume's layout.
pub const CLUSTER_VERSION: u32 = 1;
/// Transaction-state files of a cluster.
pub const TXN_SLOTS: u32 = 50;
/// Sets of groups of a cluster.
pub const GROUP_SLOTS: u32 = 50;

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterFile {
    /// Version of the layout.
    pub version: u32,
    /// The cluster's id: 22 characters, base64url of a random UUID, as in Kafka.
    pub cluster_id: String,
    /// Transaction-state files: the divisor of every transactional id's hash.
    pub txn_slots: u32,
    /// Group slots: the divisor of every group's hash.
    pub group_slots: u32,
    /// Levels of finalized features by their Kafka names (KIP-584).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub features: BTreeMap<String, i16>,
    /// How often they were changed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub features_epoch: i64,
    /// Configs of brokers that were set while they ran, by Kafka's names: of each broker by its
    /// number, and under the empty name of every broker.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub broker_configs: BTreeMap<String, BTreeMap<String, String>>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

impl Format for ClusterFile {
    const LEN_MAX: u64 = 1 << 20;

    fn check(&self) -> Result<(), FormatError> {
        let id_ok = !self.cluster_id.is_empty() && self.cluster_id.len() <= 64;
        if !id_ok || self.txn_slots == 0 || self.group_slots == 0 {
            let why = "clusterId, txnSlots or groupSlots is empty";
            return Err(FormatError(why.into()));
        }
        if self.features_epoch < 0 || self.features.values().any(|level| *level < 0) {
            let why = "a level of features, or featuresEpoch, is negative";
            return Err(FormatError(why.into()));
        }
        Ok(())
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(value: &i64) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::super::tests::{golden, keeps_unknown};
    use super::*;

    const SAMPLE: &str =
        r#"{"version":1,"clusterId":"Ej5FZ-ibS9OkVkJmFBdAAA","txnSlots":50,"groupSlots":50}"#;

    #[test]
    fn sample() {
        let value = ClusterFile {
            version: CLUSTER_VERSION,
            cluster_id: "Ej5FZ-ibS9OkVkJmFBdAAA".into(),
            txn_slots: TXN_SLOTS,
            group_slots: GROUP_SLOTS,
            features: BTreeMap::new(),
            features_epoch: 0,
            broker_configs: BTreeMap::new(),
            extra: Extra::new(),
        };
        golden(SAMPLE, &value);
        keeps_unknown::<ClusterFile>(SAMPLE);
        let changed = ClusterFile {
            features: BTreeMap::from([("transaction.version".to_owned(), 2)]),
            features_epoch: 3,
            ..value.clone()
        };
        let features = r#""features":{"transaction.version":2},"featuresEpoch":3}"#;
        let sample = SAMPLE.replace('}', &format!(",{features}"));
        golden(&sample, &changed);
        keeps_unknown::<ClusterFile>(&sample);

        let set = |value: &str| BTreeMap::from([("log.retention.ms".into(), value.into())]);
        let altered = ClusterFile {
            broker_configs: BTreeMap::from([(String::new(), set("1")), ("0".into(), set("2"))]),
            ..value
        };
        let configs =
            r#""brokerConfigs":{"":{"log.retention.ms":"1"},"0":{"log.retention.ms":"2"}}}"#;
        golden(&SAMPLE.replace('}', &format!(",{configs}")), &altered);
    }

    #[test]
    fn levels_below_0_are_damage() {
        for features in [
            r#""features":{"transaction.version":-1}"#,
            r#""featuresEpoch":-1"#,
        ] {
            let sample = SAMPLE.replace('}', &format!(",{features}}}"));
            assert!(super::super::decode::<ClusterFile>(sample.as_bytes()).is_err());
        }
    }

    #[test]
    fn a_cluster_without_slots_is_damaged() {
        let sample = SAMPLE.replace("\"txnSlots\":50", "\"txnSlots\":0");
        assert!(super::super::decode::<ClusterFile>(sample.as_bytes()).is_err());
    }
}
