//! UpdateFeatures (key 57), versions 0 to 2. v1 kinds of changes and dry runs; v2 answers for all
//! features at once.
//!
//! Levels are durable on the volume before the answer, and in force with it. A request is refused
//! whole, with 95, when one of its features can't be changed.

use std::sync::Arc;

use coordinator::service::cluster::Levels;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::update_features_request::FeatureUpdateKey;
use kafka_protocol::messages::update_features_response::UpdatableFeatureResult;
use kafka_protocol::messages::{UpdateFeaturesRequest, UpdateFeaturesResponse};
use kafka_protocol::protocol::StrBytes;

use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;
use crate::features::Features;

const UPGRADE: i8 = 1;
const UNSAFE_DOWNGRADE: i8 = 3;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: UpdateFeaturesRequest,
) -> Staged<ApiResponse> {
    let (broker, version) = (broker.clone(), context.version);
    Staged::Later(Box::pin(async move {
        let features = broker.features();
        let mut updates = request.feature_updates.iter();
        if let Some(why) = updates.find_map(|update| refusal(update, &features)) {
            return refused(ResponseError::InvalidUpdateVersion, why);
        }
        if !request.validate_only {
            let levels: Levels = request
                .feature_updates
                .iter()
                .map(|update| (update.feature.to_string(), update.max_version_level))
                .collect();
            if let Err(error) = broker.finalize_features(levels).await {
                return refused(error_code::topic(&error), error.to_string());
            }
        }
        let mut response = UpdateFeaturesResponse::default();
        response.error_message = None;
        if version <= 1 {
            let results = request.feature_updates.iter();
            response.results = results.map(|update| done(&update.feature)).collect();
        }
        ApiResponse::UpdateFeatures(Box::new(response))
    }))
}

fn refused(code: ResponseError, why: String) -> ApiResponse {
    let mut response = UpdateFeaturesResponse::default();
    response.error_code = code.code();
    response.error_message = Some(StrBytes::from_string(why));
    ApiResponse::UpdateFeatures(Box::new(response))
}

fn done(feature: &StrBytes) -> UpdatableFeatureResult {
    let mut result = UpdatableFeatureResult::default();
    // Copied, so that it does not hold the frame.
    result.feature = StrBytes::from_string(feature.to_string());
    result.error_message = None;
    result
}

/// Why an update is refused.
fn refusal(update: &FeatureUpdateKey, features: &Features) -> Option<String> {
    let (name, level) = (&update.feature, update.max_version_level);
    // Version 0 says otherwise that it may downgrade, and Kafka does not hear it.
    let kind = update.upgrade_type;
    let why = match features.table.iter().find(|row| *row.name == **name) {
        None => "This broker does not support the feature.".to_owned(),
        Some(_) if !(UPGRADE..=UNSAFE_DOWNGRADE).contains(&kind) => {
            format!("{kind} is no kind of change.")
        }
        Some(row) if level < row.min || level > row.max => {
            format!("Levels {} to {} are supported.", row.min, row.max)
        }
        Some(row) if level < row.finalized && kind == UPGRADE => {
            format!("It is at level {}: this is no upgrade.", row.finalized)
        }
        Some(row) if level > row.finalized && kind != UPGRADE => {
            format!("It is at level {}: this is no downgrade.", row.finalized)
        }
        Some(_) => return None,
    };
    Some(format!("Invalid level {level} of feature {name}. {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::Feature;

    #[test]
    fn a_change_must_be_of_the_kind_that_it_says() {
        let features = Features {
            table: vec![Feature {
                name: "f",
                min: 0,
                max: 2,
                finalized: 1,
            }],
            epoch: 0,
        };
        let refuses = |name: &str, level: i16, kind: i8| {
            let mut update = FeatureUpdateKey::default();
            update.feature = StrBytes::from_string(name.to_owned());
            update.max_version_level = level;
            update.upgrade_type = kind;
            refusal(&update, &features).is_some()
        };
        let safe_downgrade = 2;
        for (level, kind, refused) in [
            (2, UPGRADE, false),
            (2, safe_downgrade, true),
            (1, UPGRADE, false),
            (1, safe_downgrade, false),
            (0, UPGRADE, true),
            (0, safe_downgrade, false),
            (0, UNSAFE_DOWNGRADE, false),
            (3, UPGRADE, true),
            (-1, safe_downgrade, true),
            (1, 0, true),
            (1, 4, true),
        ] {
            assert_eq!(refuses("f", level, kind), refused, "{level} by {kind}");
        }
        assert!(refuses("g", 1, UPGRADE));
    }
}
