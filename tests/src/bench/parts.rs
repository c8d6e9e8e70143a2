//! The figures of docs/performance.md: parts that were measured on different days, each with its
//! rows, date and commit in its heading. A new part takes its rows out of the older ones.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::repository;

const BEGIN: &str = "<!-- bench:begin -->";
const END: &str = "<!-- bench:end -->";
/// How the heading of a part begins; its rows follow, then a colon.
const HEADING: &str = "### Rows ";

/// Rows that were measured together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// In order; none is twice there.
    rows: Vec<u8>,
    /// Behind the rows in the heading: when it was measured, and of what.
    origin: String,
    /// Below the heading: machine, table, command.
    body: String,
}

impl Part {
    /// A part of today and of the commit that is checked out.
    pub(super) fn new(rows: &[u8], body: String) -> Result<Self> {
        let date = said_by(Command::new("date").args(["-u", "+%F"]))?;
        let mut git = Command::new("git");
        git.args(["rev-parse", "--short", "HEAD"]);
        let commit = said_by(git.current_dir(repository()))?;
        let mut git = Command::new("git");
        // The page itself changes with every part.
        git.args(["status", "--porcelain", "--", ".", ":!docs"]);
        let changed = said_by(git.current_dir(repository()))?;
        let state = if changed.is_empty() {
            ""
        } else {
            " with changes"
        };
        let mut rows = rows.to_vec();
        rows.sort_unstable();
        rows.dedup();
        Ok(Self {
            rows,
            origin: format!("{date}, commit {commit}{state}"),
            body,
        })
    }

    /// As it is printed and written.
    pub(super) fn render(&self) -> String {
        let rows: Vec<String> = self.rows.iter().map(u8::to_string).collect();
        let (rows, origin, body) = (rows.join(", "), &self.origin, self.body.trim());
        format!("{HEADING}{rows}: {origin}\n\n{body}\n")
    }

    /// Reads one part; its first line is without [`HEADING`].
    fn read(text: &str) -> Result<Self> {
        let (heading, body) = text.split_once('\n').unwrap_or((text, ""));
        let (rows, origin) = heading
            .split_once(": ")
            .with_context(|| format!("no rows in the heading {heading:?}"))?;
        let rows = rows.split(", ").map(str::parse).collect::<Result<_, _>>();
        Ok(Self {
            rows: rows.with_context(|| format!("rows of the heading {heading:?}"))?,
            origin: origin.to_owned(),
            body: body.to_owned(),
        })
    }

    /// Without some rows; `None` if nothing is left.
    fn without(mut self, rows: &[u8]) -> Option<Self> {
        self.rows.retain(|row| !rows.contains(row));
        if self.rows.is_empty() {
            return None;
        }
        let kept = self.body.lines().filter(|line| {
            let row = row_of(line);
            row.is_none_or(|row| !rows.contains(&row))
        });
        self.body = kept.collect::<Vec<_>>().join("\n");
        Some(self)
    }
}

/// The row that a line of a table belongs to.
fn row_of(line: &str) -> Option<u8> {
    let (row, _) = line.strip_prefix("| ")?.split_once(" |")?;
    row.parse().ok()
}

/// The page with a part added, which replaces what older parts say of its rows.
pub(super) fn add_to_page(page: &str, part: &Part) -> Result<String> {
    let (before, rest) = page
        .split_once(BEGIN)
        .with_context(|| format!("no {BEGIN}"))?;
    let (section, after) = rest.split_once(END).with_context(|| format!("no {END}"))?;
    ensure!(!after.contains(BEGIN), "{BEGIN} is there twice");
    let mut parts = vec![part.clone()];
    let (section, separator) = (format!("\n{section}"), format!("\n{HEADING}"));
    let mut olds = section.split(&separator);
    let unnamed = olds.next().unwrap_or_default();
    ensure!(
        !unnamed.contains("\n| "),
        "figures without a heading that names their rows"
    );
    for old in olds {
        parts.extend(Part::read(old)?.without(&part.rows));
    }
    parts.sort_by(|a, b| a.rows.cmp(&b.rows));
    let parts: Vec<String> = parts.iter().map(Part::render).collect();
    Ok(format!("{before}{BEGIN}\n{}{END}{after}", parts.join("\n")))
}

/// What a program prints.
fn said_by(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().context(program.clone())?;
    ensure!(output.status.success(), "{program}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(rows: &[u8], origin: &str, figures: &str) -> Part {
        let mut body = "Machine: one.\n\n| row | case |\n|---|---|\n".to_owned();
        for row in rows {
            body.extend(["| ", &row.to_string(), " | ", figures, " |\n"]);
        }
        body.push_str("\nCommand: `bench`.");
        Part {
            rows: rows.to_vec(),
            origin: origin.to_owned(),
            body,
        }
    }

    fn page(parts: &[Part]) -> String {
        let parts: Vec<String> = parts.iter().map(Part::render).collect();
        format!("# Page\n\n{BEGIN}\n{}{END}\n\nend\n", parts.join("\n"))
    }

    #[test]
    fn a_first_part_replaces_the_words_that_nothing_is_measured() {
        let old = format!("# Page\n\n{BEGIN}\nNot measured yet.\n{END}\n\nend\n");
        let new = part(&[9], "today, commit b", "12.0");
        assert_eq!(add_to_page(&old, &new).unwrap(), page(&[new]));
        assert!(add_to_page("no markers", &part(&[9], "today", "")).is_err());
    }

    #[test]
    fn a_part_replaces_its_rows_and_no_others() {
        let old = page(&[
            part(&[1, 9, 10], "monday, commit a", "1.0"),
            part(&[11], "tuesday, commit b", "2.0"),
        ]);
        let new = part(&[9, 11], "friday, commit c", "3.0");
        let expected = page(&[
            part(&[1, 10], "monday, commit a", "1.0"),
            part(&[9, 11], "friday, commit c", "3.0"),
        ]);
        assert_eq!(add_to_page(&old, &new).unwrap(), expected);
        assert_eq!(add_to_page(&expected, &new).unwrap(), expected);
    }

    #[test]
    fn a_row_is_told_from_one_that_begins_alike() {
        let old = page(&[part(&[1, 10, 16], "monday, commit a", "1.0")]);
        let new = part(&[1], "friday, commit c", "3.0");
        let text = add_to_page(&old, &new).unwrap();
        let expected = page(&[new, part(&[10, 16], "monday, commit a", "1.0")]);
        assert_eq!(text, expected);
    }

    #[test]
    fn a_heading_that_was_not_written_here_is_refused() {
        let unnamed = part(&[9], "monday", "1.0").body;
        for section in [format!("{HEADING}nine: monday\n\ntable"), unnamed] {
            let old = format!("{BEGIN}\n{section}\n{END}\n");
            assert!(add_to_page(&old, &part(&[9], "friday", "")).is_err());
        }
    }

    #[test]
    fn the_performance_page_takes_a_part() {
        let page = std::fs::read_to_string(repository().join("docs/performance.md")).unwrap();
        let new = part(&[9], "friday, commit c", "3.0");
        assert!(add_to_page(&page, &new).unwrap().contains(&new.render()));
    }
}
