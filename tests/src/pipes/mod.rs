//! Consume, transform, produce: real clients that move records from topic to topic in transactions,
//! under kills, and a verdict over what came out.

mod client;
mod reader;
pub mod scenario;

pub use client::Client;
