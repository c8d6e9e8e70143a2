//! Through HTTP, over a process that is not there.

mod access;
mod actions;
mod double;
mod health;
mod listener;
mod page;
mod problems;
mod reading;
