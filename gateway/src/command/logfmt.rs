//! Log lines of `key=value`, as Heroku began and log collectors read.

use std::fmt::{self, Debug};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{self, FormatTime};
use tracing_subscriber::registry::LookupSpan;

/// The format.
pub(super) struct Logfmt;

impl<S, N> FormatEvent<S, N> for Logfmt
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        writer.write_str("ts=")?;
        time::time().format_time(&mut writer)?;
        let metadata = event.metadata();
        let level = metadata.level().as_str().to_ascii_lowercase();
        write!(writer, " level={level} target={}", metadata.target())?;
        let mut fields = Fields {
            line: writer.by_ref(),
            outcome: Ok(()),
        };
        event.record(&mut fields);
        fields.outcome?;
        writer.write_char('\n')
    }
}

/// Writes one field after the other.
struct Fields<'a> {
    line: Writer<'a>,
    outcome: fmt::Result,
}

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }
}

impl Fields<'_> {
    fn put(&mut self, field: &Field, value: &str) {
        let name = match field.name() {
            "message" => "msg",
            name => name,
        };
        if self.outcome.is_ok() {
            self.outcome = write!(self.line, " {name}={}", quoted(value));
        }
    }
}

/// A value that ends where a reader thinks that it does.
fn quoted(value: &str) -> String {
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '"' | '=' | '\\');
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_owned();
    }
    serde_json::Value::from(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_where_they_have_to_be() {
        for (value, shown) in [
            ("fsync", "fsync"),
            ("a/b:1,2", "a/b:1,2"),
            ("", "\"\""),
            ("two words", "\"two words\""),
            ("a=b", "\"a=b\""),
            ("say \"x\"", r#""say \"x\"""#),
            ("line\nline", r#""line\nline""#),
        ] {
            assert_eq!(quoted(value), shown);
        }
    }
}
