//! Request headers: the eight bytes that every request starts with, and the whole header.

use bytes::{Buf, Bytes};
use kafka_protocol::protocol::StrBytes;

use super::guard::{self, GuardError};
use super::schema;
use crate::api::CloseReason;

/// Bytes that [`peek`] needs.
pub const PEEK_LEN: usize = 8;
/// Largest Produce frame: Kafka's default of `socket.request.max.bytes`.
pub const PRODUCE_FRAME_MAX: usize = 104_857_600;
/// Largest frame of any other request.
pub const FRAME_MAX: usize = 8 * 1024 * 1024;

const PRODUCE: i16 = 0;

/// The fixed part of every request header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peek {
    /// Api key.
    pub key: i16,
    /// Version, as asked for.
    pub version: i16,
    /// Echoed in the response.
    pub correlation_id: i32,
}

/// Reads key, version and correlation id; `None` if there are fewer than [`PEEK_LEN`] bytes.
pub fn peek(frame: &[u8]) -> Option<Peek> {
    let [k0, k1, v0, v1, c0, c1, c2, c3] = *frame.first_chunk::<PEEK_LEN>()?;
    Some(Peek {
        key: i16::from_be_bytes([k0, k1]),
        version: i16::from_be_bytes([v0, v1]),
        correlation_id: i32::from_be_bytes([c0, c1, c2, c3]),
    })
}

/// Bytes that a frame of `key` may have, its 4-byte length not counted. Known before the body is
/// buffered.
pub fn frame_limit(key: i16) -> usize {
    if key == PRODUCE {
        PRODUCE_FRAME_MAX
    } else {
        FRAME_MAX
    }
}

/// A decoded request header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Api key; it is offered.
    pub key: i16,
    /// Version, as asked for; not checked.
    pub version: i16,
    /// Echoed in the response.
    pub correlation_id: i32,
    /// Client id. Bytes that are not UTF-8 are replaced, as Kafka does.
    pub client_id: Option<StrBytes>,
}

/// Splits a frame (without its length) into header and body.
///
/// # Errors
/// [`CloseReason::UnsupportedKey`] for a key that is not offered, [`CloseReason::Malformed`] for
/// a header that does not fit. The version is left to the version gate, because ApiVersions is
/// answered in any version.
pub fn decode(frame: &Bytes) -> Result<(Header, Bytes), CloseReason> {
    let fixed = peek(frame).ok_or_else(|| malformed(GuardError::Truncated))?;
    let schema = schema::message(fixed.key).ok_or(CloseReason::UnsupportedKey(fixed.key))?;
    let mut rest = frame.slice(PEEK_LEN..);
    let client_id = client_id(&mut rest).map_err(malformed)?;
    if fixed.version >= schema.flexible_from {
        let tags = guard::check_unknown_tags(&rest).map_err(malformed)?;
        rest.advance(tags);
    }
    let header = Header {
        key: fixed.key,
        version: fixed.version,
        correlation_id: fixed.correlation_id,
        client_id,
    };
    Ok((header, rest))
}

/// The client id is never compact; any negative length is null.
fn client_id(rest: &mut Bytes) -> Result<Option<StrBytes>, GuardError> {
    let length = rest.try_get_i16().map_err(|_| GuardError::Truncated)?;
    let Ok(length) = usize::try_from(length) else {
        return Ok(None);
    };
    if rest.len() < length {
        return Err(GuardError::Truncated);
    }
    let text = rest.split_to(length);
    Ok(Some(StrBytes::from_utf8(text.clone()).unwrap_or_else(
        |_| StrBytes::from_string(String::from_utf8_lossy(&text).into_owned()),
    )))
}

pub(super) fn malformed(why: GuardError) -> CloseReason {
    CloseReason::Malformed(why.to_string())
}

#[cfg(test)]
mod tests;
