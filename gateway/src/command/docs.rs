//! `docs/command-line.md`, from the arguments that the command reads.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};

use super::arguments::Arguments;

const HEAD: &str = "# Command line

Generated from the arguments of `fencepost` (`gateway/src/command/arguments.rs`); `UPDATE_GOLDEN=1
cargo test -p gateway --bin fencepost` writes it anew. `fencepost COMMAND --help` says the same.

Exit codes of all commands but `serve`: 0 done; 1 a finding, or refused by the broker; 2 a wrong
argument or configuration; 3 the broker can't be reached; 4 no answer in time. `serve` ends with 0
after an orderly stop, with 1 when the broker could not start or was taken over, with 2 for a wrong
argument or configuration. What went wrong is on standard error, what was found or done in spite of
it on standard output.

`serve` stops in order at SIGTERM and SIGINT, and at once at a second one. SIGHUP reloads nothing,
and says so; SIGUSR1 logs a line about what the broker has.

`--format` of every command that has rows to print: `table`; `wide`, a table with more columns;
`json`, one document; `jsonl`, one a line; `yaml`; `help`, which does nothing but say what the
others have.
";

fn page() -> String {
    let mut root = <Arguments as CommandFactory>::command();
    root.build();
    let mut page = HEAD.to_owned();
    for command in root.get_subcommands() {
        write(
            command,
            &format!("fencepost {}", command.get_name()),
            &mut page,
        );
    }
    page
}

fn write(command: &Command, name: &str, page: &mut String) {
    if command.get_name() == "help" {
        return;
    }
    let about = command.get_about().map(ToString::to_string);
    write!(page, "\n## `{name}`\n{}.\n", about.unwrap_or_default()).unwrap();
    let subcommands: Vec<&Command> = command.get_subcommands().collect();
    if !subcommands.is_empty() {
        for sub in subcommands {
            write(sub, &format!("{name} {}", sub.get_name()), page);
        }
        return;
    }
    page.push_str("\n| argument | what it does |\n|---|---|\n");
    let arguments = command.get_arguments().filter(|arg| !arg.is_hide_set());
    for argument in arguments.filter(|arg| arg.get_id() != "help" && arg.get_id() != "version") {
        let help = argument
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        let help = help.replace('|', "\\|");
        writeln!(
            page,
            "| {} | {help}{} |",
            spelled(argument),
            values(argument)
        )
        .unwrap();
    }
}

fn spelled(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    let takes = argument.get_action().takes_values();
    let value = names.first().filter(|_| takes).map(ToString::to_string);
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let flags: Vec<String> = short.into_iter().chain(long).collect();
    match (flags.is_empty(), value) {
        (true, value) => format!("`{}`", value.unwrap_or_default()),
        (false, Some(value)) => format!("`{} {value}`", flags.join("`, `")),
        (false, None) => format!("`{}`", flags.join("`, `")),
    }
}

fn values(argument: &Arg) -> String {
    if !argument.get_action().takes_values() {
        return String::new();
    }
    let possible: Vec<String> = argument
        .get_possible_values()
        .iter()
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    let default: Vec<String> = argument
        .get_default_values()
        .iter()
        .map(|value| format!("`{}`", value.to_string_lossy()))
        .collect();
    let mut text = String::new();
    if !possible.is_empty() {
        write!(text, "; {}", possible.join(", ")).unwrap();
    }
    if !default.is_empty() {
        write!(text, " [default: {}]", default.join(", ")).unwrap();
    }
    text
}

#[test]
fn the_page_of_the_command_line_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/command-line.md");
    let page = page();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let mut file = std::fs::File::create(&path).unwrap();
        std::io::Write::write_all(&mut file, page.as_bytes()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let repair = "UPDATE_GOLDEN=1 cargo test -p gateway --bin fencepost";
    assert!(written == page, "{} has drifted: {repair}", path.display());
}

#[test]
fn arguments_do_not_contradict_each_other() {
    <Arguments as CommandFactory>::command().debug_assert();
}
