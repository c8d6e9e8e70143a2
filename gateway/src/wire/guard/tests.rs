use bytes::Bytes;
use proptest::prelude::*;

use super::super::codec;
use super::super::samples::{Rng, body, offered};
use super::super::schema;
use super::*;
use crate::api::api_table;

fn check(key: i16, version: i16, bytes: &[u8]) -> Result<usize, GuardError> {
    check_body(schema::message(key).unwrap(), version, bytes).map(|accepted| accepted.consumed)
}

const PRODUCE: i16 = 0;
const FETCH: i16 = 1;
const METADATA: i16 = 3;
const FIND_COORDINATOR: i16 = 10;
const API_VERSIONS: i16 = 18;
const CREATE_TOPICS: i16 = 19;
const DELETE_TOPICS: i16 = 20;

#[test]
fn every_offered_key_has_a_schema_and_no_other_has() {
    let offered: Vec<i16> = api_table().iter().map(|row| row.key).collect();
    for key in -1000..1000 {
        let known = schema::message(key).is_some();
        assert_eq!(known, offered.contains(&key), "key {key}");
    }
}

#[test]
fn flexible_versions_are_those_of_the_decoder() {
    use kafka_protocol::messages::ApiKey;
    for (key, version) in offered() {
        let flexible = version >= schema::message(key).unwrap().flexible_from;
        let header = ApiKey::try_from(key)
            .unwrap()
            .request_header_version(version);
        assert_eq!(header, if flexible { 2 } else { 1 }, "key {key} v{version}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn valid_requests_are_accepted_and_consumed(seed: u64) {
        let mut rng = Rng(seed);
        for (key, version) in offered() {
            let bytes = body(key, version, &mut rng);
            prop_assert_eq!(
                check(key, version, &bytes),
                Ok(bytes.len()),
                "key {} v{}: {:02x?}", key, version, &bytes[..]
            );
        }
    }

    #[test]
    fn what_is_accepted_decodes(seed: u64) {
        let mut rng = Rng(seed);
        for (key, version) in offered() {
            let mut bytes = body(key, version, &mut rng).to_vec();
            for _ in 0..rng.below(4) {
                mutate(&mut bytes, &mut rng);
            }
            let accepted = check(key, version, &bytes).is_ok();
            let decoded = codec::decode(key, version, Bytes::from(bytes.clone()));
            prop_assert_eq!(
                accepted,
                decoded.is_ok(),
                "key {} v{}: {:?}, {:02x?}", key, version, decoded, bytes
            );
        }
    }

    #[test]
    fn noise_is_refused_or_decodes(noise in prop::collection::vec(any::<u8>(), 0..40)) {
        for (key, version) in offered() {
            let accepted = check(key, version, &noise).is_ok();
            let decoded = codec::decode(key, version, Bytes::from(noise.clone()));
            prop_assert_eq!(accepted, decoded.is_ok(), "key {} v{}", key, version);
        }
    }
}

/// Flips, cuts, inserts or writes a hostile length.
fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    if bytes.is_empty() {
        return;
    }
    let at = rng.below(bytes.len());
    match rng.below(6) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes.truncate(at),
        2 => bytes.insert(at, rng.next().to_le_bytes()[0]),
        3 => bytes[at] = 0xff,
        4 => bytes[at] = u8::try_from(rng.below(4)).unwrap(),
        _ => {
            for (byte, hostile) in bytes[at..].iter_mut().zip([0xff, 0xff, 0xff, 0xff, 0x0f]) {
                *byte = hostile;
            }
        }
    }
}

#[test]
fn every_prefix_of_a_valid_request_is_truncated() {
    let mut rng = Rng(7);
    for (key, version) in offered() {
        let bytes = body(key, version, &mut rng);
        for cut in 0..bytes.len() {
            let error = check(key, version, &bytes[..cut]).unwrap_err();
            let expected = matches!(error, GuardError::Truncated | GuardError::Count(_));
            assert!(expected, "key {key} v{version} cut {cut}: {error}");
        }
    }
}

/// The bodies that abort the process when the decoder sees them.
#[test]
fn hostile_counts_are_refused() {
    let max = [0x7f, 0xff, 0xff, 0xff];
    assert_eq!(
        check(METADATA, 1, &max),
        Err(GuardError::Count(0x7fff_ffff))
    );
    let compact_max = [0xff, 0xff, 0xff, 0xff, 0x0f];
    assert_eq!(
        check(METADATA, 9, &compact_max),
        Err(GuardError::Count(0xffff_fffe))
    );
    let produce = [&[0, 0, 1, 0, 0, 0, 1][..], &compact_max].concat();
    assert_eq!(
        check(PRODUCE, 9, &produce),
        Err(GuardError::Count(0xffff_fffe))
    );
    assert_eq!(
        check(METADATA, 1, &[0x03, 0x3c, 0x0c, 0x00]),
        Err(GuardError::Count(54_266_880))
    );
    assert_eq!(
        check(METADATA, 1, &[0, 0, 0, 100, 0, 1, b'a']),
        Err(GuardError::Count(100))
    );
}

