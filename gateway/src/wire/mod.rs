//! The wire: everything that touches bytes of the protocol.

pub mod fetch;
