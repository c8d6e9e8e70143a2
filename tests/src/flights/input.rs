//! The flights, and how each client's copy of them names a partition.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, ensure};

/// Flights in the data set.
pub const FLIGHTS: usize = 336_776;
/// Partitions of every topic of the suite.
pub const PARTITIONS: usize = 8;
const TAILNUM_COLUMN: usize = 11;

/// All flights, one line a record, without the line that names the columns.
#[derive(Debug)]
pub struct Flights {
    text: Vec<u8>,
    lines: Vec<Range<usize>>,
}

/// What decides the partition of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The client is told: record `n` goes to partition `n % PARTITIONS`, without a key.
    Explicit,
    /// The client's own hash of the key, which is the tail number of the plane.
    Keyed,
}

impl Flights {
    /// Reads the file that `scripts/setup-clients.sh` fetched.
    ///
    /// # Errors
    /// If the file is missing or is not the expected number of distinct lines.
    pub fn load(cache: &Path) -> anyhow::Result<Self> {
        let path = cache.join("flights").join("flights.csv");
        let text = std::fs::read(&path)
            .with_context(|| format!("{}: run scripts/setup-clients.sh flights", path.display()))?;
        let flights = Self::parse(text);
        let found = flights.len();
        ensure!(
            found == FLIGHTS,
            "{} has {found} flights, not {FLIGHTS}",
            path.display()
        );
        Ok(flights)
    }

    /// Flights from text whose first line names the columns.
    pub fn parse(text: Vec<u8>) -> Self {
        let mut lines = Vec::new();
        let mut start = 0;
        for (end, _) in text.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
            lines.push(start..end);
            start = end + 1;
        }
        if !lines.is_empty() {
            lines.remove(0);
        }
        Self { text, lines }
    }

    /// Number of flights.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there is no flight.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Every flight in the order of the file: the value of its record.
    pub fn values(&self) -> impl Iterator<Item = &[u8]> {
        self.lines
            .iter()
            .filter_map(|line| self.text.get(line.clone()))
    }
}

/// The key of a flight under [`Placement::Keyed`]: its plane. Empty if the column is missing.
pub fn key_of(value: &[u8]) -> &[u8] {
    value
        .split(|byte| *byte == b',')
        .nth(TAILNUM_COLUMN)
        .unwrap_or_default()
}

impl Placement {
    /// The line a writer is fed for record `number`: partition or key, tab, value.
    pub fn write_line(self, number: usize, value: &[u8], line: &mut Vec<u8>) {
        line.clear();
        match self {
            Self::Explicit => line.extend((number % PARTITIONS).to_string().as_bytes()),
            Self::Keyed => line.extend(key_of(value)),
        }
        line.push(b'\t');
        line.extend(value);
        line.push(b'\n');
    }
}
