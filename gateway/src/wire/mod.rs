//! The wire: everything that touches bytes of the protocol.
//!
//! A frame is judged in three steps, none of which trusts the one before: [`header::peek`] reads
//! the eight bytes that decide how much may be buffered, [`guard`] walks the whole frame against
//! a static schema, and only then [`codec`] hands it to the decoder of `kafka-protocol`, which
//! would reserve memory for whatever count the bytes claim.

pub mod codec;
#[cfg(test)]
mod corpus_tests;
#[cfg(test)]
mod crowds;
pub mod fetch;
pub mod guard;
pub mod header;
#[cfg(test)]
mod samples;
mod schema;
pub mod segment;
pub mod wide;
