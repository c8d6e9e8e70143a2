//! Kafka wire protocol in front of a log store: sockets, tower stack, wire, handlers, partitions.

pub mod api;
pub mod connection;
pub mod features;
pub mod frame;
pub mod handlers;
pub mod layers;
pub mod metrics;
pub mod server;
pub mod stack;
pub mod wire;
