use kafka_protocol::messages::ApiKey;
use kafka_protocol::protocol::{Message, StrBytes};

use super::super::samples::{Rng, body, offered};
use super::*;
use crate::api::api_table;

macro_rules! define_ranges {
    ($($name:ident, $key:literal, $versions:expr, $min:literal, $request:ty, $response:ty,
       $notes:literal;)*) => {
        fn ranges() -> Vec<(i16, i16, i16)> {
            vec![$((
                $key,
                <$request as Message>::VERSIONS.min,
                <$request as Message>::VERSIONS.max,
            ),)*]
        }
    };
}

api_list!(define_ranges);

#[test]
fn offered_versions_are_within_what_the_decoder_reads() {
    for (row, (key, min, max)) in api_table().iter().zip(ranges()) {
        assert_eq!(row.key, key);
        assert!(
            min <= *row.versions.start() && *row.versions.end() <= max,
            "{}: {:?}, decoder has {min}..={max}",
            row.name,
            row.versions
        );
        let known = ApiKey::try_from(key).unwrap();
        assert_eq!(format!("{known:?}").trim_end_matches("Key"), row.name);
        let response = known.valid_versions();
        assert!(response.min <= *row.versions.start() && *row.versions.end() <= response.max);
        assert!(row.advertised_min <= *row.versions.start());
    }
}

#[test]
fn keys_and_versions_outside_the_list_close() {
    for (key, version) in [(0, 2), (0, 14), (1, 3), (3, 14), (22, 6), (18, 5), (18, -1)] {
        assert_eq!(
            decode(key, version, Bytes::new()).unwrap_err(),
            CloseReason::UnsupportedVersion { key, version }
        );
    }
    for key in [-1, 4, 52, 9999] {
        assert_eq!(
            decode(key, 0, Bytes::new()).unwrap_err(),
            CloseReason::UnsupportedKey(key)
        );
    }
}

#[test]
fn requests_decode_to_their_variant() {
    let mut rng = Rng(1);
    for (key, version) in offered() {
        let request = decode(key, version, body(key, version, &mut rng)).unwrap();
        assert_eq!(request.key(), key);
    }
}

#[test]
fn null_written_as_minus_two_is_decoded() {
    let request = decode(3, 1, Bytes::from_static(&[0xff, 0xff, 0xff, 0xfe])).unwrap();
    let ApiRequest::Metadata(request) = request else {
        panic!("{request:?}")
    };
    assert_eq!(request.topics, None);
}

#[test]
fn names_and_records_point_into_the_frame() {
    let frame = Bytes::from_static(&[
        0xff, 0xff, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 2,
        8, 9,
    ]);
    let ApiRequest::Produce(request) = decode(0, 3, frame.clone()).unwrap() else {
        panic!("not Produce")
    };
    let records = request.topic_data[0].partition_data[0]
        .records
        .clone()
        .unwrap();
    assert_eq!(records.as_ptr(), frame[27..].as_ptr());
}

fn bytes_of(reply: &EncodedReply) -> Vec<u8> {
    let bytes = reply.segments.iter().filter_map(Segment::bytes);
    bytes.cloned().collect::<Vec<_>>().concat()
}

#[test]
fn api_versions_has_header_v0_in_every_version() {
    for version in 0..=4 {
        let response = ApiResponse::ApiVersions(Box::default());
        let reply = bytes_of(&encode(&response, version, 0x0102_0304).unwrap());
        assert_eq!(
            reply[..4],
            u32::try_from(reply.len() - 4).unwrap().to_be_bytes()
        );
        // Error code 0 follows the correlation id at once.
        assert_eq!(reply[4..10], [1, 2, 3, 4, 0, 0]);
    }
}

#[test]
fn the_fallback_of_api_versions_is_a_v0_body() {
    let body = kp::ApiVersionsResponse::default()
        .with_error_code(35)
        .with_api_keys(vec![
            kp::api_versions_response::ApiVersion::default()
                .with_api_key(18)
                .with_min_version(0)
                .with_max_version(4),
        ]);
    let response = ApiResponse::ApiVersions(Box::new(body));
    let reply = bytes_of(&encode(&response, 0, 9).unwrap());
    let expected = [
        0, 0, 0, 16, 0, 0, 0, 9, 0, 35, 0, 0, 0, 1, 0, 18, 0, 0, 0, 4,
    ];
    assert_eq!(reply, expected);
}

#[test]
fn flexible_responses_have_a_tagged_header() {
    let response = || ApiResponse::Metadata(Box::default());
    let plain = bytes_of(&encode(&response(), 8, 7).unwrap());
    // Throttle time, then an empty array of brokers.
    assert_eq!(plain[4..16], [0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
    let flexible = bytes_of(&encode(&response(), 9, 7).unwrap());
    assert_eq!(flexible[4..14], [0, 0, 0, 7, 0, 0, 0, 0, 0, 1]);
    assert_eq!(
        flexible[..4],
        u32::try_from(flexible.len() - 4).unwrap().to_be_bytes()
    );
}

#[test]
fn every_response_is_one_buffer_that_does_not_grow() {
    let body = kp::ProduceResponse::default().with_responses(vec![
        kp::produce_response::TopicProduceResponse::default()
            .with_name(StrBytes::from_static_str("topic").into()),
    ]);
    let reply = encode(&ApiResponse::Produce(Box::new(body)), 9, 1).unwrap();
    assert_eq!(reply.segments.len(), 1);
    assert_eq!(reply.len(), bytes_of(&reply).len());
    assert!(!reply.is_empty());
}

#[test]
fn a_field_that_the_version_lacks_is_an_error() {
    let body = kp::FindCoordinatorResponse::default()
        .with_coordinators(vec![kp::find_coordinator_response::Coordinator::default()]);
    let response = ApiResponse::FindCoordinator(Box::new(body));
    assert!(encode(&response, 4, 1).is_ok());
    let error = encode(&response, 3, 1).unwrap_err();
    assert_eq!((error.key, error.version), (10, 3));
    assert!(
        error
            .to_string()
            .starts_with("response of api key 10 version 3 cannot be encoded: ")
    );
}
