//! Figures and the table that they become.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::progress;
use super::subject::Subject;

/// What was measured in one line of the table.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Case {
    pub(super) row: u8,
    pub(super) what: String,
    /// Unit, with an arrow to where better lies.
    pub(super) unit: &'static str,
}

/// Megabytes (10^6) per second.
pub(super) const MB_PER_SECOND: &str = "MB/s ↑";
/// Processor seconds of the broker per 10^9 bytes of batches or messages.
pub(super) const CPU_PER_GB: &str = "CPU s/GB ↓";
/// Milliseconds.
pub(super) const MS: &str = "ms ↓";
/// Microseconds.
pub(super) const US: &str = "µs ↓";
/// Events in a second.
pub(super) const PER_SECOND: &str = "1/s ↑";
/// Seconds.
pub(super) const SECONDS: &str = "s ↓";
/// Open files, sockets and the like.
pub(super) const HANDLES: &str = "handles ↓";
/// Processor time over time.
pub(super) const OF_A_CORE: &str = "% of a core ↓";
/// Mebibytes.
pub(super) const MIB: &str = "MiB ↓";
/// A quotient.
pub(super) const SHARE: &str = "ratio ↓";
/// Syncs of files and directories.
pub(super) const SYNCS: &str = "syncs ↓";
/// Kibibytes.
pub(super) const KIB: &str = "KiB ↓";

#[derive(Debug)]
struct Line {
    case: Case,
    by_subject: BTreeMap<Subject, Vec<f64>>,
    /// Figures of the machine or the client alone.
    alone: Vec<f64>,
}

/// All figures so far.
#[derive(Debug, Default)]
pub(super) struct Results {
    lines: Vec<Line>,
}

impl Results {
    /// Adds a figure of a subject.
    pub(super) fn add(&mut self, subject: Subject, case: Case, value: f64) {
        announce(subject.label(), &case, value);
        self.line(case)
            .by_subject
            .entry(subject)
            .or_default()
            .push(value);
    }

    /// Adds a figure that belongs to no broker: a disk's or a client's own.
    pub(super) fn add_alone(&mut self, case: Case, value: f64) {
        announce("alone", &case, value);
        self.line(case).alone.push(value);
    }

    fn line(&mut self, case: Case) -> &mut Line {
        let found = self.lines.iter().position(|line| line.case == case);
        let index = found.unwrap_or(self.lines.len());
        if found.is_none() {
            self.lines.push(Line {
                case,
                by_subject: BTreeMap::new(),
                alone: Vec::new(),
            });
        }
        &mut self.lines[index]
    }

    /// The markdown table, one column per subject and one per ratio to the first subject's peers.
    pub(super) fn table(&self, subjects: &[Subject]) -> String {
        let first = subjects.first().copied();
        let peers: Vec<Subject> = subjects.iter().copied().filter(|s| s.is_kafka()).collect();
        let ours = first.filter(|subject| !subject.is_kafka());
        let mut head = "| row | case | unit |".to_owned();
        for subject in subjects {
            append(
                &mut head,
                format_args!(" {} ({}) |", subject.label(), subject.durability()),
            );
        }
        if let Some(ours) = ours {
            for peer in &peers {
                append(
                    &mut head,
                    format_args!(" {} ÷ {} |", ours.label(), peer.label()),
                );
            }
        }
        let columns = head.matches('|').count() - 1;
        let mut table = format!("{head}\n|{}\n", "---|".repeat(columns));
        let mut lines: Vec<&Line> = self.lines.iter().collect();
        lines.sort_by_key(|line| line.case.row);
        for line in lines {
            append(
                &mut table,
                format_args!("{}\n", line.render(subjects, ours, &peers)),
            );
        }
        table
    }
}

impl Line {
    fn render(&self, subjects: &[Subject], ours: Option<Subject>, peers: &[Subject]) -> String {
        let Case { row, what, unit } = &self.case;
        let mut text = format!("| {row} | {what} | {unit} |");
        if !self.alone.is_empty() {
            let blanks =
                " |".repeat(subjects.len() - 1 + if ours.is_some() { peers.len() } else { 0 });
            append(&mut text, format_args!(" {} |{blanks}", cell(&self.alone)));
            return text;
        }
        for subject in subjects {
            let values = self.by_subject.get(subject).map_or(&[][..], Vec::as_slice);
            append(&mut text, format_args!(" {} |", cell(values)));
        }
        let Some(ours) = ours else { return text };
        for peer in peers {
            let ratio = match (self.median(ours), self.median(*peer)) {
                (Some(ours), Some(peer)) if peer > 0.0 => format!("{:.2}", ours / peer),
                _ => String::new(),
            };
            append(&mut text, format_args!(" {ratio} |"));
        }
        text
    }

    fn median(&self, subject: Subject) -> Option<f64> {
        self.by_subject
            .get(&subject)
            .and_then(|values| spread(values))
            .map(|(_, median, _)| median)
    }
}

/// A long benchmark shows its figures as they come; only the table at its end counts.
fn announce(who: &str, case: &Case, value: f64) {
    let Case { row, what, unit } = case;
    progress(&format!(
        "row {row}, {who}: {what}: {} {unit}",
        digits(value)
    ));
}

fn append(text: &mut String, more: std::fmt::Arguments<'_>) {
    // Writing to a string can't fail.
    text.write_fmt(more).ok();
}

fn cell(values: &[f64]) -> String {
    match spread(values) {
        None => String::new(),
        Some((_, median, _)) if values.len() == 1 => digits(median),
        Some((least, median, most)) => {
            format!("{} ({}–{})", digits(median), digits(least), digits(most))
        }
    }
}

/// Least, median and most.
fn spread(values: &[f64]) -> Option<(f64, f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (least, most) = (*sorted.first()?, *sorted.last()?);
    let upper = sorted[sorted.len() / 2];
    let lower = sorted[(sorted.len() - 1) / 2];
    Some((least, f64::midpoint(lower, upper), most))
}

/// About three significant digits.
fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_medians_spreads_and_ratios() {
        let mut results = Results::default();
        let case = || Case {
            row: 3,
            what: "x".into(),
            unit: MB_PER_SECOND,
        };
        for value in [300.0, 100.0, 200.0] {
            results.add(Subject::Fencepost, case(), value);
        }
        results.add(Subject::Kafka, case(), 50.0);
        let disk = Case {
            row: 1,
            what: "client alone".into(),
            unit: MB_PER_SECOND,
        };
        results.add_alone(disk, 12.34);
        let table = results.table(&[Subject::Fencepost, Subject::Kafka]);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(
            lines,
            [
                "| row | case | unit | Fencepost (fdatasync per group) | Kafka (page cache) \
                 | Fencepost ÷ Kafka |",
                "|---|---|---|---|---|---|",
                "| 1 | client alone | MB/s ↑ | 12.3 | | |",
                "| 3 | x | MB/s ↑ | 200 (100–300) | 50.0 | 4.00 |",
            ]
        );
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some((1.0, 2.5, 4.0)));
        assert_eq!(spread(&[]), None);
    }
}
