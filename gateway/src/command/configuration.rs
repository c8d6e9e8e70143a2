//! `fencepost check-config` and `fencepost config`: what a broker would be told, and by whom.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use gateway::config::keys::{self, Effect, Key};
use gateway::config::{Config, ConfigError, Settings, Unuse};
use gateway::topic_config;
use serde::Serialize;

use super::arguments::Sources;
use super::logging;
use super::output::{Failure, Format, Row, help, or_dash, render};

/// Arguments of `fencepost check-config`.
#[derive(Debug, Clone, Args)]
pub(crate) struct CheckConfig {
    #[command(flatten)]
    sources: Sources,
    /// How the outcome is printed
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Arguments of `fencepost config`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Configuration {
    /// How the outcome is printed
    #[arg(long, global = true, value_enum, default_value_t)]
    format: Format,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Clone, Subcommand)]
enum Verb {
    /// Every key with its value and where that comes from
    Dump(Dump),
    /// What a key means, what it may be and what it is
    Explain(Explain),
}

#[derive(Debug, Clone, Args)]
struct Dump {
    #[command(flatten)]
    sources: Sources,
    /// Only keys that are not at their defaults
    #[arg(long)]
    given: bool,
}

#[derive(Debug, Clone, Args)]
struct Explain {
    /// The key, or one of its other names
    key: String,
    #[command(flatten)]
    sources: Sources,
}

impl CheckConfig {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<String, Failure> {
        check(&self.sources, self.format)
    }
}

impl Configuration {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<String, Failure> {
        match self.verb {
            Verb::Dump(dump) => dump.run(self.format),
            Verb::Explain(explain) => explain.run(self.format),
        }
    }
}

/// A key that was given.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Given {
    key: String,
    /// Not shown of keys without effect: it may be a secret.
    value: Option<String>,
    origin: String,
    effect: String,
}

impl Row for Given {
    const HEADINGS: &'static [&'static str] = &["KEY", "VALUE", "ORIGIN", "EFFECT"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.key.clone(),
            or_dash(self.value.as_ref()),
            self.origin.clone(),
            self.effect.clone(),
        ]
    }
}

const NOTHING_GIVEN: &str = "no key is given: all are at their defaults\n";

/// What every key that was given does, and what is wrong.
pub(super) fn check(sources: &Sources, format: Format) -> Result<String, Failure> {
    if format == Format::Help {
        return help::<Given>();
    }
    let settings = read(sources)?;
    let used = settings.all_given().map(|(key, setting)| Given {
        key: key.to_owned(),
        value: Some(setting.value.clone()),
        origin: setting.origin.to_string(),
        effect: "used".to_owned(),
    });
    let unused = settings.unused().iter().map(|unused| Given {
        key: unused.name.clone(),
        value: None,
        origin: unused.origin.to_string(),
        effect: unused.why.to_string(),
    });
    let rows: Vec<Given> = used.chain(unused).collect();
    let shown = match format {
        Format::Table | Format::Wide if rows.is_empty() => NOTHING_GIVEN.to_owned(),
        format => render(&rows, format)?,
    };
    match wrong(sources, &settings).as_slice() {
        [] => Ok(shown),
        wrong => Err(Failure::Usage(wrong.join("\nfencepost: ")).after(shown)),
    }
}

fn read(sources: &Sources) -> Result<Settings, Failure> {
    let settings = sources.settings(std::env::vars());
    settings.map_err(|error| Failure::Usage(error.to_string()))
}

/// Everything that keeps a broker from starting with these settings.
fn wrong(sources: &Sources, settings: &Settings) -> Vec<String> {
    let mut wrong: Vec<ConfigError> = settings.wrong().collect();
    if wrong.is_empty() {
        wrong = Config::wrong_listeners(settings);
        let filter = |config| logging::filter(&config, settings).map(drop);
        let first = sources.config(settings).and_then(filter).err();
        // One of the listeners may be what comes first.
        let first = first.filter(|first| !wrong.contains(first));
        wrong.extend(first);
    }
    wrong.iter().map(ToString::to_string).collect()
}

/// A key and its value.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Valued {
    key: &'static str,
    value: String,
    origin: String,
    default: &'static str,
    allowed: String,
}

