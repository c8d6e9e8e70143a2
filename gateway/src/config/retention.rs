//! How long records are kept: several keys for one value, the finer one first.

use super::settings::{ConfigError, Settings};
use crate::partition::RetentionRules;

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 3_600_000;

/// `log.retention.ms`, else `.minutes`, else `.hours`; no number below 0 is a limit.
const RETENTION: [(&str, i64); 3] = [
    ("log.retention.ms", 1),
    ("log.retention.minutes", MINUTE_MS),
    ("log.retention.hours", HOUR_MS),
];
/// `log.roll.ms`, else `.hours`.
const ROLL: [(&str, i64); 2] = [("log.roll.ms", 1), ("log.roll.hours", HOUR_MS)];

/// What holds for topics that set nothing of their own.
///
/// # Errors
/// If records are to be kept for no time at all.
pub(super) fn rules(settings: &Settings) -> Result<RetentionRules, ConfigError> {
    let defaults = RetentionRules::default();
    let (name, retention_ms) =
        first_given(settings, &RETENTION)?.unwrap_or(("log.retention.ms", defaults.retention_ms));
    if retention_ms == 0 {
        return Err(settings.refuse(name, "-1, or at least 1"));
    }
    let roll = first_given(settings, &ROLL)?;
    Ok(RetentionRules {
        retention_ms: retention_ms.max(-1),
        retention_bytes: settings.number::<i64>("log.retention.bytes")?.max(-1),
        segment_bytes: settings.number("log.segment.bytes")?,
        segment_ms: roll.map_or(defaults.segment_ms, |(_, ms)| ms),
    })
}

/// The settings as clients are shown them: a coarser key stands under the name of the finest.
///
/// # Errors
/// As of [`rules`].
pub(super) fn shown(settings: &Settings) -> Result<Settings, ConfigError> {
    let mut shown = settings.clone();
    for keys in [&RETENTION[..], &ROLL[..]] {
        if let (Some((finest, _)), Some((name, ms))) = (keys.first(), first_given(settings, keys)?)
            && name != *finest
        {
            let origin = settings.get(name).origin;
            shown.set(finest, &ms.max(-1).to_string(), origin);
        }
    }
    Ok(shown)
}

/// The first of `keys` that was given, in ms.
fn first_given(
    settings: &Settings,
    keys: &[(&'static str, i64)],
) -> Result<Option<(&'static str, i64)>, ConfigError> {
    for (name, unit) in keys {
        if settings.given(name).is_some() {
            let number = settings.number::<i64>(name)?;
            return Ok(Some((name, number.saturating_mul(*unit))));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Origin;

    fn of(given: &[(&str, &str)]) -> Result<RetentionRules, ConfigError> {
        let mut settings = Settings::default();
        for (name, value) in given {
            settings.set(name, value, Origin::Library);
        }
        settings.check()?;
        rules(&settings)
    }

    #[test]
    fn the_finer_key_comes_first() {
        let all = [
            ("log.retention.hours", "3"),
            ("log.retention.minutes", "2"),
            ("log.retention.ms", "1"),
        ];
        for (given, ms) in [
            (&all[..0], 604_800_000),
            (&all[..1], 10_800_000),
            (&all[..2], 120_000),
            (&all[..3], 1),
            (&[("log.retention.minutes", "-1")], -1),
            (
                &[("log.retention.ms", "-1"), ("log.retention.hours", "1")],
                -1,
            ),
        ] {
            assert_eq!(of(given).unwrap().retention_ms, ms, "{given:?}");
        }
        let roll = [("log.roll.hours", "2"), ("log.roll.ms", "7")];
        assert_eq!(of(&roll[..1]).unwrap().segment_ms, 7_200_000);
        assert_eq!(of(&roll).unwrap().segment_ms, 7);
        assert_eq!(of(&[]), Ok(RetentionRules::default()));
    }

    #[test]
    fn what_kafka_refuses_is_refused() {
        for (name, value) in [
            ("log.retention.ms", "0"),
            ("log.retention.minutes", "0"),
            ("log.retention.hours", "-2"),
            ("log.retention.check.interval.ms", "0"),
            ("log.segment.bytes", "1048575"),
            ("log.roll.ms", "0"),
            ("log.roll.hours", "0"),
        ] {
            assert!(of(&[(name, value)]).is_err(), "{name}={value}");
        }
        assert_eq!(
            of(&[("log.retention.bytes", "-7")])
                .unwrap()
                .retention_bytes,
            -1
        );
    }

    #[test]
    fn clients_are_shown_the_value_in_force() {
        let mut settings = Settings::default();
        settings.set("log.retention.hours", "1", Origin::Library);
        let shown = shown(&settings).unwrap();
        assert_eq!(shown.get("log.retention.ms").value, "3600000");
        assert_eq!(shown.get("log.roll.ms").value, "604800000");
    }
}
