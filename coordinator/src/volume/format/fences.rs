//! `producer_fences/from-kaas-<id>.json`: the epochs below which producers are refused everywhere.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};
use store_adapter::ids::ProducerId;

use super::{Extra, Format};

/// The most fences of one broker: of as many the file is half as long as is read.
pub const FENCES_MAX: usize = 1 << 19;

/// The key beside the fences that says when each was last used. Older readers skip it.
const SEEN: &str = "+seenMs";

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "Extra")]
pub struct FencesFile {
    /// By producer id, the lowest epoch that is not fenced.
    pub fences: BTreeMap<i64, i16>,
    /// When it was last used, ms since the Unix epoch; absent on older volumes.
    pub seen_ms: BTreeMap<i64, i64>,
    /// What is under keys that are no producer ids.
    pub extra: Extra,
}

impl FencesFile {
    /// Fences what is below `epoch`, unless a higher epoch is fenced already. Whether anything
    /// became fenced that was not.
    pub fn raise(&mut self, pid: i64, epoch: i16, now_ms: i64) -> bool {
        let known = self.fences.get(&pid).copied();
        if known.is_some_and(|known| known >= epoch) {
            self.touch(pid, now_ms);
            return false;
        }
        self.fences.insert(pid, epoch);
        self.seen_ms.insert(pid, now_ms);
        true
    }

    /// A producer that is fenced was used. Not worth a write: it can be asked for again.
    pub fn touch(&mut self, pid: i64, at_ms: i64) {
        if self.fences.contains_key(&pid) {
            let seen = self.seen_ms.entry(pid).or_insert(at_ms);
            *seen = at_ms.max(*seen);
        }
    }

    /// Drops the oldest where there are more than `max`, down to seven eighths of it; how many.
    pub fn keep_newest(&mut self, max: usize) -> usize {
        if self.fences.len() <= max {
            return 0;
        }
        let mut ages: Vec<(i64, i64)> = {
            let seen = |pid| self.seen_ms.get(pid).copied().unwrap_or(i64::MIN);
            let pids = self.fences.keys();
            pids.map(|pid| (seen(pid), *pid)).collect()
        };
        ages.sort_unstable();
        let dropped = self.fences.len() - (max - max / 8);
        for (_, pid) in ages.into_iter().take(dropped) {
            self.fences.remove(&pid);
            self.seen_ms.remove(&pid);
        }
        dropped
    }

    /// The producers that were last used before `before_ms`, as far as the file knows. Those that
    /// are not dated are dated `now_ms`.
    pub fn unused_since(&mut self, before_ms: i64, now_ms: i64) -> BTreeSet<ProducerId> {
        let mut old = BTreeSet::new();
        for pid in self.fences.keys() {
            if *self.seen_ms.entry(*pid).or_insert(now_ms) < before_ms {
                old.insert(ProducerId(*pid));
            }
        }
        old
    }

    /// Drops fences that were last used before `before_ms`; whether there were any.
    pub fn expire(&mut self, before_ms: i64) -> bool {
        let had = self.fences.len();
        let seen = &self.seen_ms;
        self.fences
            .retain(|pid, _| seen.get(pid).is_none_or(|seen| *seen >= before_ms));
        let left = &self.fences;
        self.seen_ms.retain(|pid, _| left.contains_key(pid));
        self.fences.len() < had
    }
}

impl Format for FencesFile {
    const LEN_MAX: u64 = 64 << 20;
}

fn producer_id(key: &str) -> Option<i64> {
    let pid: i64 = key.parse().ok()?;
    (pid >= 0 && pid.to_string() == key).then_some(pid)
}

impl TryFrom<Extra> for FencesFile {
    type Error = String;

    fn try_from(map: Extra) -> Result<Self, String> {
        let mut file = Self::default();
        for (key, value) in map {
            if let Some(pid) = producer_id(&key) {
                let epoch = value.as_i64().and_then(|epoch| i16::try_from(epoch).ok());
                let epoch = epoch.filter(|epoch| *epoch >= 0);
                let epoch = epoch.ok_or_else(|| format!("producer {pid} is fenced at {value}"))?;
                file.fences.insert(pid, epoch);
            } else if key == SEEN {
                let seen: Map<String, Value> =
                    serde_json::from_value(value).map_err(|error| format!("{SEEN}: {error}"))?;
                for (key, at) in seen {
                    let known = producer_id(&key).zip(at.as_i64());
                    let (pid, at) = known.ok_or_else(|| format!("{SEEN}: {key} at {at}"))?;
                    file.seen_ms.insert(pid, at);
                }
            } else {
                file.extra.insert(key, value);
            }
        }
        Ok(file)
    }
}

