//! What can be done about a transaction that holds a partition back, and what is said about it.

use std::fmt;

use crate::explain::segment;
use crate::model::{OpenTxn, Remedy};

/// The body of a request that has to say why.
const WHY: &str = r#"{"reason":"WHY"}"#;

/// One word of a command line; `None` for text that can't be typed safely.
pub(crate) fn word(text: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@%+,".contains(c);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(plain) {
        return Some(text.to_owned());
    }
    if text.chars().any(|c| !(' '..='~').contains(&c)) || text.starts_with('-') {
        return None;
    }
    Some(format!("'{}'", text.replace('\'', r"'\''")))
}

/// A time that has passed, in its largest unit.
pub(crate) struct Age(pub(crate) i64);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.max(0) / 1000;
        match seconds {
            0..=119 => write!(f, "{seconds} s"),
            120..=7199 => write!(f, "{} min", seconds / 60),
            _ => write!(f, "{} h", seconds / 3600),
        }
    }
}

/// A number of things, and what they do.
pub(crate) fn counted(count: i64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Who holds a partition back, since when, and what happens next.
pub(crate) fn sentence(holder: &OpenTxn, held_back: i64) -> String {
    let who = match &holder.transactional_id {
        Some(id) => format!("{id:?} (producer {})", holder.producer_id),
        None => format!("producer {}", holder.producer_id),
    };
    let since = holder
        .age_ms
        .map_or_else(String::new, |age_ms| format!(", open for {}", Age(age_ms)));
    let what = match holder.standing {
        "ongoing" => "an open transaction",
        "deciding" | "queued" => "a transaction that is decided, and whose marker is not written",
        "hanging" => "a hanging transaction",
        _ => "a transaction whose coordinator can't be asked",
    };
    let offsets = counted(held_back, "offset is", "offsets are");
    format!(
        "{offsets} held back by {what} of {who}{since}, which began at offset {} here; {}.",
        holder.first_offset, holder.next.text
    )
}

impl Remedy {
    fn words(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            request: None,
            body: None,
            command: None,
        }
    }

    fn request(text: &str, request: impl Into<String>) -> Self {
        Self {
            request: Some(request.into()),
            ..Self::words(text)
        }
    }
}

/// What can be done about `holder`, which holds a partition back. `held` is the fault that holds
/// its markers, `address` where Kafka clients reach the cluster.
pub(crate) fn remedies(
    holder: &OpenTxn,
    (topic, partition): (&str, i32),
    held: Option<u64>,
    address: &str,
) -> Vec<Remedy> {
    let txn = |rest: String| Some(format!("fencepost txn -b {} {rest}", word(address)?));
    let id = holder.transactional_id.as_deref().unwrap_or_default();
    match holder.standing {
        "ongoing" => {
            let request = format!("POST /api/v1/transactions/{}/abort", segment(id));
            let typed = word(id);
            let command =
                typed.and_then(|id| txn(format!("force-terminate --transactional-id {id}")));
            let text = "Abort it: its records are dropped, and its client is fenced.";
            vec![
                Remedy::words("Let its client end it, or wait for its timeout."),
                Remedy {
                    body: Some(WHY.to_owned()),
                    command,
                    ..Remedy::request(text, request)
                },
            ]
        }
        "deciding" | "queued" => {
            let release = held.map(|number| {
                let request = format!("DELETE /api/v1/faults/{number}");
                let text = format!("Release fault {number}, which holds its markers.");
                Remedy::request(&text, request)
            });
            let again = Remedy {
                body: Some(WHY.to_owned()),
                ..Remedy::request(
                    "Have its markers tried again now.",
                    "POST /api/v1/reconcile/run",
                )
            };
            release.into_iter().chain([again]).collect()
        }
        "hanging" => {
            let command = word(topic).and_then(|topic| {
                txn(format!(
                    "abort --topic {topic} --partition {partition} --start-offset {}",
                    holder.first_offset
                ))
            });
            vec![Remedy {
                command,
                ..Remedy::words(
                    "Abort it on this partition, on the broker's own host: its records here are \
                     dropped.",
                )
            }]
        }
        _ => vec![Remedy::request(
            "See which files are damaged or being loaded.",
            "GET /readyz?verbose",
        )],
    }
}
