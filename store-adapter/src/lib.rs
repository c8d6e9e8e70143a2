//! The seams below the coordinator and the gateway: where bytes go and where time comes from.
//!
//! - [`volume`]: the shared directory tree, and the only code that opens its files.
//! - [`store`]: the log store trait; adapters beside it.
//! - [`runtime`]: clock, randomness, tasks and threads.
//! - [`batch`]: the checked view of a v2 record batch. Nothing here ever decompresses.
//!
//! A store knows bytes and offsets; it has never heard of transactions or groups.

pub mod batch;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod fault;
pub mod ids;
pub mod journal;
pub mod memory;
pub mod runtime;
pub mod store;
pub mod volume;
