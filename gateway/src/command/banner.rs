//! What a person wants to know of a broker that has just started.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use gateway::Addresses;
use gateway::boot::StoreKind;
use gateway::config::Config;

use super::logging;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Shows the banner on standard error; in a log for machines it is one line of that log.
pub(super) fn show(config: &Config, addresses: &Addresses) {
    if logging::is_for_machines(config) {
        let listeners = addresses.listeners.iter();
        let listeners: Vec<_> = listeners
            .map(|(name, told)| format!("{name}://{told}"))
            .collect();
        tracing::info!(
            version = VERSION,
            broker = config.broker_id.0,
            store = config.store.label(),
            durability = config.durability(),
            volume = %config.data_dir.display(),
            kafka = addresses.kafka,
            admin = addresses.admin,
            listeners = listeners.join(","),
            "ready"
        );
        return;
    }
    // Nothing depends on it.
    let banner = text(config, addresses);
    io::stderr()
        .write_all(banner.as_bytes())
        .unwrap_or_default();
}

fn text(config: &Config, addresses: &Addresses) -> String {
    let durability = match config.durability() {
        "fsync" => "an acknowledged batch is on the disk (flush.policy=fsync)",
        "os" => "an acknowledged batch survives the process, not power loss (flush.policy=os)",
        _ => "nothing outlives this process",
    };
    let place = match &config.store {
        StoreKind::Sled => format!("sled: in {}", config.data_dir.display()),
        StoreKind::Kv { root } => format!("sled:?layout=kv in {}", root.display()),
        StoreKind::Memory | StoreKind::Strict { .. } => format!("{}:", config.store.label()),
    };
    let mut text = format!(
        "\nfencepost {VERSION}, broker {}\n  store       {place}\n  durability  {durability}\n",
        config.broker_id.0
    );
    for (name, told) in &addresses.listeners {
        // Writing to a string cannot fail.
        let line = writeln!(text, "  {name:<11} clients are told {told}");
        line.unwrap_or_default();
    }
    let first = config.listeners.first().map(|listener| &listener.name);
    let reach = first.and_then(|name| addresses.listeners.get(name));
    let reach = reach.unwrap_or(&addresses.kafka);
    let admin = &addresses.admin;
    let rest = write!(
        text,
        "  admin       http://{admin}/readyz?verbose  http://{admin}/metrics\n\n  \
         echo hello | kcat -P -b {reach} -t greetings -X enable.idempotence=true\n\n"
    );
    rest.unwrap_or_default();
    text
}
