//! What a command prints, and how it ends.
//!
//! Exit codes of all commands but `serve`: 0 done; 1 a finding, or refused by the broker; 2 a wrong
//! argument; 3 the broker can't be reached; 4 no answer in time.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::ValueEnum;
use kafka_protocol::error::ResponseError;
use kafka_protocol::protocol::StrBytes;
use serde::Serialize;
use serde_json::Value;

/// How a command prints what it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum Format {
    /// Columns for people.
    #[default]
    Table,
    /// The same with further columns, where there are some.
    Wide,
    /// One JSON document.
    Json,
    /// One JSON document a line.
    Jsonl,
    /// YAML.
    Yaml,
    /// Nothing is done: what there is in the other formats.
    Help,
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

/// The same with what the broker says about it.
pub(super) fn check_said(
    code: i16,
    message: Option<&StrBytes>,
    what: impl FnOnce() -> String,
) -> Result<(), Failure> {
    let said = message.map(StrBytes::as_str).unwrap_or_default();
    check(code, what).map_err(|failure| match failure {
        Failure::Refused(text) if !said.is_empty() => Failure::Refused(format!("{text}: {said}")),
        other => other,
    })
}

/// Blanks between two columns.
const GAP: usize = 2;

/// Rows of one kind, printable in every format.
pub(super) trait Row: Serialize + Default {
    /// Headings of the table.
    const HEADINGS: &'static [&'static str];
    /// Cells in the order of the headings.
    fn cells(&self) -> Vec<String>;
    /// Headings that only the wide table has, behind the others.
    const WIDE: &'static [&'static str] = &[];
    /// Cells below those.
    fn wide_cells(&self) -> Vec<String> {
        Vec::new()
    }
}

/// `rows` as text that ends with a line break.
pub(super) fn render<R: Row>(rows: &[R], format: Format) -> Result<String, Failure> {
    let failed = |error: serde_json::Error| Failure::Refused(error.to_string());
    match format {
        Format::Table => Ok(table(rows, false)),
        Format::Wide => Ok(table(rows, true)),
        Format::Json => Ok(serde_json::to_string_pretty(rows).map_err(failed)? + "\n"),
        Format::Jsonl => {
            let lines = rows.iter().map(|row| serde_json::to_string(row));
            let lines: Result<Vec<String>, _> = lines.collect();
            let ended = lines.map_err(failed)?.into_iter().map(|line| line + "\n");
            Ok(ended.collect())
        }
        Format::Yaml => {
            let mut text = String::new();
            let value = serde_json::to_value(rows).map_err(failed)?;
            yaml::write(&value, &mut text);
            Ok(text)
        }
        Format::Help => help::<R>(),
    }
}

/// What rows of a kind have in every format.
pub(super) fn help<R: Row>() -> Result<String, Failure> {
    let row = serde_json::to_value(R::default());
    let row = row.map_err(|error| Failure::Refused(error.to_string()))?;
    let mut text = schema("json, yaml: a list of rows; jsonl: a row a line", &row);
    let (columns, more) = (R::HEADINGS.join(" "), R::WIDE.join(" "));
    text.extend(["table: ", &columns, "\n"]);
    if !more.is_empty() {
        text.extend(["wide: ", &columns, " ", &more, "\n"]);
    }
    Ok(text)
}

/// The fields of something, one a line.
pub(super) fn schema(what: &str, of: &Value) -> String {
    let mut text = format!("{what}\n");
    let fields = of.as_object().into_iter().flatten();
    for (name, value) in fields {
        let kind = match value {
            Value::Null => "may be null",
            Value::Bool(_) => "true or false",
            Value::Number(_) => "number",
            Value::String(_) => "text",
            Value::Array(_) => "list",
            Value::Object(_) => "values by name",
        };
        text.extend(["  ", name, ": ", kind, "\n"]);
    }
    text
}

/// One document that is no list of rows; as JSON where a table is asked for.
pub(super) fn document(value: &Value, format: Format) -> String {
    match format {
        Format::Help => schema("one document", value),
        Format::Table | Format::Wide | Format::Json => format!("{value:#}\n"),
        Format::Jsonl => format!("{value}\n"),
        Format::Yaml => {
            let mut text = String::new();
            yaml::write(value, &mut text);
            text
        }
    }
}

