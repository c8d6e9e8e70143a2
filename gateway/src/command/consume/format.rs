//! How a record is printed: kcat's format strings, and its JSON envelope.

use std::io::{self, Write};
use std::str::FromStr;

use serde_json::{Map, Value};

use super::super::bytes::{hex, put, unescape};
use super::batches::Seen;

/// Tokens of a format, and what they print.
pub(super) const TOKENS: &str = "%s value, %S its length, %R its length in four bytes, %k key, %K \
    its length, %T timestamp, %h headers, %t topic, %p partition, %o offset, %P producer id, %E \
    its epoch, %q sequence, %x transaction (none, committed, aborted, pending), %% a percent sign";

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    Value,
    ValueLen,
    ValueLenBinary,
    Key,
    KeyLen,
    Timestamp,
    Headers,
    Topic,
    Partition,
    Offset,
    ProducerId,
    ProducerEpoch,
    Sequence,
    Fate,
}

/// A way to print records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Layout {
    /// By a format string.
    Parts(Parts),
    /// One JSON object a line.
    Json,
}

/// A format string that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parts(Vec<Part>);

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "json" | "jsonl" => Ok(Self::Json),
            text => text.parse().map(Self::Parts),
        }
    }
}

impl FromStr for Parts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        let mut prints = false;
        while let Some((before, after)) = rest.split_once('%') {
            parts.push(Part::Text(unescape(before)?));
            let mut chars = after.chars();
            prints |= !after.starts_with('%');
            parts.push(match chars.next() {
                Some('s') => Part::Value,
                Some('S') => Part::ValueLen,
                Some('R') => Part::ValueLenBinary,
                Some('k') => Part::Key,
                Some('K') => Part::KeyLen,
                Some('T') => Part::Timestamp,
                Some('h') => Part::Headers,
                Some('t') => Part::Topic,
                Some('p') => Part::Partition,
                Some('o') => Part::Offset,
                Some('P') => Part::ProducerId,
                Some('E') => Part::ProducerEpoch,
                Some('q') => Part::Sequence,
                Some('x') => Part::Fate,
                Some('%') => Part::Text(b"%".to_vec()),
                other => {
                    let what = other.map_or_else(String::new, String::from);
                    return Err(format!("%{what} means nothing: allowed are {TOKENS}"));
                }
            });
            rest = chars.as_str();
        }
        if !prints {
            return Err(format!(
                "nothing of the record is printed: allowed are json, and text with {TOKENS}"
            ));
        }
        parts.push(Part::Text(unescape(rest)?));
        parts.retain(|part| *part != Part::Text(Vec::new()));
        Ok(Self(parts))
    }
}

impl Parts {
    /// The value, behind its key if `key` says what stands between them, and a delimiter.
    pub(super) fn plain(key: Option<&[u8]>, end: &[u8]) -> Self {
        let mut parts = Vec::new();
        if let Some(between) = key {
            parts.extend([Part::Key, Part::Text(between.to_vec())]);
        }
        parts.extend([Part::Value, Part::Text(end.to_vec())]);
        Self(parts)
    }
}

/// Where a record was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) topic: &'a str,
    pub(super) partition: i32,
    pub(super) leader: i32,
}

/// How records are printed.
#[derive(Debug, Clone)]
pub(super) struct Printer {
    pub(super) layout: Layout,
    /// What is printed for a null key or value.
    pub(super) null: &'static [u8],
    /// Whether JSON says what became of transactions.
    pub(super) with_fate: bool,
}

impl Printer {
    /// Prints a record.
    pub(super) fn print(
        &self,
        out: &mut impl Write,
        at: At<'_>,
        seen: &Seen<'_>,
    ) -> io::Result<()> {
        match &self.layout {
            Layout::Json => {
                serde_json::to_writer(&mut *out, &self.json(at, seen))?;
                out.write_all(b"\n")
            }
            Layout::Parts(Parts(parts)) => {
                for part in parts {
                    self.part(out, part, at, seen)?;
                }
                Ok(())
            }
        }
    }

