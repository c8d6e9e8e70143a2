//! The frame guard: one walk over a request before the decoder sees it.
//!
//! The decoder reserves memory for any count that the bytes claim and aborts the process when
//! that fails. What the guard lets pass decodes without error, and no single allocation of the
//! decoder is larger than 128 times the frame. The walk allocates nothing.
//!
//! Kafka decides what is refused: its own decoder closes the connection in each of these cases,
//! except that it replaces bad UTF-8 in strings where the guard refuses it, and does not check
//! that a known tagged field fills its declared size.

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::schema::{Field, Kind, Message, Struct};

/// Unknown tagged fields that one frame may carry; each becomes a map entry.
const UNKNOWN_TAGS_MAX: u32 = 64;
/// Lengths below -1 in one frame that are read as null.
const NEGATIVE_LENGTHS_MAX: usize = 64;
/// Longest string, as Kafka's decoder has it for both forms.
const STRING_MAX: usize = i16::MAX as usize;

/// Why a frame is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// Fewer bytes than the fields need, or a length beyond the end.
    #[error("fields reach beyond the end of the frame")]
    Truncated,
    /// More elements claimed than the bytes left can hold.
    #[error("{0} array elements claimed, more than the frame can hold")]
    Count(u32),
    /// More elements in all than a request may have.
    #[error("more than {0} array elements")]
    Elements(usize),
    /// A field is null that must not be.
    #[error("null where a value is required")]
    Null,
    /// A string is longer than 32,767 bytes.
    #[error("string of {0} bytes")]
    StringLength(u32),
    /// A string is not UTF-8.
    #[error("string is not UTF-8")]
    Text,
    /// The byte in front of a struct that may be null is neither negative nor 1.
    #[error("{0} in front of a struct")]
    StructMarker(i8),
    /// A varint has more than five bytes.
    #[error("varint of more than five bytes")]
    Varint,
    /// A known tagged field does not fill its declared size, or exceeds it.
    #[error("tagged field {0} does not match its size")]
    TagSize(u32),
    /// A known tagged field in a version that does not have it.
    #[error("tagged field {0} is not part of this version")]
    TagVersion(u32),
    /// Too many unknown tagged fields.
    #[error("more than {UNKNOWN_TAGS_MAX} unknown tagged fields")]
    UnknownTags,
    /// Too many lengths below -1.
    #[error("more than {NEGATIVE_LENGTHS_MAX} lengths below -1")]
    NegativeLengths,
}

/// What the guard found in a frame that it lets pass.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Accepted {
    /// Bytes that the fields take; what follows is ignored.
    pub(super) consumed: usize,
    negative_lengths: SmallVec<[NegativeLength; 2]>,
}

/// Where a length below -1 stands. Kafka reads it as null, the decoder refuses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NegativeLength {
    at: usize,
    width: usize,
}

impl Accepted {
    /// `body` with every length below -1 written as -1. Copies only if there is one and the
    /// frame is shared.
    pub(super) fn normalize(&self, body: Bytes) -> Bytes {
        if self.negative_lengths.is_empty() {
            return body;
        }
        let mut body = body
            .try_into_mut()
            .unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        for length in &self.negative_lengths {
            if let Some(bytes) = body.get_mut(length.at..length.at + length.width) {
                bytes.fill(0xff);
            }
        }
        body.freeze()
    }
}

/// Walks the body of a request of `version`.
pub(super) fn check_body(
    message: &Message,
    version: i16,
    body: &[u8],
) -> Result<Accepted, GuardError> {
    let mut walk = Walk {
        bytes: body,
        at: 0,
        version,
        flexible: version >= message.flexible_from,
        element_limit: message.element_limit,
        elements: 0,
        unknown_tags: 0,
        negative_lengths: SmallVec::new(),
    };
    walk.fields(&message.body)?;
    Ok(Accepted {
        consumed: walk.at,
        negative_lengths: walk.negative_lengths,
    })
}

/// Walks tagged fields of which none is known, as in a request header. Returns their length.
pub(super) fn check_unknown_tags(bytes: &[u8]) -> Result<usize, GuardError> {
    let mut walk = Walk {
        bytes,
        at: 0,
        version: 0,
        flexible: true,
        element_limit: 0,
        elements: 0,
        unknown_tags: 0,
        negative_lengths: SmallVec::new(),
    };
    walk.tags(&[])?;
    Ok(walk.at)
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    version: i16,
    flexible: bool,
    element_limit: usize,
    elements: usize,
    unknown_tags: u32,
    negative_lengths: SmallVec<[NegativeLength; 2]>,
}

