//! `fencepost doctor`: what keeps clients from using a cluster. First of all, addresses that
//! brokers tell clients and that lead nowhere from here. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use kafka_protocol::messages::{MetadataRequest, MetadataResponse};
use serde::Serialize;
use store_adapter::runtime::Env;
use tokio::net::{TcpStream, lookup_host};

use super::client::{Client, Connect};
use super::health::{self, State};
use super::http;
use super::output::{Failure, Format, Row, help, or_dash, render};

/// Apis without which no client gets far: Produce, Fetch, ListOffsets, Metadata, FindCoordinator.
const NEEDED: [(i16, &str); 5] = [
    (0, "Produce"),
    (1, "Fetch"),
    (2, "ListOffsets"),
    (3, "Metadata"),
    (10, "FindCoordinator"),
];
/// Clocks may differ by so much.
const SKEW_MAX_MS: i64 = 2_000;

/// Arguments of `fencepost doctor`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Doctor {
    /// A broker of the cluster, as clients are given it
    #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:9092")]
    address: String,
    /// The admin port of a fencepost: its checks of store and volume, and its clock, are looked at
    /// too
    #[arg(long, value_name = "HOST:PORT")]
    admin: Option<String>,
    /// How long each answer may take, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5_000)]
    timeout: u64,
    /// How the outcome is printed
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Something that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Finding {
    check: String,
    state: State,
    found: String,
    /// What is to be done about it.
    advice: Option<String>,
}

impl Row for Finding {
    const HEADINGS: &'static [&'static str] = &["CHECK", "STATE", "FOUND", "ADVICE"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.check.clone(),
            self.state.word().to_owned(),
            self.found.clone(),
            or_dash(self.advice.as_ref()),
        ]
    }
}

#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn put(&mut self, check: &str, state: State, found: impl Into<String>, advice: Option<&str>) {
        self.0.push(Finding {
            check: check.to_owned(),
            state,
            found: found.into(),
            advice: advice.map(str::to_owned),
        });
    }

    fn ok(&mut self, check: &str, found: impl Into<String>) {
        self.put(check, State::Ok, found, None);
    }
}

