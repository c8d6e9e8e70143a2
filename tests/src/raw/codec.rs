//! Requests to frames and frames to responses, with the header version that each API asks for.

use anyhow::{Context, Result, bail};
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};

/// The client id in the header of every request of this kit.
pub const CLIENT_ID: &str = "fencepost-tests";

/// The frame of a request, its four-byte length included. Fails where the version can't express
/// a field that is set.
pub fn encode_request<R: Request>(request: &R, version: i16, correlation_id: i32) -> Result<Bytes> {
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation_id)
        .with_client_id(Some(StrBytes::from_static_str(CLIENT_ID)));
    let mut frame = BytesMut::new();
    frame.put_i32(0);
    header.encode(&mut frame, R::header_version(version))?;
    request.encode(&mut frame, version)?;
    let len = i32::try_from(frame.len() - 4).context("request too long for a frame")?;
    frame[..4].copy_from_slice(&len.to_be_bytes());
    Ok(frame.freeze())
}

/// The correlation id and body of a response frame (without its length). Bytes left over after
/// the body are an error: they mean that the peer encoded another version.
pub fn decode_response<R: Request>(mut frame: Bytes, version: i16) -> Result<(i32, R::Response)> {
    let header = ResponseHeader::decode(&mut frame, R::Response::header_version(version))
        .with_context(|| format!("header of a response to API {}", R::KEY))?;
    let response = R::Response::decode(&mut frame, version)
        .with_context(|| format!("response to API {} version {version}", R::KEY))?;
    if !frame.is_empty() {
        bail!(
            "{} bytes after a response to API {} version {version}",
            frame.len(),
            R::KEY
        );
    }
    Ok((header.correlation_id, response))
}
