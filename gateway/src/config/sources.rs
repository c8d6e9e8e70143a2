//! Reads settings from files and from the environment.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::settings::{ConfigError, Origin, Settings};

/// Largest configuration file.
const FILE_LEN_MAX: u64 = 1 << 20;

/// Variables that Kafka's container image reads for itself: they are no keys.
const IMAGE_VARIABLES: &[&str] = &[
    "KAFKA_VERSION",
    "KAFKA_CLUSTER_ID",
    "KAFKA_HOME",
    "KAFKA_HEAP_OPTS",
    "KAFKA_OPTS",
    "KAFKA_JVM_PERFORMANCE_OPTS",
    "KAFKA_GC_LOG_OPTS",
    "KAFKA_LOG4J_OPTS",
    "KAFKA_LOG4J_ROOT_LOGLEVEL",
    "KAFKA_LOG4J_LOGGERS",
    "KAFKA_TOOLS_LOG4J_LOGLEVEL",
    "KAFKA_JMX_OPTS",
    "KAFKA_JMX_PORT",
    "KAFKA_JMX_HOSTNAME",
];

/// The form of a configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileForm {
    /// Java's properties.
    Properties,
    /// TOML.
    Toml,
}

impl FileForm {
    /// That of a file: `.properties` is Java's, anything else TOML.
    pub fn of(path: &Path) -> Self {
        let extension = path.extension();
        if extension.is_some_and(|extension| extension.eq_ignore_ascii_case("properties")) {
            Self::Properties
        } else {
            Self::Toml
        }
    }
}

/// Adds the settings of a file.
///
/// # Errors
/// If it cannot be read or is not in its form.
pub fn read_file(settings: &mut Settings, path: &Path, form: FileForm) -> Result<(), ConfigError> {
    let fail = |why: String| ConfigError::File {
        path: path.display().to_string(),
        why,
    };
    let file = File::open(path).map_err(|error| fail(error.to_string()))?;
    let mut text = String::new();
    let read = file.take(FILE_LEN_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| fail(error.to_string()))?;
    if text.len() as u64 > FILE_LEN_MAX {
        return Err(fail("larger than 1 MiB".to_owned()));
    }
    let name = path.display().to_string();
    if form == FileForm::Properties {
        for (line, key, value) in properties(&text) {
            settings.set(&key, &value, Origin::File(name.clone(), line));
        }
        return Ok(());
    }
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| fail(error.to_string()))?;
    for (key, value) in flatten(&table).map_err(fail)? {
        settings.set(&key, &value, Origin::File(name.clone(), 0));
    }
    Ok(())
}

/// Adds the settings of the environment: `KAFKA_*` by the mapping of Kafka's image, and
/// `FENCEPOST_*`, which wins, with `__` between section and key, or as in the image.
pub fn read_environment(
    settings: &mut Settings,
    variables: impl IntoIterator<Item = (String, String)>,
) {
    let mut variables: Vec<_> = variables.into_iter().collect();
    // By name, so that warnings come in the same order each time; FENCEPOST_ would come first.
    variables.sort();
    for prefix in ["KAFKA_", "FENCEPOST_"] {
        for (name, value) in &variables {
            let Some(rest) = name.strip_prefix(prefix) else {
                continue;
            };
            if !IMAGE_VARIABLES.contains(&name.as_str()) {
                let key = match prefix {
                    // No key of ours has an underscore.
                    "FENCEPOST_" => key_of_variable(rest).replace('_', "."),
                    _ => key_of_variable(rest),
                };
                settings.set(&key, value, Origin::Environment(name.clone()));
            }
        }
    }
}

/// `LOG__DIRS_X` style to key: `___` is `-`, `__` is `_`, `_` is `.`.
fn key_of_variable(rest: &str) -> String {
    rest.to_ascii_lowercase()
        .replace("___", "-")
        .replace("__", "\u{0}")
        .replace('_', ".")
        .replace('\u{0}', "_")
}

/// Nested tables become dotted names, lists become values with commas.
fn flatten(table: &toml::Table) -> Result<Vec<(String, String)>, String> {
    let mut flat = Vec::new();
    let mut open: Vec<(String, &toml::Value)> = top(table, "");
    while let Some((name, value)) = open.pop() {
        match value {
            toml::Value::Table(inner) => open.extend(top(inner, &format!("{name}."))),
            toml::Value::Array(items) => {
                let items: Result<Vec<_>, _> =
                    items.iter().map(|item| scalar(&name, item)).collect();
                flat.push((name.clone(), items?.join(",")));
            }
            value => flat.push((name.clone(), scalar(&name, value)?)),
        }
    }
    Ok(flat)
}

