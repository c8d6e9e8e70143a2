//! Services: ask a machine, persist, then answer.

pub mod producer_ids;
