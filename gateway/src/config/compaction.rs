//! Compaction: `log.cleanup.policy` and `log.cleaner.*`.

use std::time::Duration;

use super::settings::{ConfigError, Settings};
use crate::broker::CleanerConfig;
use crate::partition::CompactionRules;
use crate::topic_config::millionths;

/// What holds for topics that set nothing of their own.
///
/// # Errors
/// If a record would have to be compacted before it may be.
pub(super) fn rules(settings: &Settings) -> Result<CompactionRules, ConfigError> {
    let ratio = "log.cleaner.min.cleanable.ratio";
    let min_dirty_ratio = millionths(&settings.get(ratio).value);
    let rules = CompactionRules {
        min_dirty_ratio: min_dirty_ratio
            .ok_or_else(|| settings.refuse(ratio, "a number from 0 to 1"))?,
        min_lag_ms: settings.number("log.cleaner.min.compaction.lag.ms")?,
        max_lag_ms: settings.number("log.cleaner.max.compaction.lag.ms")?,
        delete_retention_ms: settings.number("log.cleaner.delete.retention.ms")?,
    };
    if rules.min_lag_ms > rules.max_lag_ms {
        let allowed = "at least log.cleaner.min.compaction.lag.ms";
        return Err(settings.refuse("log.cleaner.max.compaction.lag.ms", allowed));
    }
    Ok(rules)
}

/// Whether `log.cleanup.policy` has `policy`.
pub(super) fn has(settings: &Settings, policy: &str) -> bool {
    let policies = settings.get("log.cleanup.policy").value;
    policies.split(',').any(|one| one.trim() == policy)
}

/// How the broker goes about it.
///
/// # Errors
/// As of the keys.
pub(super) fn cleaner(settings: &Settings) -> Result<CleanerConfig, ConfigError> {
    Ok(CleanerConfig {
        enable: settings.is("log.cleaner.enable"),
        backoff: Duration::from_millis(settings.number("log.cleaner.backoff.ms")?),
        dedupe_bytes: settings.number("log.cleaner.dedupe.buffer.size")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Origin;

    fn of(given: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::default();
        for (name, value) in given {
            settings.set(name, value, Origin::Library);
        }
        settings
    }

    #[test]
    fn the_defaults_are_kafkas() {
        assert_eq!(rules(&of(&[])), Ok(CompactionRules::default()));
        let cleaner = cleaner(&of(&[])).unwrap();
        assert!(cleaner.enable);
        assert_eq!(cleaner.backoff, Duration::from_secs(15));
        assert_eq!(cleaner.dedupe_bytes, 128 << 20);
    }

    #[test]
    fn every_key_sets_its_rule() {
        let rules = rules(&of(&[
            ("log.cleaner.min.cleanable.ratio", "0.25"),
            ("log.cleaner.min.compaction.lag.ms", "1"),
            ("log.cleaner.max.compaction.lag.ms", "2"),
            ("log.cleaner.delete.retention.ms", "3"),
        ]));
        let expected = CompactionRules {
            min_dirty_ratio: 250_000,
            min_lag_ms: 1,
            max_lag_ms: 2,
            delete_retention_ms: 3,
        };
        assert_eq!(rules, Ok(expected));
        let cleaner = cleaner(&of(&[
            ("log.cleaner.enable", "false"),
            ("log.cleaner.backoff.ms", "5"),
            ("log.cleaner.dedupe.buffer.size", "2097152"),
        ]));
        let cleaner = cleaner.unwrap();
        assert!(!cleaner.enable);
        assert_eq!(cleaner.backoff, Duration::from_millis(5));
        assert_eq!(cleaner.dedupe_bytes, 2 << 20);
        for (given, compact, delete) in [
            ("delete", false, true),
            ("compact", true, false),
            ("compact,delete", true, true),
            ("", false, false),
        ] {
            let settings = of(&[("log.cleanup.policy", given)]);
            assert_eq!(settings.check(), Ok(()), "{given}");
            assert_eq!(has(&settings, "compact"), compact, "{given}");
            assert_eq!(has(&settings, "delete"), delete, "{given}");
        }
    }

    #[test]
    fn what_kafka_refuses_is_refused() {
        for (name, value) in [
            ("log.cleaner.min.cleanable.ratio", "1.1"),
            ("log.cleaner.min.cleanable.ratio", "NaN"),
            ("log.cleaner.min.compaction.lag.ms", "-1"),
            ("log.cleaner.max.compaction.lag.ms", "0"),
            ("log.cleaner.delete.retention.ms", "-1"),
            ("log.cleaner.dedupe.buffer.size", "1000"),
            ("log.cleanup.policy", "sweep"),
        ] {
            assert!(of(&[(name, value)]).check().is_err(), "{name}={value}");
        }
        let crossed = [
            ("log.cleaner.min.compaction.lag.ms", "3"),
            ("log.cleaner.max.compaction.lag.ms", "2"),
        ];
        assert!(rules(&of(&crossed)).is_err());
    }
}
