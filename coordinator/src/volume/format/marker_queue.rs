//! `marker_queue/to-kaas-<id>/<pid>-<epoch>.json`: the markers and group decisions of one
//! transaction that a broker is to apply. The receiver renames it to `.<txnSeq>.done`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::txn_slot::{TopicPartitionsEntry, group_set, ids, list, names, sets};
use super::{Extra, Format, FormatError};
use crate::machine::txn::{Owed, OwedEntry};

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MarkerQueueFile {
    /// The transactional id.
    pub transactional_id: String,
    /// Its producer.
    pub producer_id: i64,
    /// The epoch that the markers carry. The file is named after that of the records.
    pub producer_epoch: i16,
    /// COMMIT, or ABORT.
    pub commit: bool,
    /// The slot's epoch; 0 of older volumes is the lowest.
    #[serde(default)]
    pub coordinator_epoch: i32,
    /// Where markers are to be written.
    pub partitions: Vec<TopicPartitionsEntry>,
    /// Number of the transaction; absent on older volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn_seq: Option<u64>,
    /// The ids of the topics.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub topic_ids: BTreeMap<String, Uuid>,
    /// Groups whose offsets are to be decided.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// When it was written, ms since the Unix epoch; absent on older volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enqueued_ms: Option<i64>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

impl MarkerQueueFile {
    /// The entry that a broker is owed.
    pub fn of(
        transactional_id: &str,
        owed: &Owed,
        entry: &OwedEntry,
        coordinator_epoch: i32,
        now_ms: i64,
    ) -> Self {
        Self {
            transactional_id: transactional_id.to_owned(),
            producer_id: owed.producer_id.0,
            producer_epoch: owed.marker_epoch.0,
            commit: owed.commit,
            coordinator_epoch,
            partitions: list(&entry.partitions),
            txn_seq: Some(owed.txn_seq),
            topic_ids: ids(&entry.topic_ids),
            groups: entry.groups.iter().map(ToString::to_string).collect(),
            enqueued_ms: Some(now_ms),
            extra: Extra::new(),
        }
    }

    /// Whether both say how the same transaction ended. What they ask for may differ.
    pub fn is_same_decision(&self, other: &Self) -> bool {
        self.transactional_id == other.transactional_id
            && self.producer_id == other.producer_id
            && self.producer_epoch == other.producer_epoch
            && self.commit == other.commit
            && self.txn_seq == other.txn_seq
    }

    /// What is asked for.
    pub fn asked(&self) -> OwedEntry {
        let mut partitions = sets(self.partitions.clone());
        partitions.retain(|_, numbers| !numbers.is_empty());
        let mut topic_ids = names(self.topic_ids.clone());
        topic_ids.retain(|topic, _| partitions.contains_key(topic));
        OwedEntry {
            partitions,
            topic_ids,
            groups: group_set(self.groups.clone()),
        }
    }

    /// The same decision, and nothing but `asked` asked for.
    #[must_use]
    pub fn asking(&self, asked: &OwedEntry) -> Self {
        Self {
            partitions: list(&asked.partitions),
            topic_ids: ids(&asked.topic_ids),
            groups: asked.groups.iter().map(ToString::to_string).collect(),
            ..self.clone()
        }
    }
}

impl Format for MarkerQueueFile {
    // All that a transaction may have, with the names of its groups.
    const LEN_MAX: u64 = 64 << 20;

    fn check(&self) -> Result<(), FormatError> {
        let mut partitions = self.partitions.iter().flat_map(|topic| &topic.partitions);
        if self.producer_id < 0 || self.producer_epoch < 0 || partitions.any(|p| *p < 0) {
            return Err(FormatError(format!(
                "producer {}, epoch {}, or a negative partition",
                self.producer_id, self.producer_epoch
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use super::super::tests::{golden, keeps_unknown};
    use super::*;

    const SAMPLE: &str = concat!(
        r#"{"transactionalId":"tx","producerId":7,"producerEpoch":2,"commit":true,"#,
        r#""coordinatorEpoch":1,"partitions":[{"topic":"out","partitions":[0,2]}],"#,
        r#""txnSeq":3,"groups":["g"],"enqueuedMs":1790000000000}"#
    );

    #[test]
    fn sample() {
        let value = MarkerQueueFile {
            transactional_id: "tx".into(),
            producer_id: 7,
            producer_epoch: 2,
            commit: true,
            coordinator_epoch: 1,
            partitions: vec![TopicPartitionsEntry {
                topic: "out".into(),
                partitions: vec![0, 2],
            }],
            txn_seq: Some(3),
            topic_ids: BTreeMap::new(),
            groups: vec!["g".into()],
            enqueued_ms: Some(1_790_000_000_000),
            extra: Extra::new(),
        };
        golden(SAMPLE, &value);
        keeps_unknown::<MarkerQueueFile>(SAMPLE);
    }

    #[test]
    fn an_entry_of_an_older_volume_reads() {
        let old = r#"{"transactionalId":"t","producerId":7,"producerEpoch":2,"#;
        let old = format!(r#"{old}"commit":false,"partitions":[]}}"#);
        let read: MarkerQueueFile = decode(old.as_bytes()).unwrap();
        assert_eq!((read.coordinator_epoch, read.txn_seq), (0, None));
        for bad in [
            SAMPLE.replace(":7,", ":-7,"),
            SAMPLE.replace("[0,2]", "[0,-2]"),
        ] {
            assert!(decode::<MarkerQueueFile>(bad.as_bytes()).is_err());
        }
    }
}