impl Doctor {
    /// Runs the command.
    pub(crate) async fn run(self) -> Result<String, Failure> {
        if self.format == Format::Help {
            return help::<Finding>();
        }
        let mut findings = Findings::default();
        let reached = self.look(&mut findings).await;
        if let Some(admin) = &self.admin {
            self.look_at_admin(admin, &mut findings).await;
        }
        let shown = render(&findings.0, self.format)?;
        if let Err(failure) = reached {
            return Err(failure.after(shown));
        }
        let failed = findings.0.iter().filter(|f| f.state == State::Failed);
        match failed.count() {
            0 => Ok(shown),
            1 => Err(Failure::Refused("1 check failed".to_owned()).after(shown)),
            n => Err(Failure::Refused(format!("{n} checks failed")).after(shown)),
        }
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.timeout)
    }

    /// From the name to the topics.
    ///
    /// # Errors
    /// If the address does not lead to a broker.
    async fn look(&self, findings: &mut Findings) -> Result<(), Failure> {
        let address = self.address.as_str();
        reach(address, self.patience(), findings).await?;
        let mut client = Client::new(&Connect::to(address, self.timeout));
        let versions = match client.versions(address).await {
            Ok(versions) => versions,
            Err(failure) => {
                let advice = "is this a Kafka listener, and one without TLS?";
                findings.put(
                    "api versions",
                    State::Failed,
                    failure.to_string(),
                    Some(advice),
                );
                return Err(failure);
            }
        };
        let lacks = NEEDED.iter().filter(|(key, _)| !versions.contains_key(key));
        let lacks: Vec<&str> = lacks.map(|(_, name)| *name).collect();
        let found = format!("{} apis", versions.len());
        if lacks.is_empty() {
            findings.ok("api versions", found);
        } else {
            let found = format!("{found}, not {}", lacks.join(", "));
            let advice = "is this a listener for clients?";
            findings.put("api versions", State::Failed, found, Some(advice));
        }
        let metadata = match metadata(&mut client).await {
            Ok(metadata) => metadata,
            Err(failure) => {
                findings.put("metadata", State::Failed, failure.to_string(), None);
                return Err(failure);
            }
        };
        describe(&metadata, findings);
        self.look_at_brokers(&metadata, findings).await;
        look_at_topics(&metadata, findings);
        Ok(())
    }

    /// Whether every broker can be reached where clients are told, and is the one that was meant.
    async fn look_at_brokers(&self, metadata: &MetadataResponse, findings: &mut Findings) {
        let named_loopback = is_loopback(&self.address).await;
        let mut told: BTreeMap<String, i32> = BTreeMap::new();
        for broker in &metadata.brokers {
            let id = broker.node_id.0;
            let check = format!("broker {id}");
            let address = format!("{}:{}", broker.host.as_str(), broker.port);
            if let Some(other) = told.insert(address.clone(), id) {
                let found = format!("{address} is told for broker {other} too");
                findings.put(&check, State::Failed, found, Some(ADVERTISED));
                continue;
            }
            let mut client = Client::new(&Connect::to(&address, self.timeout));
            let (state, found, advice) = match self::metadata(&mut client).await {
                Err(failure) => (
                    State::Failed,
                    format!("clients are told {address}: {failure}"),
                    Some(ADVERTISED),
                ),
                Ok(there) if there.cluster_id != metadata.cluster_id => {
                    let other = there.cluster_id.as_ref().map(ToString::to_string);
                    let found = format!("{address} is cluster {}", or_dash(other));
                    (State::Failed, found, Some(ADVERTISED))
                }
                Ok(_) if !named_loopback && is_loopback(&address).await => (
                    State::Failed,
                    format!("clients are told {address}, which is each client's own host"),
                    Some(ADVERTISED),
                ),
                Ok(_) => (State::Ok, format!("answers at {address}"), None),
            };
            findings.put(&check, state, found, advice);
        }
    }

    async fn look_at_admin(&self, admin: &str, findings: &mut Findings) {
        match health::ready(admin, self.patience()).await {
            Ok(checks) => {
                for one in checks {
                    let found = one.reason.unwrap_or_else(|| "ok".to_owned());
                    findings.put(&format!("ready: {}", one.check), one.state, found, None);
                }
            }
            Err(failure) => {
                let advice = "is admin.listen bound on an address that is reached from here?";
                findings.put("admin", State::Failed, failure.to_string(), Some(advice));
                return;
            }
        }
        // The same answer again: only its date is looked at.
        let clock = Env::real().clock;
        let asked_ms = clock.wall_ms();
        let Ok(answer) = http::get(admin, "/livez", self.patience()).await else {
            return;
        };
        let date = answer.header("date").and_then(|date| {
            let parsed = jiff::fmt::rfc2822::parse(date).ok()?;
            Some(parsed.timestamp().as_millisecond())
        });
        let Some(date_ms) = date else { return };
        let skew_ms = skew(asked_ms, date_ms, clock.wall_ms());
        let found = format!("differs from this host's by about {} s", skew_ms / 1_000);
        if skew_ms.abs() > SKEW_MAX_MS {
            let advice = "set both clocks: timestamps and retention go by them";
            findings.put("clock", State::Degraded, found, Some(advice));
        } else {
            findings.ok("clock", found);
        }
    }
}

/// By how much a clock that was asked then surely differs, by the `Date` of its answer: whole
/// seconds, rounded down. A slow answer is not a wrong clock.
fn skew(asked_ms: i64, date_ms: i64, answered_ms: i64) -> i64 {
    let behind = (date_ms + 999 - asked_ms).min(0);
    let ahead = (date_ms - answered_ms).max(0);
    behind + ahead
}

