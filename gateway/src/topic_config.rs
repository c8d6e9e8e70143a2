//! Topic configs, by Kafka's names: what is stored takes effect, or is refused. Never ignored.

use std::collections::BTreeMap;

use crate::broker::TopicError;
use crate::partition::validate::{TimestampType, TopicRules};

/// A topic config that takes effect here.
#[derive(Debug, Clone, Copy)]
pub struct TopicKey {
    /// Kafka's name.
    pub name: &'static str,
    /// What it does, for the docs.
    pub effect: &'static str,
    set: fn(&mut TopicRules, &str) -> Result<(), String>,
}

/// Every topic config that is accepted.
pub const TOPIC_KEYS: [TopicKey; 6] = [
    TopicKey {
        name: "max.message.bytes",
        effect: "largest batch in bytes, as sent, header included",
        set: |rules, value| {
            rules.max_message_bytes = number(value, 0, i64::from(i32::MAX))?;
            Ok(())
        },
    },
    TopicKey {
        name: "message.timestamp.type",
        effect: "CreateTime or LogAppendTime",
        set: |rules, value| {
            rules.timestamp_type = match value {
                "CreateTime" => TimestampType::CreateTime,
                "LogAppendTime" => TimestampType::LogAppendTime,
                _ => return Err("must be CreateTime or LogAppendTime".to_owned()),
            };
            Ok(())
        },
    },
    TopicKey {
        name: "message.timestamp.before.max.ms",
        effect: "how far a timestamp may lie in the past",
        set: |rules, value| {
            rules.timestamp_before_max_ms = number(value, 0, i64::MAX)?;
            Ok(())
        },
    },
    TopicKey {
        name: "message.timestamp.after.max.ms",
        effect: "how far a timestamp may lie in the future",
        set: |rules, value| {
            rules.timestamp_after_max_ms = number(value, 0, i64::MAX)?;
            Ok(())
        },
    },
    TopicKey {
        name: "cleanup.policy",
        effect: "delete; compaction is refused until it reclaims",
        set: |_, value| match value {
            "delete" => Ok(()),
            _ => Err("only delete is served".to_owned()),
        },
    },
    TopicKey {
        name: "compression.type",
        effect: "producer: batches are kept as sent",
        set: |_, value| match value {
            "producer" => Ok(()),
            _ => Err("only producer is served".to_owned()),
        },
    },
];

fn number(value: &str, min: i64, max: i64) -> Result<i64, String> {
    let allowed = || format!("must be a whole number from {min} to {max}");
    let number: i64 = value.trim().parse().map_err(|_| allowed())?;
    if (min..=max).contains(&number) {
        Ok(number)
    } else {
        Err(allowed())
    }
}

/// The rules of a topic: the broker's defaults with the topic's configs over them.
pub fn rules(
    defaults: &TopicRules,
    configs: &BTreeMap<String, String>,
) -> Result<TopicRules, TopicError> {
    let mut rules = defaults.clone();
    for (name, value) in configs {
        let key = TOPIC_KEYS
            .iter()
            .find(|key| key.name == name)
            .ok_or_else(|| {
                TopicError::InvalidConfig(format!(
                    "Topic config {name} is not known, or not served"
                ))
            })?;
        (key.set)(&mut rules, value).map_err(|why| {
            TopicError::InvalidConfig(format!("Invalid value {value} for config {name}: {why}"))
        })?;
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> Result<TopicRules, TopicError> {
        rules(
            &TopicRules::default(),
            &BTreeMap::from([(name.to_owned(), value.to_owned())]),
        )
    }

    #[test]
    fn accepted_configs_take_effect() {
        assert_eq!(
            with("max.message.bytes", "1000").unwrap().max_message_bytes,
            1000
        );
        assert_eq!(
            with("message.timestamp.type", "LogAppendTime")
                .unwrap()
                .timestamp_type,
            TimestampType::LogAppendTime
        );
        assert_eq!(
            with("message.timestamp.after.max.ms", "5")
                .unwrap()
                .timestamp_after_max_ms,
            5
        );
        assert_eq!(
            with("message.timestamp.before.max.ms", "7")
                .unwrap()
                .timestamp_before_max_ms,
            7
        );
    }

    #[test]
    fn what_has_no_effect_is_refused() {
        for (name, value) in [
            ("retention.ms", "1000"),
            ("cleanup.policy", "compact"),
            ("compression.type", "gzip"),
            ("max.message.bytes", "-1"),
            ("max.message.bytes", "many"),
            ("message.timestamp.type", "createtime"),
            ("no.such.key", "1"),
        ] {
            let error = with(name, value).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
