//! `topics_deleted/<topicId>.json`: the only proof that a topic is gone. Its replace commits the
//! deletion; kept for seven days.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Extra, Format};

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopicTombstone {
    /// The id that is gone.
    pub topic_id: Uuid,
    /// The name that it had.
    pub name: String,
    /// When it was deleted, ms since the Unix epoch.
    pub deleted_ms: i64,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

impl Format for TopicTombstone {
    const LEN_MAX: u64 = 64 << 10;
}

#[cfg(test)]
mod tests {
    use super::super::tests::{golden, keeps_unknown};
    use super::*;

    const SAMPLE: &str = r#"{"topicId":"12345678-9abc-4def-8123-456789abcdef","name":"orders","deletedMs":1790000000000}"#;

    #[test]
    fn sample() {
        let value = TopicTombstone {
            topic_id: Uuid::from_u128(0x1234_5678_9abc_4def_8123_4567_89ab_cdef),
            name: "orders".into(),
            deleted_ms: 1_790_000_000_000,
            extra: Extra::new(),
        };
        golden(SAMPLE, &value);
        keeps_unknown::<TopicTombstone>(SAMPLE);
    }
}
