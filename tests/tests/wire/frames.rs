//! Malformed frames and headers.

use bytes::BufMut;

use crate::kit::Target;
use crate::malformed::{Row, Seen, framed, header, request, run};

const API_VERSIONS: i16 = 18;

/// ApiVersions v0.
fn plain(correlation_id: i32) -> Vec<u8> {
    framed(&header(API_VERSIONS, 0, correlation_id, false))
}

fn with_client_id(length: i16, bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_i16(API_VERSIONS);
    body.put_i16(0);
    body.put_i32(5);
    body.put_i16(length);
    body.put_slice(bytes);
    framed(&body)
}

/// The answer to a version of ApiVersions that nobody knows: v0, 35, only itself.
fn step_down(correlation_id: i32) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_i32(correlation_id);
    body.put_i16(35);
    body.put_i32(1);
    for number in [18, 0, 4] {
        body.put_i16(number);
    }
    body
}

/// ApiVersions v3 refused: 42 and no keys. Header v0, flexible body.
fn no_keys(correlation_id: i32) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_i32(correlation_id);
    body.put_i16(42);
    body.put_u8(1);
    body.put_i32(0);
    body.put_u8(0);
    body
}

fn sizes() -> Vec<Row> {
    let closed = |name, bytes: &[u8]| Row::new(name, bytes.to_vec(), Seen::Closed);
    let claim = |size: i32| size.to_be_bytes().to_vec();
    let mut rows = vec![
        closed("size -1", &claim(-1)),
        closed("size lowest", &claim(i32::MIN)),
        closed("size 0", &claim(0)),
        closed("size over the limit", &claim(104_857_601)),
        closed("size 2^31-1", &claim(i32::MAX)),
        closed("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        closed("TLS", &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]),
        Row::new(
            "the largest size and nothing more",
            claim(104_857_600),
            Seen::Waits,
        ),
    ];
    // With the header of a request that has no use for it.
    let mut large = claim(104_857_600);
    large.put_slice(&header(API_VERSIONS, 0, 1, false));
    rows.push(
        Row::new("the largest size for ApiVersions", large, Seen::Waits)
            .ours("frame-limit-by-api", Seen::Closed),
    );
    let mut produce = claim(104_857_600);
    produce.put_slice(&header(0, 9, 1, false));
    rows.push(Row::new(
        "the largest size for Produce",
        produce,
        Seen::Waits,
    ));
    let whole = plain(1);
    for (name, at) in [
        ("half a frame, then the end", 10),
        ("half a size, then the end", 2),
    ] {
        let mut row = closed(name, &whole[..at]);
        row.fin = true;
        rows.push(row);
    }
    for len in [1, 2, 4] {
        for key in [0, 3, 18, -1] {
            let mut body = Vec::new();
            body.put_i16(key);
            body.put_i16(0);
            rows.push(closed(
                "a body of four bytes or less",
                &framed(&body[..len]),
            ));
        }
    }
    rows.push(closed("no client id", &framed(&plain(1)[4..12])));
    rows
}

fn headers() -> Vec<Row> {
    let answered = |name, bytes, id| Row::new(name, bytes, Seen::Answered(vec![id]));
    let closed = |name, bytes| Row::new(name, bytes, Seen::Closed);
    let mut rows = vec![
        closed("client id beyond the frame", with_client_id(100, b"abc")),
        closed("client id of 32767", with_client_id(i16::MAX, b"abc")),
        answered("client id null", with_client_id(-1, b""), 5),
        answered("client id of length -2", with_client_id(-2, b""), 5),
        answered("client id not UTF-8", with_client_id(2, &[0xff, 0xfe]), 5),
        answered("correlation id negative", plain(-9), -9),
        answered("correlation id lowest", plain(i32::MIN), i32::MIN),
    ];
    for key in [9999, -1, 4, 52, 56, i16::MAX, i16::MIN] {
        rows.push(closed(
            "a key that is not offered",
            request(key, 0, false, &[0; 16]),
        ));
    }
    for (key, version) in [(0, 2), (0, 14), (1, 3), (1, 99), (3, 14), (3, -1), (22, 6)] {
        rows.push(closed(
            "a version that is not served",
            request(key, version, false, &[0; 16]),
        ));
    }
    for version in [99, 5, -1] {
        let bytes = request(API_VERSIONS, version, true, &[]);
        let expected = Seen::Bytes(step_down(77));
        rows.push(Row::new(
            "ApiVersions of an unknown version",
            bytes,
            expected,
        ));
    }
    rows.extend([
        closed(
            "ApiVersions v3, no body",
            request(API_VERSIONS, 3, true, &[]),
        ),
        closed(
            "ApiVersions v3, no tags in the header",
            framed(&header(API_VERSIONS, 3, 77, false)),
        ),
        closed(
            "ApiVersions v3, name null",
            request(API_VERSIONS, 3, true, &[0, 2, b'1', 0]),
        ),
        Row::new(
            "ApiVersions v3, name empty",
            request(API_VERSIONS, 3, true, &[1, 2, b'1', 0]),
            Seen::Bytes(no_keys(77)),
        ),
        Row::new(
            "two frames in one write",
            [plain(1), plain(2)].concat(),
            Seen::Answered(vec![1, 2]),
        ),
    ]);
    let mut bytewise = answered("byte by byte", [plain(3), plain(4)].concat(), 3);
    bytewise.kafka = Seen::Answered(vec![3, 4]);
    bytewise.bytewise = true;
    let mut half_closed = answered("an answer after the client's end", plain(6), 6);
    half_closed.fin = true;
    rows.extend([
        bytewise,
        half_closed.ours("half-closed", Seen::Answered(vec![6])),
    ]);
    let mut behind = plain(7);
    behind.extend(request(9999, 0, false, &[]));
    rows.push(Row::new(
        "a bad frame behind a good one",
        behind,
        Seen::AnsweredThenClosed(7),
    ));
    rows
}

#[tokio::test]
async fn sizes_and_half_frames() {
    run(&Target::alone(), &sizes()).await;
}

#[tokio::test]
async fn request_headers() {
    run(&Target::alone(), &headers()).await;
}
