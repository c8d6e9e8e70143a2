//! Raw values with their origins, in the order of precedence.

use std::collections::BTreeMap;
use std::fmt;

use super::keys::{self, Key, Kind};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The table of keys.
    Default,
    /// A line of the file, 0 if it is not known.
    File(String, usize),
    /// An environment variable.
    Environment(String),
    /// A flag of the command.
    Flag(&'static str),
    /// A call of the library.
    Library,
}

impl Origin {
    /// Whether neither of the two has precedence over the other.
    fn is_beside(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(a, _), Self::File(b, _)) => a == b,
            (Self::Environment(a), Self::Environment(b)) => {
                a.starts_with("KAFKA_") == b.starts_with("KAFKA_")
            }
            (Self::Flag(a), Self::Flag(b)) => a == b,
            (Self::Library, Self::Library) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(name, 0) => write!(f, "file {name}"),
            Self::File(name, line) => write!(f, "file {name} line {line}"),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Library => f.write_str("library"),
        }
    }
}

/// A value and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// As it was written.
    pub value: String,
    /// Where.
    pub origin: Origin,
}

/// A key that was given and has no effect. What it was set to is not kept: it may be a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unused {
    /// As it was written.
    pub name: String,
    /// Where.
    pub origin: Origin,
    /// Why.
    pub why: Unuse,
}

/// Why a key has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unuse {
    /// It is Kafka's; the reason completes "ignored because".
    Ignored(&'static str),
    /// Nobody knows it, though perhaps this one was meant.
    Unknown(Option<&'static str>),
}

impl fmt::Display for Unuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ignored(why) => write!(f, "is ignored because {why}"),
            Self::Unknown(Some(known)) => {
                write!(f, "is not a known key; did you mean {known}?")
            }
            Self::Unknown(None) => f.write_str("is not a known key"),
        }
    }
}

impl fmt::Display for Unused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}) {}", self.name, self.origin, self.why)
    }
}

/// A configuration that cannot be used: the process does not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A value that is not allowed.
    #[error("{key} = {value:?} ({origin}): allowed is {allowed}")]
    Value {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// Where it came from.
        origin: Origin,
        /// What is allowed.
        allowed: String,
    },
    /// A file that cannot be read or is not in its format.
    #[error("configuration file {path}: {why}")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// A flag that is not in the form key=value.
    #[error("--override {0:?}: allowed is key=value")]
    Override(String),
    /// Keys without effect where none are allowed.
    #[error("--strict-config: {0}")]
    Strict(String),
}

/// Every value that was given, by key; a later layer wins.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    given: BTreeMap<&'static str, Setting>,
    /// By which of its names a key was given.
    named: BTreeMap<&'static str, String>,
    /// Two names of a key that say different things in one place.
    conflicts: Vec<ConfigError>,
    unused: Vec<Unused>,
    warnings: Vec<String>,
}

impl Settings {
    /// Sets a value over what was set before. Keys that have no effect or are not known become
    /// warnings.
    pub fn set(&mut self, name: &str, value: &str, origin: Origin) {
        match keys::find(name) {
            Some(key) if keys::ignored_because(name).is_none() => {
                let value = value.trim().to_owned();
                self.note_conflict(key, name, &value, &origin);
                self.named.insert(key.name, name.to_owned());
                self.given.insert(key.name, Setting { value, origin });
            }
            _ => self.warn(name, &origin),
        }
    }

    /// Kafka refuses `node.id` beside another `broker.id`; which of two is meant nobody can tell.
    fn note_conflict(&mut self, key: &Key, name: &str, value: &str, origin: &Origin) {
        let (Some(before), Some(named)) = (self.given.get(key.name), self.named.get(key.name))
        else {
            return;
        };
        if named != name && before.value != value && before.origin.is_beside(origin) {
            self.conflicts.push(ConfigError::Value {
                key: name.to_owned(),
                value: value.to_owned(),
                origin: origin.clone(),
                allowed: format!("{:?}, as {named} says ({})", before.value, before.origin),
            });
        }
    }

    fn warn(&mut self, name: &str, origin: &Origin) {
        let unused = Unused {
            name: name.to_owned(),
            origin: origin.clone(),
            why: keys::ignored_because(name)
                .map_or_else(|| Unuse::Unknown(keys::closest(name)), Unuse::Ignored),
        };
        if !self.unused.contains(&unused) {
            self.warnings.push(unused.to_string());
            self.unused.push(unused);
        }
    }

    /// Keys that were given and have no effect, once each.
    pub fn unused(&self) -> &[Unused] {
        &self.unused
    }

    /// Every value that was given and is used, in order of keys.
    pub fn all_given(&self) -> impl Iterator<Item = (&'static str, &Setting)> {
        self.given.iter().map(|(name, setting)| (*name, setting))
    }

    /// What the user should be told, once each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The value in force.
    pub fn get(&self, name: &str) -> Setting {
        self.given.get(name).cloned().unwrap_or_else(|| Setting {
            value: keys::find(name).map_or("", |key| key.default).to_owned(),
            origin: Origin::Default,
        })
    }

    /// The value if one was given.
    pub fn given(&self, name: &str) -> Option<&Setting> {
        self.given.get(name)
    }

    /// Checks every value that was given against its row.
    ///
    /// # Errors
    /// The first that is not allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.wrong().next().map_or(Ok(()), Err)
    }

    /// Every value that its row does not allow.
    pub fn wrong(&self) -> impl Iterator<Item = ConfigError> {
        let given = self.given.iter();
        let wrong = given.filter_map(|(name, setting)| check(keys::find(name)?, setting).err());
        wrong.chain(self.conflicts.iter().cloned())
    }

    /// A number, within the limits of its row and of `T`.
    ///
    /// # Errors
    /// If it is none.
    pub fn number<T: TryFrom<i64>>(&self, name: &str) -> Result<T, ConfigError> {
        let setting = self.get(name);
        let number = setting.value.parse::<i64>().ok();
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| self.refuse(name, "a whole number"))
    }

    /// Whether a value is `true`.
    pub fn is(&self, name: &str) -> bool {
        self.get(name).value.eq_ignore_ascii_case("true")
    }

    /// The error for the value of a key.
    pub fn refuse(&self, name: &str, allowed: impl Into<String>) -> ConfigError {
        let Setting { value, origin } = self.get(name);
        ConfigError::Value {
            key: name.to_owned(),
            value,
            origin,
            allowed: allowed.into(),
        }
    }
}

/// Whether the row of a key allows a value; any where there is no row.
///
/// # Errors
/// What is allowed.
pub(crate) fn check_value(name: &str, value: &str) -> Result<(), String> {
    match keys::find(name) {
        Some(key) if !allows(key, value) => Err(key.kind.allowed()),
        _ => Ok(()),
    }
}

fn allows(key: &Key, value: &str) -> bool {
    match key.kind {
        Kind::Int { min, max } => value
            .parse::<i64>()
            .is_ok_and(|number| (min..=max).contains(&number)),
        Kind::Ratio => crate::topic_config::millionths(value).is_some(),
        Kind::Bool => value.eq_ignore_ascii_case("true") || value.eq_ignore_ascii_case("false"),
        Kind::Choice(choices) => choices.contains(&value),
        Kind::Text | Kind::Any => true,
    }
}

fn check(key: &Key, setting: &Setting) -> Result<(), ConfigError> {
    if allows(key, &setting.value) {
        return Ok(());
    }
    Err(ConfigError::Value {
        key: key.name.to_owned(),
        value: setting.value.clone(),
        origin: setting.origin.clone(),
        allowed: key.kind.allowed(),
    })
}
