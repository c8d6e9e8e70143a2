//! Kafka wire protocol in front of a log store: sockets, tower stack, wire, handlers, partitions.

pub mod api;
pub mod broker;
pub mod error_code;
pub mod fetch_session;
mod handlers;
pub mod partition;
pub mod topic_config;
pub mod wire;
