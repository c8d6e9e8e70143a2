//! What the disk alone can do: the same bytes per sync, with nothing around them.

#![allow(
    clippy::cast_precision_loss,
    reason = "rates are reported to few digits"
)]

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::progress;
use super::results::{Case, MB_PER_SECOND, Results};
use crate::wallclock;

/// Batch length and batches per sync.
pub(super) const SHAPES: [(usize, usize); 2] = [(16 * 1024, 64), (1024, 256)];

/// Appends to a file and syncs it, for a few seconds per shape and run.
pub(super) fn measure(dir: &Path, runs: usize, quick: bool, results: &mut Results) -> Result<()> {
    let span = Duration::from_millis(if quick { 300 } else { 3_000 });
    for _ in 0..runs {
        for (batch, per_sync) in SHAPES {
            progress(&format!("raw fdatasync of {per_sync} x {batch} bytes"));
            let what = format!(
                "raw append and fdatasync, {per_sync} x {} KiB",
                batch / 1024
            );
            let case = Case {
                row: 8,
                what,
                unit: MB_PER_SECOND,
            };
            results.add_alone(case, append(dir, batch, per_sync, span)?);
        }
    }
    Ok(())
}

fn append(dir: &Path, batch: usize, per_sync: usize, span: Duration) -> Result<f64> {
    let mut file: File = tempfile::tempfile_in(dir)?;
    let mut bytes = vec![0; batch * per_sync];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    let begin = wallclock::now();
    let mut written = 0_usize;
    loop {
        file.write_all(&bytes)?;
        file.sync_data()?;
        written += bytes.len();
        let passed = wallclock::now().duration_since(begin);
        if passed >= span {
            return Ok(written as f64 / 1e6 / passed.as_secs_f64());
        }
    }
}
