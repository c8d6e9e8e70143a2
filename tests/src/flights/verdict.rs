//! Compares what a reader saw with what a writer was given.
//!
//! Per partition the records read must be exactly the records meant for it, in input order, at
//! offsets 0, 1, 2, ...: that one comparison covers loss, duplicates, order, damage and strays.
//! Under [`Placement::Keyed`] the partition of a key is learnt from its first record read.

use std::collections::HashMap;
use std::fmt::Write as _;

use anyhow::{Context as _, bail, ensure};

use super::input::{Flights, PARTITIONS, Placement, key_of};

/// One record as a reader printed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Offset within its partition.
    pub offset: u64,
    /// Key; empty where the record has none.
    pub key: Vec<u8>,
    /// Value.
    pub value: Vec<u8>,
}

/// All records read, by partition, in the order of reading.
pub type Read = Vec<Vec<Seen>>;

/// Reads the lines `partition TAB offset TAB key TAB value`, where Apache Kafka's console
/// consumer writes `Partition:` and `Offset:` before the numbers.
///
/// # Errors
/// At the first line of another shape.
pub fn parse(output: &[u8], read: &mut Read) -> anyhow::Result<()> {
    read.resize_with(PARTITIONS, Vec::new);
    for line in output
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        let shape = || format!("not a record: {:?}", String::from_utf8_lossy(line));
        let mut fields = line.splitn(4, |byte| *byte == b'\t');
        let mut field = || fields.next().with_context(shape);
        let partition: usize = number(field()?, "Partition:").with_context(shape)?;
        let offset = number(field()?, "Offset:").with_context(shape)?;
        let (key, value) = (field()?, field()?.to_vec());
        let key = if key == b"null" {
            Vec::new()
        } else {
            key.to_vec()
        };
        read.get_mut(partition)
            .with_context(shape)?
            .push(Seen { offset, key, value });
    }
    Ok(())
}

fn number<T: std::str::FromStr>(field: &[u8], prefix: &str) -> Option<T> {
    let text = std::str::from_utf8(field).ok()?;
    text.strip_prefix(prefix).unwrap_or(text).parse().ok()
}

/// Judges `read` against the input.
///
/// # Errors
/// Lists for every partition that is not as it must be how it differs.
pub fn judge(flights: &Flights, placement: Placement, read: &Read) -> anyhow::Result<()> {
    ensure!(
        read.len() == PARTITIONS,
        "{} partitions, not {PARTITIONS}",
        read.len()
    );
    let expected = match placement {
        Placement::Explicit => explicit(flights),
        Placement::Keyed => keyed(flights, read)?,
    };
    let mut findings = String::new();
    for (partition, (want, got)) in expected.iter().zip(read).enumerate() {
        if let Some(finding) = difference(placement, want, got) {
            writeln!(findings, "partition {partition}: {finding}")?;
        }
    }
    if !findings.is_empty() {
        bail!("what was read is not what was written:\n{findings}");
    }
    Ok(())
}

type Expected<'a> = Vec<Vec<&'a [u8]>>;

fn explicit(flights: &Flights) -> Expected<'_> {
    let mut expected = vec![Vec::new(); PARTITIONS];
    for (number, value) in flights.values().enumerate() {
        expected[number % PARTITIONS].push(value);
    }
    expected
}

fn keyed<'a>(flights: &'a Flights, read: &Read) -> anyhow::Result<Expected<'a>> {
    let mut homes: HashMap<&[u8], usize> = HashMap::new();
    for (partition, records) in read.iter().enumerate() {
        ensure!(!records.is_empty(), "no key went to partition {partition}");
        for record in records {
            let home = *homes.entry(&record.key).or_insert(partition);
            if home != partition {
                let key = String::from_utf8_lossy(&record.key);
                bail!("key {key} is in partitions {home} and {partition}");
            }
        }
    }
    let mut expected = vec![Vec::new(); PARTITIONS];
    for value in flights.values() {
        let key = key_of(value);
        let Some(home) = homes.get(key) else {
            bail!(
                "no record with key {} came back",
                String::from_utf8_lossy(key)
            );
        };
        expected[*home].push(value);
    }
    Ok(expected)
}

fn difference(placement: Placement, want: &[&[u8]], got: &[Seen]) -> Option<String> {
    if let Some((place, seen)) = got
        .iter()
        .enumerate()
        .find(|(n, seen)| *n as u64 != seen.offset)
    {
        return Some(format!("record {place} is at offset {}", seen.offset));
    }
    let keyed = placement == Placement::Keyed;
    let key = |value| if keyed { key_of(value) } else { &[] };
    if let Some(seen) = got.iter().find(|seen| seen.key != key(&seen.value)) {
        return Some(format!("offset {}: a wrong key", seen.offset));
    }
    let first = want
        .iter()
        .zip(got)
        .position(|(want, got)| *want != got.value);
    if first.is_none() && want.len() == got.len() {
        return None;
    }
    let mut balance: HashMap<&[u8], i64> = HashMap::with_capacity(want.len());
    for value in want {
        *balance.entry(value).or_default() -= 1;
    }
    for seen in got {
        *balance.entry(&seen.value).or_default() += 1;
    }
    let missing: i64 = balance.values().filter(|n| **n < 0).map(|n| -n).sum();
    let extra: i64 = balance.values().filter(|n| **n > 0).sum();
    let first = first.unwrap_or(want.len().min(got.len()));
    let show = |value: Option<&[u8]>| {
        value.map_or_else(
            || "nothing".into(),
            |v| String::from_utf8_lossy(v).into_owned(),
        )
    };
    Some(format!(
        "{} written, {} read, {missing} missing, {extra} twice or foreign; first difference at \
         offset {first}: wanted {}, read {}",
        want.len(),
        got.len(),
        show(want.get(first).copied()),
        show(got.get(first).map(|seen| &*seen.value)),
    ))
}

#[cfg(test)]
mod tests;
