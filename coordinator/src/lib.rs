//! Pure state machines, volume files and services of the coordinator.
//!
//! - [`machine`]: decisions over plain values; no async, lock, clock, file or randomness.
//! - [`volume`]: the shapes of the coordinator's files.
//! - [`service`]: drivers that ask a machine, persist, then answer.

pub mod machine;
pub mod service;
pub mod volume;
