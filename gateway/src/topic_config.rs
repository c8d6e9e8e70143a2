//! Topic configs, by Kafka's names: what is stored takes effect, or is refused. Never ignored.

pub mod keys;
mod served;

use std::collections::{BTreeMap, BTreeSet};

use self::keys::{ConfigType, TopicKey, Use};
use crate::broker::TopicError;
use crate::partition::CompactionRules;
use crate::partition::validate::TopicRules;

pub use self::keys::TOPIC_KEYS;
pub use self::served::millionths;

/// What a client wants of one config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigOp {
    /// This value from now on.
    Set(String),
    /// The broker's value from now on.
    Delete,
    /// These entries join the list.
    Append(String),
    /// These entries leave the list.
    Subtract(String),
}

/// What configs that are stored come to.
#[derive(Debug)]
pub struct Applied {
    /// The broker's defaults with the configs over them, as far as they apply.
    pub rules: TopicRules,
    /// Why the others do not apply: their key or value is not known here (another version wrote
    /// it, or a person), or it does not go with the broker's.
    pub refused: Vec<String>,
}

/// The rules of a topic: the broker's defaults with the topic's configs over them.
///
/// # Errors
/// [`TopicError::InvalidConfig`] for the first config that is not known, not valid, or asks for
/// what is not there.
pub fn rules(
    defaults: &TopicRules,
    configs: &BTreeMap<String, String>,
) -> Result<TopicRules, TopicError> {
    let Applied { rules, refused } = applied(defaults, configs);
    match refused.into_iter().next() {
        None => Ok(rules),
        Some(why) => Err(TopicError::InvalidConfig(why)),
    }
}

/// The same for configs that are stored, whatever they are.
pub fn applied(defaults: &TopicRules, configs: &BTreeMap<String, String>) -> Applied {
    let mut rules = defaults.clone();
    let configs = configs.iter();
    let mut refused: Vec<String> = configs
        .filter_map(|(name, value)| apply(&mut rules, name, value).err())
        .collect();
    let CompactionRules {
        min_lag_ms,
        max_lag_ms,
        ..
    } = rules.compaction;
    if min_lag_ms > max_lag_ms {
        refused.push(format!(
            "conflict topic config setting min.compaction.lag.ms ({min_lag_ms}) > \
             max.compaction.lag.ms ({max_lag_ms})"
        ));
    }
    Applied { rules, refused }
}

fn apply(rules: &mut TopicRules, name: &str, value: &str) -> Result<(), String> {
    let key = keys::find(name).ok_or_else(|| format!("Unknown topic config name: {name}"))?;
    let used = match key.usage {
        Use::Rules(set) => set(rules, value),
        Use::Fixed(also) => fixed(key, also, value),
    };
    used.map_err(|why| format!("Invalid value {value} for configuration {name}: {why}"))
}

/// A value whose mechanism is not there is refused, unless it changes nothing.
fn fixed(key: &TopicKey, also: Option<&'static str>, value: &str) -> Result<(), String> {
    let same = |to: &str| keys::same(key.config_type, value.trim(), to);
    if same(key.default) || also.is_some_and(same) {
        return Ok(());
    }
    let or = also.map_or_else(String::new, |also| format!(" or {also}"));
    Err(format!(
        "this broker serves only {:?}{or} so far",
        key.default
    ))
}

/// The configs of a topic after `ops`; what was set before and is not named stays.
///
/// # Errors
/// [`TopicError::InvalidConfig`] for a list operation on what is no list.
pub fn change(
    current: &BTreeMap<String, String>,
    ops: &[(String, ConfigOp)],
) -> Result<BTreeMap<String, String>, TopicError> {
    let mut configs = current.clone();
    for (name, op) in ops {
        let value = match op {
            ConfigOp::Delete => {
                configs.remove(name);
                continue;
            }
            ConfigOp::Set(value) => value.clone(),
            ConfigOp::Append(value) => list(&configs, name, "APPEND")?.append(value),
            ConfigOp::Subtract(value) => list(&configs, name, "SUBTRACT")?.subtract(value),
        };
        configs.insert(name.clone(), value);
    }
    Ok(configs)
}

struct List(Vec<String>);

fn list(configs: &BTreeMap<String, String>, name: &str, op: &str) -> Result<List, TopicError> {
    let row = keys::find(name).filter(|key| key.config_type == ConfigType::List);
    let row = row.ok_or_else(|| {
        TopicError::InvalidConfig(format!(
            "Can't {op} to key {name} because its type is not LIST."
        ))
    })?;
    let text = configs.get(name).map_or(row.default, String::as_str);
    Ok(List(entries(text)))
}

fn entries(text: &str) -> Vec<String> {
    let entries = text.split(',').map(str::trim);
    entries
        .filter(|entry| !entry.is_empty())
        .map(str::to_owned)
        .collect()
}

impl List {
    fn append(mut self, more: &str) -> String {
        let mut there: BTreeSet<String> = self.0.iter().cloned().collect();
        let new = |entry: &String| there.insert(entry.clone());
        self.0.extend(entries(more).into_iter().filter(new));
        self.0.join(",")
    }

    fn subtract(mut self, less: &str) -> String {
        let less: BTreeSet<String> = entries(less).into_iter().collect();
        self.0.retain(|entry| !less.contains(entry));
        self.0.join(",")
    }
}

#[cfg(test)]
mod tests;
