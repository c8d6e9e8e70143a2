//! Answers field by field: a decoded answer as lines of path and value, with everything that two
//! brokers cannot agree on told by its kind.

use std::collections::BTreeMap;
use std::fmt::Debug;

/// A field: its path (`responses[0].error_code`) and its value.
pub(super) type Line = (String, String);

/// Values longer than this many characters are told by their length and a sum.
const VALUE_LEN_MAX: usize = 120;

/// What two brokers call differently, by the order in which it is seen first.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) seen: BTreeMap<(&'static str, String), usize>,
    /// Producer ids that the scripts choose themselves.
    pub(super) chosen: Vec<i64>,
    /// What counts as the present, ms since the epoch.
    pub(super) now: Option<(i64, i64)>,
}

enum Container {
    /// Fields by name.
    Struct,
    /// Elements by number.
    List(usize),
    /// Values without names, of which the first has the path of what holds it.
    Wrapper(usize),
}

impl Names {
    /// The fields of a value, from its pretty `Debug` text.
    pub(super) fn lines(&mut self, value: &impl Debug) -> Vec<Line> {
        let text = format!("{value:#?}");
        let mut lines = Vec::new();
        let mut open: Vec<(String, Container)> = Vec::new();
        for line in text.lines().map(str::trim) {
            if line.starts_with(['}', ']', ')']) {
                open.pop();
                continue;
            }
            let (path, rest) = place(&mut open, line);
            let rest = rest.trim_end_matches(',');
            let container = match rest.chars().last() {
                Some('{') => Some(Container::Struct),
                Some('[') => Some(Container::List(0)),
                Some('(') => Some(Container::Wrapper(0)),
                _ => None,
            };
            match container {
                Some(container) => open.push((path, container)),
                None => lines.push((path.clone(), self.name(&path, rest))),
            }
        }
        lines
    }

    /// A value as both brokers would say it.
    fn name(&mut self, path: &str, value: &str) -> String {
        let field = path.rsplit('.').next().unwrap_or(path);
        let field = field.split('[').next().unwrap_or(field);
        let number = value.parse::<i64>().ok();
        match field {
            "port" => return "<port>".to_owned(),
            "cluster_id" if value.starts_with('"') => return "<cluster>".to_owned(),
            "log_dir" => return "<directory>".to_owned(),
            "total_bytes" | "usable_bytes" if number > Some(0) => return "<bytes>".to_owned(),
            "session_id" if number != Some(0) => return "<session>".to_owned(),
            "producer_id" if number > Some(-1) => {
                if number.is_some_and(|id| self.chosen.contains(&id)) {
                    return value.to_owned();
                }
                return self.numbered("producer", value);
            }
            _ => {}
        }
        // For people, if there is one.
        if field.ends_with("message") {
            return "<text>".to_owned();
        }
        if field.contains("time") && number.is_some_and(|ms| self.is_now(ms)) {
            return "<now>".to_owned();
        }
        if is_uuid(value) {
            return self.numbered("id", value);
        }
        if value.len() > VALUE_LEN_MAX {
            let sum = crc32c::crc32c(value.as_bytes());
            return format!("<{} characters, {sum:08x}>", value.len());
        }
        value.to_owned()
    }

    fn is_now(&self, ms: i64) -> bool {
        self.now.is_some_and(|(from, to)| (from..=to).contains(&ms))
    }

    fn numbered(&mut self, kind: &'static str, value: &str) -> String {
        let next = self.seen.keys().filter(|(of, _)| *of == kind).count();
        let number = self.seen.entry((kind, value.to_owned())).or_insert(next);
        format!("<{kind} {number}>")
    }
}

/// The path of a line in what is open, and what stands behind its name.
fn place<'a>(open: &mut [(String, Container)], line: &'a str) -> (String, &'a str) {
    match open.last_mut() {
        None => (String::new(), line),
        Some((path, Container::Wrapper(next))) => {
            let place = match *next {
                0 => path.clone(),
                place => format!("{path}[{place}]"),
            };
            *next += 1;
            (place, line)
        }
        Some((path, Container::List(next))) => {
            let element = format!("{path}[{next}]");
            *next += 1;
            (element, line)
        }
        Some((path, Container::Struct)) => {
            let (name, rest) = line.split_once(": ").unwrap_or((line, ""));
            let dot = if path.is_empty() { "" } else { "." };
            (format!("{path}{dot}{name}"), rest)
        }
    }
}

