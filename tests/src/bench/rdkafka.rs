//! librdkafka's own performance tool, built once from the sources inside the `rdkafka-sys` crate.

use std::fs::{File, create_dir_all};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::progress;
use crate::process::cache_dir;

/// Version of the crate, which is that of the binding and that of librdkafka.
pub(super) const CRATE_VERSION: &str = "4.10.0+2.12.1";

/// What one run of the tool measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Measured {
    /// Messages delivered or consumed.
    pub(super) messages: u64,
    /// Bytes of their values.
    pub(super) bytes: u64,
    /// 10^6 bytes of values per second.
    pub(super) mb_per_second: f64,
}

/// Produces `count` messages of `size` bytes, acks=all, idempotent, linger 5 ms.
pub(super) fn produce(address: &str, topic: &str, size: u64, count: u64) -> Result<Measured> {
    let mut command = Command::new(tool()?);
    command.args(["-P", "-q", "-a", "-1", "-t", topic, "-b", address]);
    command.args(["-s", &size.to_string(), "-c", &count.to_string()]);
    command.args(["-X", "enable.idempotence=true", "-X", "linger.ms=5"]);
    let text = run(&command)?;
    let measured = parse_produced(&text).with_context(|| format!("unexpected output: {text}"))?;
    if measured.messages != count {
        bail!(
            "librdkafka delivered {} of {count} messages: {text}",
            measured.messages
        );
    }
    Ok(measured)
}

/// Consumes `count` messages from the beginning of all partitions.
pub(super) fn consume(address: &str, topic: &str, partitions: i32, count: u64) -> Result<Measured> {
    let mut command = Command::new(tool()?);
    command.args(["-C", "-q", "-o", "beginning", "-t", topic, "-b", address]);
    command.args(["-c", &count.to_string()]);
    for partition in 0..partitions {
        command.args(["-p", &partition.to_string()]);
    }
    let text = run(&command)?;
    let measured = parse_consumed(&text).with_context(|| format!("unexpected output: {text}"))?;
    // It stops at the end of the batch that reaches the count, so it may have a few more.
    if measured.messages < count {
        bail!(
            "librdkafka consumed {} of {count} messages: {text}",
            measured.messages
        );
    }
    Ok(measured)
}

/// Runs the tool under `timeout`: it retries for minutes against a broker that is gone.
fn run(tool: &Command) -> Result<String> {
    let mut command = Command::new("timeout");
    command
        .arg("300")
        .arg(tool.get_program())
        .args(tool.get_args());
    let output = command.output().context("rdkafka_performance")?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        bail!("rdkafka_performance: {}: {text}", output.status);
    }
    Ok(text)
}

/// "% 300000 messages produced (30000000 bytes), 300000 delivered (offset 31744, 0 failed) in
/// 4372ms: 68609 msgs/s and 6.86 MB/s, ..."
fn parse_produced(text: &str) -> Option<Measured> {
    let line = text
        .lines()
        .rev()
        .find(|line| line.contains(" messages produced ("))?;
    let (_, rest) = line.split_once("bytes), ")?;
    let messages = rest.split_once(" delivered")?.0.parse().ok()?;
    let failed: u64 = rest
        .split_once(", ")?
        .1
        .split_once(" failed")?
        .0
        .parse()
        .ok()?;
    let mut measured = parse_rate(line, " messages produced (", " and ")?;
    measured.messages = messages;
    (failed == 0).then_some(measured)
}

/// "% 300000 messages (30000000 bytes) consumed in 788ms: 380396 msgs/s (38.04 MB/s)"
fn parse_consumed(text: &str) -> Option<Measured> {
    let line = text
        .lines()
        .rev()
        .find(|line| line.contains(" bytes) consumed in "))?;
    parse_rate(line, " messages (", " msgs/s (")
}

fn parse_rate(line: &str, before_bytes: &str, before_rate: &str) -> Option<Measured> {
    let (messages, rest) = line.strip_prefix("% ")?.split_once(before_bytes)?;
    let bytes = rest.split_once(" bytes)")?.0;
    let rate = rest.split_once(before_rate)?.1.split_once(" MB/s")?.0;
    Some(Measured {
        messages: messages.parse().ok()?,
        bytes: bytes.parse().ok()?,
        mb_per_second: rate.parse().ok()?,
    })
}

