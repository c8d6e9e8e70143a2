//! The topic configs that change the rules of a topic.

use crate::partition::WHOLE;
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

pub(super) fn cleanup_policy(rules: &mut TopicRules, value: &str) -> Result<(), String> {
    let (mut compact, mut delete) = (0, 0);
    // None at all: nothing goes but by DeleteRecords.
    let named = (!value.trim().is_empty()).then(|| value.split(','));
    for policy in named.into_iter().flatten().map(str::trim) {
        match policy {
            "compact" => compact += 1,
            "delete" => delete += 1,
            _ => return Err("must be compact, delete, both, or none".to_owned()),
        }
    }
    if compact > 1 || delete > 1 {
        return Err("must not name a policy twice".to_owned());
    }
    (rules.compact, rules.delete) = (compact > 0, delete > 0);
    Ok(())
}

pub(super) fn delete_retention_ms(rules: &mut TopicRules, value: &str) -> Result<(), String> {
    rules.compaction.delete_retention_ms = number(value, 0, i64::MAX)?;
    Ok(())
}

pub(super) fn min_compaction_lag_ms(rules: &mut TopicRules, value: &str) -> Result<(), String> {
    rules.compaction.min_lag_ms = number(value, 0, i64::MAX)?;
    Ok(())
}

pub(super) fn max_compaction_lag_ms(rules: &mut TopicRules, value: &str) -> Result<(), String> {
    rules.compaction.max_lag_ms = number(value, 1, i64::MAX)?;
    Ok(())
}

pub(super) fn min_dirty_ratio(rules: &mut TopicRules, value: &str) -> Result<(), String> {
    let ratio = millionths(value).ok_or("must be a number from 0 to 1")?;
    rules.compaction.min_dirty_ratio = ratio;
    Ok(())
}

/// A number from 0 to 1, in millionths; `None` for anything else.
pub fn millionths(value: &str) -> Option<u32> {
    let ratio: f64 = value.trim().parse().ok()?;
    if !(0.0..=1.0).contains(&ratio) {
        return None;
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is from 0 to a million"
    )]
    let millionths = (ratio * f64::from(WHOLE)).round() as u32;
    Some(millionths)
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
