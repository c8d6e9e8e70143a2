//! The kit of the black-box suites.

pub mod bench;
pub mod cuts;
pub mod differential;
pub mod flights;
pub mod gatewayproc;
pub mod groups;
pub mod loadgen;
pub mod lone;
pub mod oracle;
pub mod pipes;
pub mod process;
pub mod raw;
pub mod sim;
pub mod suites;
pub mod txn_tools;
pub mod wallclock;
