use super::*;
use crate::partition::validate::TimestampType;

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
fn what_is_stored_applies_as_far_as_it_goes() {
    let configs = [
        ("retention.ms", "5"),
        ("a.newer.key", "x"),
        ("segment.bytes", "many"),
    ];
    let configs = configs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let Applied { rules, refused } = applied(&TopicRules::default(), &configs.into());
    assert_eq!(rules.retention.retention_ms, 5);
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert_eq!(refused[0], "Unknown topic config name: a.newer.key");
}

#[test]
fn retention_takes_what_kafka_takes() {
    let with = |name, value| with(name, value).unwrap().retention;
    assert_eq!(with("retention.ms", "-1").retention_ms, -1);
    assert_eq!(with("retention.ms", "0").retention_ms, 0);
    assert_eq!(with("retention.bytes", "5").retention_bytes, 5);
    assert_eq!(with("retention.bytes", "-9").retention_bytes, -1);
    assert_eq!(with("segment.bytes", "1048576").segment_bytes, 1_048_576);
    assert_eq!(with("segment.ms", "1").segment_ms, 1);
}

#[test]
fn compaction_takes_what_kafka_takes() {
    for (value, compact, delete) in [
        ("compact", true, false),
        ("delete", false, true),
        ("compact,delete", true, true),
        ("delete, compact", true, true),
        ("", false, false),
        (" ", false, false),
    ] {
        let rules = with("cleanup.policy", value).unwrap();
        assert_eq!((rules.compact, rules.delete), (compact, delete), "{value}");
    }
    let with = |name, value| with(name, value).unwrap().compaction;
    assert_eq!(with("delete.retention.ms", "0").delete_retention_ms, 0);
    assert_eq!(with("min.compaction.lag.ms", "7").min_lag_ms, 7);
    assert_eq!(with("max.compaction.lag.ms", "1").max_lag_ms, 1);
    assert_eq!(with("min.cleanable.dirty.ratio", "0").min_dirty_ratio, 0);
    assert_eq!(
        with("min.cleanable.dirty.ratio", "0.01").min_dirty_ratio,
        10_000
    );
    assert_eq!(
        with("min.cleanable.dirty.ratio", "1").min_dirty_ratio,
        1_000_000
    );
    let crossed = BTreeMap::from([
        ("min.compaction.lag.ms".to_owned(), "3".to_owned()),
        ("max.compaction.lag.ms".to_owned(), "2".to_owned()),
    ]);
    let error = rules(&TopicRules::default(), &crossed).unwrap_err();
    assert!(
        error.to_string().contains("max.compaction.lag.ms"),
        "{error}"
    );
}

