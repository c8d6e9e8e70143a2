//! Consumer groups of real clients under kills: members that join, leave and are killed, a broker
//! that is killed with them, and a verdict over every record that each member printed.

pub mod member;
pub mod scenario;
pub mod verdict;