impl<'a> Walk<'a> {
    fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], GuardError> {
        let rest = self.bytes.get(self.at..).ok_or(GuardError::Truncated)?;
        let taken = rest.get(..len).ok_or(GuardError::Truncated)?;
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GuardError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    /// An unsigned varint as Kafka reads it: at most five bytes, bits above the 32nd dropped.
    fn varint(&mut self) -> Result<u32, GuardError> {
        let mut value = 0_u32;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.array::<1>()?;
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(GuardError::Varint)
    }

    fn fields(&mut self, of: &Struct) -> Result<(), GuardError> {
        for field in of.fields {
            if field.exists_in(self.version) {
                self.field(field)?;
            }
        }
        if self.flexible {
            self.tags(of.tags)?;
        }
        Ok(())
    }

    fn field(&mut self, field: &Field) -> Result<(), GuardError> {
        let nullable = field.nullable_in(self.version);
        self.value(field.kind, nullable)
    }

    fn value(&mut self, kind: Kind, nullable: bool) -> Result<(), GuardError> {
        match kind {
            Kind::Fixed(len) => self.take(len).map(drop),
            Kind::String => self.string(nullable),
            Kind::Bytes => match self.wide_length(nullable)? {
                Some(len) => self.take(to_usize(len)).map(drop),
                None => Ok(()),
            },
            Kind::Array(element) => match self.wide_length(nullable)? {
                Some(count) => self.elements(*element, count),
                None => Ok(()),
            },
            Kind::Struct(of) => self.fields(of),
            Kind::MaybeStruct(of) => match i8::from_be_bytes(self.array()?) {
                ..=-1 => Ok(()),
                1 => self.fields(of),
                // Kafka would read a struct here, the decoder none: they must not disagree.
                marker => Err(GuardError::StructMarker(marker)),
            },
        }
    }

    fn string(&mut self, nullable: bool) -> Result<(), GuardError> {
        let length = if self.flexible {
            self.varint()?.checked_sub(1)
        } else {
            let at = self.at;
            let length = i16::from_be_bytes(self.array()?);
            if length < -1 {
                self.negative_length(at, 2, nullable)?;
            }
            u32::try_from(length).ok()
        };
        let Some(length) = length else {
            return null(nullable);
        };
        if to_usize(length) > STRING_MAX {
            return Err(GuardError::StringLength(length));
        }
        let text = self.take(to_usize(length))?;
        std::str::from_utf8(text)
            .map(drop)
            .map_err(|_| GuardError::Text)
    }

    /// The length of bytes or an array: 32 bits or compact; `None` is null.
    fn wide_length(&mut self, nullable: bool) -> Result<Option<u32>, GuardError> {
        let length = if self.flexible {
            self.varint()?.checked_sub(1)
        } else {
            let at = self.at;
            let length = i32::from_be_bytes(self.array()?);
            if length < -1 {
                self.negative_length(at, 4, nullable)?;
            }
            u32::try_from(length).ok()
        };
        if length.is_none() {
            null(nullable)?;
        }
        Ok(length)
    }

    fn negative_length(
        &mut self,
        at: usize,
        width: usize,
        nullable: bool,
    ) -> Result<(), GuardError> {
        null(nullable)?;
        if self.negative_lengths.len() == NEGATIVE_LENGTHS_MAX {
            return Err(GuardError::NegativeLengths);
        }
        self.negative_lengths.push(NegativeLength { at, width });
        Ok(())
    }

    fn elements(&mut self, element: Kind, count: u32) -> Result<(), GuardError> {
        let smallest = element.min_size(self.version, self.flexible);
        let fits = self.remaining() / smallest.max(1);
        if to_usize(count) > fits {
            return Err(GuardError::Count(count));
        }
        self.elements += to_usize(count);
        if self.elements > self.element_limit {
            return Err(GuardError::Elements(self.element_limit));
        }
        if let Kind::Fixed(len) = element {
            return self.take(len * to_usize(count)).map(drop);
        }
        for _ in 0..count {
            self.value(element, false)?;
        }
        Ok(())
    }

    fn tags(&mut self, known: &[(u32, Field)]) -> Result<(), GuardError> {
        let count = self.varint()?;
        for _ in 0..count {
            let tag = self.varint()?;
            let size = to_usize(self.varint()?);
            let Some((_, field)) = known.iter().find(|(number, _)| *number == tag) else {
                self.take(size)?;
                self.unknown_tags += 1;
                if self.unknown_tags > UNKNOWN_TAGS_MAX {
                    return Err(GuardError::UnknownTags);
                }
                continue;
            };
            if !field.exists_in(self.version) {
                return Err(GuardError::TagVersion(tag));
            }
            let start = self.at;
            self.field(field)?;
            if self.at - start != size {
                return Err(GuardError::TagSize(tag));
            }
        }
        Ok(())
    }
}

fn null(allowed: bool) -> Result<(), GuardError> {
    if allowed {
        Ok(())
    } else {
        Err(GuardError::Null)
    }
}

/// Lossless: every target that is built for has pointers of at least 32 bits.
fn to_usize(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
