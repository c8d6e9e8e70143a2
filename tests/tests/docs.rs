//! Generated docs against the code that they are generated from. `UPDATE_GOLDEN=1` rewrites them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

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
    text.push_str(
        "\n## Topic configs\n\n\
         Accepted because they take effect; every other one is refused with 40 INVALID_CONFIG.\n\n\
         | config | effect |\n|---|---|\n",
    );
    for key in &gateway::topic_config::TOPIC_KEYS {
        writeln!(text, "| `{}` | {} |", key.name, key.effect).unwrap();
    }
    same("docs/protocol.md", &text);
}
