//! What a command prints, and how it ends.
//!
//! Exit codes of all commands but `serve`: 0 done; 1 a finding, or refused by the broker; 2 a wrong
//! argument; 3 the broker can't be reached; 4 no answer in time.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::ValueEnum;
use kafka_protocol::error::ResponseError;
use serde::Serialize;

/// How a command prints what it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum Format {
    /// Columns for people.
    #[default]
    Table,
    /// One JSON document.
    Json,
}

/// Why a command did not do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// The broker refused, or what was found is not as it should be.
    #[error("{0}")]
    Refused(String),
    /// The arguments contradict each other.
    #[error("{0}")]
    Usage(String),
    /// No connection, or it broke.
    #[error("{0}")]
    Unreachable(String),
    /// No answer in time.
    #[error("{0}")]
    TimedOut(String),
    /// Something was found or done all the same, and is printed.
    #[error("{why}")]
    Partly {
        /// The output.
        output: String,
        /// What went wrong.
        why: Box<Failure>,
    },
}

impl Failure {
    /// This failure, with output that is worth printing all the same.
    pub(super) fn after(self, output: String) -> Self {
        Self::Partly {
            output,
            why: Box::new(self),
        }
    }

    /// Whether it would be the same for anything else that is asked.
    pub(super) fn is_of_the_connection(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::TimedOut(_))
    }

    fn code(&self) -> u8 {
        match self {
            Self::Partly { why, .. } => why.code(),
            Self::Refused(_) => 1,
            Self::Usage(_) => 2,
            Self::Unreachable(_) => 3,
            Self::TimedOut(_) => 4,
        }
    }
}

/// Kafka's error code as a failure; `what` was asked for.
pub(super) fn check(code: i16, what: impl FnOnce() -> String) -> Result<(), Failure> {
    match ResponseError::try_from_code(code) {
        None => Ok(()),
        Some(error) => Err(Failure::Refused(format!("{}: {error} ({code})", what()))),
    }
}

/// Blanks between two columns.
const GAP: usize = 2;

/// Rows of one kind, printable in every format.
pub(super) trait Row: Serialize {
    /// Headings of the table.
    const HEADINGS: &'static [&'static str];
    /// Cells in the order of the headings.
    fn cells(&self) -> Vec<String>;
}

/// `rows` as text that ends with a line break.
pub(super) fn render<R: Row>(rows: &[R], format: Format) -> Result<String, Failure> {
    match format {
        Format::Table => Ok(table(rows)),
        Format::Json => {
            let json = serde_json::to_string_pretty(rows);
            let json = json.map_err(|error| Failure::Refused(error.to_string()))?;
            Ok(json + "\n")
        }
    }
}

fn table<R: Row>(rows: &[R]) -> String {
    let headings = R::HEADINGS.iter().map(|cell| (*cell).to_owned()).collect();
    let mut lines: Vec<Vec<String>> = vec![headings];
    lines.extend(rows.iter().map(Row::cells));
    let widths: Vec<usize> = (0..R::HEADINGS.len())
        .map(|column| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for line in &lines {
        let mut padded = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let gap = width - cell.chars().count() + GAP;
            padded.push_str(cell);
            padded.extend(std::iter::repeat_n(' ', gap));
        }
        text.push_str(padded.trim_end());
        text.push('\n');
    }
    text
}

/// Prints the outcome of a command and makes its exit code.
pub(super) fn finish(outcome: Result<String, Failure>) -> ExitCode {
    let (output, failure) = match outcome {
        Ok(output) => (output, None),
        Err(Failure::Partly { output, why }) => (output, Some(*why)),
        Err(failure) => (String::new(), Some(failure)),
    };
    let written = io::stdout().lock().write_all(output.as_bytes());
    if let Some(failure) = failure {
        let line = format!("fencepost: {failure}\n");
        // Where even that cannot be written, the exit code still says it.
        io::stderr().write_all(line.as_bytes()).unwrap_or_default();
        return ExitCode::from(failure.code());
    }
    match written {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Pair(&'static str, u8);

    impl Row for Pair {
        const HEADINGS: &'static [&'static str] = &["NAME", "N"];
        fn cells(&self) -> Vec<String> {
            vec![self.0.to_owned(), self.1.to_string()]
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [Pair("a", 1), Pair("longer", 23)];
        let text = render(&rows, Format::Table).unwrap();
        assert_eq!(text, "NAME    N\na       1\nlonger  23\n");
        let json = render(&rows[..1], Format::Json).unwrap();
        assert_eq!(json.split_whitespace().collect::<String>(), "[[\"a\",1]]");
    }

    #[test]
    fn codes_become_words() {
        assert_eq!(check(0, String::new), Ok(()));
        let refused = check(25, || "group g".to_owned()).unwrap_err();
        assert!(refused.to_string().starts_with("group g: "), "{refused}");
        assert!(refused.to_string().ends_with("(25)"), "{refused}");
    }
}
