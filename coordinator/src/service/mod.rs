//! Services: ask a machine, persist, then answer.

pub mod cluster;
pub mod producer_ids;
