//! The records field of a Produce request: a sequence of batches in Kafka's format, of which a
//! client must send exactly one. Looks at lengths and magic only; the CRC is for
//! [`crate::batch::Batch::parse`].

use crate::batch::LOG_OVERHEAD;

/// Smallest value of a batch's length field: what the oldest format's header takes.
const LENGTH_MIN: i32 = 14;
/// Bytes up to and with the magic, which stands at the same place in every format.
const THROUGH_MAGIC: usize = 17;
const MAGIC_AT: usize = 16;
const CODEC_AT: usize = 22;
const CODEC_MASK: u8 = 0x07;
const ZSTD: u8 = 4;
/// Bytes up to and with the producer id. Kafka fails on every partition of a request when a batch
/// is shorter than that; here it is an invalid record of its own partition.
const THROUGH_PRODUCER_ID: usize = 51;

/// Why records are not one whole batch that the record checks can look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BlobError {
    /// There are no bytes at all.
    #[error("no records")]
    Empty,
    /// There is not one whole batch.
    #[error("no complete batch")]
    Truncated,
    /// A length field that no batch can have.
    #[error("batch length {0}")]
    BadLength(i32),
    /// A magic that no format has.
    #[error("magic {0} is not known")]
    UnknownMagic(i8),
    /// A message set of magic 0 or 1.
    #[error("magic {0} is no longer accepted")]
    OldMagic(i8),
    /// A whole batch by its length, but without room for the fields of its header.
    #[error("batch of {0} bytes has no complete header")]
    NoHeader(usize),
    /// zstd from a client whose version of Produce does not have it.
    #[error("zstd is not allowed in this version")]
    Zstd,
    /// More than one batch.
    #[error("more than one batch")]
    SeveralBatches,
}

/// The batches of `blob`, in order. Ends before a fragment at the end that is no whole batch, as
/// Kafka drops it, and after the first error. Never panics, allocates nothing.
#[derive(Debug, Clone)]
pub struct Batches<'a> {
    rest: &'a [u8],
}

impl<'a> Batches<'a> {
    /// Over the batches of `blob`.
    pub fn new(blob: &'a [u8]) -> Self {
        Self { rest: blob }
    }

    /// Bytes of the next batch; `None` if it is a fragment.
    fn next_len(&self) -> Result<Option<usize>, BlobError> {
        let Some(overhead) = self.rest.first_chunk::<LOG_OVERHEAD>() else {
            return Ok(None);
        };
        let [.., a, b, c, d] = *overhead;
        let length = i32::from_be_bytes([a, b, c, d]);
        if length < LENGTH_MIN {
            return Err(BlobError::BadLength(length));
        }
        let Some(magic) = self.rest.first_chunk::<THROUGH_MAGIC>().map(magic) else {
            return Ok(None);
        };
        if !(0..=2).contains(&magic) {
            return Err(BlobError::UnknownMagic(magic));
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let total = LOG_OVERHEAD.saturating_add(length);
        Ok((total <= self.rest.len()).then_some(total))
    }
}

impl<'a> Iterator for Batches<'a> {
    type Item = Result<&'a [u8], BlobError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = match self.next_len() {
            Ok(Some(len)) => self.rest.split_at_checked(len),
            Ok(None) => None,
            Err(error) => {
                self.rest = &[];
                return Some(Err(error));
            }
        };
        let (batch, rest) = batch.unwrap_or_default();
        self.rest = rest;
        (!batch.is_empty()).then_some(Ok(batch))
    }
}

/// The one batch of `blob`: magic 2, whole by its length field, with room for the producer's
/// fields. A fragment behind it is dropped. `zstd_allowed` is false for Produce below v7.
///
/// # Errors
/// The first of Kafka's checks that fails, in the order of `ProduceRequest.validateRecords`.
pub fn single_batch(blob: &[u8], zstd_allowed: bool) -> Result<&[u8], BlobError> {
    if blob.is_empty() {
        return Err(BlobError::Empty);
    }
    let mut batches = Batches::new(blob);
    let batch = batches.next().ok_or(BlobError::Truncated)??;
    match batch.first_chunk::<THROUGH_MAGIC>().map(magic) {
        Some(2) => {}
        Some(old) => return Err(BlobError::OldMagic(old)),
        None => return Err(BlobError::Truncated),
    }
    if batch.len() < THROUGH_PRODUCER_ID {
        return Err(BlobError::NoHeader(batch.len()));
    }
    let codec = batch.get(CODEC_AT).map(|byte| byte & CODEC_MASK);
    if codec == Some(ZSTD) && !zstd_allowed {
        return Err(BlobError::Zstd);
    }
    match batches.next() {
        None => Ok(batch),
        Some(Ok(_)) => Err(BlobError::SeveralBatches),
        Some(Err(error)) => Err(error),
    }
}

fn magic(head: &[u8; THROUGH_MAGIC]) -> i8 {
    i8::from_be_bytes([head[MAGIC_AT]])
}

#[cfg(test)]
mod tests;
