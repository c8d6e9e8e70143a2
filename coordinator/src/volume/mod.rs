//! The coordinator's side of the volume: where each file lies and what is in it.
//!
//! Nothing here does I/O: files are read and replaced through the owned-file primitive of
//! `store_adapter::volume`, by [`crate::service`].

pub mod format;
pub mod layout;
