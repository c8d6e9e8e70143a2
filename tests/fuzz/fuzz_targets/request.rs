//! Frames: header, guard, decoder; and how much the decoder allocates at once.
#![no_main]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

#[path = "../harness.rs"]
#[allow(dead_code, reason = "each target uses its own part")]
mod harness;

/// Bytes that one allocation may take for each byte of the frame.
const AMPLIFICATION_MAX: usize = 128;

struct Measured;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is the system allocator's; only sizes are noted.
unsafe impl GlobalAlloc for Measured {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Measured = Measured;

libfuzzer_sys::fuzz_target!(|frame: &[u8]| {
    LARGEST.store(0, Ordering::Relaxed);
    let decoded = harness::decodes(frame);
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(
        !decoded || largest <= AMPLIFICATION_MAX * frame.len(),
        "{largest} bytes at once for a frame of {}",
        frame.len()
    );
});
