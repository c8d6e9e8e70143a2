//! Bytes of records, as people write and read them.

use std::fmt::Write as _;

use serde_json::{Map, Value};

/// Puts bytes in: text as it is, anything else in hexadecimal under a name that says so.
pub(super) fn put(into: &mut Map<String, Value>, name: &str, bytes: Option<&[u8]>) {
    match bytes.map(std::str::from_utf8) {
        None => drop(into.insert(name.to_owned(), Value::Null)),
        Some(Ok(text)) => drop(into.insert(name.to_owned(), text.into())),
        Some(Err(_)) => {
            let digits = hex(bytes.unwrap_or_default());
            into.insert(format!("{name}Hex"), digits.into());
        }
    }
}

/// Two digits a byte.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string does not fail.
        write!(digits, "{byte:02x}").unwrap_or_default();
    }
    digits
}

/// What a text means in which `\n`, `\r`, `\t`, `\0`, `\\` and `\xNN` stand for bytes.
///
/// # Errors
/// What is wrong with it.
pub(super) fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        bytes.extend_from_slice(before.as_bytes());
        let mut chars = after.chars();
        let byte = match chars.next() {
            Some('n') => b'\n',
            Some('r') => b'\r',
            Some('t') => b'\t',
            Some('0') => 0,
            Some('\\') => b'\\',
            Some('x') => {
                let digits = chars.as_str().get(..2);
                let digits = digits.filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
                let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                chars.next();
                chars.next();
                byte.ok_or_else(|| "\\x takes two hexadecimal digits".to_owned())?
            }
            other => {
                let what = other.map_or_else(String::new, String::from);
                return Err(format!(
                    "\\{what} means nothing: allowed are \\n \\r \\t \\0 \\\\ \\xNN"
                ));
            }
        };
        bytes.push(byte);
        rest = chars.as_str();
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(bytes)
}

/// What stands between two records, or between a key and a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Delimiter(pub(super) Vec<u8>);

impl std::str::FromStr for Delimiter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = unescape(text)?;
        if bytes.is_empty() {
            return Err("allowed is at least one byte".to_owned());
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_stand_for_bytes() {
        assert_eq!(unescape(r"a\tb\n\x00\xfF\\ü").unwrap(), {
            let mut bytes = b"a\tb\n\x00\xff\\".to_vec();
            bytes.extend_from_slice("ü".as_bytes());
            bytes
        });
        for wrong in [r"\q", r"\", r"\x4", r"\xzz", r"\x+1", r"\xü"] {
            assert!(unescape(wrong).is_err(), "{wrong}");
        }
        assert!("".parse::<Delimiter>().is_err());
    }
}