fn table<R: Row>(rows: &[R], wide: bool) -> String {
    let more = if wide { R::WIDE } else { &[] };
    let headings = R::HEADINGS.iter().chain(more);
    let mut lines: Vec<Vec<String>> = vec![headings.map(|cell| (*cell).to_owned()).collect()];
    lines.extend(rows.iter().map(|row| {
        let mut cells = row.cells();
        if wide {
            cells.extend(row.wide_cells());
        }
        cells
    }));
    let widths: Vec<usize> = (0..R::HEADINGS.len() + more.len())
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

/// A cell of something that may not be there.
pub(super) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

mod yaml {
    //! What JSON holds, as YAML in block style. Texts are quoted as in JSON, which YAML reads.

    use super::Value;

    pub(super) fn write(value: &Value, text: &mut String) {
        if is_leaf(value) {
            leaf(value, text);
        } else {
            block(value, 0, text);
        }
    }

    fn is_leaf(value: &Value) -> bool {
        match value {
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            _ => true,
        }
    }

    fn leaf(value: &Value, text: &mut String) {
        text.push_str(&value.to_string());
        text.push('\n');
    }

    fn block(value: &Value, depth: usize, text: &mut String) {
        // The first line stands behind the dash of the list that it is in.
        let begin = |text: &mut String| {
            if text.ends_with('\n') {
                text.extend(std::iter::repeat_n(' ', depth));
            }
        };
        match value {
            Value::Array(items) => {
                for item in items {
                    begin(text);
                    text.push_str("- ");
                    below(item, depth + 2, false, text);
                }
            }
            Value::Object(fields) => {
                for (name, field) in fields {
                    begin(text);
                    if is_plain(name) {
                        text.push_str(name);
                    } else {
                        text.push_str(&Value::from(name.as_str()).to_string());
                    }
                    text.push(':');
                    below(field, depth + 2, true, text);
                }
            }
            _ => leaf(value, text),
        }
    }

    /// Whether a name is read as it stands.
    fn is_plain(name: &str) -> bool {
        const OTHERS: [&str; 8] = ["true", "false", "null", "yes", "no", "on", "off", "y"];
        let letters = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_alphanumeric());
        letters && name.len() > 1 && !OTHERS.contains(&name)
    }

    fn below(value: &Value, depth: usize, of_a_field: bool, text: &mut String) {
        if is_leaf(value) {
            if of_a_field {
                text.push(' ');
            }
            leaf(value, text);
        } else {
            if of_a_field {
                text.push('\n');
            }
            block(value, depth, text);
        }
    }
}

/// Prints the outcome of a command and makes its exit code.
pub(super) fn finish(outcome: Result<String, Failure>) -> ExitCode {
    let (output, failure) = match outcome {
        Ok(output) => (output, None),
        Err(Failure::Partly { output, why }) => (output, Some(*why)),
        Err(failure) => (String::new(), Some(failure)),
    };
    if let Some(failure) = failure.as_ref().filter(|_| output.is_empty()) {
        // Without a word to the output: a thread that was left behind may be writing there.
        complain(failure);
        return ExitCode::from(failure.code());
    }
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(output.as_bytes());
    let written = written.and_then(|()| stdout.flush());
    if let Some(failure) = failure {
        complain(&failure);
        return ExitCode::from(failure.code());
    }
    match written {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("standard output: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Says on standard error what went wrong.
pub(super) fn complain(what: &dyn std::fmt::Display) {
    let line = format!("fencepost: {what}\n");
    // Where even that cannot be written, the exit code still says it.
    let mut stderr = io::stderr().lock();
    stderr.write_all(line.as_bytes()).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default, Serialize)]
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

    #[derive(Default, Serialize)]
    struct Nested {
        name: &'static str,
        list: Vec<Pair>,
        none: Option<u8>,
        empty: Vec<u8>,
    }

    impl Row for Nested {
        const HEADINGS: &'static [&'static str] = &["NAME"];
        const WIDE: &'static [&'static str] = &["NONE"];
        fn cells(&self) -> Vec<String> {
            vec![self.name.to_owned()]
        }
        fn wide_cells(&self) -> Vec<String> {
            vec![or_dash(self.none)]
        }
    }

    #[test]
    fn every_format_has_the_same_facts() {
        let rows = || Nested {
            name: "a: \"b\"",
            list: vec![Pair("x", 1)],
            none: None,
            empty: Vec::new(),
        };
        let rows = [rows(), rows()];
        let jsonl = render(&rows, Format::Jsonl).unwrap();
        assert_eq!(jsonl.lines().count(), 2);
        let line: Value = serde_json::from_str(jsonl.lines().next().unwrap()).unwrap();
        assert_eq!(line["list"][0][1], 1);
        let yaml = render(&rows[..1], Format::Yaml).unwrap();
        let expected = "- empty: []\n  list:\n    - - \"x\"\n      - 1\n  \
                        name: \"a: \\\"b\\\"\"\n  none: null\n";
        assert_eq!(yaml, expected);
        let none: [Nested; 0] = [];
        assert_eq!(render(&none, Format::Yaml).unwrap(), "[]\n");
        assert_eq!(render(&none, Format::Jsonl).unwrap(), "");
        let wide = render(&rows[..1], Format::Wide).unwrap();
        assert_eq!(wide, "NAME    NONE\na: \"b\"  -\n");
        let help = render(&none, Format::Help).unwrap();
        let expected = "json, yaml: a list of rows; jsonl: a row a line\n  empty: list\n  \
                        list: list\n  name: text\n  none: may be null\n\
                        table: NAME\nwide: NAME NONE\n";
        assert_eq!(help, expected);
    }

    #[test]
    fn codes_become_words() {
        assert_eq!(check(0, String::new), Ok(()));
        let refused = check(25, || "group g".to_owned()).unwrap_err();
        assert!(refused.to_string().starts_with("group g: "), "{refused}");
        assert!(refused.to_string().ends_with("(25)"), "{refused}");
    }
}
