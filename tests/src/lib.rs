//! The kit of the black-box suites.

pub mod raw;
pub mod sim;
