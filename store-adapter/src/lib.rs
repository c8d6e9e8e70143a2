//! The seams below the coordinator and the gateway: where bytes go and where time comes from.
//!
//! - [`volume`]: the shared directory tree, and the only code that opens its files.
//! - [`store`]: the log store trait; adapters beside it. [`offline`]: what their shards hold while
//!   no broker has them.
//! - [`runtime`]: clock, randomness, tasks and threads.
//! - [`local`]: this host and process, and the cluster id that a data directory remembers.
//! - [`batch`]: the checked view of a v2 record batch; [`blob`] finds it in a request,
//!   [`records`] walks what is in it, [`compression`] unpacks it, [`rebuild`] leaves records out,
//!   [`control`] writes and reads markers.
//!
//! A store knows bytes and offsets; it has never heard of transactions or groups.

pub mod batch;
pub mod blob;
pub mod compression;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod control;
pub mod fault;
pub mod guard;
pub mod ids;
pub mod journal;
#[cfg(feature = "sled")]
pub mod kv;
pub mod local;
pub mod memory;
pub mod offline;
pub mod rebuild;
pub mod records;
mod registry;
pub mod runtime;
#[cfg(test)]
mod samples;
pub mod store;
pub mod strict;
pub mod volume;