impl Row for Valued {
    const HEADINGS: &'static [&'static str] = &["KEY", "VALUE", "ORIGIN"];
    const WIDE: &'static [&'static str] = &["DEFAULT", "ALLOWED"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.key.to_owned(),
            or_dash(filled(&self.value)),
            self.origin.clone(),
        ]
    }

    fn wide_cells(&self) -> Vec<String> {
        vec![or_dash(filled(self.default)), self.allowed.clone()]
    }
}

fn filled(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

impl Dump {
    fn run(&self, format: Format) -> Result<String, Failure> {
        if format == Format::Help {
            return help::<Valued>();
        }
        let settings = read(&self.sources)?;
        let shown = keys::all().filter(|key| key.effect == Effect::Used);
        let shown = shown.filter(|key| !self.given || settings.given(key.name).is_some());
        let rows = shown.map(|key| {
            let setting = settings.get(key.name);
            Valued {
                key: key.name,
                value: setting.value,
                origin: setting.origin.to_string(),
                default: key.default,
                allowed: key.kind.allowed(),
            }
        });
        let rows: Vec<Valued> = rows.collect();
        let text = render(&rows, format)?;
        match wrong(&self.sources, &settings).as_slice() {
            [] => Ok(text),
            wrong => Err(Failure::Usage(wrong.join("\nfencepost: ")).after(text)),
        }
    }
}

/// All about a key.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Explained {
    key: String,
    aliases: Vec<&'static str>,
    effect: String,
    allowed: Option<String>,
    default: Option<&'static str>,
    value: Option<String>,
    origin: Option<String>,
    documentation: Option<&'static str>,
}

impl Row for Explained {
    const HEADINGS: &'static [&'static str] = &["KEY", "EFFECT"];

    fn cells(&self) -> Vec<String> {
        vec![self.key.clone(), self.effect.clone()]
    }
}

impl Explain {
    fn run(&self, format: Format) -> Result<String, Failure> {
        if format == Format::Help {
            return help::<Explained>();
        }
        let settings = read(&self.sources)?;
        let name = self.key.as_str();
        let explained = match (keys::find(name), keys::ignored_because(name)) {
            (_, Some(why)) => ignored(name, why),
            (Some(key), None) => used(key, &settings),
            (None, None) => return Err(unknown(name)),
        };
        match format {
            Format::Table | Format::Wide => Ok(explained.text()),
            format => render(&[explained], format),
        }
    }
}

fn ignored(name: &str, why: &'static str) -> Explained {
    Explained {
        key: name.to_owned(),
        aliases: Vec::new(),
        effect: Unuse::Ignored(why).to_string(),
        allowed: None,
        default: None,
        value: None,
        origin: None,
        documentation: None,
    }
}

fn used(key: &Key, settings: &Settings) -> Explained {
    let setting = settings.get(key.name);
    Explained {
        key: key.name.to_owned(),
        aliases: key.aliases.to_vec(),
        effect: "used".to_owned(),
        allowed: Some(key.kind.allowed()),
        default: Some(key.default),
        value: Some(setting.value),
        origin: Some(setting.origin.to_string()),
        documentation: Some(key.doc),
    }
}

fn unknown(name: &str) -> Failure {
    let hint = if topic_config::keys::find(name).is_some() {
        "; it is a config of topics: fencepost topic configs".to_owned()
    } else {
        String::new()
    };
    let why = Unuse::Unknown(keys::closest(name));
    Failure::Usage(format!("{name} {why}{hint}"))
}

impl Explained {
    /// One line a fact.
    fn text(&self) -> String {
        let mut text = match self.documentation {
            Some(documentation) => format!("{}: {documentation}\n", self.key),
            None => format!("{} {}\n", self.key, self.effect),
        };
        let aliases = self.aliases.join(", ");
        let facts = [
            ("allowed", self.allowed.as_deref()),
            ("default", self.default.and_then(filled)),
            ("value", self.value.as_deref().and_then(filled)),
            ("origin", self.origin.as_deref()),
            ("also", filled(&aliases)),
        ];
        for (name, fact) in facts {
            if let Some(fact) = fact {
                // Writing to a string cannot fail.
                writeln!(text, "  {name:<8} {fact}").unwrap_or_default();
            }
        }
        text
    }
}
