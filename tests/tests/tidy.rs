//! The source text against the rules of ARCHITECTURE.md: crate edges, what may appear where, sizes,
//! leftovers, and docs that name real files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a file, tests apart.
const FILE_LINES_MAX: usize = 500;
/// Columns of a line.
const COLUMNS_MAX: usize = 100;

struct Source {
    /// Relative to the repository, `/` between components.
    path: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !matches!(
                name.as_str(),
                "target" | ".git" | ".cache" | "data" | "corpus"
            ) {
                walk(&path, found);
            }
        } else {
            found.push(path);
        }
    }
}

fn files(extensions: &[&str]) -> Vec<Source> {
    let root = root();
    let mut paths = Vec::new();
    walk(&root, &mut paths);
    paths.sort();
    paths
        .into_iter()
        .filter(|path| {
            let extension = path.extension().map(|e| e.to_string_lossy().into_owned());
            extension.is_some_and(|e| extensions.contains(&e.as_str()))
        })
        .map(|path| Source {
            path: path
                .strip_prefix(&root)
                .unwrap()
                .to_string_lossy()
                .replace('\\', "/"),
            text: fs::read_to_string(&path).unwrap(),
        })
        .collect()
}

/// Code of the product: no tests, no comments.
fn product() -> Vec<Source> {
    let mut sources = files(&["rs"]);
    sources.retain(|source| {
        let path = &source.path;
        !path.starts_with("tests/")
            && !path.contains("/tests/")
            && !path.contains("/examples/")
            && !path.contains("/conformance/")
            && !path.ends_with("tests.rs")
            && !path.ends_with("samples.rs")
    });
    for source in &mut sources {
        source.text = without_tests_and_comments(&source.text);
    }
    sources
}

/// Blanks comments and test modules, so that line numbers stay.
fn without_tests_and_comments(text: &str) -> String {
    let mut code = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]" {
            // More attributes may stand between.
            let mut head = 1;
            let item = loop {
                head += 1;
                match lines.next() {
                    Some(attribute) if attribute.starts_with('#') => {}
                    item => break item.unwrap_or_default(),
                }
            };
            code.resize(code.len() + head, "");
            let inline = item.starts_with("mod ") || item.starts_with("pub(crate) mod ");
            if !inline {
                code.pop();
                code.push(item);
            } else if item.ends_with('{') {
                let body = lines.by_ref().take_while(|line| *line != "}").count();
                code.resize(code.len() + body + 1, "");
            }
            continue;
        }
        let comment = line.trim_start().starts_with("//");
        code.push(if comment { "" } else { line });
    }
    code.join("\n")
}

#[test]
fn code_behind_test_modules_is_seen() {
    let text = "use a;\n#[cfg(test)]\nmod tests;\n// said\nfn seen() {}\n\
                #[cfg(test)]\n#[allow(x)]\nmod inline {\n    fn hidden() {}\n}\n\
                #[cfg(test)]\nfn helper() {}\nend";
    let expected = "use a;\n\n\n\nfn seen() {}\n\n\n\n\n\n\nfn helper() {}\nend";
    assert_eq!(without_tests_and_comments(text), expected);
}

fn allowed(path: &str, places: &[&str]) -> bool {
    places.iter().any(|place| path.starts_with(place))
}

#[test]
fn crates_depend_only_on_what_the_graph_allows() {
    let allowed = BTreeMap::from([
        ("store-adapter", vec![]),
        ("coordinator", vec!["store-adapter"]),
        ("admin-api", vec!["coordinator"]),
        ("gateway", vec!["admin-api", "coordinator", "store-adapter"]),
        (
            "tests",
            vec!["admin-api", "coordinator", "gateway", "store-adapter"],
        ),
    ]);
    for (name, edges) in &allowed {
        let text = fs::read_to_string(root().join(name).join("Cargo.toml")).unwrap();
        let manifest: toml::Table = text.parse().unwrap();
        for (kind, other) in dependencies(&manifest) {
            if allowed.contains_key(other.as_str()) {
                // Tests may use what lies further below.
                let below = edges.iter().flat_map(|edge| &allowed[edge]);
                let edge = edges.contains(&other.as_str())
                    || (kind == "dev-dependencies" && below.into_iter().any(|b| *b == other));
                assert!(edge, "{name} must not depend on {other}");
            }
        }
    }
}

/// Every dependency of a manifest with its kind: of tests, build scripts and single targets too.
fn dependencies(manifest: &toml::Table) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (key, value) in manifest {
        let Some(table) = value.as_table() else {
            continue;
        };
        if key.ends_with("dependencies") {
            found.extend(table.keys().map(|name| (key.clone(), name.clone())));
        } else if key == "target" {
            for target in table.values().filter_map(toml::Value::as_table) {
                found.extend(dependencies(target));
            }
        }
    }
    found
}

