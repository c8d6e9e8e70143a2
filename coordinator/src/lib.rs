//! Pure state machines, volume files and services of the coordinator.
//!
//! - [`volume`]: every path and every JSON shape of the shared volume.
//! - [`service`]: drivers that load, decide, persist and reply.

pub mod service;
pub mod volume;
