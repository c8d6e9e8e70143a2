//! Generated docs against the code that they are generated from. `UPDATE_GOLDEN=1` rewrites them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

#[path = "wire/differences.rs"]
mod differences;

fn same(path: &str, generated: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join(path);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&file, generated).unwrap();
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    let repair = "UPDATE_GOLDEN=1 cargo test -p tests --test docs";
    assert_eq!(found, generated, "{path} has drifted: {repair}");
}

#[test]
fn protocol() {
    let mut text = String::from(
        "# APIs\n\n\
         Generated from the handler list (`gateway/src/api.rs`); a test keeps it true.\n\n\
         | key | API | versions | notes |\n|---|---|---|---|\n",
    );
    for api in gateway::api::api_table() {
        let (min, max) = (api.versions.start(), api.versions.end());
        writeln!(
            text,
            "| {} | {} | {min}-{max} | {} |",
            api.key, api.name, api.notes
        )
        .unwrap();
    }
    topic_configs(&mut text);
    text.push_str(
        "\n## Differences from Apache Kafka 4.3.1\n\n\
         Each has a test that asks for it by its name (`tests/tests/wire/differences.rs`) and that \
         expects Kafka's\nown answer when it runs on Kafka.\n\n\
         | difference | what and why |\n|---|---|\n",
    );
    let mut known = differences::KNOWN_DIFFERENCES.to_vec();
    known.sort_unstable();
    for (name, reason) in known {
        writeln!(text, "| {name} | {} |", reason.replace('|', "\\|")).unwrap();
    }
    same("docs/protocol.md", &text);
}

#[test]
fn compatibility() {
    use tests::suites::{ALL, page, results};
    let runs = if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let runs = results::renewed().unwrap();
        let text = serde_json::to_string_pretty(&runs).unwrap();
        same("docs/compatibility.json", &format!("{text}\n"));
        runs
    } else {
        results::shown().unwrap()
    };
    same("docs/compatibility.md", &page::page(&runs));
    for suite in ALL {
        let run = runs.get(suite.id);
        let run = run.unwrap_or_else(|| panic!("{} has no run on the page", suite.id));
        let listed = ((suite.tests)().len(), 0, suite.skipped.len());
        let found = (run.passed, run.failed, run.skipped);
        assert_eq!(found, listed, "{}: the run on the page is old", suite.id);
        assert_eq!(run.version, suite.version, "{}", suite.id);
    }
    assert_eq!(runs.len(), ALL.len(), "suites that are gone");
}

/// What Kafka serves and Fencepost does not is listed with a reason, and nothing else is.
#[test]
fn apis_that_are_lacking() {
    use std::collections::BTreeMap;

    use tests::oracle::apis::{KAFKA_APIS, LACKING};
    let served: BTreeMap<i16, i16> = gateway::api::api_table()
        .into_iter()
        .map(|api| (api.key, *api.versions.end()))
        .collect();
    let behind: Vec<i16> = KAFKA_APIS
        .iter()
        .filter(|(key, _, _, max)| served.get(key).is_none_or(|ours| ours < max))
        .map(|(key, ..)| *key)
        .collect();
    let listed: Vec<i16> = LACKING.iter().map(|(key, _)| *key).collect();
    assert_eq!(behind, listed);
}

#[test]
fn openapi() {
    same("docs/openapi.json", &admin_api::document().unwrap());
}

fn topic_configs(text: &mut String) {
    use gateway::topic_config::{TOPIC_KEYS, keys::Use};
    text.push_str(
        "\n## Topic configs\n\n\
         These take effect, at creation and at run time.\n\n\
         | config | what it is for |\n|---|---|\n",
    );
    for key in TOPIC_KEYS {
        if matches!(key.usage, Use::Rules(_)) {
            writeln!(text, "| `{}` | {} |", key.name, key.doc).unwrap();
        }
    }
    text.push_str(
        "\nThese have no mechanism yet. The values below, which are what happens anyhow, are \
         accepted;\nall others are refused with 40 INVALID_CONFIG.\n\n\
         | config | accepted | what it is for |\n|---|---|---|\n",
    );
    for key in TOPIC_KEYS {
        let Use::Fixed(also) = key.usage else {
            continue;
        };
        let default = match key.default {
            "" => "empty".to_owned(),
            value => format!("`{value}`"),
        };
        let also = also.map_or_else(String::new, |value| format!(", `{value}`"));
        writeln!(text, "| `{}` | {default}{also} | {} |", key.name, key.doc).unwrap();
    }
}
