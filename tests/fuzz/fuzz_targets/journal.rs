//! See the function of the same name in the harness.
#![no_main]

#[path = "../harness.rs"]
#[allow(dead_code, reason = "each target uses its own part")]
mod harness;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| harness::journal(bytes));
