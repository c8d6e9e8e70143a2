//! Pure state machines, volume files and services of the coordinator.
//!
//! - [`machine`]: decisions over plain values; no async, lock, clock, file or randomness.
//! - [`volume`]: every path and every JSON shape of the shared volume.
//! - [`service`]: drivers that load, decide, persist and reply.

pub mod machine;
pub mod service;
pub mod slot_hash;
pub mod volume;
