//! Requests from bytes and responses to bytes, for every row of the handler list.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages as kp;
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion};
use smallvec::SmallVec;

use super::fetch::FetchReply;
use super::header::malformed;
use super::segment::Segment;
use super::wide::Wide;
use super::{fetch, guard, schema};
use crate::api::{ApiRequest, ApiResponse, CloseReason};
use crate::api_list;

/// A response that cannot be encoded: a defect of ours, such as a field that the version does
/// not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("response of api key {key} version {version} cannot be encoded: {why}")]
pub struct EncodeError {
    /// Api key.
    pub key: i16,
    /// Version.
    pub version: i16,
    /// What the encoder said.
    pub why: String,
}

/// A response as it goes to the socket: the 4-byte length, the header, the body.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EncodedReply {
    /// The pieces in order.
    pub segments: SmallVec<[Segment; 4]>,
}

impl EncodedReply {
    /// Bytes of all segments.
    pub fn len(&self) -> usize {
        self.segments.iter().map(Segment::len).sum()
    }

    /// Whether there is nothing to send; never after [`encode`].
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What can be the body of a response.
trait Reply {
    fn encode(&self, version: i16, correlation_id: i32) -> anyhow::Result<EncodedReply>;

    /// Bytes of the body.
    fn body_len(&self, version: i16) -> anyhow::Result<usize>;
}

impl<T: Encodable + HeaderVersion> Reply for T {
    fn encode(&self, version: i16, correlation_id: i32) -> anyhow::Result<EncodedReply> {
        let flexible_header = T::header_version(version) >= 1;
        let len = 4 + usize::from(flexible_header) + self.compute_size(version)?;
        let mut buffer = BytesMut::with_capacity(4 + len);
        buffer.put_u32(u32::try_from(len)?);
        buffer.put_i32(correlation_id);
        if flexible_header {
            buffer.put_u8(0);
        }
        Encodable::encode(self, &mut buffer, version)?;
        let mut segments = SmallVec::new();
        segments.push(buffer.freeze().into());
        Ok(EncodedReply { segments })
    }

    fn body_len(&self, version: i16) -> anyhow::Result<usize> {
        self.compute_size(version)
    }
}

impl<T: Reply> Reply for Wide<T> {
    fn encode(&self, version: i16, correlation_id: i32) -> anyhow::Result<EncodedReply> {
        self.body.encode(version, correlation_id)
    }

    fn body_len(&self, version: i16) -> anyhow::Result<usize> {
        self.body.body_len(version)
    }
}

impl Reply for FetchReply {
    fn encode(&self, version: i16, correlation_id: i32) -> anyhow::Result<EncodedReply> {
        let segments = fetch::encode(self, version, correlation_id)?;
        Ok(EncodedReply { segments })
    }

    fn body_len(&self, version: i16) -> anyhow::Result<usize> {
        let segments = fetch::encode(self, version, 0)?;
        Ok(segments.iter().map(Segment::len).sum())
    }
}

macro_rules! define_codec {
    ($($name:ident, $key:literal, $versions:expr, $min:literal, $request:ty, $response:ty,
       $notes:literal;)*) => {
        /// Decodes the body of a request; its strings and records point into `body`.
        ///
        /// The frame guard comes first: nothing that it refuses reaches the decoder. Bytes left
        /// over after the body are ignored, as Kafka does.
        ///
        /// # Errors
        /// [`CloseReason::UnsupportedKey`] and [`CloseReason::UnsupportedVersion`] outside the
        /// handler list, [`CloseReason::Malformed`] for bytes that are not such a request.
        pub fn decode(key: i16, version: i16, body: Bytes) -> Result<ApiRequest, CloseReason> {
            let offered = match key {
                $($key => ($versions).contains(&version),)*
                _ => return Err(CloseReason::UnsupportedKey(key)),
            };
            if !offered {
                return Err(CloseReason::UnsupportedVersion { key, version });
            }
            let schema = schema::message(key).ok_or(CloseReason::UnsupportedKey(key))?;
            let accepted = guard::check_body(schema, version, &body).map_err(malformed)?;
            let mut body = accepted.normalize(body);
            match key {
                $($key => <$request as Decodable>::decode(&mut body, version)
                    .map(|request| ApiRequest::$name(Box::new(request)))
                    .map_err(|why| CloseReason::Malformed(format!("decoder: {why}"))),)*
                _ => Err(CloseReason::UnsupportedKey(key)),
            }
        }

        /// Bytes of the body of a response; 0 if it does not fit `version`, which [`encode`] says.
        pub fn body_len(response: &ApiResponse, version: i16) -> usize {
            let len = match response {
                $(ApiResponse::$name(body) => <$response as Reply>::body_len(body, version),)*
            };
            len.unwrap_or(0)
        }

        /// Encodes a response with its length and header in front. ApiVersions always has header
        /// v0, whatever its version.
        ///
        /// # Errors
        /// [`EncodeError`] if the response does not fit `version`.
        pub fn encode(
            response: &ApiResponse,
            version: i16,
            correlation_id: i32,
        ) -> Result<EncodedReply, EncodeError> {
            let encoded = match response {
                $(ApiResponse::$name(body) => {
                    <$response as Reply>::encode(body, version, correlation_id)
                })*
            };
            encoded.map_err(|why| EncodeError {
                key: response.key(),
                version,
                why: why.to_string(),
            })
        }
    };
}

api_list!(define_codec);

#[cfg(test)]
mod tests;
