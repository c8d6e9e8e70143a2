//! A plan of a reset as a file, as `kafka-consumer-groups --export` writes it and `--from-file`
//! reads it: lines `TOPIC,PARTITION,OFFSET`, or `GROUP,TOPIC,PARTITION,OFFSET` for several groups.
//! A field may stand in quotes, in which two stand for one.

use std::collections::BTreeMap;

use super::super::output::Failure;
use super::offsets::Place;

/// New offsets, by the group that the line names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Plan {
    lines: Vec<(Option<String>, Place, i64)>,
}

impl Plan {
    /// Reads a file.
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        let lines = text.lines().zip(1..);
        let lines = lines.filter(|(line, _)| !line.trim().is_empty());
        let lines = lines.map(|(line, number)| {
            parsed(line).ok_or_else(|| {
                Failure::Usage(format!(
                    "line {number}: {line:?} is not [GROUP,]TOPIC,PARTITION,OFFSET"
                ))
            })
        });
        Ok(Self {
            lines: lines.collect::<Result<_, _>>()?,
        })
    }

    /// Whether a line says for no group in particular.
    pub(super) fn is_of_one_group(&self) -> bool {
        self.lines.iter().any(|(group, _, _)| group.is_none())
    }

    /// What it says for a group.
    pub(super) fn of(&self, name: &str) -> BTreeMap<Place, i64> {
        let of = |group: &Option<String>| group.as_deref().is_none_or(|group| group == name);
        let lines = self.lines.iter().filter(|(group, _, _)| of(group));
        lines
            .map(|(_, place, offset)| (place.clone(), *offset))
            .collect()
    }
}

fn parsed(line: &str) -> Option<(Option<String>, Place, i64)> {
    let fields = fields(line)?;
    let (group, rest) = match &fields[..] {
        [group, rest @ ..] if rest.len() == 3 => (Some(group.clone()), rest),
        rest => (None, rest),
    };
    let [topic, partition, offset] = rest else {
        return None;
    };
    let partition = partition.parse().ok().filter(|number| *number >= 0)?;
    Some((group, (topic.clone(), partition), offset.parse().ok()?))
}

/// The fields of a line, without blanks around them; `None` where quotes do not match.
fn fields(line: &str) -> Option<Vec<String>> {
    let mut fields = Vec::new();
    let mut rest = line.trim();
    loop {
        let (field, after) = if let Some(quoted) = rest.strip_prefix('"') {
            unquoted(quoted)?
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            let (field, after) = rest.split_at(end);
            (field.trim().to_owned(), after)
        };
        fields.push(field);
        let after = after.trim_start();
        if after.is_empty() {
            return Some(fields);
        }
        rest = after.strip_prefix(',')?.trim_start();
    }
}

/// A field whose quote was opened, and what stands behind it.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut field = String::new();
    let mut rest = text;
    loop {
        let (before, after) = rest.split_once('"')?;
        field.push_str(before);
        match after.strip_prefix('"') {
            Some(again) => {
                field.push('"');
                rest = again;
            }
            None => return Some((field, after)),
        }
    }
}

/// One line of a plan; `group` where there are several.
pub(super) fn line(group: Option<&str>, topic: &str, partition: i32, offset: i64) -> String {
    let group = group.map_or_else(String::new, |group| quoted(group) + ",");
    format!("{group}{},{partition},{offset}\n", quoted(topic))
}

fn quoted(field: &str) -> String {
    if field.contains([',', '"', ' ', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_line_by_line() {
        let plan = Plan::parse("a,0,5\n\n b , 1 , 6 \n").unwrap();
        assert!(plan.is_of_one_group());
        let read = plan.of("any");
        assert_eq!(read.get(&("a".to_owned(), 0)), Some(&5));
        assert_eq!(read.get(&("b".to_owned(), 1)), Some(&6));
        for bad in [
            "a,0",
            "a,0,5,6,7",
            "a,-1,5",
            "a,0,x",
            "\"a,0,5",
            "\"a\"b,0,5",
        ] {
            let text = format!("a,0,5\n{bad}\n");
            let refused = Plan::parse(&text).unwrap_err().to_string();
            assert!(refused.starts_with("line 2"), "{bad}: {refused}");
        }
    }

    #[test]
    fn groups_have_their_own_lines() {
        let plan = Plan::parse("g1,a,0,5\n\"g,\"\"2\"\"\",\"a\",0,6\n").unwrap();
        assert!(!plan.is_of_one_group());
        let place = ("a".to_owned(), 0);
        assert_eq!(plan.of("g1"), [(place.clone(), 5)].into());
        assert_eq!(plan.of("g,\"2\""), [(place, 6)].into());
        assert_eq!(plan.of("g3"), BTreeMap::new());
    }

    #[test]
    fn what_is_exported_is_read_again() {
        for group in ["g", "g,1", "a \"b\""] {
            let written = line(Some(group), "t", 3, 9);
            let read = Plan::parse(&written).unwrap();
            assert_eq!(read.of(group), [(("t".to_owned(), 3), 9)].into());
        }
        assert_eq!(line(None, "t", 3, 9), "t,3,9\n");
        assert_eq!(line(Some("g"), "t", 3, 9), "g,t,3,9\n");
    }
}
