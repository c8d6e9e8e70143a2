//! The file of known differences.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::Difference;
use crate::process::repository;

/// Most differences that no decision is recorded of.
const UNRECORDED_MAX: usize = 10;

/// A known difference.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// The vector.
    vector: String,
    /// Every field that differs: the API, and the path without the places in lists.
    fields: Vec<String>,
    /// Why.
    reason: String,
    /// Section of the design or file below `docs/decisions` where that was decided.
    decision: Option<String>,
}

/// All of them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    difference: Vec<Entry>,
}

/// Reads `tests/differential/known.toml`.
///
/// # Errors
/// If it is no such file: an entry without a reason, a vector twice, a decision that is not there,
/// too many without one.
pub fn load() -> Result<Known> {
    let path = repository().join("tests/differential/known.toml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let known: Known = toml::from_str(&text).with_context(|| path.display().to_string())?;
    let mut seen = BTreeSet::new();
    for entry in &known.difference {
        let vector = &entry.vector;
        ensure!(!entry.reason.is_empty(), "{vector}: no reason");
        ensure!(!entry.fields.is_empty(), "{vector}: no fields");
        ensure!(seen.insert(vector), "{vector} is there twice");
        let exists = super::ALL.iter().any(|one| one.id == *vector);
        ensure!(exists, "{vector} is no vector");
        if let Some(file) = entry.decision.as_ref().filter(|d| d.starts_with("docs/")) {
            ensure!(repository().join(file).is_file(), "{vector}: no {file}");
        }
    }
    let unrecorded = known.difference.iter().filter(|e| e.decision.is_none());
    let unrecorded = unrecorded.count();
    ensure!(
        unrecorded <= UNRECORDED_MAX,
        "{unrecorded} differences have no decision, at most {UNRECORDED_MAX} may"
    );
    Ok(known)
}

impl Known {
    /// Why the brokers differ on a vector, if that is known.
    pub fn reason(&self, vector: &str) -> Option<&str> {
        let entry = self.difference.iter().find(|e| e.vector == vector)?;
        Some(&entry.reason)
    }

    /// In what differences are not the known ones, of the vectors that were played.
    pub fn complaints(&self, played: &[&str], found: &[Difference]) -> Vec<String> {
        let mut complaints = Vec::new();
        for difference in found {
            let vector = difference.vector;
            let known = self.difference.iter().find(|e| e.vector == vector);
            let sorted = |fields: &[String]| {
                let mut fields = fields.to_vec();
                fields.sort();
                fields
            };
            let known = known.map(|entry| sorted(&entry.fields)).unwrap_or_default();
            if known != sorted(&difference.fields) {
                let (fields, shown) = (&difference.fields, &difference.shown);
                complaints.push(format!(
                    "{vector}: known is {known:?}, found is {fields:?}\n{shown}"
                ));
            }
        }
        for entry in &self.difference {
            let played = played.contains(&entry.vector.as_str());
            let differs = found.iter().any(|one| one.vector == entry.vector);
            if played && !differs {
                complaints.push(format!("{}: a known difference is gone", entry.vector));
            }
        }
        complaints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(text: &str) -> Known {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn what_is_found_has_to_be_what_is_known() {
        let known = known("[[difference]]\nvector = \"I01\"\nfields = [\"A b\"]\nreason = \"r\"\n");
        let difference = |fields: &[&str]| Difference {
            vector: "I01",
            fields: fields.iter().map(|f| (*f).to_owned()).collect(),
            shown: String::new(),
        };
        let of = |found: &[Difference]| known.complaints(&["I01"], found).len();
        assert_eq!(of(&[difference(&["A b"])]), 0);
        assert_eq!(of(&[difference(&["A b", "A c"])]), 1);
        assert_eq!(of(&[]), 1);
        assert_eq!(known.complaints(&[], &[]).len(), 0);
        let other = Difference {
            vector: "I02",
            ..difference(&["A b"])
        };
        assert_eq!(of(&[difference(&["A b"]), other]), 1);
        assert_eq!(known.reason("I01"), Some("r"));
    }
}
