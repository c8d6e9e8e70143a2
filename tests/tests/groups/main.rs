//! Consumer groups of real clients, and the commands that manage them.
//!
//! Needs `scripts/setup-clients.sh` and `--features clients-c`; what is missing fails.

mod members;
mod newer;
mod tools;
