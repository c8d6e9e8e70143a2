//! The deterministic simulation: the real services over simulated time, volume and network.

pub mod executor;
