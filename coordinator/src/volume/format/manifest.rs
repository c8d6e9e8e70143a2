//! `<topic>/<partition>/manifest.json`: what a partition's leader last knew. The log wins over it.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Extra, Format, FormatError};

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Leader epoch; never lowered.
    pub epoch: u32,
    /// Offset behind the last record that consumers may see.
    pub high_watermark: i64,
    /// First offset.
    pub log_start_offset: i64,
    /// The topic that it is about: a topic of the same name inherits nothing. Absent in older
    /// volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic_id: Option<Uuid>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

impl Format for Manifest {
    const LEN_MAX: u64 = 64 << 10;

    fn check(&self) -> Result<(), FormatError> {
        if 0 <= self.log_start_offset && self.log_start_offset <= self.high_watermark {
            Ok(())
        } else {
            Err(FormatError(format!(
                "logStartOffset {} and highWatermark {} contradict",
                self.log_start_offset, self.high_watermark
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{golden, keeps_unknown};
    use super::*;

    const SAMPLE: &str = r#"{"epoch":2,"highWatermark":1000,"logStartOffset":10,"topicId":"12345678-9abc-4def-8123-456789abcdef"}"#;

    #[test]
    fn sample() {
        let value = Manifest {
            epoch: 2,
            high_watermark: 1000,
            log_start_offset: 10,
            topic_id: Some(Uuid::from_u128(0x1234_5678_9abc_4def_8123_4567_89ab_cdef)),
            extra: Extra::new(),
        };
        golden(SAMPLE, &value);
        keeps_unknown::<Manifest>(SAMPLE);
        let bad = SAMPLE.replace("\"logStartOffset\":10", "\"logStartOffset\":1001");
        assert!(super::super::decode::<Manifest>(bad.as_bytes()).is_err());
    }
}