#[test]
fn counts_are_bounded_by_the_smallest_element() {
    // Two names of zero bytes take four bytes; three do not fit into five.
    assert_eq!(check(METADATA, 1, &[0, 0, 0, 2, 0, 0, 0, 0]), Ok(8));
    assert_eq!(
        check(METADATA, 1, &[0, 0, 0, 3, 0, 0, 0, 0, 0]),
        Err(GuardError::Count(3))
    );
    // Fetch v13 topics: 16 bytes of id, one of count, one of tags.
    let mut fetch = vec![0; 25];
    fetch.push(3);
    fetch.extend([0; 35]);
    assert_eq!(check(FETCH, 15, &fetch[4..]), Err(GuardError::Count(2)));
}

#[test]
fn elements_of_a_frame_are_limited() {
    let empty_names =
        |count: u32| [&count.to_be_bytes()[..], &vec![0; 2 * count as usize]].concat();
    assert_eq!(check(METADATA, 1, &empty_names(65_536)), Ok(4 + 131_072));
    assert_eq!(
        check(METADATA, 1, &empty_names(65_537)),
        Err(GuardError::Elements(65_536))
    );
}

#[test]
fn produce_and_fetch_may_hold_more_elements() {
    let partitions = |count: u32| {
        let mut body = vec![0xff, 0xff, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, b't'];
        body.extend(count.to_be_bytes());
        body.extend([0; 8].repeat(count as usize));
        body
    };
    assert!(check(PRODUCE, 3, &partitions(262_143)).is_ok());
    assert_eq!(
        check(PRODUCE, 3, &partitions(262_144)),
        Err(GuardError::Elements(262_144))
    );
}

#[test]
fn varints_have_five_bytes_at_most() {
    let six = [0xff, 0xff, 0xff, 0xff, 0xff, 0x0f];
    assert_eq!(check(METADATA, 9, &six), Err(GuardError::Varint));
    // Overlong but short enough: Kafka reads it.
    assert_eq!(check(METADATA, 9, &[0x80, 0x00, 1, 0, 0, 0]), Ok(6));
}

#[test]
fn null_only_where_it_is_allowed() {
    let null = [0xff, 0xff, 0xff, 0xff];
    assert_eq!(check(METADATA, 0, &null), Err(GuardError::Null));
    assert_eq!(check(METADATA, 1, &null), Ok(4));
    // A null topic name: from v10 only.
    assert_eq!(
        check(METADATA, 1, &[0, 0, 0, 1, 0xff, 0xff]),
        Err(GuardError::Null)
    );
    let by_id = |name: u8| [&[2][..], &[7; 16], &[name, 0, 1, 0, 0, 0]].concat();
    assert_eq!(check(METADATA, 10, &by_id(0)), Ok(23));
    assert_eq!(
        check(METADATA, 9, &[2, 0, 0, 1, 0, 0, 0]),
        Err(GuardError::Null)
    );
    // Topics in Produce v3.
    let produce = [&[0xff, 0xff, 0, 1, 0, 0, 0, 1][..], &null].concat();
    assert_eq!(check(PRODUCE, 3, &produce), Err(GuardError::Null));
    assert_eq!(
        check(API_VERSIONS, 3, &[0, 2, b'x', 0]),
        Err(GuardError::Null)
    );
    assert_eq!(check(API_VERSIONS, 3, &[1, 1, 0]), Ok(3));
    assert_eq!(check(API_VERSIONS, 3, &[]), Err(GuardError::Truncated));
    assert_eq!(
        check(FIND_COORDINATOR, 0, &[0xff, 0xff]),
        Err(GuardError::Null)
    );
    assert_eq!(
        check(DELETE_TOPICS, 1, &[0, 0, 0, 1, 0xff, 0xff]),
        Err(GuardError::Null)
    );
    assert_eq!(check(CREATE_TOPICS, 2, &null), Err(GuardError::Null));
}

#[test]
fn lengths_below_minus_one_are_null_where_null_is_allowed() {
    let body = [0xff, 0xff, 0xff, 0xfe];
    let schema = schema::message(METADATA).unwrap();
    let accepted = check_body(schema, 1, &body).unwrap();
    let normal = accepted.normalize(Bytes::copy_from_slice(&body));
    assert_eq!(&normal[..], [0xff; 4]);
    assert_eq!(check(METADATA, 0, &body), Err(GuardError::Null));
    assert_eq!(
        check(METADATA, 1, &[0, 0, 0, 1, 0xff, 0xfe]),
        Err(GuardError::Null)
    );
    // A null transactional id and null records, both written as -2, in a shared frame.
    let produce: &[u8] = &[
        0xff, 0xfe, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 0, 0, 0, 5, 0x80, 0, 0, 0,
    ];
    let frame = Bytes::copy_from_slice(produce);
    let accepted = check_body(schema::message(PRODUCE).unwrap(), 3, &frame).unwrap();
    let normal = accepted.normalize(frame.clone());
    assert_eq!(&normal[..2], [0xff, 0xff]);
    assert_eq!(&normal[23..], [0xff; 4]);
    assert_eq!(&normal[2..23], &produce[2..23]);
    assert_eq!(&frame[..], produce);
}

