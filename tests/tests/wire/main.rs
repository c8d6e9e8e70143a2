//! The wire contract, black box: every test enters through a real TCP port with a client that
//! hides nothing, and expects Kafka's codes as literals.
//!
//! By default it starts Fencepost. `FENCEPOST_WIRE_TARGET=kafka` starts Apache Kafka instead, which
//! proves the expectations; what Fencepost does differently on purpose is listed, with the reason,
//! in `differences.rs`, and nowhere else. Tests of our own durability run on Fencepost only.
//! `FENCEPOST_WIRE_STORE` is the `--store` of its brokers: what depends on the store runs over
//! `sled:?layout=kv` too (scripts/test.sh).

mod apis;
mod bodies;
mod broker_configs;
mod cluster;
mod command;
mod compaction;
mod configs;
mod damage;
mod describe;
mod differences;
mod errors;
mod frames;
mod fsyncs;
mod full_disk;
mod groups;
mod growing;
mod hostile;
mod idempotence;
mod kill;
mod kit;
mod log_dirs;
mod malformed;
mod offsets;
mod order;
mod parked;
mod passing;
mod pipeline;
mod polling;
mod reading;
mod records;
mod repeats;
mod retention;
mod sessions;
mod tools;
mod topics;
mod transactions;
mod trimming;
mod txn_apis;
mod unread;
mod virtual_replicas;
