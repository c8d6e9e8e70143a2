//! A consumer of committed records that reads an output while it is written: librdkafka through the
//! crate rdkafka.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use crate::flights::child::{Running, Streams, with};
use crate::flights::clients::rdkafka_program;
use crate::flights::input::PARTITIONS;
use crate::flights::wall::Deadline;

/// A record as it was printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Line<'a> {
    pub(super) partition: usize,
    pub(super) offset: u64,
    pub(super) value: &'a [u8],
}

/// The lines `partition TAB offset TAB key TAB value`, in their order.
pub(super) fn lines(text: &[u8]) -> anyhow::Result<Vec<Line<'_>>> {
    let lines = text.split(|byte| *byte == b'\n');
    let records = lines.filter(|line| !line.is_empty()).map(|line| {
        let shape = || format!("not a record: {:?}", String::from_utf8_lossy(line));
        let mut fields = line.splitn(4, |byte| *byte == b'\t');
        let mut field = || fields.next().with_context(shape);
        let partition = std::str::from_utf8(field()?)?;
        let partition: usize = partition.parse().with_context(shape)?;
        let offset = std::str::from_utf8(field()?)?;
        let offset: u64 = offset.parse().with_context(shape)?;
        field()?;
        let value = field()?;
        anyhow::Ok(Line {
            partition,
            offset,
            value,
        })
    });
    records.collect()
}

/// A consumer at work.
#[derive(Debug)]
pub(super) struct Reader {
    topic: String,
    running: Running,
    seen: PathBuf,
}

impl Reader {
    /// Reads `topic` until `count` records have come.
    ///
    /// # Errors
    /// If the client is not there.
    pub(super) fn start(
        broker: SocketAddr,
        topic: &str,
        count: usize,
        dir: &Path,
    ) -> anyhow::Result<Self> {
        let name = format!("reader-{topic}");
        let seen = dir.join(format!("{name}.out"));
        let (broker, count) = (broker.to_string(), count.to_string());
        let args = ["consume", &broker, topic, &PARTITIONS.to_string(), &count];
        let command = with(Command::new(rdkafka_program()?), args);
        let running = Running::start(&name, command, Streams::Stored(seen.clone()), dir)?;
        Ok(Self {
            topic: topic.to_owned(),
            running,
            seen,
        })
    }

    /// Fails if it gave up.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        match self.running.ended()? {
            Some(status) if !status.success() => bail!(
                "the reader of {} ended with {status}\n{}",
                self.topic,
                self.running.tail()
            ),
            _ => Ok(()),
        }
    }

    /// Waits until it is done, and compares what it saw with what `is` there in the end.
    ///
    /// # Errors
    /// If a record came out of order, is not there any more, or was never seen.
    pub(super) fn saw(&mut self, mut is: Vec<Line<'_>>, deadline: Deadline) -> anyhow::Result<()> {
        self.running.finish(deadline)?;
        let text = std::fs::read(&self.seen)?;
        let mut saw = lines(&text)?;
        let mut next = [0; PARTITIONS];
        for line in &saw {
            let next = next.get_mut(line.partition).context("such a partition")?;
            ensure!(
                line.offset >= *next,
                "{}: {line:?} came behind offset {next}",
                self.topic
            );
            *next = line.offset + 1;
        }
        saw.sort_unstable();
        is.sort_unstable();
        let differs = saw.iter().zip(&is).find(|(saw, is)| saw != is);
        ensure!(
            saw == is,
            "{}: {} records were seen, {} are there; first difference {differs:?}",
            self.topic,
            saw.len(),
            is.len()
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saw(text: &str, is: &str) -> Result<(), String> {
        let dir = tempfile::tempdir().unwrap();
        let seen = dir.path().join("seen");
        std::fs::write(&seen, text.replace(' ', "\t")).unwrap();
        let streams = Streams::Stored(dir.path().join("none"));
        let running = Running::start("true", Command::new("true"), streams, dir.path()).unwrap();
        let mut reader = Reader {
            topic: "t".to_owned(),
            running,
            seen,
        };
        let is = is.replace(' ', "\t");
        let deadline = Deadline::after(std::time::Duration::from_mins(1));
        let judged = reader.saw(lines(is.as_bytes()).unwrap(), deadline);
        judged.map_err(|error| error.to_string())
    }

    #[test]
    fn what_a_reader_saw_must_be_what_is_there() {
        let is = "0 0  a\n0 2  b\n1 0  c\n";
        assert_eq!(saw("1 0  c\n0 0  a\n0 2  b\n", is), Ok(()));
        let aborted = saw("0 0  a\n0 1  x\n1 0  c\n", is).unwrap_err();
        assert!(aborted.contains("first difference"), "{aborted}");
        let twice = saw("0 0  a\n0 0  a\n0 2  b\n", is).unwrap_err();
        assert!(twice.contains("came behind offset 1"), "{twice}");
        let short = saw("0 0  a\n", is).unwrap_err();
        assert!(
            short.contains("1 records were seen, 3 are there"),
            "{short}"
        );
    }
}
