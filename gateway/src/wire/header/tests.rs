use kafka_protocol::messages::RequestHeader;
use kafka_protocol::protocol::Encodable;
use proptest::prelude::*;

use super::super::samples::{Rng, offered};
use super::*;

fn frame(bytes: &[u8]) -> Result<(Header, Bytes), CloseReason> {
    decode(&Bytes::copy_from_slice(bytes))
}

#[test]
fn peek_needs_eight_bytes() {
    let bytes = [0, 3, 0, 9, 0xff, 0xff, 0xff, 0xfe, 1];
    for len in 0..8 {
        assert_eq!(peek(&bytes[..len]), None);
    }
    let expected = Peek {
        key: 3,
        version: 9,
        correlation_id: -2,
    };
    assert_eq!(peek(&bytes), Some(expected));
}

#[test]
fn only_produce_may_be_large() {
    assert_eq!(frame_limit(0), 104_857_600);
    for key in [-1, 1, 3, 18, 999] {
        assert_eq!(frame_limit(key), 8_388_608);
    }
}

#[test]
fn short_frames_close() {
    let whole = [0, 3, 0, 9, 0, 0, 0, 1, 0, 1, b'c', 0, 1, 0, 0, 0, 0];
    for len in 0..12 {
        let refused = frame(&whole[..len]).unwrap_err();
        assert!(matches!(refused, CloseReason::Malformed(_)), "{len} bytes");
    }
    let (header, body) = frame(&whole).unwrap();
    assert_eq!(header.client_id.as_deref(), Some("c"));
    assert_eq!(&body[..], [1, 0, 0, 0, 0]);
}

#[test]
fn keys_that_are_not_offered_close() {
    for key in [9999_i16, -1, 4, 52, 56] {
        let bytes = [&key.to_be_bytes()[..], &[0, 0, 0, 0, 0, 1, 0xff, 0xff]].concat();
        assert_eq!(frame(&bytes), Err(CloseReason::UnsupportedKey(key)));
    }
}

#[test]
fn client_ids_are_read_as_kafka_reads_them() {
    let with = |id: &[u8]| frame(&[&[0, 3, 0, 0, 0, 0, 0, 1][..], id, &[7]].concat());
    let client_id = |id: &[u8]| with(id).unwrap().0.client_id;
    assert_eq!(client_id(&[0xff, 0xff]), None);
    assert_eq!(client_id(&[0xff, 0xfe]), None);
    assert_eq!(client_id(&[0, 0]).as_deref(), Some(""));
    assert_eq!(client_id(&[0, 2, b'a', 0xff]).as_deref(), Some("a\u{fffd}"));
    assert!(with(&[0x7f, 0xff, b'a']).is_err());
    assert_eq!(&with(&[0xff, 0xff]).unwrap().1[..], [7]);
}

#[test]
fn any_version_of_api_versions_has_a_header() {
    let header = |version: i16, rest: &[u8]| {
        let version = version.to_be_bytes();
        frame(&[&[0, 18], &version[..], &[0, 0, 0, 5, 0xff, 0xff], rest].concat())
    };
    let (v99, body) = header(99, &[1, 7, 1, 0, 42]).unwrap();
    assert_eq!((v99.version, v99.correlation_id), (99, 5));
    assert_eq!(&body[..], [42]);
    let (negative, body) = header(-1, &[42]).unwrap();
    assert_eq!(negative.version, -1);
    assert_eq!(&body[..], [42]);
    assert!(header(3, &[]).is_err());
    assert!(header(3, &[0xff, 0xff, 0xff, 0xff, 0x07]).is_err());
}

proptest! {
    #[test]
    fn headers_are_those_of_the_encoder(seed: u64, correlation_id: i32) {
        let mut rng = Rng(seed);
        for (key, version) in offered() {
            let flexible = version >= schema::message(key).unwrap().flexible_from;
            let client_id = rng.maybe_text();
            let mut header = RequestHeader::default()
                .with_request_api_key(key)
                .with_request_api_version(version)
                .with_correlation_id(correlation_id)
                .with_client_id(client_id.clone());
            if flexible && rng.chance() {
                header = header.with_unknown_tagged_field(3, rng.bytes(20));
            }
            let mut buffer = bytes::BytesMut::new();
            header.encode(&mut buffer, if flexible { 2 } else { 1 }).unwrap();
            buffer.extend_from_slice(b"body");
            let (decoded, body) = decode(&buffer.freeze()).unwrap();
            prop_assert_eq!(decoded, Header { key, version, correlation_id, client_id });
            prop_assert_eq!(&body[..], b"body");
        }
    }

    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..40)) {
        if let Ok((header, body)) = decode(&Bytes::copy_from_slice(&noise)) {
            prop_assert_eq!(&noise[..2], header.key.to_be_bytes());
            prop_assert!(noise.ends_with(&body));
        }
    }
}
