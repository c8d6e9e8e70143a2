//! Frames as bytes: ApiVersions, and what closes a connection.

use anyhow::Result;
use bytes::BufMut as _;
use kafka_protocol::messages::ApiVersionsRequest;

use super::super::play::Play;

/// A frame of a request without a body; `behind` is the end of its header.
fn frame(key: i16, version: i16, behind: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_i16(key);
    body.put_i16(version);
    body.put_i32(5);
    body.put_i16(2);
    body.put_slice(b"me");
    body.put_slice(behind);
    let mut bytes = Vec::new();
    bytes.put_i32(i32::try_from(body.len()).unwrap_or(0));
    bytes.put_slice(&body);
    bytes
}

/// The correlation id, 35, and of all APIs only this one, versions 0 to 4.
const STEP_DOWN: &str = "00000005002300000001001200000004";

pub(super) async fn a01(play: &mut Play) -> Result<()> {
    for version in [99, 5, -1] {
        let what = format!("ApiVersions v{version}");
        play.bytes(&what, &frame(18, version, &[0]), STEP_DOWN)
            .await?;
    }
    // What is served is another list, and is compared with Kafka's elsewhere.
    let response = play.ask(&ApiVersionsRequest::default(), 0).await?;
    play.expect("ApiVersions v0", response.error_code, 0);
    Ok(())
}

pub(super) async fn a03(play: &mut Play) -> Result<()> {
    for (key, version) in [(0, 2), (0, 14), (9999, 0), (4, 0), (-1, 0), (1, 3), (22, 6)] {
        let what = format!("key {key} v{version}");
        play.bytes(&what, &frame(key, version, &[]), "closed")
            .await?;
    }
    for (what, bytes) in [
        ("size 0", 0_i32.to_be_bytes()),
        ("size -1", (-1_i32).to_be_bytes()),
        ("a size over the limit", 104_857_601_i32.to_be_bytes()),
        ("HTTP", *b"GET "),
    ] {
        play.bytes(what, &bytes, "closed").await?;
    }
    Ok(())
}
