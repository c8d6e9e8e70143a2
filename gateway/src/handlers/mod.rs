//! Handlers, one api per file.

pub mod api_versions;
