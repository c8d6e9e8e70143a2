//! The test suites of the clients' own makers, unchanged, against a gateway of ours.
//!
//! What must pass is listed by name, and so is what does not run, with the reason: a suite that
//! runs fewer tests than are listed fails, and so does one that runs others.
//! `scripts/setup-clients.sh` installs the suites; `tests/tests/suites.rs` runs them;
//! `docs/compatibility.md` shows the lists and the last results.

pub mod franz_go;
pub mod kafka_python;
pub mod kafka_tools;
pub mod librdkafka;
pub mod page;
pub mod platformatic;
pub mod quixstreams;
pub mod results;
mod run;
pub mod rust_rdkafka;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, bail};

/// A suite: what of a client's tests must pass here.
#[derive(Debug, Clone, Copy)]
pub struct Suite {
    /// Its name in files.
    pub id: &'static str,
    /// The client.
    pub client: &'static str,
    /// The client's version.
    pub version: &'static str,
    /// Which tests of the client.
    pub what: &'static str,
    /// Settings of the gateway that all of its tests share.
    pub settings: &'static [&'static str],
    /// Further settings, for the page: where some tests want others.
    pub further: &'static str,
    /// Names of the tests that must pass.
    pub tests: fn() -> Vec<&'static str>,
    /// Names of tests that are left out or leave themselves out, and why.
    pub skipped: &'static [(&'static str, &'static str)],
    /// Runs it.
    pub run: fn() -> anyhow::Result<Outcome>,
}

/// All suites, in the order of the page.
pub const ALL: [Suite; 7] = [
    kafka_tools::SUITE,
    librdkafka::SUITE,
    rust_rdkafka::SUITE,
    franz_go::SUITE,
    kafka_python::SUITE,
    quixstreams::SUITE,
    platformatic::SUITE,
];

/// What the tests of a run did, by name.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Passed.
    pub passed: BTreeSet<String>,
    /// Left themselves out.
    pub skipped: BTreeSet<String>,
    /// Failed, with the end of what they printed.
    pub failed: BTreeMap<String, String>,
}

impl Outcome {
    /// Takes in the outcome of another part of the suite.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed.extend(other.passed);
        self.skipped.extend(other.skipped);
        self.failed.extend(other.failed);
    }
}

impl Suite {
    /// Runs the suite, keeps the result where the page finds it, and judges it.
    ///
    /// # Errors
    /// If a runtime is missing, and whatever [`Suite::complaints`] says.
    pub fn check(&self) -> anyhow::Result<Outcome> {
        let outcome = (self.run)().with_context(|| format!("{} {}", self.client, self.version))?;
        let complaints = self.complaints(&outcome);
        if complaints.is_empty() {
            results::write(self, &outcome)?;
            return Ok(outcome);
        }
        bail!(
            "{} {}:\n{}",
            self.client,
            self.version,
            complaints.join("\n")
        );
    }

    /// In what an outcome is not what is listed: tests that failed, that did not run, that skipped
    /// themselves without being known for it, and that nobody listed.
    pub fn complaints(&self, outcome: &Outcome) -> Vec<String> {
        let listed: BTreeSet<&str> = (self.tests)().into_iter().collect();
        let known = |name: &str| self.skipped.iter().any(|(skipped, _)| *skipped == name);
        let mut complaints = Vec::new();
        for (name, output) in &outcome.failed {
            complaints.push(format!("{name} failed:\n{output}"));
        }
        for name in &listed {
            let ran = outcome.passed.contains(*name) || outcome.failed.contains_key(*name);
            if !ran {
                complaints.push(format!("{name} did not run"));
            }
        }
        for name in &outcome.skipped {
            if !known(name) {
                complaints.push(format!("{name} skipped itself, which no list expects"));
            }
        }
        for name in &outcome.passed {
            if !listed.contains(name.as_str()) {
                complaints.push(format!("{name} passed and is not listed"));
            }
        }
        complaints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUITE: Suite = Suite {
        id: "some",
        client: "some client",
        version: "1",
        what: "everything",
        settings: &[],
        further: "",
        tests: || vec!["one", "two"],
        skipped: &[("three", "there is no three")],
        run: || Ok(Outcome::default()),
    };

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_is_listed_has_to_run_and_to_pass() {
        let good = Outcome {
            passed: names(&["one", "two"]),
            skipped: names(&["three"]),
            failed: BTreeMap::new(),
        };
        assert_eq!(SUITE.complaints(&good), Vec::<String>::new());

        let fewer = Outcome {
            passed: names(&["one"]),
            ..good.clone()
        };
        assert_eq!(SUITE.complaints(&fewer), ["two did not run"]);

        let mut broken = fewer.clone();
        broken.failed.insert("two".to_owned(), "why".to_owned());
        assert_eq!(SUITE.complaints(&broken), ["two failed:\nwhy"]);

        let skips = Outcome {
            passed: names(&["one"]),
            skipped: names(&["two", "three"]),
            failed: BTreeMap::new(),
        };
        let expected = [
            "two did not run",
            "two skipped itself, which no list expects",
        ];
        assert_eq!(SUITE.complaints(&skips), expected);

        let more = Outcome {
            passed: names(&["one", "two", "four"]),
            ..good
        };
        assert_eq!(SUITE.complaints(&more), ["four passed and is not listed"]);
    }

    #[test]
    fn nothing_is_listed_twice() {
        let mut ids = BTreeSet::new();
        for suite in ALL {
            assert!(ids.insert(suite.id), "{}", suite.id);
            let tests = (suite.tests)();
            let skipped = suite.skipped.iter().map(|(name, _)| *name);
            let all: Vec<&str> = tests.into_iter().chain(skipped).collect();
            let distinct: BTreeSet<&str> = all.iter().copied().collect();
            assert_eq!(all.len(), distinct.len(), "{}", suite.id);
        }
    }
}
