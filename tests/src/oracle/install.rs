//! Fetching the jars of Apache Kafka, once per cache.

use std::fs::{File, create_dir_all, remove_dir_all};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::{cache_dir, repository};

/// Version of Apache Kafka in `tests/oracle/pom.xml`.
pub const KAFKA_VERSION: &str = "4.3.1";

/// The class path of a node and its tools. The first call in a cache runs `mvn`; calls of several
/// processes at once wait for each other.
pub fn class_path() -> Result<String> {
    let cache = cache_dir();
    create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    let lock = File::create(cache.join("kafka.lock"))?;
    lock.lock().context("lock of the cache")?;
    let jars = cache.join(format!("kafka-{KAFKA_VERSION}"));
    let pom = repository().join("tests/oracle/pom.xml");
    let wanted = std::fs::read(&pom).with_context(|| pom.display().to_string())?;
    let complete = jars.join("complete");
    if std::fs::read(&complete).is_ok_and(|has| has == wanted) {
        return Ok(format!("{}/*", jars.display()));
    }
    if jars.exists() {
        remove_dir_all(&jars).with_context(|| jars.display().to_string())?;
    }
    let output = Command::new("mvn")
        .arg("-q")
        .arg("-f")
        .arg(pom)
        .args(["dependency:copy-dependencies", "-DincludeScope=runtime"])
        .arg(format!("-DoutputDirectory={}", jars.display()))
        .output()
        .context("mvn (Maven) is needed to fetch Apache Kafka")?;
    if !output.status.success() {
        let (out, err) = (&output.stdout, &output.stderr);
        bail!(
            "mvn: {}{}",
            String::from_utf8_lossy(out),
            String::from_utf8_lossy(err)
        );
    }
    std::fs::write(&complete, wanted)?;
    Ok(format!("{}/*", jars.display()))
}