fn tool() -> Result<PathBuf> {
    Ok(tree()?.join("examples/rdkafka_performance"))
}

/// Where librdkafka's header and its static library are.
pub(super) fn library() -> Result<PathBuf> {
    Ok(tree()?.join("src"))
}

/// librdkafka with its tool, built by the first call in a cache (about three minutes of one core).
fn tree() -> Result<PathBuf> {
    let home = cache_dir().join(format!("rdkafka-sys-{CRATE_VERSION}"));
    create_dir_all(&home).with_context(|| home.display().to_string())?;
    let lock = File::create(home.join("lock"))?;
    lock.lock().context("lock of the cache")?;
    let tree = home.join("librdkafka");
    let complete = home.join("complete");
    if !complete.exists() {
        progress("building librdkafka's performance tool");
        let sources = sources(&home)?;
        shell(&home, "rm", &["-rf", "librdkafka"])?;
        let sources = sources.display().to_string();
        shell(&home, "cp", &["-r", &sources, "librdkafka"])?;
        let features = ["gssapi", "ssl", "sasl", "curl", "zstd", "lz4-ext", "syslog"];
        let disabled: Vec<String> = features.iter().map(|f| format!("--disable-{f}")).collect();
        let disabled: Vec<&str> = disabled.iter().map(String::as_str).collect();
        shell(&tree, "./configure", &disabled)?;
        shell(&tree, "make", &["-j2", "libs"])?;
        shell(&tree, "make", &["-C", "examples", "rdkafka_performance"])?;
        File::create(&complete)?;
    }
    Ok(tree)
}

/// Has cargo fetch the crate through a package that is thrown away, and finds its sources.
fn sources(home: &Path) -> Result<PathBuf> {
    let package = home.join("fetch");
    create_dir_all(package.join("src"))?;
    File::create(package.join("src/lib.rs"))?;
    let version = CRATE_VERSION.split('+').next().unwrap_or(CRATE_VERSION);
    let manifest = format!(
        "[package]\nname = \"fetch\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n[workspace]\n\n\
         [dependencies]\nrdkafka-sys = {{ version = \"={version}\", default-features = false }}\n"
    );
    File::create(package.join("Cargo.toml"))?.write_all(manifest.as_bytes())?;
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1"])
        .current_dir(&package)
        .output()
        .context("cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"]
        .as_array()
        .context("no packages in the metadata")?;
    let found = packages
        .iter()
        .find(|package| package["name"] == "rdkafka-sys");
    let path = found.and_then(|package| package["manifest_path"].as_str());
    let manifest = Path::new(path.context("rdkafka-sys is not in the metadata")?);
    Ok(manifest.with_file_name("librdkafka"))
}

fn shell(dir: &Path, program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(args)
        .current_dir(dir)
        .output()
        .context("shell")?;
    if !output.status.success() {
        let (out, err) = (&output.stdout, &output.stderr);
        let (out, err) = (String::from_utf8_lossy(out), String::from_utf8_lossy(err));
        let tail: Vec<&str> = out.lines().chain(err.lines()).rev().take(30).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        bail!("{program} {args:?}: {}", tail.join("\n"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_last_lines_are_understood() {
        let produced = "% 300000 messages produced (30000000 bytes), 300000 delivered (offset \
                        31744, 0 failed) in 4372ms: 68609 msgs/s and 6.86 MB/s, 193 produce \
                        failures, 0 in queue, no compression";
        let expected = Measured {
            messages: 300_000,
            bytes: 30_000_000,
            mb_per_second: 6.86,
        };
        assert_eq!(parse_produced(produced), Some(expected));
        let failed = produced.replace("0 failed", "3 failed");
        assert_eq!(parse_produced(&failed), None);
        let consumed = "% 300000 messages (30000000 bytes) consumed in 788ms: 380396 msgs/s \
                        (38.04 MB/s)\n% Average application fetch latency: 4us";
        let expected = Measured {
            messages: 300_000,
            bytes: 30_000_000,
            mb_per_second: 38.04,
        };
        assert_eq!(parse_consumed(consumed), Some(expected));
    }
}
