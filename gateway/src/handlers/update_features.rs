//! UpdateFeatures (key 57), versions 0 to 2. v1 kinds of changes and dry runs.
//!
//! No feature can be finalized yet: a request that asks for one is refused whole, with 95.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::update_features_request::FeatureUpdateKey;
use kafka_protocol::messages::{UpdateFeaturesRequest, UpdateFeaturesResponse};
use kafka_protocol::protocol::StrBytes;

use crate::api::{ApiResponse, Staged};
use crate::features::Features;

pub(crate) fn handle(request: &UpdateFeaturesRequest, features: &Features) -> Staged<ApiResponse> {
    let mut response = UpdateFeaturesResponse::default();
    response.error_message = None;
    let mut refused = request
        .feature_updates
        .iter()
        .filter_map(|update| refusal(update, features));
    // One for all: nothing is changed when one of them can't be.
    if let Some(why) = refused.next() {
        response.error_code = ResponseError::InvalidUpdateVersion.code();
        response.error_message = Some(StrBytes::from_string(why));
    }
    Staged::Now(ApiResponse::UpdateFeatures(Box::new(response)))
}

/// Why an update is refused: a level that is in force already is the only one that is not.
fn refusal(update: &FeatureUpdateKey, features: &Features) -> Option<String> {
    let (name, level) = (&update.feature, update.max_version_level);
    let known = features.table.iter().find(|row| *row.name == **name);
    match known {
        Some(row) if row.finalized == level => None,
        Some(row) => Some(format!(
            "Feature {name} is at level {} and can't be changed to {level}",
            row.finalized
        )),
        None => Some(format!("This broker does not support the feature {name}")),
    }
}
