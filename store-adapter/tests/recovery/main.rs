//! What the journal makes of torn, damaged, lost and failing files.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::case_sensitive_file_extension_comparisons,
    clippy::disallowed_methods,
    reason = "tests fail by panicking"
)]

mod checkpoint;
mod corpus;
mod failing;
mod faults;
mod flips;
mod held;
mod index;
mod joined;
mod newest;
mod passing;
mod reading;
mod rewrite;
mod sift;
mod space;
mod support;
mod through;
mod torn;
mod unreadable;
mod unsynced;
