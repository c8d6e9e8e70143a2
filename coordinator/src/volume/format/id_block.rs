//! `producer_ids/kaas-<id>.json`: the first producer id, local to the broker, not yet reserved.

use serde::{Deserialize, Serialize};

use super::{Extra, Format, FormatError};

/// The file. Never written means 0.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdBlockFile {
    /// First local value not yet reserved.
    pub next_block: i64,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

impl Format for IdBlockFile {
    const LEN_MAX: u64 = 64 << 10;

    fn check(&self) -> Result<(), FormatError> {
        if self.next_block >= 0 {
            Ok(())
        } else {
            Err(FormatError(format!(
                "nextBlock {} is negative",
                self.next_block
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{golden, keeps_unknown};
    use super::*;

    const SAMPLE: &str = r#"{"nextBlock":3000}"#;

    #[test]
    fn sample() {
        let value = IdBlockFile {
            next_block: 3000,
            extra: Extra::new(),
        };
        golden(SAMPLE, &value);
        keeps_unknown::<IdBlockFile>(SAMPLE);
        assert!(super::super::decode::<IdBlockFile>(br#"{"nextBlock":-1}"#).is_err());
    }
}
