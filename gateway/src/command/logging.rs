//! Log lines on standard error, pretty, JSON or logfmt; panics become log lines too.

use std::io::{self, IsTerminal};

use gateway::config::{Config, ConfigError, LogFormat, Settings};
use store_adapter::guard::panics_are_told;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::logfmt::Logfmt;

/// Whether lines are for machines.
pub(super) fn is_for_machines(config: &Config) -> bool {
    match config.log_format {
        LogFormat::Json | LogFormat::Logfmt => true,
        LogFormat::Pretty => false,
        LogFormat::Auto => !io::stderr().is_terminal(),
    }
}

/// What is logged.
///
/// # Errors
/// If the filter is none.
pub(super) fn filter(config: &Config, settings: &Settings) -> Result<EnvFilter, ConfigError> {
    let refuse = |why: String| settings.refuse("logging.filter", why);
    // The parser takes any word for the name of a target: a level that is misspelt would silence
    // all others.
    let words = config.log_filter.split(',').map(str::trim);
    let mut alone = words.filter(|word| !word.is_empty() && !word.contains(['=', '[', ':']));
    if let Some(word) = alone.find(|word| word.parse::<LevelFilter>().is_err()) {
        let levels = "off, error, warn, info, debug or trace, or target=level";
        return Err(refuse(format!("{levels}; {word:?} is none")));
    }
    EnvFilter::try_new(&config.log_filter).map_err(|error| refuse(format!("a filter; {error}")))
}

/// Starts logging. To be called once.
///
/// # Errors
/// If the filter is none.
pub(super) fn start(config: &Config, settings: &Settings) -> Result<(), ConfigError> {
    let filter = filter(config, settings)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // It would complain on the same standard error, and panic where that can't be written:
        // a full disk must cost lines only.
        .log_internal_errors(false)
        .with_writer(io::stderr);
    if config.log_format == LogFormat::Logfmt {
        builder.event_format(Logfmt).init();
    } else if is_for_machines(config) {
        builder.json().flatten_event(true).init();
    } else {
        let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        builder.with_ansi(colours).init();
    }
    std::panic::set_hook(Box::new(|panic| {
        if panics_are_told() {
            return;
        }
        let payload = panic.payload();
        let text = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        let place = panic.location().map(ToString::to_string);
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("unnamed");
        tracing::error!(place, thread, "panic: {text}");
    }));
    Ok(())
}
