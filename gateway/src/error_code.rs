//! From reasons to Kafka's codes, given api and version. The only place that chooses a code for a
//! domain error: every match is exhaustive, so a new reason cannot be forgotten.

mod validation;

pub use validation::{validate, validate_has_log_start};
