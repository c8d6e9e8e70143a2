//! Guard and decoder on frames that were valid once: the corpus, changed at random.
//!
//! A short run beside the other tests. `MUTATIONS=10000000 cargo test -p gateway --test mutations`
//! is a long one; `MUTATIONS_SEED` repeats one, whose seed is printed. Coverage guides the fuzz
//! targets of `tests/fuzz`, which need a build of their own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;

#[path = "../../tests/fuzz/harness.rs"]
#[allow(dead_code, reason = "only the frames")]
mod harness;

/// Executions of a short run.
const SHORT: u64 = 50_000;
/// Most bytes of a frame.
const LEN_MAX: usize = 8192;
/// Numbers at which lengths, counts and versions break.
const EDGES: [i64; 14] = [
    0,
    1,
    -1,
    2,
    -2,
    127,
    128,
    255,
    32_767,
    -32_768,
    65_536,
    2_147_483_647,
    -2_147_483_648,
    i64::MAX,
];

/// SplitMix64: a run is a function of its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % (n.max(1) as u64)).unwrap()
    }
}

fn number(of: &str, otherwise: u64) -> u64 {
    std::env::var(of).map_or(otherwise, |text| text.parse().unwrap())
}

fn corpus() -> Vec<Vec<u8>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus/request");
    let paths = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths.collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Puts bytes in the place of others, or between them.
fn put(frame: &mut Vec<u8>, at: usize, bytes: &[u8], replace: bool) {
    let at = at.min(frame.len());
    let end = if replace {
        frame.len().min(at + bytes.len())
    } else {
        at
    };
    frame.splice(at..end, bytes.iter().copied());
}

fn mutate(frame: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    let at = random.below(frame.len() + 1);
    let replace = random.below(3) > 0;
    match random.below(8) {
        0 if at < frame.len() => frame[at] ^= 1 << random.below(8),
        1 if at < frame.len() => frame[at] = random.next().to_le_bytes()[0],
        2 => frame.truncate(at),
        3 | 4 => {
            let edge = EDGES[random.below(EDGES.len())].to_be_bytes();
            let width = [1, 2, 4, 8][random.below(4)];
            put(frame, at, &edge[8 - width..], replace);
        }
        5 => {
            // A varint of any length, which may be too long.
            let mut bytes = vec![0x80 | random.next().to_le_bytes()[0]; random.below(6)];
            bytes.push(random.next().to_le_bytes()[0] & 0x7f);
            put(frame, at, &bytes, replace);
        }
        6 => {
            let other = &corpus[random.below(corpus.len())];
            let from = random.below(other.len());
            let len = random.below((other.len() - from).min(64) + 1);
            put(frame, at, &other[from..from + len], replace);
        }
        _ => {
            let end = frame.len().min(at + random.below(32));
            let piece = frame[at..end].to_vec();
            put(frame, at, &piece, false);
        }
    }
}

#[test]
fn frames_that_were_changed_at_random_are_survived() {
    let seed = number("MUTATIONS_SEED", any_seed());
    let count = number("MUTATIONS", SHORT);
    println!("MUTATIONS={count} MUTATIONS_SEED={seed}");
    let corpus = corpus();
    let mut random = Random(seed);
    let mut decoded = 0_u64;
    for execution in 0..count {
        let mut frame = corpus[random.below(corpus.len())].clone();
        for _ in 0..=random.below(4) {
            mutate(&mut frame, &corpus, &mut random);
        }
        frame.truncate(LEN_MAX);
        let run = catch_unwind(AssertUnwindSafe(|| harness::decodes(&frame)));
        match run {
            Ok(accepted) => decoded += u64::from(accepted),
            Err(panic) => {
                println!("execution {execution} of seed {seed}: {frame:02x?}");
                resume_unwind(panic);
            }
        }
    }
    println!("{count} executions, {decoded} of them decoded");
    // Changed so much that nothing is accepted, frames would not reach what lies behind the guard.
    assert!(decoded > count / 50, "{decoded} of {count} decoded");
    assert!(decoded < count, "nothing was changed");
}

/// Another seed in each run.
fn any_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}
