//! The coordinator's files on the volume.

pub mod format;