#[test]
fn lengths_below_minus_one_are_limited() {
    let partitions = |count: u32| {
        let mut body = vec![0xff, 0xff, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, b't'];
        body.extend(count.to_be_bytes());
        body.extend([0, 0, 0, 5, 0x80, 0, 0, 0].repeat(count as usize));
        body
    };
    assert!(check(PRODUCE, 3, &partitions(64)).is_ok());
    assert_eq!(
        check(PRODUCE, 3, &partitions(65)),
        Err(GuardError::NegativeLengths)
    );
}

#[test]
fn strings_are_utf8_of_at_most_32767_bytes() {
    let name = |len: usize| {
        let length = u32::try_from(len).unwrap() + 1;
        let mut body = vec![2];
        for shift in [0, 7] {
            body.push((length >> shift).to_le_bytes()[0] | 0x80);
        }
        body.push((length >> 14).to_le_bytes()[0]);
        body.extend(vec![b'a'; len]);
        body.extend([0, 1, 0, 0, 0]);
        body
    };
    assert_eq!(check(METADATA, 9, &name(32_767)), Ok(32_776));
    assert_eq!(
        check(METADATA, 9, &name(32_768)),
        Err(GuardError::StringLength(32_768))
    );
    assert_eq!(
        check(METADATA, 1, &[0, 0, 0, 1, 0, 1, 0xff]),
        Err(GuardError::Text)
    );
}

#[test]
fn known_tags_fill_their_size() {
    let fetch = |version: i16, tags: &[u8]| {
        // Before the tags: replica_id (up to v14), four fixed fields, session, no topics, no
        // forgotten topics, rack "".
        let mut body = vec![0; if version <= 14 { 25 } else { 21 }];
        body.extend([1, 1, 1]);
        body.extend(tags);
        check(FETCH, version, &body)
    };
    assert_eq!(fetch(12, &[0]), Ok(29));
    // cluster_id "abc", and null.
    assert_eq!(fetch(12, &[1, 0, 4, 4, b'a', b'b', b'c']), Ok(35));
    assert_eq!(fetch(12, &[1, 0, 1, 0]), Ok(32));
    // Declared one byte, four are there; declared five, four are there.
    let false_size = |size| fetch(12, &[1, 0, size, 4, b'a', b'b', b'c', 0]);
    assert_eq!(false_size(1), Err(GuardError::TagSize(0)));
    assert_eq!(false_size(5), Err(GuardError::TagSize(0)));
    // replica_state: 4 + 8 + no tags, from v15.
    let state = [&[1, 1, 13][..], &[0; 13]].concat();
    assert_eq!(fetch(15, &state), Ok(24 + 16));
    assert_eq!(fetch(14, &state), Err(GuardError::TagVersion(1)));
}

#[test]
fn unknown_tags_are_skipped_within_bounds() {
    let metadata = |tags: &[u8]| check(METADATA, 9, &[&[0, 1, 0, 0][..], tags].concat());
    // A tag twice, tags out of order.
    assert_eq!(metadata(&[3, 9, 1, 7, 9, 0, 2, 1, 7]), Ok(13));
    assert_eq!(metadata(&[1, 9, 3, 7]), Err(GuardError::Truncated));
    // Tag count 2^31-1 and size 2^32-1 without content.
    assert_eq!(
        metadata(&[0xff, 0xff, 0xff, 0xff, 0x07]),
        Err(GuardError::Truncated)
    );
    assert_eq!(
        metadata(&[1, 9, 0xff, 0xff, 0xff, 0xff, 0x0f]),
        Err(GuardError::Truncated)
    );
    let many = |count: u8| [vec![count], [5, 0].repeat(usize::from(count))].concat();
    assert!(metadata(&many(64)).is_ok());
    assert_eq!(metadata(&many(65)), Err(GuardError::UnknownTags));
}

#[test]
fn bytes_left_over_are_ignored() {
    assert_eq!(check(METADATA, 0, &[0, 0, 0, 0, 1, 2, 3]), Ok(4));
    assert_eq!(check(METADATA, 9, &[0, 1, 0, 0, 0, 9, 9]), Ok(5));
}

#[test]
fn any_byte_is_a_boolean() {
    assert_eq!(check(METADATA, 4, &[0xff, 0xff, 0xff, 0xff, 2]), Ok(5));
}
