//! The kit of the black-box suites.

pub mod flights;
pub mod raw;
pub mod sim;
