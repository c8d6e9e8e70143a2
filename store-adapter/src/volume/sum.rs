//! A checksum behind JSON that readers of JSON do not see: blanks.
//!
//! A flipped digit leaves JSON whole. A file's CRC-32C is therefore written behind its end as 32
//! blanks, the highest bit first: a space is 0, a tab is 1. Every reader of JSON skips blanks, so
//! files can be read by who does not know of it; whoever writes a file anew without knowing leaves
//! it out, so a checksum never outlives the content that it is of, as a field that is kept would.
//! A file without it is of an earlier version, or was edited by hand, and is believed as it is.

use bytes::Bytes;

/// Bytes of a checksum.
pub const SUM_LEN: usize = 32;

const ZERO: u8 = b' ';
const ONE: u8 = b'\t';

/// A file whose content is not what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "its content does not have the checksum that the {SUM_LEN} blanks behind its end are; who \
     edits a file by hand removes them"
)]
pub struct WrongSum;

/// `json`, which must not end in blanks, and its checksum.
pub fn with_sum(json: &[u8]) -> Bytes {
    let mut bytes = Vec::with_capacity(json.len() + SUM_LEN);
    bytes.extend_from_slice(json);
    add_sum(&mut bytes);
    bytes.into()
}

/// Puts the checksum behind `json`, which must not end in blanks.
pub fn add_sum(json: &mut Vec<u8>) {
    let sum = crc32c::crc32c(json);
    let bits = (0..u32::BITS).rev().map(|bit| sum >> bit & 1);
    json.extend(bits.map(|bit| if bit == 0 { ZERO } else { ONE }));
}

/// Checks the file `bytes`, if it has a checksum.
///
/// # Errors
/// When it is another one than that of the content.
pub fn check_sum(bytes: &[u8]) -> Result<(), WrongSum> {
    let json = bytes.trim_ascii_end();
    let blanks = bytes.get(json.len()..).unwrap_or_default();
    let known = |blank: &u8| matches!(*blank, ZERO | ONE);
    if blanks.len() != SUM_LEN || !blanks.iter().all(known) {
        // None, or one that is damaged itself: a single fault, and not one of the content.
        return Ok(());
    }
    let bit = |sum: u32, blank: &u8| sum << 1 | u32::from(*blank == ONE);
    let sum = blanks.iter().fold(0, bit);
    if sum == crc32c::crc32c(json) {
        Ok(())
    } else {
        Err(WrongSum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &[u8] = br#"{"nextBlock":3000}"#;

    #[test]
    fn the_sum_has_its_documented_form() {
        let written = with_sum(JSON);
        let blanks = String::from_utf8(written[JSON.len()..].to_vec()).unwrap();
        let shown = blanks.replace(' ', "0").replace('\t', "1");
        assert_eq!(shown, format!("{:032b}", crc32c::crc32c(JSON)));
        let docs = include_str!("../../../docs/on-volume-format.md");
        assert!(docs.contains(&shown), "{shown} is not in the docs");
    }

    #[test]
    fn files_without_a_sum_are_believed() {
        for bytes in [&b""[..], JSON, b"{} ", b"{}\n", b"not json \t"] {
            assert_eq!(check_sum(bytes), Ok(()));
        }
    }

    #[test]
    fn every_flip_is_found_or_leaves_the_content() {
        let written = with_sum(JSON);
        assert_eq!(check_sum(&written), Ok(()));
        for bit in 0..written.len() * 8 {
            let mut damaged = written.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let same = damaged[..JSON.len()] == *JSON;
            assert!(same || check_sum(&damaged).is_err(), "bit {bit}");
        }
        for len in 0..written.len() {
            let (content, sum) = written.split_at(len);
            let whole = !sum.is_empty() && content.starts_with(JSON);
            assert!(check_sum(content).is_ok(), "{len}");
            assert_eq!(
                serde_json::from_slice::<serde_json::Value>(content).is_ok(),
                whole
            );
        }
    }
}
