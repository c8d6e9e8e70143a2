//! Which machine the figures are of.

use std::path::Path;

use anyhow::Result;

/// A line of markdown: processors, memory, kernel, file system of the data.
pub(super) fn describe(dir: &Path) -> Result<String> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo")?;
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown processor", |rest| {
        rest.trim_start_matches([' ', '\t', ':'])
    });
    let cores = std::thread::available_parallelism()?;
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    let kib = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = kib.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(format!(
        "Machine: {cores} x {model}, {} GiB of memory, Linux {}, data on {}.\n",
        kib.unwrap_or(0).div_ceil(1024 * 1024),
        kernel.trim(),
        file_system(dir)
    ))
}

/// The type of the file system that `dir` is on: of the longest mount point above it.
fn file_system(dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let above = mounts.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (point, kind) = (fields.nth(1)?, fields.next()?);
        dir.starts_with(point).then_some((point.len(), kind))
    });
    // Of two mounts on one point the later one is seen.
    above
        .max_by_key(|(len, _)| *len)
        .map_or("an unknown file system", |(_, kind)| kind)
        .to_owned()
}
