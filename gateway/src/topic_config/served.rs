//! The topic configs that change the rules of a topic.

use crate::partition::validate::{TimestampType, TopicRules};

pub(super) fn max_message_bytes(rules: &mut TopicRules, value: &str) -> Result<(), String> {
    rules.max_message_bytes = number(value, 0, i64::from(i32::MAX))?;
    Ok(())
}

pub(super) fn timestamp_type(rules: &mut TopicRules, value: &str) -> Result<(), String> {
    rules.timestamp_type = match value {
        "CreateTime" => TimestampType::CreateTime,
        "LogAppendTime" => TimestampType::LogAppendTime,
        _ => return Err("must be CreateTime or LogAppendTime".to_owned()),
    };
    Ok(())
}

pub(super) fn timestamp_before(rules: &mut TopicRules, value: &str) -> Result<(), String> {
    rules.timestamp_before_max_ms = number(value, 0, i64::MAX)?;
    Ok(())
}

pub(super) fn timestamp_after(rules: &mut TopicRules, value: &str) -> Result<(), String> {
    rules.timestamp_after_max_ms = number(value, 0, i64::MAX)?;
    Ok(())
}

pub(super) fn retention_ms(rules: &mut TopicRules, value: &str) -> Result<(), String> {
    rules.retention.retention_ms = number(value, -1, i64::MAX)?;
    Ok(())
}

pub(super) fn retention_bytes(rules: &mut TopicRules, value: &str) -> Result<(), String> {
    // Kafka takes any number, and those below 0 as no limit.
    rules.retention.retention_bytes = number(value, i64::MIN, i64::MAX)?.max(-1);
    Ok(())
}

pub(super) fn segment_bytes(rules: &mut TopicRules, value: &str) -> Result<(), String> {
    rules.retention.segment_bytes = number(value, 1 << 20, i64::from(i32::MAX))?;
    Ok(())
}

pub(super) fn segment_ms(rules: &mut TopicRules, value: &str) -> Result<(), String> {
    rules.retention.segment_ms = number(value, 1, i64::MAX)?;
    Ok(())
}

fn number(value: &str, min: i64, max: i64) -> Result<i64, String> {
    let allowed = || format!("must be a whole number from {min} to {max}");
    let number: i64 = value.trim().parse().map_err(|_| allowed())?;
    if (min..=max).contains(&number) {
        Ok(number)
    } else {
        Err(allowed())
    }
}
