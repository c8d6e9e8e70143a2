//! Drivers: check ownership, load, decide, persist, run effects, reply.

pub mod cluster;
pub mod fences;
pub mod groups;
pub mod marker_queue;
pub mod producer_ids;
pub mod txns;
