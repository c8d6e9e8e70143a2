//! Dockerfile and compose file cannot run where this is built: their command lines can. Each is run
//! against the built binary with its addresses and directories replaced by ones of this machine.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// The built binary: the one that the environment names, or the one of this profile.
fn fencepost() -> PathBuf {
    if let Some(path) = std::env::var_os("FENCEPOST_BIN") {
        return path.into();
    }
    let tests = std::env::current_exe().unwrap();
    let profile = tests.parent().unwrap().parent().unwrap();
    let binary = profile.join("fencepost");
    assert!(
        binary.exists(),
        "{} is not built: cargo build -p gateway",
        binary.display()
    );
    binary
}

/// The JSON array of a Dockerfile instruction, the last of that name.
fn instruction(text: &str, name: &str) -> Vec<String> {
    let line = text.lines().rfind(|line| line.starts_with(name)).unwrap();
    serde_json::from_str(line[name.len()..].trim()).unwrap()
}

/// The one service of the compose file.
fn compose_service() -> serde_json::Value {
    let text = fs::read_to_string(root().join("docker-compose.yml")).unwrap();
    let mut file: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    let services = file["services"].as_object_mut().unwrap();
    assert_eq!(services.len(), 1, "each has a command line to be run");
    services.remove("fencepost").unwrap()
}

struct Stop(Child);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Runs a command line with this machine's addresses and directories; it must become ready.
fn serves(command: &[String], data: &Path) {
    let token = data.with_extension("token");
    fs::write(&token, "0123456789abcdef\n").unwrap();
    let mut arguments = Vec::new();
    for argument in command {
        arguments.push(match argument.as_str() {
            "/var/lib/fencepost" => data.to_string_lossy().into_owned(),
            "/run/token" => token.to_string_lossy().into_owned(),
            other => other
                .replace("0.0.0.0:9092", "127.0.0.1:0")
                .replace("0.0.0.0:19092", "127.0.0.1:0")
                .replace("0.0.0.0:9644", "127.0.0.1:0")
                .replace("localhost:9092", "localhost:0"),
        });
    }
    if !command.iter().any(|argument| argument == "--admin-listen") {
        arguments.extend(["--admin-listen", "127.0.0.1:0"].map(str::to_owned));
    }
    arguments.push("--print-addresses".to_owned());
    let mut child = Command::new(fencepost())
        .args(&arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let stdout = child.stdout.take().unwrap();
    let _stop = Stop(child);
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let addresses: serde_json::Value = serde_json::from_str(&line)
        .unwrap_or_else(|error| panic!("{arguments:?} printed {line:?}: {error}"));
    assert!(
        addresses["kafka"]
            .as_str()
            .is_some_and(|address| address.contains(':')),
        "{line}"
    );
}

#[test]
fn the_images_command_serves() {
    let text = fs::read_to_string(root().join("Dockerfile")).unwrap();
    assert_eq!(instruction(&text, "ENTRYPOINT"), ["fencepost"]);
    let data = tempfile::tempdir().unwrap();
    serves(&instruction(&text, "CMD"), &data.path().join("data"));
}

#[test]
fn the_images_build_command_names_a_package_of_this_workspace() {
    let text = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let runs: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("RUN cargo "))
        .collect();
    assert_eq!(runs, ["build --locked --release -p gateway"]);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(root())
        .args([
            "tree",
            "--locked",
            "--offline",
            "-p",
            "gateway",
            "--depth",
            "0",
        ])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        text.contains("target/release/fencepost"),
        "the image copies what it built"
    );
}

/// What the README has a container run: what stands behind the image's name.
#[test]
fn the_readmes_containers_serve() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let lines = readme.lines().filter_map(|line| line.strip_prefix("    "));
    let text = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let runs: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("docker run "))
        .collect();
    assert_eq!(runs.len(), 2, "{runs:?}");
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    for run in runs {
        let words: Vec<String> = run.split_whitespace().map(str::to_owned).collect();
        let published = words.windows(2).any(|pair| pair == ["-p", "9092:9092"]);
        let kept = words.contains(&"fencepost:/var/lib/fencepost".to_owned());
        assert!(published && kept, "{run}");
        // The name of the container comes first.
        let image = words.iter().rposition(|word| word == "fencepost").unwrap();
        let data = tempfile::tempdir().unwrap();
        let data = data.path().join("data");
        match &words[image + 1..] {
            [] => serves(&instruction(&dockerfile, "CMD"), &data),
            command => serves(command, &data),
        }
    }
}

#[test]
fn the_compose_command_serves() {
    let service = compose_service();
    let command: Vec<String> = serde_json::from_value(service["command"].clone()).unwrap();
    assert_eq!(command[0], "serve", "{command:?}");
    let data = tempfile::tempdir().unwrap();
    serves(&command, &data.path().join("data"));
    // What it serves is reachable, and outlives the container.
    assert_eq!(service["build"], ".");
    assert_eq!(service["ports"], serde_json::json!(["9092:9092"]));
    let kept = "data:/var/lib/fencepost";
    assert_eq!(service["volumes"], serde_json::json!([kept]));
    assert!(
        command.contains(&"/var/lib/fencepost".to_owned()),
        "{command:?}"
    );
}
