//! Malformed bodies.

use bytes::BufMut;

use crate::kit::Target;
use crate::malformed::{Row, Seen, request, run};

/// Appends a string with its length in two bytes.
fn put_string(bytes: &mut Vec<u8>, text: &str) {
    bytes.put_i16(i16::try_from(text.len()).unwrap());
    bytes.put_slice(text.as_bytes());
}

/// Metadata v1 with an array of this claimed length.
fn metadata_v1(length: i32, rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_i32(length);
    body.put_slice(rest);
    request(3, 1, false, &body)
}

/// Metadata v9: a compact array of no topics, three flags, and tags given by the row.
fn metadata_v9(topics: &[u8], flags: [u8; 3], tags: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_slice(topics);
    body.put_slice(&flags);
    body.put_slice(tags);
    request(3, 9, true, &body)
}

const NO_TOPICS: &[u8] = &[1];
const NO_TAGS: &[u8] = &[0];

/// Metadata v9 whose header has these tags.
fn header_tags(tags: &[u8]) -> Vec<u8> {
    let mut body = tags.to_vec();
    body.put_slice(NO_TOPICS);
    body.put_slice(&[0, 0, 0]);
    body.put_slice(NO_TAGS);
    request(3, 9, false, &body)
}

/// Produce v3 down to its array of topics.
fn produce_v3(topics: i32) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_i16(-1);
    body.put_i16(-1);
    body.put_i32(1000);
    body.put_i32(topics);
    request(0, 3, false, &body)
}

/// Heartbeat v4 of nobody, with the group given by the row.
fn heartbeat_v4(group: &[u8]) -> Vec<u8> {
    let mut body = group.to_vec();
    body.put_i32(0);
    // The member is empty, the instance null.
    body.put_slice(&[1, 0]);
    body.put_slice(NO_TAGS);
    request(12, 4, true, &body)
}

fn lengths() -> Vec<Row> {
    let closed = |name, bytes| Row::new(name, bytes, Seen::Closed);
    let answered = |name, bytes| Row::new(name, bytes, Seen::Answered(vec![77]));
    let mut short_name = Vec::new();
    put_string(&mut short_name, "abc");
    let mut rows = vec![
        closed("empty", request(3, 1, false, &[])),
        closed("an array of 1 without it", metadata_v1(1, &[])),
        closed("a string cut short", metadata_v1(1, &[0, 9, b'a'])),
        closed("an array of 100", metadata_v1(100, &short_name)),
        closed("an array of 2^31-1", metadata_v1(i32::MAX, &short_name)),
        closed("a topic name null", metadata_v1(1, &[0xff, 0xff])),
        closed("a group null, Heartbeat v4", heartbeat_v4(&[0])),
        answered("a group empty, Heartbeat v4", heartbeat_v4(&[1])),
        closed("Produce, topics null", produce_v3(-1)),
        closed("Produce, topics 2^31-1", produce_v3(i32::MAX)),
        answered(
            "a compact array of 2^32-1 that may be null",
            metadata_v9(&[0xff, 0xff, 0xff, 0xff, 0x0f], [0; 3], NO_TAGS),
        )
        .ours("length-beyond-31-bits", Seen::Closed),
        closed(
            "a compact array of 2^32-1",
            request(10, 4, true, &[0, 0xff, 0xff, 0xff, 0xff, 0x0f, 0]),
        ),
        closed(
            "a varint of six bytes",
            metadata_v9(&[0x80, 0x80, 0x80, 0x80, 0x80, 1], [0; 3], NO_TAGS),
        ),
        closed(
            "a compact array of 100",
            metadata_v9(&[101, 4, b'a'], [0; 3], NO_TAGS),
        ),
        answered("array length -1", metadata_v1(-1, &[])),
        answered("array length -2", metadata_v1(-2, &[])),
        answered("bytes left over, v1", metadata_v1(0, &[1, 2, 3])),
        answered(
            "bytes left over, v9",
            metadata_v9(NO_TOPICS, [0; 3], &[0, 9]),
        ),
        answered("bool 2", metadata_v9(NO_TOPICS, [2, 0xff, 0], NO_TAGS)),
    ];
    let mut find = Vec::new();
    find.put_i16(2);
    find.put_slice(&[0xff, 0xfe]);
    find.put_i8(0);
    let not_utf8 = answered("a group that is not UTF-8", request(10, 1, false, &find));
    rows.push(not_utf8.ours("text-not-utf8", Seen::Closed));
    rows
}

fn tags() -> Vec<Row> {
    let closed = |name, bytes| Row::new(name, bytes, Seen::Closed);
    let answered = |name, bytes| Row::new(name, bytes, Seen::Answered(vec![77]));
    let body = |tags: &[u8]| metadata_v9(NO_TOPICS, [0; 3], tags);
    vec![
        answered("an unknown tag", body(&[1, 99, 3, 1, 2, 3])),
        answered("a tag twice", body(&[2, 99, 1, 1, 99, 1, 2])),
        answered("tags out of order", body(&[2, 99, 1, 1, 5, 1, 2])),
        answered("an unknown tag in the header", header_tags(&[1, 99, 1, 7])),
        answered("a tag twice in the header", header_tags(&[2, 9, 0, 9, 0])),
        closed("a tag beyond the body", body(&[1, 99, 100, 1])),
        closed(
            "a tag of 2^32-1",
            body(&[1, 99, 0xff, 0xff, 0xff, 0xff, 0x0f]),
        ),
        closed("2^31-1 tags and none", body(&[0xff, 0xff, 0xff, 0xff, 7])),
        closed("a header tag beyond it", header_tags(&[1, 99, 100])),
        closed(
            "2^31-1 header tags",
            header_tags(&[0xff, 0xff, 0xff, 0xff, 7]),
        ),
    ]
}

/// Many small elements that a decoder would make large.
fn amplifiers() -> Vec<Row> {
    let empty_names = vec![0; 2 * 200_000];
    let few = 10_000;
    vec![
        Row::new(
            "10,000 empty topic names",
            metadata_v1(few, &vec![0; 2 * 10_000]),
            Seen::Answered(vec![77]),
        ),
        Row::new(
            "200,000 empty topic names",
            metadata_v1(200_000, &empty_names),
            Seen::Answered(vec![77]),
        )
        .ours("elements-of-a-frame", Seen::Closed),
        Row::new(
            "a compact array of 200,000 and half of them",
            metadata_v9(
                &[&[0xc1, 0x9a, 0x0c][..], &[1, 0].repeat(100_000)].concat(),
                [0; 3],
                &[],
            ),
            Seen::Closed,
        ),
    ]
}

#[tokio::test]
async fn lengths_of_strings_and_arrays() {
    run(&Target::alone(), &lengths()).await;
}

#[tokio::test]
async fn tagged_fields() {
    run(&Target::alone(), &tags()).await;
}

#[tokio::test]
async fn small_frames_stay_small() {
    run(&Target::alone(), &amplifiers()).await;
}
