//! The kit of the black-box suites.

pub mod loadgen;
pub mod raw;
pub mod wallclock;
