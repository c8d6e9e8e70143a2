//! Which machine the figures are of.

use std::path::Path;
use std::process::Command;

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

fn file_system(dir: &Path) -> String {
    let output = Command::new("stat")
        .args(["-f", "-c", "%T"])
        .arg(dir)
        .output();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => "an unknown file system".to_owned(),
    }
}