    fn part(
        &self,
        out: &mut impl Write,
        part: &Part,
        at: At<'_>,
        seen: &Seen<'_>,
    ) -> io::Result<()> {
        let record = &seen.record;
        // A marker has a key and a value of its own form.
        let (key, value) = match seen.marker {
            Some(commits) => (None, Some(marker(commits).as_bytes())),
            None => (record.key, record.value),
        };
        match part {
            Part::Text(text) => out.write_all(text),
            Part::Value => out.write_all(value.unwrap_or(self.null)),
            Part::ValueLen => write!(out, "{}", length(value)),
            Part::ValueLenBinary => out.write_all(&length(value).to_be_bytes()),
            Part::Key => out.write_all(key.unwrap_or(self.null)),
            Part::KeyLen => write!(out, "{}", length(key)),
            Part::Timestamp => write!(out, "{}", record.timestamp),
            Part::Headers => headers(out, seen),
            Part::Topic => out.write_all(at.topic.as_bytes()),
            Part::Partition => write!(out, "{}", at.partition),
            Part::Offset => write!(out, "{}", seen.offset),
            Part::ProducerId => write!(out, "{}", seen.producer_id),
            Part::ProducerEpoch => write!(out, "{}", seen.producer_epoch),
            Part::Sequence => write!(out, "{}", seen.sequence),
            Part::Fate => out.write_all(seen.fate.word().as_bytes()),
        }
    }

    /// The envelope of `kcat -J`, with bytes that are no text in hexadecimal.
    fn json(&self, at: At<'_>, seen: &Seen<'_>) -> Value {
        let record = &seen.record;
        let mut shown = Map::new();
        let mut set = |name: &str, value: Value| {
            shown.insert(name.to_owned(), value);
        };
        set("topic", at.topic.into());
        set("partition", at.partition.into());
        set("offset", seen.offset.into());
        let kind = if seen.is_append_time {
            "logappend"
        } else {
            "create"
        };
        set("tstype", kind.into());
        set("ts", record.timestamp.into());
        set("broker", at.leader.into());
        if self.with_fate {
            set("producerId", seen.producer_id.into());
            set("producerEpoch", seen.producer_epoch.into());
            set("sequence", seen.sequence.into());
            set("transaction", seen.fate.word().into());
        }
        if let Some(commits) = seen.marker {
            set("marker", marker(commits).into());
            return Value::Object(shown);
        }
        let headers = record.headers().flat_map(|(key, value)| {
            let key = text_or_hex(key);
            [key, value.map_or(Value::Null, text_or_hex)]
        });
        let headers: Vec<Value> = headers.collect();
        if !headers.is_empty() {
            set("headers", headers.into());
        }
        put(&mut shown, "key", record.key);
        put(&mut shown, "payload", record.value);
        Value::Object(shown)
    }
}

fn marker(commits: bool) -> &'static str {
    if commits { "COMMIT" } else { "ABORT" }
}

fn length(bytes: Option<&[u8]>) -> i32 {
    bytes.map_or(-1, |bytes| i32::try_from(bytes.len()).unwrap_or(i32::MAX))
}

fn text_or_hex(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => serde_json::json!({ "hex": hex(bytes) }),
    }
}

fn headers(out: &mut impl Write, seen: &Seen<'_>) -> io::Result<()> {
    for (index, (key, value)) in seen.record.headers().enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        out.write_all(key)?;
        out.write_all(b"=")?;
        out.write_all(value.unwrap_or(b"NULL"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_that_print_nothing_or_something_unknown_are_refused() {
        for (wrong, says) in [
            ("table", "nothing of the record"),
            ("%s %z", "%z means nothing"),
            ("%s%", "% means nothing"),
            ("%s\\q", "\\q means nothing"),
        ] {
            let error = wrong.parse::<Layout>().unwrap_err();
            assert!(error.contains(says), "{wrong}: {error}");
        }
        assert_eq!("json".parse::<Layout>(), Ok(Layout::Json));
        let parts = "%%%s\\n".parse::<Layout>().unwrap();
        let expected = [
            Part::Text(b"%".to_vec()),
            Part::Value,
            Part::Text(b"\n".to_vec()),
        ];
        assert_eq!(parts, Layout::Parts(Parts(expected.to_vec())));
    }
}
