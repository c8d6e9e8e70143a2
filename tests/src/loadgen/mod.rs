//! Load generator: replays pre-encoded record batches over raw sockets, fetches them back, or runs
//! transactions, as fast as the broker answers or at a fixed rate.
//!
//! It is built to cost little beside the broker on a small machine: one thread and one epoll loop;
//! every request is a few dozen patched bytes around one shared run of records, sent with writev;
//! answers are parsed in place. Producers are idempotent (own producer id, sequences per
//! partition). The CRC of a patched batch is combined from that of its header and that of the
//! shared records, so no payload byte is touched per request.
//!
//! Many transactional ids share few connections: each has one transaction after the other, of one
//! batch, and the requests of all of them are pipelined. Their frames are small and are encoded
//! one by one.
//!
//! At a fixed rate every latency counts from the moment the request was *due*, so a stalled broker
//! is charged for the requests that waited behind the stall. Any error code, gap in fetched offsets
//! or lost connection voids the run: there is no partial result.

mod answer;
mod config;
mod engine;
mod fetch;
mod produce;
mod report;
mod run;
mod template;
mod transact;
mod wire;

pub use config::{Args, Mode, StartAt};
pub use report::{Latency, Report};
pub use run::run;
