//! What HTTP and the wire show of transactions, at any moment: never what is not so.
//!
//! Some of it cannot be doubted by whoever looks: an id that has begun is known, its transactions
//! come one after the other and none of them is undone, and both surfaces say the same. The rest is
//! judged by the client whose transaction it is, as long as nobody has fenced it.

use std::collections::{BTreeMap, BTreeSet};

use coordinator::slot_hash::fnv1a32;
use gateway::api::{ApiRequest, ApiResponse};
use kafka_protocol::messages::describe_transactions_response::TransactionState;
use kafka_protocol::messages::{DescribeTransactionsRequest, TransactionalId};
use kafka_protocol::protocol::StrBytes;
use serde::Deserialize;
use serde_json::Value;

use super::super::clients::{Client, Target};
use super::super::history::Place;
use super::super::net::{Connection, Duty};
use super::{AGAIN, TxnLedger, Wish, name};

/// What an id has come to: the number of its last transaction, and how far that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Reached {
    seq: u64,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Step {
    #[default]
    Open,
    /// Complete is derived from Prepare, and may be again.
    Decided,
    /// A new session has begun.
    Over,
}

/// Partitions of one topic.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Partitions {
    topic: String,
    partitions: Vec<i32>,
}

/// A partition as its leader sees it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PartitionState {
    partition: i32,
    open: bool,
    first_offset: Option<i64>,
    last_stable_offset: i64,
}

/// A transactional id as HTTP shows it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Shown {
    state: String,
    producer_id: i64,
    producer_epoch: i16,
    txn_seq: u64,
    timeout_ms: i32,
    start_ms: Option<i64>,
    partitions: Vec<Partitions>,
    groups: Vec<String>,
    partition_states: Vec<PartitionState>,
}

impl Shown {
    /// Producer id and epoch.
    pub(super) fn producer(&self) -> (i64, i16) {
        (self.producer_id, self.producer_epoch)
    }

    /// The direction in which the last transaction went or goes.
    fn decided(&self) -> Option<Wish> {
        match self.state.as_str() {
            "PrepareCommit" | "CompleteCommit" => Some(Wish::Commit),
            "PrepareAbort" | "CompleteAbort" => Some(Wish::Abort),
            _ => None,
        }
    }

    fn reached(&self) -> Reached {
        let step = match (self.state.as_str(), self.decided()) {
            ("Ongoing", _) => Step::Open,
            (_, Some(_)) => Step::Decided,
            (_, None) => Step::Over,
        };
        Reached {
            seq: self.txn_seq,
            step,
        }
    }

    /// As DescribeTransactions has it.
    fn topics(&self) -> BTreeMap<String, BTreeSet<i32>> {
        let mut topics: BTreeMap<String, BTreeSet<i32>> = BTreeMap::new();
        for one in &self.partitions {
            let numbers = topics.entry(one.topic.clone()).or_default();
            numbers.extend(&one.partitions);
        }
        for group in &self.groups {
            let slots = topics.entry("__consumer_offsets".to_owned()).or_default();
            slots.insert(i32::try_from(fnv1a32(group.as_bytes()) % 50).unwrap_or(0));
        }
        topics
    }

    fn is_as_on_the_wire(&self, wire: &TransactionState) -> bool {
        let topics = wire.topics.iter().map(|topic| {
            let numbers: BTreeSet<i32> = topic.partitions.iter().copied().collect();
            (topic.topic.to_string(), numbers)
        });
        wire.transaction_state.as_str() == self.state
            && (wire.producer_id.0, wire.producer_epoch) == self.producer()
            && wire.transaction_timeout_ms == self.timeout_ms
            && wire.transaction_start_time_ms == self.start_ms.unwrap_or(-1)
            && topics.collect::<BTreeMap<_, _>>() == self.topics()
    }

    /// Whether nothing has changed between two looks.
    fn is(&self, other: &Self) -> bool {
        (&self.state, self.producer(), self.txn_seq, self.start_ms)
            == (
                &other.state,
                other.producer(),
                other.txn_seq,
                other.start_ms,
            )
            && self.topics() == other.topics()
    }
}

/// Who coordinates an id.
fn duty(id: u32) -> Duty {
    Duty::Txn(name(id))
}

/// Asks one instance over HTTP. `None` where there is no answer, or none yet; `Some(None)` where
/// there is no such id.
async fn ask(client: &Client, server: u64, id: u32) -> Option<Option<Shown>> {
    let path = format!("/api/v1/transactions/{}", name(id));
    let (status, body) = client.net.http(&client.env, server, &path).await?;
    let brief = |shown: &Shown| format!("{} {:?}", shown.state, shown.producer());
    let shown = match status {
        200 => serde_json::from_value(body).map(Some),
        404 => Ok(None),
        503 => return None,
        _ => Err(serde::de::Error::custom(format!("{status}: {body}"))),
    };
    match shown {
        Ok(shown) => {
            let told = shown.as_ref().map(brief);
            let note = format!("HTTP of {id}: {told:?} by {server}");
            client.world.note(&note);
            Some(shown)
        }
        Err(error) => {
            client.history.violation(&format!("HTTP of {id}: {error}"));
            None
        }
    }
}

