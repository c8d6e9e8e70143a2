//! `docs/configuration.md`, from the table of keys.

use std::fmt::Write;

use super::ignored::FAMILIES;
use super::keys::{Effect, all};
use crate::topic_config::keys::{TOPIC_KEYS, Use};

const HEAD: &str = "# Configuration

This page is generated from the table of keys (`gateway/src/config/keys.rs`); `UPDATE_GOLDEN=1
cargo test -p gateway configuration` writes it anew.

A value comes from, in this order: a flag of the command, the environment, the file, the default.

- Flags: `--override key=value`, any number of times, and the short forms `--data-dir` (`log.dirs`),
  `--index-dir` (`index.dir`), `--broker-id` (`node.id`), `--store` (`store`), `--admin-listen`
  (`admin.listen`), `--admin-token-file` (`admin.token.file`), `--enable-faults` (`enable.faults`),
  `--log-format` (`logging.format`) and `--log` (`logging.filter`), which win over `--override`.
- Environment: `FENCEPOST_LOG_DIRS` sets `log.dirs`; `KAFKA_LOG_DIRS` does too, as in Kafka's image:
  `_` is a dot, `__` an underscore, `___` a hyphen. `FENCEPOST_` wins over `KAFKA_`; after it `__`
  is a dot too, as between section and key: `FENCEPOST_LOG__DIRS`.
- File: `fencepost serve CONFIG`. A name that ends in `.properties` is read in Java's form, and so
  is any other with `--properties`; anything else is TOML, where `num.partitions = 3` and `[num]`
  with `partitions = 3` are the same; `\"max.connections\"` needs quotes beside
  `\"max.connections.per.ip\"`.

A value that is not allowed ends the process with exit code 2 and a line that says which key, where
it came from, and what is allowed. A key of Kafka's that has no effect here is named once with the
reason, and so is a key that nobody knows; with `--strict-config` both end the process with 2.

`fencepost check-config CONFIG` (or `serve --check-config`) says of every key that is given where it
comes from and what it does, and everything that is wrong at once. `fencepost config dump` shows
every key with its value and origin, `fencepost config explain KEY` what a key means.

While a broker runs, IncrementalAlterConfigs changes the keys that are defaults of topics, of one
broker or of every one: `kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type brokers
--entity-default --add-config log.retention.ms=86400000`. They are kept on the volume, in force for
all topics when the command returns, and count more than what this page's sources say: what was set
of the one broker, then what was set of every broker, then those. `--delete-config` takes them back.
These keys are:

";

const KEYS: &str = "
## Keys
| key | allowed | default | what it does |
|---|---|---|---|
";

/// The page.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    let dynamic = TOPIC_KEYS
        .iter()
        .filter(|key| matches!(key.usage, Use::Rules(_)));
    let dynamic = dynamic.filter_map(|key| key.broker);
    let dynamic: Vec<_> = dynamic.map(|name| format!("- `{name}`\n")).collect();
    page.push_str(&dynamic.concat());
    page.push_str(KEYS);
    let mut write = |line: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        page.write_fmt(line).unwrap_or_default();
        page.push('\n');
    };
    for key in all().filter(|key| key.effect == Effect::Used) {
        let aliases: Vec<_> = key
            .aliases
            .iter()
            .map(|alias| format!(", `{alias}`"))
            .collect();
        let default = match key.default {
            "" => String::new(),
            text => format!("`{text}`"),
        };
        write(format_args!(
            "| `{}`{} | {} | {default} | {} |",
            key.name,
            aliases.concat(),
            key.kind.allowed(),
            key.doc
        ));
    }
    write(format_args!(
        "\n## Kafka's keys that have no effect\n| key | ignored because |\n|---|---|"
    ));
    for key in all() {
        if let Effect::Ignored(why) = key.effect {
            write(format_args!("| `{}` | {why} |", key.name));
        }
    }
    for (prefix, why) in FAMILIES {
        write(format_args!("| other `{prefix}*` | {why} |"));
    }
    page
}