#[test]
fn what_has_no_effect_is_refused() {
    for (name, value) in [
        ("retention.ms", "-2"),
        ("retention.bytes", "many"),
        ("segment.bytes", "1048575"),
        ("segment.bytes", "2147483648"),
        ("segment.ms", "0"),
        ("segment.jitter.ms", "1"),
        ("cleanup.policy", "sweep"),
        ("cleanup.policy", "compact,compact"),
        ("cleanup.policy", ","),
        ("cleanup.policy", "delete,"),
        ("delete.retention.ms", "-1"),
        ("min.compaction.lag.ms", "-1"),
        ("max.compaction.lag.ms", "0"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "-0.1"),
        ("compression.type", "gzip"),
        ("max.message.bytes", "-1"),
        ("max.message.bytes", "many"),
        ("message.timestamp.type", "createtime"),
        ("min.cleanable.dirty.ratio", "NaN"),
        ("preallocate", "true"),
        ("no.such.key", "1"),
    ] {
        let error = with(name, value).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn every_default_is_accepted_and_changes_nothing() {
    for key in TOPIC_KEYS {
        assert_eq!(with(key.name, key.default), Ok(TopicRules::default()));
    }
    assert_eq!(
        with("min.cleanable.dirty.ratio", "0.50"),
        Ok(TopicRules::default())
    );
    assert!(TOPIC_KEYS.is_sorted_by(|a, b| a.name < b.name));
}

#[test]
fn operations_change_what_they_name() {
    let current = BTreeMap::from([("max.message.bytes".to_owned(), "5".to_owned())]);
    let after = |name: &str, op: ConfigOp| {
        let configs = change(&current, &[(name.to_owned(), op)], keys::find);
        configs.map(|configs| configs.get(name).cloned())
    };
    let text = |text: &str| text.to_owned();
    let policy = "cleanup.policy";
    assert_eq!(
        after("max.message.bytes", ConfigOp::Set(text("6"))),
        Ok(Some(text("6")))
    );
    assert_eq!(after("max.message.bytes", ConfigOp::Delete), Ok(None));
    assert_eq!(after("flush.ms", ConfigOp::Delete), Ok(None));
    assert_eq!(
        after(policy, ConfigOp::Append(text("compact, delete"))),
        Ok(Some(text("delete,compact")))
    );
    assert_eq!(
        after(policy, ConfigOp::Subtract(text("delete"))),
        Ok(Some(text("")))
    );
    for op in [ConfigOp::Append(text("1")), ConfigOp::Subtract(text("1"))] {
        assert!(after("max.message.bytes", op.clone()).is_err());
        assert!(after("no.such.key", op).is_err());
    }
}

fn configs(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    let entries = entries.iter();
    entries
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn what_is_set_of_a_broker_is_what_topics_have_that_set_nothing() {
    let started = with("retention.bytes", "7").unwrap();
    let set = configs(&[("log.retention.ms", "5"), ("message.max.bytes", "9")]);
    let Applied { rules, refused } = applied_to_broker(&started, &set);
    assert_eq!(refused, [""; 0]);
    assert_eq!(rules.retention.retention_ms, 5);
    assert_eq!(rules.retention.retention_bytes, 7);
    assert_eq!(rules.max_message_bytes, 9);
}

#[test]
fn a_broker_takes_the_keys_that_topics_have_and_the_values_that_it_starts_with() {
    for (name, value, why) in [
        (
            "num.partitions",
            "1",
            "Cannot update these configs dynamically",
        ),
        (
            "retention.ms",
            "1",
            "Cannot update these configs dynamically",
        ),
        (
            "log.retention.hours",
            "1",
            "Cannot update these configs dynamically",
        ),
        (
            "no.such.key",
            "1",
            "Cannot update these configs dynamically",
        ),
        ("log.retention.ms", "0", "Invalid value 0"),
        ("log.retention.ms", "-2", "Invalid value -2"),
        ("log.segment.bytes", "1048575", "Invalid value 1048575"),
        ("log.cleanup.policy", "sweep", "Invalid value sweep"),
        ("compression.type", "zstd", "Invalid value zstd"),
        ("log.cleaner.max.compaction.lag.ms", "0", "Invalid value 0"),
    ] {
        let applied = applied_to_broker(&TopicRules::default(), &configs(&[(name, value)]));
        assert_eq!(applied.rules, TopicRules::default(), "{name}");
        assert_eq!(applied.refused.len(), 1, "{name}");
        let told = &applied.refused[0];
        assert!(told.starts_with(why) && told.contains(name), "{told}");
    }
    for key in TOPIC_KEYS {
        let Some(name) = key.broker else { continue };
        let applied = applied_to_broker(&TopicRules::default(), &configs(&[(name, key.default)]));
        assert_eq!(applied.refused, [""; 0], "{name}");
        assert_eq!(applied.rules, TopicRules::default(), "{name}");
        let long = " ".repeat(101);
        let applied = applied_to_broker(&TopicRules::default(), &configs(&[(name, &long)]));
        assert_eq!(applied.refused, [format!("{name} has more than 100 bytes")]);
    }
}

#[test]
fn what_does_not_apply_is_mended_one_by_one() {
    let of = |entries: &[(&str, &str)]| applied(&TopicRules::default(), &configs(entries));
    let lags = [
        ("max.compaction.lag.ms", "1"),
        ("min.compaction.lag.ms", "2"),
    ];
    let both = of(&[lags[0], lags[1], ("a.newer.key", "x")]);
    assert_eq!(both.refused.len(), 2);
    assert!(check_change(&both, &of(&lags)).is_ok());
    assert!(check_change(&both, &of(&[("a.newer.key", "x")])).is_ok());
    assert!(check_change(&both, &of(&[("a.newer.key", "y")])).is_ok());
    assert!(check_change(&of(&lags), &both).is_err());
    let other = of(&[lags[0], ("min.compaction.lag.ms", "3")]);
    assert!(check_change(&both, &other).is_err());
}