/// Looks at an id where it is coordinated, and judges what anybody can. `None` where nothing is
/// shown, or who is trusted has changed meanwhile.
pub(super) async fn look(client: &Client, ledger: &TxnLedger, id: u32) -> Option<(u64, Shown)> {
    let server = client.net.holder(&duty(id))?;
    let (known, before) = (ledger.has_begun(id), ledger.reached(id));
    let shown = ask(client, server, id).await?;
    if !client.net.answers_for(server, &duty(id)) {
        return None;
    }
    let Some(shown) = shown else {
        if known {
            let what = format!("HTTP says that there is no {}", name(id));
            client.history.violation(&what);
        }
        return None;
    };
    let (reached, decided) = (shown.reached(), shown.decided());
    let turned = reached == before.0 && before.1.is_some_and(|wish| decided != Some(wish));
    if reached < before.0 || turned {
        let what = format!("{} was shown as {before:?}, and now is {shown:?}", name(id));
        client.history.violation(&what);
    }
    ledger.reach(id, (reached, decided));
    if decided == Some(Wish::Commit) && !ledger.may_commit(id) {
        let what = format!("{} is shown as committed, and never was", name(id));
        client.history.violation(&what);
    }
    Some((server, shown))
}

/// Looks over HTTP and on the wire: as long as nothing changes, both say the same. Whether they
/// could be compared.
pub(super) async fn compare(
    client: &Client,
    ledger: &TxnLedger,
    connection: &Connection,
    id: u32,
) -> bool {
    let Some((server, before)) = look(client, ledger, id).await else {
        return false;
    };
    if server != connection.server {
        return false;
    }
    let Some(wire) = on_the_wire(client, connection, id).await else {
        return false;
    };
    let Some(Some(after)) = ask(client, server, id).await else {
        return false;
    };
    let same = before.is(&after) && client.net.answers_for(server, &duty(id));
    if same && !after.is_as_on_the_wire(&wire) {
        let what = format!("{} is {after:?} over HTTP, on the wire {wire:?}", name(id));
        client.history.violation(&what);
    }
    same
}

async fn on_the_wire(
    client: &Client,
    connection: &Connection,
    id: u32,
) -> Option<TransactionState> {
    let asked = TransactionalId(StrBytes::from_string(name(id)));
    let request = DescribeTransactionsRequest::default().with_transactional_ids(vec![asked]);
    let request = ApiRequest::DescribeTransactions(Box::new(request));
    match client.ask(connection, request, 0).await? {
        ApiResponse::DescribeTransactions(answer) => {
            let state = answer.transaction_states.into_iter().next()?;
            (!AGAIN.contains(&state.error_code)).then_some(state)
        }
        _ => None,
    }
}

/// A transaction as its own client knows it.
#[derive(Debug, Clone)]
pub(super) struct Own {
    /// Number of the transactional id.
    pub(super) id: u32,
    /// Producer id and epoch of its records.
    pub(super) records: (i64, i16),
    /// Producer id and epoch of the session by now.
    pub(super) session: (i64, i16),
    /// The first offset on each partition, as it was acknowledged.
    pub(super) acked: BTreeMap<Place, i64>,
    /// Whether the offset of its group is staged.
    pub(super) offset: bool,
    /// What it was told to come to; nothing: it is open.
    pub(super) ended: Option<Wish>,
}

impl Own {
    /// Looks at it over HTTP.
    pub(super) async fn look(&self, client: &Client, ledger: &TxnLedger, on: &Target) {
        let Some((server, shown)) = look(client, ledger, self.id).await else {
            return;
        };
        // Another session, or time, has ended it.
        if shown.producer() != self.session {
            return;
        }
        let wrong = match self.ended {
            None => self.is_not_open(client, server, &shown, on),
            Some(wish) if shown.decided() != Some(wish) => Some("it was told to have ended"),
            Some(_) => None,
        };
        if let Some(why) = wrong {
            let what = format!("{why}: {self:?} is shown as {shown:?}");
            client.history.violation(&what);
        }
        if shown.state.starts_with("Complete") && self.ended.is_some() {
            self.is_over(client, on).await;
        }
    }

    /// What is wrong with how an open transaction is shown.
    fn is_not_open(
        &self,
        client: &Client,
        server: u64,
        shown: &Shown,
        on: &Target,
    ) -> Option<&'static str> {
        let topics = shown.topics();
        let has = |place: &Place| {
            let numbers = topics.get(&on.name);
            numbers.is_some_and(|numbers| numbers.contains(&place.1))
        };
        if shown.state != "Ongoing" {
            return Some("it is open");
        }
        if !self.acked.keys().all(has) || (self.offset && !shown.groups.contains(&name(self.id))) {
            return Some("it has more to end");
        }
        let wrong = |state: &PartitionState| {
            let place = (on.id, state.partition);
            let first = self.acked.get(&place);
            let trusted = client.net.answers_for(server, &Duty::Partition(place));
            first.is_some_and(|first| {
                let right = state.open && state.first_offset == Some(*first);
                trusted && !(right && state.last_stable_offset <= *first)
            })
        };
        let wrong = shown.partition_states.iter().any(wrong);
        wrong.then_some("its records are held back")
    }

    /// What is shown as complete is over on every partition.
    async fn is_over(&self, client: &Client, on: &Target) {
        for place in self.acked.keys() {
            let duty = Duty::Partition(*place);
            let Some(server) = client.net.holder(&duty) else {
                continue;
            };
            let path = format!("/api/v1/topics/{}/partitions/{}/lso", on.name, place.1);
            let answer = client.net.http(&client.env, server, &path).await;
            let Some((200, body)) = answer else { continue };
            if client.net.answers_for(server, &duty) && self.is_open_in(&body) {
                let what = format!("{self:?} is shown as complete, and is open: {body}");
                client.history.violation(&what);
            }
        }
    }

    fn is_open_in(&self, lso: &Value) -> bool {
        let open = lso["openTransactions"].as_array();
        open.into_iter().flatten().any(|one| {
            one["producerId"] == self.records.0
                && one["producerEpoch"].as_i64() <= Some(self.records.1.into())
        })
    }
}