#[test]
fn things_appear_only_where_they_may() {
    let rules: [(&str, &[&str], &[&str]); 7] = [
        ("the wire crate", &["kafka_protocol"], &["gateway/"]),
        (
            "files",
            &[
                "std::fs",
                "rustix::fs",
                "tokio::fs",
                "OpenOptions",
                "File::open",
            ],
            &[
                "store-adapter/src/volume/posix",
                "store-adapter/src/volume/range",
                "store-adapter/src/local.rs",
                "store-adapter/src/journal/sled_index",
                "gateway/src/config",
                // What a person names on the command line.
                "gateway/src/command/",
            ],
        ),
        (
            "clocks",
            &["SystemTime", "Instant::now", "tokio::time"],
            &["store-adapter/src/runtime/tokio.rs"],
        ),
        (
            "threads and tasks",
            &[
                "thread::spawn",
                "thread::Builder",
                "tokio::spawn",
                "spawn_blocking",
            ],
            &[
                "store-adapter/src/runtime/tokio.rs",
                "store-adapter/src/journal/sled_index",
            ],
        ),
        (
            "sled",
            &["sled::"],
            &[
                "store-adapter/src/journal/sled_index",
                "store-adapter/src/kv/db",
            ],
        ),
        (
            "sockets",
            &["tokio::net", "std::net::Tcp", "socket2"],
            &["gateway/src/", "admin-api/"],
        ),
        (
            "hash order",
            &["HashMap", "HashSet"],
            &["gateway/src/server.rs"],
        ),
    ];
    let mut wrong = Vec::new();
    for source in product() {
        for (what, needles, places) in &rules {
            if allowed(&source.path, places) {
                continue;
            }
            for needle in *needles {
                for (number, line) in source.text.lines().enumerate() {
                    if line.contains(needle) {
                        let line = line.trim();
                        wrong.push(format!("{}:{} {what}: {line}", source.path, number + 1));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn machines_are_pure() {
    let banned = [
        "async ",
        ".await",
        "Mutex",
        "RwLock",
        "tracing::",
        "std::time",
        "fastrand",
        "fs::",
    ];
    for source in product() {
        if !source.path.starts_with("coordinator/src/machine/") {
            continue;
        }
        for (number, line) in source.text.lines().enumerate() {
            for word in banned {
                assert!(
                    !line.contains(word),
                    "{}:{}: {word}",
                    source.path,
                    number + 1
                );
            }
        }
    }
}

#[test]
fn the_coordinator_never_sees_records() {
    for source in product() {
        if source.path.starts_with("coordinator/") {
            assert!(!source.text.contains("LogStore"), "{}", source.path);
        }
    }
}

#[test]
fn files_and_lines_have_their_size() {
    let mut wrong = Vec::new();
    for source in files(&["rs"]) {
        for (number, line) in source.text.lines().enumerate() {
            // A row of a table in a doc comment cannot be broken.
            let table_row = line.trim_start().starts_with("//! |");
            if !table_row && line.chars().count() > COLUMNS_MAX {
                wrong.push(format!(
                    "{}:{}: over {COLUMNS_MAX} columns",
                    source.path,
                    number + 1
                ));
            }
        }
    }
    for source in product() {
        let lines = source.text.trim_end().lines().count();
        if lines > FILE_LINES_MAX {
            wrong.push(format!("{}: {lines} lines", source.path));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nothing_is_left_over() {
    // Written so that this file does not find itself.
    let markers = [
        "TO\u{44}O",
        "FIX\u{4d}E",
        "to\u{64}o!(",
        "unimpl\u{65}mented!(",
    ];
    let ignored = "#[ign\u{6f}re";
    for source in files(&["rs", "sh", "md", "toml", "yml", "py", "go"]) {
        for (number, line) in source.text.lines().enumerate() {
            for marker in markers {
                assert!(
                    !line.contains(marker),
                    "{}:{}: {marker}",
                    source.path,
                    number + 1
                );
            }
            assert!(
                !line.contains(ignored),
                "{}:{}: ignored test",
                source.path,
                number + 1
            );
        }
    }
}

#[test]
fn docs_name_files_that_exist() {
    const TOPS: [&str; 7] = [
        "gateway",
        "store-adapter",
        "coordinator",
        "admin-api",
        "tests",
        "docs",
        "scripts",
    ];
    let root = root();
    let mut wrong = Vec::new();
    for source in files(&["md"]) {
        for quoted in source.text.split('`').skip(1).step_by(2) {
            let path = quoted.split_whitespace().next().unwrap_or_default();
            let top = path.split('/').next().unwrap_or_default();
            let plain = !path.contains(['<', '*', '{', ':', '=', '(', '$', '?']);
            let is_path = path.contains('/') && plain && TOPS.contains(&top);
            if is_path && !root.join(path.trim_end_matches('/')).exists() {
                wrong.push(format!("{}: {path}", source.path));
            }
        }
        let directory = root.join(Path::new(&source.path).parent().unwrap());
        for link in source
            .text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let file = link.split('#').next().unwrap_or_default();
            if !file.is_empty() && !file.contains("://") && !directory.join(file).exists() {
                wrong.push(format!("{}: link to {file}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
