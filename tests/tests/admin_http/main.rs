//! The admin surface of a whole broker, through HTTP: what it says of transactions must be so.

#![allow(missing_docs, reason = "a test")]

mod actions;
mod kit;
mod reading;
mod three_ways;
mod wire;
