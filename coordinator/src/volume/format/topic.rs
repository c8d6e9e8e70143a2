//! `<topic>/.config.json` and `<topic>/.topic-id.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::{Extra, Format, FormatError};

/// A topic's identity. Its replace commits the creation; a deletion replaces it by the identity
/// and `deleted`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopicIdFile {
    /// The topic's id.
    pub topic_id: Uuid,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Number of partitions; absent in older volumes, where the directories tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<u32>,
    /// Shard of each partition; absent in older volumes: shard 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<Vec<u32>>,
    /// The topic is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

impl TopicIdFile {
    /// The body that a deletion leaves.
    pub fn tombstone(topic_id: Uuid) -> Self {
        Self {
            topic_id,
            name: None,
            partitions: None,
            shards: None,
            deleted: true,
            extra: Extra::new(),
        }
    }
}

impl Format for TopicIdFile {
    const LEN_MAX: u64 = 4 << 20;

    fn check(&self) -> Result<(), FormatError> {
        match (self.partitions, &self.shards) {
            (Some(0), _) if !self.deleted => Err(FormatError("a topic without partitions".into())),
            (Some(n), Some(shards)) if u32::try_from(shards.len()) != Ok(n) => Err(FormatError(
                format!("{n} partitions, but {} shards", shards.len()),
            )),
            _ => Ok(()),
        }
    }
}

/// Config keys that the file writes in its own way: (Kafka's name, the file's, a number).
const OWN_KEYS: [(&str, &str, bool); 6] = [
    ("retention.ms", "retentionMs", true),
    ("retention.bytes", "retentionBytes", true),
    ("segment.bytes", "segmentBytes", true),
    ("cleanup.policy", "cleanupPolicy", false),
    ("min.compaction.lag.ms", "minCompactionLagMs", true),
    ("delete.retention.ms", "deleteRetentionMs", true),
];

/// A topic's configs: an object of the file's own keys and, for all others, Kafka's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TopicConfigFile(pub Extra);

impl TopicConfigFile {
    /// The file for configs under their Kafka names.
    pub fn from_configs(configs: &BTreeMap<String, String>) -> Self {
        let entry = |(name, text): (&String, &String)| {
            let own = OWN_KEYS.iter().find(|(kafka, ..)| kafka == name);
            let key = own.map_or(name.as_str(), |(_, file, _)| file).to_owned();
            let number = match own {
                Some((_, _, true)) => text.parse::<i64>().ok(),
                _ => None,
            };
            (
                key,
                number.map_or_else(|| Value::from(text.as_str()), Value::from),
            )
        };
        Self(configs.iter().map(entry).collect())
    }

    /// The configs under their Kafka names. Values that are not scalars are left out.
    pub fn configs(&self) -> BTreeMap<String, String> {
        let entry = |(key, value): (&String, &Value)| {
            let own = OWN_KEYS.iter().find(|(_, file, _)| file == key);
            let name = own.map_or(key.as_str(), |(kafka, ..)| kafka).to_owned();
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                Value::Bool(flag) => flag.to_string(),
                Value::Null | Value::Array(_) | Value::Object(_) => return None,
            };
            Some((name, text))
        };
        self.0.iter().filter_map(entry).collect()
    }
}

impl Format for TopicConfigFile {
    const LEN_MAX: u64 = 1 << 20;
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use super::super::tests::{golden, keeps_unknown};
    use super::*;

    const ID: &str = r#"{"topicId":"12345678-9abc-4def-8123-456789abcdef","name":"orders","partitions":2,"shards":[0,0]}"#;
    const GONE: &str = r#"{"topicId":"12345678-9abc-4def-8123-456789abcdef","deleted":true}"#;
    const CONFIG: &str =
        r#"{"cleanupPolicy":"delete","max.message.bytes":"1048588","retentionMs":604800000}"#;

    #[test]
    fn samples() {
        let topic_id = Uuid::from_u128(0x1234_5678_9abc_4def_8123_4567_89ab_cdef);
        let value = TopicIdFile {
            topic_id,
            name: Some("orders".into()),
            partitions: Some(2),
            shards: Some(vec![0, 0]),
            deleted: false,
            extra: Extra::new(),
        };
        golden(ID, &value);
        keeps_unknown::<TopicIdFile>(ID);
        golden(GONE, &TopicIdFile::tombstone(topic_id));
        let configs: BTreeMap<String, String> = [
            ("cleanup.policy", "delete"),
            ("max.message.bytes", "1048588"),
            ("retention.ms", "604800000"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
        golden(CONFIG, &TopicConfigFile::from_configs(&configs));
        let read: TopicConfigFile = decode(CONFIG.as_bytes()).unwrap();
        assert_eq!(read.configs(), configs);
    }

    #[test]
    fn an_older_volume_has_only_the_id() {
        let read: TopicIdFile =
            decode(br#"{"topicId":"12345678-9abc-4def-8123-456789abcdef"}"#).unwrap();
        assert_eq!((read.partitions, read.shards), (None, None));
    }

    #[test]
    fn partitions_and_shards_agree() {
        let bad = ID.replace("[0,0]", "[0]");
        assert!(decode::<TopicIdFile>(bad.as_bytes()).is_err());
        let none = ID.replace("\"partitions\":2", "\"partitions\":0");
        assert!(decode::<TopicIdFile>(none.as_bytes()).is_err());
    }

    #[test]
    fn a_value_that_is_no_number_is_kept_as_text() {
        let configs = [("retention.ms".to_owned(), "soon".to_owned())].into();
        let file = TopicConfigFile::from_configs(&configs);
        assert_eq!(file.configs(), configs);
    }
}