fn is_uuid(value: &str) -> bool {
    uuid::Uuid::parse_str(value).is_ok_and(|id| value.len() == 36 && !id.is_nil())
}

/// A path without the places in lists.
pub(super) fn without_places(path: &str) -> String {
    let mut parts = path.split('[');
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        shown.push_str(part.split_once(']').map_or("", |(_, rest)| rest));
    }
    shown
}

/// The fields in which two answers differ, with the value of each.
pub(super) fn differing(
    one: &[Line],
    other: &[Line],
) -> Vec<(String, Option<String>, Option<String>)> {
    let find = |lines: &[Line], path: &str| {
        let found = lines.iter().find(|(at, _)| at == path);
        found.map(|(_, value)| value.clone())
    };
    let mut paths: Vec<&String> = one.iter().chain(other).map(|(path, _)| path).collect();
    let mut seen = std::collections::BTreeSet::new();
    paths.retain(|path| seen.insert(*path));
    let both = paths
        .into_iter()
        .map(|path| (path.clone(), find(one, path), find(other, path)));
    both.filter(|(_, one, other)| one != other).collect()
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::metadata_response::{
        MetadataResponseBroker, MetadataResponseTopic,
    };
    use kafka_protocol::messages::{BrokerId, MetadataResponse, ProduceResponse, TopicName};
    use kafka_protocol::protocol::StrBytes;

    use super::*;

    fn text(text: &str) -> StrBytes {
        StrBytes::from_string(text.to_owned())
    }

    #[test]
    fn answers_are_told_field_by_field() {
        let broker = MetadataResponseBroker::default()
            .with_node_id(BrokerId(1))
            .with_host(text("h: x"))
            .with_port(1234);
        let id = uuid::Uuid::from_u128(5);
        let topic = |name: &str| {
            MetadataResponseTopic::default()
                .with_name(Some(TopicName(text(name))))
                .with_topic_id(id)
        };
        let response = MetadataResponse::default()
            .with_brokers(vec![broker])
            .with_cluster_id(Some(text("c")))
            .with_topics(vec![topic("a"), topic("b")]);
        let lines = Names::default().lines(&response);
        let found = |path: &str| {
            let line = lines.iter().find(|(at, _)| at == path);
            line.map_or("no such path", |(_, value)| value.as_str())
        };
        assert_eq!(found("brokers[0].node_id"), "1");
        assert_eq!(found("brokers[0].host"), "\"h: x\"");
        assert_eq!(found("brokers[0].port"), "<port>");
        assert_eq!(found("brokers[0].rack"), "None");
        assert_eq!(found("cluster_id"), "<cluster>");
        assert_eq!(found("topics[0].name"), "\"a\"");
        assert_eq!(found("topics[1].name"), "\"b\"");
        assert_eq!(found("topics[1].topic_id"), "<id 0>");
        assert_eq!(found("topics[1].partitions"), "[]");
        assert_eq!(
            without_places("topics[1].partitions[0].x"),
            "topics.partitions.x"
        );
    }

    #[test]
    fn values_without_names_have_places() {
        let lines = Names::default().lines(&(7, Some(true), "x"));
        let expected = [("", "7"), ("[1]", "true"), ("[2]", "\"x\"")];
        let expected = expected.map(|(path, value)| (path.to_owned(), value.to_owned()));
        assert_eq!(lines, expected);
    }

    #[test]
    fn what_differs_is_found_and_nothing_else() {
        let mut names = Names::default();
        let one = ProduceResponse::default();
        let other = one.clone().with_throttle_time_ms(5);
        let (one, other) = (names.lines(&one), names.lines(&other));
        assert_eq!(differing(&one, &one), []);
        let expected = (
            "throttle_time_ms".to_owned(),
            Some("0".to_owned()),
            Some("5".to_owned()),
        );
        assert_eq!(differing(&one, &other), [expected]);
    }
}
