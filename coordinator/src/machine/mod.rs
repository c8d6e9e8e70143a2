//! State machines over plain values. Nothing here awaits, locks, reads a clock, opens a file,
//! logs or draws a random number, and nothing depends on the order of a hash map.

pub mod group;
pub mod producer;
pub mod txn;
