//! What a frame takes in memory: at most 128 times its bytes, whether it is accepted or refused.
//!
//! One test in a binary of its own: it counts what the whole process allocates.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

use std::fs;
use std::path::PathBuf;

use peak_alloc::PeakAlloc;

#[path = "../../tests/fuzz/harness.rs"]
#[allow(dead_code, reason = "only the frames")]
mod harness;

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

/// Bytes for each byte of a frame.
const TIMES: usize = 128;

#[test]
fn a_frame_takes_at_most_128_times_its_bytes() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus/request");
    let mut inputs = Vec::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        inputs.push((name, fs::read(&path).unwrap()));
    }
    inputs.sort();
    let mut highest = (0.0, String::new());
    for (name, frame) in &inputs {
        // What is allocated once and for all.
        harness::decodes(frame);
        let before = ALLOCATED.current_usage();
        ALLOCATED.reset_peak_usage();
        let decoded = harness::decodes(frame);
        let taken = ALLOCATED.peak_usage() - before;
        assert!(decoded || name.starts_with("hostile-"), "{name}");
        let limit = TIMES * frame.len();
        assert!(taken <= limit, "{name}: {taken} bytes for {}", frame.len());
        #[allow(clippy::cast_precision_loss, reason = "shown only")]
        let times = taken as f64 / frame.len() as f64;
        if times > highest.0 {
            highest = (times, name.clone());
        }
    }
    println!(
        "{} frames, at most {:.1} times: {}",
        inputs.len(),
        highest.0,
        highest.1
    );
    assert!(
        inputs
            .iter()
            .filter(|(name, _)| name.starts_with("crowd-"))
            .count()
            > 50
    );
}
