//! State of one group.

pub mod offsets;
