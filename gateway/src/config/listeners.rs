//! `listeners` and `advertised.listeners`, as Kafka reads them.

use std::collections::{BTreeMap, BTreeSet};

use super::settings::{ConfigError, Settings};

/// A listener: where to bind, and what clients are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Its name, in capitals.
    pub name: String,
    /// Where to bind.
    pub bind: Endpoint,
    /// What clients are told. Port 0 stands for the port that the socket got.
    pub advertised: Endpoint,
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Name or address, without brackets; empty for every address.
    pub host: String,
    /// Port.
    pub port: u16,
}

const FORM: &str = "NAME://HOST:PORT, several by commas";

/// Reads the listeners. `hostname` is what clients are told where a listener is bound to every
/// address.
///
/// # Errors
/// The first of what is [`judged`].
pub(super) fn listeners(
    settings: &Settings,
    hostname: impl Fn() -> Option<String>,
) -> Result<Vec<ListenerConfig>, ConfigError> {
    let (listeners, wrong) = judged(settings, hostname);
    wrong.into_iter().next().map_or(Ok(listeners), Err)
}

/// Listeners that are right, and everything that is wrong with the others: what Kafka refuses too,
/// bad forms, names or ports twice, a name without a protocol, and 0.0.0.0 as an address for
/// clients; also every protocol but PLAINTEXT.
pub(super) fn judged(
    settings: &Settings,
    hostname: impl Fn() -> Option<String>,
) -> (Vec<ListenerConfig>, Vec<ConfigError>) {
    let mut wrong = Vec::new();
    let dropped = names(&settings.get("controller.listener.names").value);
    let bound = kept(endpoints(settings, "listeners", &dropped), &mut wrong);
    let advertised = endpoints(settings, "advertised.listeners", &dropped);
    let advertised = kept(advertised, &mut wrong);
    let protocols = kept(protocols(settings), &mut wrong);
    if bound.is_empty() && wrong.is_empty() {
        wrong.push(settings.refuse("listeners", format!("at least one of {FORM}")));
    }
    if !wrong.is_empty() {
        return (Vec::new(), wrong);
    }
    kept(check_ports(settings, &bound), &mut wrong);
    let unknown = advertised
        .iter()
        .filter(|(name, _)| !bound.iter().any(|(known, _)| known == name));
    wrong.extend(unknown.map(|(name, _)| {
        settings.refuse(
            "advertised.listeners",
            format!("the names of `listeners`, which have no {name}"),
        )
    }));
    let advertised: BTreeMap<_, _> = advertised.into_iter().collect();
    let mut listeners = Vec::new();
    for (name, bind) in bound {
        let told = advertised.get(&name).cloned();
        let told = told.unwrap_or_else(|| bind.clone());
        let is_served = check_protocol(settings, &name, &protocols);
        match is_served.and_then(|()| reachable(settings, &name, told, &hostname)) {
            Ok(advertised) => listeners.push(ListenerConfig {
                name,
                bind,
                advertised,
            }),
            Err(error) => wrong.push(error),
        }
    }
    (listeners, wrong)
}

/// What was read; nothing of it where that went wrong.
fn kept<T: Default>(read: Result<T, ConfigError>, wrong: &mut Vec<ConfigError>) -> T {
    read.unwrap_or_else(|error| {
        wrong.push(error);
        T::default()
    })
}

/// An address that clients can use: this host's name for an empty host, never 0.0.0.0.
fn reachable(
    settings: &Settings,
    name: &str,
    told: Endpoint,
    hostname: impl Fn() -> Option<String>,
) -> Result<Endpoint, ConfigError> {
    let port = told.port;
    match told.host.as_str() {
        "0.0.0.0" | "::" | "0:0:0:0:0:0:0:0" => {
            let key = match settings.given("advertised.listeners") {
                Some(_) => "advertised.listeners",
                None => "listeners",
            };
            Err(settings.refuse(
                key,
                format!(
                    "an address that clients can connect to; {name} would tell them {}. Set \
                     advertised.listeners={name}://HOST:{port}",
                    told.host
                ),
            ))
        }
        "" => match hostname() {
            Some(host) => Ok(Endpoint { host, port }),
            None => Err(settings.refuse(
                "listeners",
                format!("a host, because this one has no name: {name}://HOST:{port}"),
            )),
        },
        _ => Ok(told),
    }
}

fn endpoints(
    settings: &Settings,
    key: &str,
    dropped: &BTreeSet<String>,
) -> Result<Vec<(String, Endpoint)>, ConfigError> {
    let text = settings.get(key).value;
    let mut endpoints: Vec<(String, Endpoint)> = Vec::new();
    for item in text
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
    {
        let (name, endpoint) = endpoint(item).ok_or_else(|| settings.refuse(key, FORM))?;
        if dropped.contains(&name) {
            continue;
        }
        if endpoints.iter().any(|(known, _)| *known == name) {
            return Err(settings.refuse(key, format!("each name once; {name} comes twice")));
        }
        endpoints.push((name, endpoint));
    }
    Ok(endpoints)
}

fn endpoint(item: &str) -> Option<(String, Endpoint)> {
    let (name, address) = item.split_once("://")?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || !name.chars().all(is_name) {
        return None;
    }
    let (host, port) = address.rsplit_once(':')?;
    let bracketed = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let host = bracketed.unwrap_or(host);
    let is_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '%' | '.' | '_' | ':');
    if !host.chars().all(is_host) || (bracketed.is_none() && host.contains(':')) {
        return None;
    }
    let endpoint = Endpoint {
        host: host.to_owned(),
        port: port.parse().ok()?,
    };
    Some((name.to_ascii_uppercase(), endpoint))
}

fn check_ports(settings: &Settings, bound: &[(String, Endpoint)]) -> Result<(), ConfigError> {
    let mut ports = BTreeSet::new();
    for (_, endpoint) in bound {
        if endpoint.port != 0 && !ports.insert(endpoint.port) {
            let allowed = format!("each port once; {} comes twice", endpoint.port);
            return Err(settings.refuse("listeners", allowed));
        }
    }
    Ok(())
}

fn names(list: &str) -> BTreeSet<String> {
    let names = list.split(',').map(str::trim);
    names
        .filter(|name| !name.is_empty())
        .map(str::to_ascii_uppercase)
        .collect()
}

fn protocols(settings: &Settings) -> Result<BTreeMap<String, String>, ConfigError> {
    let key = "listener.security.protocol.map";
    let text = settings.get(key).value;
    let items = text
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty());
    items
        .map(|item| match item.split_once(':') {
            Some((name, protocol)) => Ok((
                name.trim().to_ascii_uppercase(),
                protocol.trim().to_ascii_uppercase(),
            )),
            None => Err(settings.refuse(key, "NAME:PROTOCOL, several by commas")),
        })
        .collect()
}

fn check_protocol(
    settings: &Settings,
    name: &str,
    protocols: &BTreeMap<String, String>,
) -> Result<(), ConfigError> {
    match protocols.get(name).map(String::as_str) {
        Some("PLAINTEXT") => Ok(()),
        Some(other) => Err(settings.refuse(
            "listeners",
            format!("listeners of protocol PLAINTEXT; {name} is {other}, which is not served"),
        )),
        None => Err(settings.refuse(
            "listeners",
            format!(
                "PLAINTEXT as a name, or any name with a protocol: \
                 listener.security.protocol.map={name}:PLAINTEXT"
            ),
        )),
    }
}