const ADVERTISED: &str = "set advertised.listeners to what clients can reach";

/// Resolves and connects.
async fn reach(address: &str, patience: Duration, findings: &mut Findings) -> Result<(), Failure> {
    let clock = Env::real().clock;
    let resolved = tokio::select! {
        biased;
        found = lookup_host(address) => found.map_err(|error| error.to_string()),
        () = clock.sleep(patience) => Err("no answer from the resolver".to_owned()),
    };
    let resolved: BTreeSet<SocketAddr> = match resolved {
        Ok(found) => found.collect(),
        Err(error) => {
            let found = format!("{address}: {error}");
            let advice = "allowed is HOST:PORT, with a name that is known here";
            findings.put("resolve", State::Failed, &found, Some(advice));
            return Err(Failure::Unreachable(found));
        }
    };
    let shown: Vec<String> = resolved.iter().map(ToString::to_string).collect();
    findings.ok("resolve", format!("{address} is {}", shown.join(", ")));
    let mut last = format!("{address} has no address");
    for at in &resolved {
        let connected = tokio::select! {
            biased;
            stream = TcpStream::connect(at) => stream.map_err(|error| error.to_string()),
            () = clock.sleep(patience) => Err(format!("no answer within {patience:?}")),
        };
        match connected {
            Ok(_) => {
                findings.ok("connect", format!("{at} accepts"));
                return Ok(());
            }
            Err(error) => last = format!("{at}: {error}"),
        }
    }
    let advice = "does a broker run there, and does a firewall let it be reached?";
    findings.put("connect", State::Failed, &last, Some(advice));
    Err(Failure::Unreachable(last))
}

async fn metadata(client: &mut Client) -> Result<MetadataResponse, Failure> {
    let build = |version: i16| {
        let request = MetadataRequest::default().with_topics(None);
        request.with_allow_auto_topic_creation(version < 4)
    };
    client.metadata(build).await
}

fn describe(metadata: &MetadataResponse, findings: &mut Findings) {
    let cluster = metadata.cluster_id.as_ref().map(ToString::to_string);
    let found = format!(
        "cluster {}, {} brokers, controller {}",
        or_dash(cluster),
        metadata.brokers.len(),
        metadata.controller_id.0
    );
    if metadata.brokers.is_empty() {
        let advice = "the broker knows no other and not itself: is it still starting?";
        findings.put("metadata", State::Failed, found, Some(advice));
    } else {
        findings.ok("metadata", found);
    }
}

fn look_at_topics(metadata: &MetadataResponse, findings: &mut Findings) {
    let ill = metadata.topics.iter().filter(|topic| {
        let mut partitions = topic.partitions.iter();
        topic.error_code != 0 || partitions.any(|p| p.error_code != 0 || p.leader_id.0 < 0)
    });
    let ill = ill.filter_map(|topic| topic.name.as_ref().map(|name| name.to_string()));
    let ill: Vec<String> = ill.collect();
    if ill.is_empty() {
        findings.ok(
            "topics",
            format!("{}, all with leaders", metadata.topics.len()),
        );
    } else {
        let found = format!("without a leader or damaged: {}", ill.join(", "));
        let advice = "fencepost topic partitions, and /readyz?verbose of the admin port";
        findings.put("topics", State::Degraded, found, Some(advice));
    }
}

async fn is_loopback(address: &str) -> bool {
    match lookup_host(address).await {
        Ok(mut found) => found.all(|at| at.ip().to_canonical().is_loopback()),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_answer_is_not_a_wrong_clock() {
        for (asked, date, answered, differs) in [
            (10_300, 10_000, 10_310, 0),
            (10_900, 10_000, 11_010, 0),
            (10_900, 14_000, 19_000, 0),
            (10_000, 7_000, 10_010, -2_001),
            (10_000, 13_000, 10_010, 2_990),
        ] {
            assert_eq!(skew(asked, date, answered), differs, "{asked} {date}");
        }
    }
}
