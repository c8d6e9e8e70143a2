//! Kafka wire protocol in front of a log store: sockets, tower stack, wire, handlers, partitions.

pub mod api;
pub mod wire;
