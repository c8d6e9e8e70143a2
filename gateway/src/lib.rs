//! Kafka wire protocol in front of a log store: sockets, tower stack, wire, handlers, partitions.

pub mod api;
pub mod features;
pub mod handlers;
pub mod layers;
pub mod metrics;
pub mod stack;
pub mod wire;
