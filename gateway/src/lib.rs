//! Kafka wire protocol in front of a log store: sockets, tower stack, wire, handlers, partitions.

mod admin;
pub mod admitted;
pub mod answer_budget;
pub mod api;
pub mod boot;
pub mod broker;
pub mod config;
pub mod connection;
pub mod error_code;
pub mod features;
pub mod fetch_session;
pub mod frame;
pub mod gateway;
pub mod handlers;
pub mod layers;
pub mod metrics;
pub mod order;
pub mod partition;
pub mod request_budget;
pub mod server;
pub mod stack;
mod starting;
pub mod topic_config;
pub mod turns;
pub mod txns;
pub mod wire;

pub use crate::gateway::{Addresses, Gateway, StartError};
