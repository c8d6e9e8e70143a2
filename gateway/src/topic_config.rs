//! Topic configs, by Kafka's names: what is stored takes effect, or is refused. Never ignored.

pub mod keys;
mod served;

use std::collections::{BTreeMap, BTreeSet};

use self::keys::{ConfigType, TopicKey, Use};
use crate::broker::TopicError;
use crate::config;
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
    let find = |name: &str, _: &str| {
        keys::find(name).ok_or_else(|| format!("Unknown topic config name: {name}"))
    };
    let lags = ["min.compaction.lag.ms", "max.compaction.lag.ms"];
    apply_all(defaults, configs, find, lags)
}

/// What topics that set nothing have, where these configs of their broker were set while it ran,
/// over what it was started with.
pub fn applied_to_broker(started: &TopicRules, configs: &BTreeMap<String, String>) -> Applied {
    let find = |name: &str, value: &str| {
        let key = keys::find_dynamic(name)
            .ok_or_else(|| format!("Cannot update these configs dynamically: {name}"))?;
        if value.len() > DYNAMIC_LEN_MAX {
            let why = format!("{name} has more than {DYNAMIC_LEN_MAX} bytes");
            return Err(why);
        }
        // A topic may keep its records for no time at all, a broker not.
        let nothing = name == "log.retention.ms" && keys::same(key.config_type, value, "0");
        match config::check_value(name, value) {
            Ok(()) if nothing => Err(invalid(name, value, "allowed is -1, or at least 1")),
            Ok(()) => Ok(key),
            Err(allowed) => Err(invalid(name, value, &format!("allowed is {allowed}"))),
        }
    };
    let lags = [
        "log.cleaner.min.compaction.lag.ms",
        "log.cleaner.max.compaction.lag.ms",
    ];
    apply_all(started, configs, find, lags)
}

/// Longest value of a config of a broker that is set while it runs, in bytes.
const DYNAMIC_LEN_MAX: usize = 100;

fn apply_all(
    defaults: &TopicRules,
    configs: &BTreeMap<String, String>,
    find: impl Fn(&str, &str) -> Result<&'static TopicKey, String>,
    [min, max]: [&str; 2],
) -> Applied {
    let mut rules = defaults.clone();
    let configs = configs.iter();
    let mut refused: Vec<String> = configs
        .filter_map(|(name, value)| {
            let key = find(name, value);
            key.and_then(|key| apply(&mut rules, key, (name, value)))
                .err()
        })
        .collect();
    let CompactionRules {
        min_lag_ms,
        max_lag_ms,
        ..
    } = rules.compaction;
    if min_lag_ms > max_lag_ms {
        refused.push(format!(
            "conflict topic config setting {min} ({min_lag_ms}) > {max} ({max_lag_ms})"
        ));
        // Neither: what is told of them is not told again of every topic that has other configs.
        rules.compaction.min_lag_ms = defaults.compaction.min_lag_ms;
        rules.compaction.max_lag_ms = defaults.compaction.max_lag_ms;
    }
    Applied { rules, refused }
}

fn apply(
    rules: &mut TopicRules,
    key: &TopicKey,
    (name, value): (&str, &str),
) -> Result<(), String> {
    let used = match key.usage {
        Use::Rules(set) => set(rules, value),
        Use::Fixed(also) => fixed(key, also, value),
    };
    used.map_err(|why| invalid(name, value, &why))
}

fn invalid(name: &str, value: &str, why: &str) -> String {
    format!("Invalid value {value} for configuration {name}: {why}")
}

/// Whether configs may be changed: all apply, but for those that did not before. So they can be
/// mended one by one.
///
/// # Errors
/// Why the first does not apply that did before, or was not there.
pub fn check_change(before: &Applied, after: &Applied) -> Result<(), String> {
    let mut refused = after.refused.iter();
    let why = refused.find(|why| !before.refused.contains(why));
    why.cloned().map_or(Ok(()), Err)
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

/// Configs after `ops`, of what has the keys that `find` finds; what was set before and is not
/// named stays.
///
/// # Errors
/// [`TopicError::InvalidConfig`] for a list operation on what is no list.
pub fn change(
    current: &BTreeMap<String, String>,
    ops: &[(String, ConfigOp)],
    find: fn(&str) -> Option<&'static TopicKey>,
) -> Result<BTreeMap<String, String>, TopicError> {
    let mut configs = current.clone();
    for (name, op) in ops {
        let value = match op {
            ConfigOp::Delete => {
                configs.remove(name);
                continue;
            }
            ConfigOp::Set(value) => value.clone(),
            ConfigOp::Append(value) => list(&configs, name, ("APPEND", find(name)))?.append(value),
            ConfigOp::Subtract(value) => {
                list(&configs, name, ("SUBTRACT", find(name)))?.subtract(value)
            }
        };
        configs.insert(name.clone(), value);
    }
    Ok(configs)
}

struct List(Vec<String>);

fn list(
    configs: &BTreeMap<String, String>,
    name: &str,
    (op, row): (&str, Option<&'static TopicKey>),
) -> Result<List, TopicError> {
    let row = row.filter(|key| key.config_type == ConfigType::List);
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
