//! ApiVersions (key 18), v0-v4.
//!
//! The answer comes from the handler list and the feature table. v3+ carry the client's software
//! name and version, which are kept for the connection; a name outside Kafka's pattern is 42 with
//! no keys, and the connection stays usable. v0-v3 leave out supported features that start at
//! level 0 (KAFKA-17492). The response header is v0 in every version.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::api_versions_response::{
    ApiVersion, FinalizedFeatureKey, SupportedFeatureKey,
};
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, ApiVersionsResponse};
use kafka_protocol::protocol::StrBytes;

use crate::api::{ApiInfo, RequestContext, api_table};
use crate::features::Features;

/// Answers the request and keeps the client's software name for the connection.
pub fn answer(
    context: &RequestContext,
    request: &ApiVersionsRequest,
    features: &Features,
) -> ApiVersionsResponse {
    if context.version >= 3 {
        let name = &request.client_software_name;
        let version = &request.client_software_version;
        if !is_software_name(name) || !is_software_name(version) {
            return ApiVersionsResponse::default()
                .with_error_code(ResponseError::InvalidRequest.code());
        }
        // A client may ask again; the first name stays. The copies let the frame go.
        context.connection.software.get_or_init(|| {
            let copy = |s: &StrBytes| StrBytes::from_string(s.as_str().to_owned());
            (copy(name), copy(version))
        });
    }
    let response =
        ApiVersionsResponse::default().with_api_keys(api_table().iter().map(advertised).collect());
    with_features(response, context.version, features)
}

/// The answer to a version that is not served (KIP-511): only this api, encoded as v0.
pub fn step_down() -> ApiVersionsResponse {
    let own = ApiKey::ApiVersions as i16;
    let rows = api_table().into_iter().filter(|api| api.key == own);
    ApiVersionsResponse::default()
        .with_error_code(ResponseError::UnsupportedVersion.code())
        .with_api_keys(rows.map(|api| advertised(&api)).collect())
}

fn advertised(api: &ApiInfo) -> ApiVersion {
    ApiVersion::default()
        .with_api_key(api.key)
        .with_min_version(api.advertised_min)
        .with_max_version(*api.versions.end())
}

fn with_features(
    response: ApiVersionsResponse,
    version: i16,
    features: &Features,
) -> ApiVersionsResponse {
    let supported = features
        .table
        .iter()
        .filter(|feature| version >= 4 || feature.min > 0)
        .map(|feature| {
            SupportedFeatureKey::default()
                .with_name(StrBytes::from_static_str(feature.name))
                .with_min_version(feature.min)
                .with_max_version(feature.max)
        });
    let finalized = features
        .table
        .iter()
        .filter(|feature| feature.finalized > 0)
        .map(|feature| {
            FinalizedFeatureKey::default()
                .with_name(StrBytes::from_static_str(feature.name))
                .with_min_version_level(feature.finalized)
                .with_max_version_level(feature.finalized)
        });
    response
        .with_supported_features(supported.collect())
        .with_finalized_features_epoch(features.epoch)
        .with_finalized_features(finalized.collect())
}

/// Kafka's pattern `[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?`.
fn is_software_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let alphanumeric = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    alphanumeric(bytes.first()) && alphanumeric(bytes.last()) && bytes.iter().all(inner)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, OnceLock};
    use std::time::Duration;

    use super::*;
    use crate::api::ConnectionContext;
    use crate::features::Feature;
    use crate::turns::Turns;

    fn context(version: i16) -> RequestContext {
        RequestContext {
            admitted: crate::admitted::Admitted::default(),
            connection: Arc::new(ConnectionContext {
                id: 1,
                peer: None,
                local: None,
                listener: 0,
                software: OnceLock::new(),
                turns: Turns::default(),
            }),
            version,
            client_id: None,
            received: Duration::ZERO,
        }
    }

    fn request(name: &str, version: &str) -> ApiVersionsRequest {
        ApiVersionsRequest::default()
            .with_client_software_name(StrBytes::from_string(name.to_owned()))
            .with_client_software_version(StrBytes::from_string(version.to_owned()))
    }

    #[test]
    fn keys_ascend_and_produce_claims_zero() {
        let response = answer(&context(0), &request("", ""), &Features::default());
        assert_eq!(response.error_code, 0);
        let keys: Vec<i16> = response.api_keys.iter().map(|api| api.api_key).collect();
        assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
        let produce = &response.api_keys[0];
        assert_eq!(
            (produce.api_key, produce.min_version, produce.max_version),
            (0, 0, 13)
        );
    }

    #[test]
    fn software_names_are_judged_by_pattern_from_v3_on() {
        for (name, version, code) in [
            ("apache-kafka-java", "4.3.1", 0),
            ("a", "1", 0),
            ("", "1", 42),
            ("a", "", 42),
            ("-a", "1", 42),
            ("a", "1.", 42),
            ("a b", "1", 42),
            ("\u{fc}", "1", 42),
        ] {
            let ctx = context(3);
            let response = answer(&ctx, &request(name, version), &Features::default());
            assert_eq!(response.error_code, code, "{name:?} {version:?}");
            assert_eq!(response.api_keys.is_empty(), code != 0);
            assert_eq!(ctx.connection.software.get().is_some(), code == 0);
        }
        let old = context(2);
        assert_eq!(
            answer(&old, &request("", ""), &Features::default()).error_code,
            0
        );
        assert!(old.connection.software.get().is_none());
    }

    #[test]
    fn features_follow_the_version_and_the_level() {
        let feature = |name, min, finalized| Feature {
            name,
            min,
            max: 2,
            finalized,
        };
        let features = Features {
            table: vec![feature("a", 0, 2), feature("b", 1, 0), feature("c", 1, 1)],
            epoch: 4,
        };
        let names = |version| {
            let response = answer(&context(version), &request("n", "1"), &features);
            assert_eq!(response.finalized_features_epoch, 4);
            let supported: Vec<_> = response
                .supported_features
                .iter()
                .map(|f| f.name.to_string())
                .collect();
            let finalized: Vec<_> = response
                .finalized_features
                .iter()
                .map(|f| f.name.to_string())
                .collect();
            (supported, finalized)
        };
        let own = |list: &[&str]| list.iter().map(|&s| s.to_owned()).collect::<Vec<_>>();
        assert_eq!(names(3), (own(&["b", "c"]), own(&["a", "c"])));
        assert_eq!(names(4), (own(&["a", "b", "c"]), own(&["a", "c"])));
    }

    #[test]
    fn the_epoch_is_known_even_without_features() {
        let response = answer(&context(4), &request("n", "1"), &Features::default());
        assert_eq!(response.finalized_features_epoch, 0);
        assert!(response.finalized_features.is_empty());
    }
}
