//! `transaction.version`: advertised, finalized, kept.

use kafka_protocol::messages::update_features_request::FeatureUpdateKey;
use kafka_protocol::messages::{ApiVersionsRequest, UpdateFeaturesRequest};
use tests::raw::RawClient;

use crate::kit::{Target, on_kafka, text, txn_version};

const NAME: &str = "transaction.version";
const UPGRADE: i8 = 1;
const SAFE_DOWNGRADE: i8 = 2;
const UNSAFE_DOWNGRADE: i8 = 3;

/// Level (0 if it is not finalized) and epoch.
async fn finalized(client: &mut RawClient) -> (i16, i64) {
    let request = ApiVersionsRequest::default()
        .with_client_software_name(text("wire"))
        .with_client_software_version(text("1"));
    let answer = client.call(&request, 4).await.unwrap();
    let mut supported = answer.supported_features.iter();
    let supported = supported.find(|feature| feature.name.as_str() == NAME);
    let supported = supported.map(|feature| (feature.min_version, feature.max_version));
    assert_eq!(supported, Some((0, 2)));
    let mut levels = answer.finalized_features.iter();
    let level = levels.find(|feature| feature.name.as_str() == NAME);
    let level = level.map_or(0, |feature| feature.max_version_level);
    (level, answer.finalized_features_epoch)
}

/// Awaits a level: Kafka's broker hears of it from its controller.
async fn await_level(client: &mut RawClient, level: i16) -> i64 {
    let mut pace = tokio::time::interval(std::time::Duration::from_millis(50));
    for _ in 0..1200 {
        let (now, epoch) = finalized(client).await;
        if now == level {
            return epoch;
        }
        pace.tick().await;
    }
    panic!("{NAME} does not come to {level}");
}

/// The code of an UpdateFeatures.
async fn update(client: &mut RawClient, level: i16, kind: i8, v: i16, dry: bool) -> i16 {
    let mut update = FeatureUpdateKey::default()
        .with_feature(text(NAME))
        .with_max_version_level(level);
    if v == 0 {
        update.allow_downgrade = kind != UPGRADE;
    } else {
        update.upgrade_type = kind;
    }
    let mut request = UpdateFeaturesRequest::default()
        .with_timeout_ms(30_000)
        .with_feature_updates(vec![update]);
    if v >= 1 {
        request.validate_only = dry;
    }
    let answer = client.call(&request, v).await.unwrap();
    assert_eq!(answer.error_message.is_some(), answer.error_code != 0);
    if answer.error_code == 0 && v <= 1 {
        assert_eq!(answer.results.len(), 1);
        assert_eq!(answer.results[0].error_code, 0);
    }
    answer.error_code
}

#[tokio::test]
async fn a_level_is_changed_and_kept() {
    let target = Target::start(&[]);
    let mut client = target.connect().await;
    let (level, mut epoch) = finalized(&mut client).await;
    assert_eq!(level, i16::from(txn_version()));
    if level < 2 {
        assert_eq!(update(&mut client, 2, UPGRADE, 1, false).await, 0);
        epoch = await_level(&mut client, 2).await;
    }
    for (to, kind, version, dry, code) in [
        (3, UPGRADE, 1, false, 95),
        (-1, SAFE_DOWNGRADE, 1, false, 95),
        (1, UPGRADE, 1, false, 95),
        (1, 9, 1, false, 95),
        (1, SAFE_DOWNGRADE, 0, false, 95),
        (1, SAFE_DOWNGRADE, 2, true, 0),
        (2, UPGRADE, 2, false, 0),
    ] {
        let got = update(&mut client, to, kind, version, dry).await;
        assert_eq!(got, code, "to {to} by {kind}, v{version}");
        assert_eq!(finalized(&mut client).await.0, 2);
    }
    for (to, kind, version) in [
        (1, SAFE_DOWNGRADE, 1),
        (0, UNSAFE_DOWNGRADE, 2),
        (2, UPGRADE, 0),
        (1, SAFE_DOWNGRADE, 2),
    ] {
        let code = update(&mut client, to, kind, version, false).await;
        assert_eq!(code, 0, "to {to} by {kind}, v{version}");
        let now = await_level(&mut client, to).await;
        assert!(now > epoch, "{now} after {epoch}");
        epoch = now;
    }
    drop(client);
    target.kill_and_restart();
    let mut client = target.connect().await;
    let again = await_level(&mut client, 1).await;
    assert!(again >= epoch);
}

/// Here it is the only level: groups are those of the classic protocol.
#[tokio::test]
async fn the_level_of_groups_is_0() {
    let target = Target::start(&[]);
    let mut client = target.connect().await;
    let highest = i16::from(on_kafka());
    let request = ApiVersionsRequest::default()
        .with_client_software_name(text("wire"))
        .with_client_software_version(text("1"));
    let answer = client.call(&request, 4).await.unwrap();
    let mut supported = answer.supported_features.iter();
    let supported = supported.find(|feature| feature.name.as_str() == "group.version");
    let supported = supported.map(|feature| (feature.min_version, feature.max_version));
    assert_eq!(supported, Some((0, highest)));
    for (level, kind, code) in [
        (highest + 1, UPGRADE, 95),
        (-1, SAFE_DOWNGRADE, 95),
        (0, SAFE_DOWNGRADE, 0),
        (0, SAFE_DOWNGRADE, 0),
    ] {
        let update = FeatureUpdateKey::default()
            .with_feature(text("group.version"))
            .with_max_version_level(level)
            .with_upgrade_type(kind);
        let request = UpdateFeaturesRequest::default()
            .with_timeout_ms(30_000)
            .with_feature_updates(vec![update]);
        let answer = client.call(&request, 2).await.unwrap();
        assert_eq!(answer.error_code, code, "{level}");
    }
    let answer = client.call(&request, 4).await.unwrap();
    let mut finalized = answer.finalized_features.iter();
    let is_finalized = finalized.any(|feature| feature.name.as_str() == "group.version");
    assert!(on_kafka() || !is_finalized);
}

#[tokio::test]
async fn a_cluster_begins_where_the_configuration_says() {
    if on_kafka() {
        return;
    }
    for level in 0..=2 {
        let target = Target::start(&[(NAME, &level.to_string())]);
        let mut client = target.connect().await;
        assert_eq!(finalized(&mut client).await, (level, 0));
        assert!(target.admin("/livez").starts_with("HTTP/1.1 200"));
    }
}