/// What the file has under a key.
enum Field<'a> {
    Epoch(i16),
    Seen(&'a BTreeMap<i64, i64>),
    Unknown(&'a Value),
}

/// The keys of producers, in the order of their text, as maps are written.
fn keys<V: Copy>(map: &BTreeMap<i64, V>) -> Vec<(String, V)> {
    let keys = map.iter().map(|(pid, value)| (pid.to_string(), *value));
    let mut keys: Vec<_> = keys.collect();
    keys.sort_by(|(a, _), (b, _)| a.cmp(b));
    keys
}

// Each session of a transactional id writes the whole file: nothing of it is copied first.
impl Serialize for FencesFile {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let fences = keys(&self.fences).into_iter();
        let fences = fences.map(|(pid, epoch)| (Cow::Owned(pid), Field::Epoch(epoch)));
        let extra = self.extra.iter();
        let extra = extra.map(|(key, value)| (Cow::Borrowed(&**key), Field::Unknown(value)));
        let mut fields: Vec<(Cow<'_, str>, Field<'_>)> = extra.chain(fences).collect();
        if !self.seen_ms.is_empty() {
            fields.push((Cow::Borrowed(SEEN), Field::Seen(&self.seen_ms)));
        }
        fields.sort_by(|(a, _), (b, _)| a.cmp(b));
        out.collect_map(fields)
    }
}

impl Serialize for Field<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Epoch(epoch) => epoch.serialize(out),
            Self::Seen(seen) => out.collect_map(keys(seen)),
            Self::Unknown(value) => value.serialize(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::golden;
    use super::super::{decode, encode};
    use super::*;

    #[test]
    fn samples() {
        let mut value = FencesFile::default();
        golden("{}", &value);
        value.fences.insert(1_099_511_627_779, 5);
        golden(r#"{"1099511627779":5}"#, &value);
        value.seen_ms.insert(1_099_511_627_779, 9);
        value.extra.insert("zz".into(), true.into());
        golden(
            r#"{"+seenMs":{"1099511627779":9},"1099511627779":5,"zz":true}"#,
            &value,
        );
        // In the order of the text of keys.
        value.fences.insert(999, 1);
        value.fences.insert(2, 7);
        value.seen_ms.insert(999, 3);
        value.extra.insert("01".into(), 1.into());
        golden(
            concat!(
                r#"{"+seenMs":{"1099511627779":9,"999":3},"01":1,"#,
                r#""1099511627779":5,"2":7,"999":1,"zz":true}"#
            ),
            &value,
        );
        for bad in [
            r#"{"7":-1}"#,
            r#"{"7":32768}"#,
            r#"{"7":"x"}"#,
            r#"{"+seenMs":3}"#,
            "[]",
        ] {
            assert!(decode::<FencesFile>(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn of_too_many_the_oldest_go() {
        let mut file = FencesFile::default();
        for pid in 0..16 {
            file.raise(pid, 1, 100 - pid);
        }
        assert_eq!(file.keep_newest(16), 0);
        file.raise(99, 1, 200);
        assert_eq!(file.keep_newest(16), 3);
        assert_eq!(file.fences.len(), 14);
        assert_eq!(file.seen_ms.len(), 14);
        assert!(file.fences.contains_key(&99) && file.fences.contains_key(&12));
        assert!((13..16).all(|pid| !file.fences.contains_key(&pid)));
        // The longest entries that there can be.
        let mut one = FencesFile::default();
        one.raise(i64::MAX, i16::MAX, i64::MIN);
        let bytes = encode(&one).unwrap().len() as u64;
        assert!(bytes * (FENCES_MAX as u64) < FencesFile::LEN_MAX);
    }

    #[test]
    fn the_highest_epoch_stands_until_it_is_old() {
        let mut file: FencesFile = decode(br#"{"7":3}"#).unwrap();
        assert!(!file.raise(7, 3, 10) && !file.raise(7, 2, 10) && file.raise(7, 4, 10));
        assert!(file.raise(8, 1, 50));
        let pids = |pids: &[i64]| -> BTreeSet<ProducerId> {
            pids.iter().copied().map(ProducerId).collect()
        };
        let none = BTreeSet::new();
        assert!(file.unused_since(10, 60) == none && !file.expire(10));
        assert_eq!(file.unused_since(11, 60), pids(&[7]));
        assert!(file.expire(11));
        assert_eq!(file.fences, BTreeMap::from([(8, 1)]));
        // Without a date it is as new as the first look.
        let mut old: FencesFile = decode(br#"{"7":3}"#).unwrap();
        assert!(old.unused_since(100, 200) == none && old.unused_since(200, 300) == none);
        assert_eq!(old.unused_since(201, 300), pids(&[7]));
        // Used, or raised again, it is as new as that; what is not fenced does not become so.
        old.touch(7, 250);
        old.touch(8, 250);
        assert!(old.unused_since(250, 300) == none && !old.raise(7, 3, 260));
        assert!(old.unused_since(260, 300) == none && !old.expire(260));
        assert!(old.expire(261));
        assert_eq!(encode(&old).unwrap(), "{}".as_bytes());
    }
}