fn top<'a>(table: &'a toml::Table, prefix: &str) -> Vec<(String, &'a toml::Value)> {
    let entries = table.iter().rev();
    entries
        .map(|(name, value)| (format!("{prefix}{name}"), value))
        .collect()
}

fn scalar(name: &str, value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Float(number) => Ok(number.to_string()),
        toml::Value::Boolean(truth) => Ok(truth.to_string()),
        _ => Err(format!(
            "{name}: a text, a number or true or false is expected"
        )),
    }
}

/// The entries of a Java properties file, with the number of the line they begin on.
fn properties(text: &str) -> Vec<(usize, String, String)> {
    let mut entries = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let mut logical = line.trim_start().to_owned();
        if logical.is_empty() || logical.starts_with(['#', '!']) {
            continue;
        }
        while continues(&logical) {
            logical.pop();
            match lines.next() {
                Some((_, next)) => logical.push_str(next.trim_start()),
                None => break,
            }
        }
        let (key, value) = split(&logical);
        entries.push((index + 1, unescape(key), unescape(value)));
    }
    entries
}

/// Whether a line ends with an odd number of backslashes.
fn continues(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// Splits at the first separator that is not escaped: `=`, `:` or white space.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let is_separator = |c: char| {
        let separates = !escaped && (c == '=' || c == ':' || c.is_whitespace());
        escaped = c == '\\' && !escaped;
        separates
    };
    let end = line.find(is_separator).unwrap_or(line.len());
    let (key, rest) = line.split_at(end);
    let rest = rest.trim_start();
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (key, rest.trim_start())
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('t') => out.push('\t'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('f') => out.push('\u{c}'),
            Some('u') => {
                let digits: String = chars.by_ref().take(4).collect();
                let code = u32::from_str_radix(&digits, 16).ok();
                let c = code.and_then(char::from_u32);
                out.push(c.unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_read_as_java_does() {
        let text = "# comment\n\n! another\n a = 1 \nb:2\nc 3\nlong=x,\\\n   y\nesc\\=aped = \
                    \\u0041\\tB\nempty=\nlast=\\\\\n";
        let expected = [
            (4, "a", "1 "),
            (5, "b", "2"),
            (6, "c", "3"),
            (7, "long", "x,y"),
            (9, "esc=aped", "A\tB"),
            (10, "empty", ""),
            (11, "last", "\\"),
        ];
        let expected: Vec<_> = expected
            .iter()
            .map(|(line, key, value)| (*line, (*key).to_owned(), (*value).to_owned()))
            .collect();
        assert_eq!(properties(text), expected);
    }

    #[test]
    fn toml_tables_become_dotted_keys() {
        let text = r#"
            listeners = ["PLAINTEXT://:1", "OTHER://:2"]
            num.partitions = 3
            "max.connections" = 7
            [log]
            dirs = "/d"
            [auto.create.topics]
            enable = false
        "#;
        let mut flat = flatten(&text.parse().unwrap()).unwrap();
        flat.sort();
        let expected = [
            ("auto.create.topics.enable", "false"),
            ("listeners", "PLAINTEXT://:1,OTHER://:2"),
            ("log.dirs", "/d"),
            ("max.connections", "7"),
            ("num.partitions", "3"),
        ];
        let expected: Vec<_> = expected
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        assert_eq!(flat, expected);
        assert!(flatten(&"a = [[1]]".parse().unwrap()).is_err());
    }

    #[test]
    fn variables_are_mapped_as_in_the_image() {
        for (variable, key) in [
            ("ADVERTISED_LISTENERS", "advertised.listeners"),
            ("A__B", "a_b"),
            ("A___B_C", "a-b.c"),
        ] {
            assert_eq!(key_of_variable(variable), key);
        }
    }

    #[test]
    fn our_own_variables_may_name_sections() {
        let mut settings = Settings::default();
        let variables = [
            ("FENCEPOST_LOG__DIRS", "/d"),
            ("FENCEPOST_ADMIN_LISTEN", "127.0.0.1:0"),
            ("FENCEPOST_FLUSH__POLICY", "os"),
            ("KAFKA_NUM__PARTITIONS", "3"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        read_environment(&mut settings, variables);
        assert_eq!(settings.get("log.dirs").value, "/d");
        assert_eq!(settings.get("admin.listen").value, "127.0.0.1:0");
        assert_eq!(settings.get("flush.policy").value, "os");
        assert!(
            settings.given("num.partitions").is_none(),
            "Kafka's image means num_partitions"
        );
        assert_eq!(settings.unused().len(), 1);
        let names = super::super::keys::all()
            .flat_map(|key| std::iter::once(key.name).chain(key.aliases.iter().copied()));
        assert!(names.into_iter().all(|name| !name.contains('_')));
    }
}
