//! What must hold of transactions in the end, with no fault left: each is decided, everywhere
//! alike, as its client was told, and a reader of committed records gets exactly those.

use std::collections::{BTreeMap, BTreeSet};

use super::super::check::{Failure, Log, read_log};
use super::super::clients::{Client, Target};
use super::super::history::{Place, RecordId};
use super::super::net::Connection;
use super::inspect::inspect;
use super::reader::{committed, look};
use super::{MARK, Txn, TxnLedger, Wish};

/// How often a question is asked again while something is not decided: 100 ms apart.
pub(super) const TRIES: u32 = 600;

/// Checks every transaction of the run against the logs.
pub(crate) async fn check(
    client: &Client,
    ledger: &TxnLedger,
    on: &Target,
    ids: u32,
) -> Result<(), Failure> {
    let mut outcomes: BTreeMap<u32, bool> = BTreeMap::new();
    let mut found: BTreeSet<RecordId> = BTreeSet::new();
    for partition in 0..on.partitions {
        let place = (on.id, partition);
        let connection = client.connect().await;
        let log = decided_log(client, &connection, place).await?;
        let visible = walk(client, place, &log, &mut outcomes, &mut found);
        found.extend(gone(client, place, &log));
        let view = read_log(client, &connection, place, 1).await?;
        let view = committed(&view.batches, &view.aborted);
        if view != visible {
            let what = format!(
                "{place:?}: {} records are committed, {} are read",
                visible.len(),
                view.len()
            );
            client.history.violation(&what);
        }
    }
    against_ledger(client, ledger, &outcomes, &found);
    for id in 0..ids {
        offsets(client, ledger, on, id, &outcomes).await?;
    }
    inspect(client, ledger, on, ids).await
}

/// The whole log, once nothing in it is undecided.
async fn decided_log(
    client: &Client,
    connection: &Connection,
    place: Place,
) -> Result<Log, Failure> {
    for _ in 0..TRIES {
        let log = read_log(client, connection, place, 0).await?;
        if log.last_stable == log.high_watermark {
            return Ok(log);
        }
        client.pause(100, 100).await;
    }
    Err(format!("a transaction on {place:?} is never finished"))
}

/// Goes through a log by its markers: what each transaction came to, and what is committed.
fn walk(
    client: &Client,
    place: Place,
    log: &Log,
    outcomes: &mut BTreeMap<u32, bool>,
    found: &mut BTreeSet<RecordId>,
) -> Vec<(i64, RecordId)> {
    let wrong = |what: String| client.history.violation(&format!("{place:?}: {what}"));
    let mut open: BTreeMap<i64, (u32, Vec<(i64, RecordId)>)> = BTreeMap::new();
    let mut visible = Vec::new();
    let (mut ended, mut marked) = (BTreeSet::new(), BTreeSet::new());
    for batch in &log.batches {
        let (pid, base) = (batch.header.producer_id.0, batch.header.base_offset);
        if let Some(marker) = batch.marker {
            if !marked.insert((pid, marker.txn_seq)) {
                wrong(format!("the marker at {base} is there twice: {marker:?}"));
            }
            let Some((number, records)) = open.remove(&pid) else {
                continue;
            };
            ended.insert(number);
            if *outcomes.entry(number).or_insert(marker.commit) != marker.commit {
                wrong(format!("txn {number} is committed and aborted"));
            }
            if marker.commit {
                visible.extend(records);
            }
            continue;
        }
        for (offset, record) in (base..).zip(&batch.records) {
            let number = record.session & !MARK;
            let (of, records) = open.entry(pid).or_insert((number, Vec::new()));
            if *of != number || ended.contains(&number) || !batch.header.is_transactional() {
                wrong(format!("{record:?} at {offset} lies in txn {of} of {pid}"));
            }
            if records
                .last()
                .is_some_and(|(_, last)| last.sequence >= record.sequence)
            {
                wrong(format!("{record:?} at {offset} is out of order"));
            }
            if !found.insert(*record) {
                wrong(format!("{record:?} at {offset} is there twice"));
            }
            records.push((offset, *record));
        }
    }
    if let Some((pid, (number, _))) = open.first_key_value() {
        wrong(format!(
            "txn {number} of {pid} is open, and nothing waits for it"
        ));
    }
    visible.sort_unstable();
    visible
}

/// Records that the log has lost with its beginning.
fn gone(client: &Client, place: Place, log: &Log) -> Vec<RecordId> {
    let (seen, _) = client.history.known(place);
    let below = seen.range(..log.start);
    below.map(|(_, record)| *record).collect()
}

fn against_ledger(
    client: &Client,
    ledger: &TxnLedger,
    outcomes: &BTreeMap<u32, bool>,
    found: &BTreeSet<RecordId>,
) {
    for number in 1.. {
        let Some(txn) = ledger.get(number) else {
            return;
        };
        let outcome = outcomes.get(&number).copied();
        let right = match (txn.wish, outcome) {
            (Wish::Commit, Some(false)) => !txn.answered,
            (_, Some(true)) => txn.wish == Wish::Commit && !txn.refused,
            (_, _) => true,
        };
        let committed = outcome == Some(true) || (txn.wish == Wish::Commit && txn.answered);
        let lost = txn.acked.iter().find(|record| !found.contains(record));
        if !right || (committed && lost.is_some()) {
            let what = format!("txn {number} came to {outcome:?}, lost {lost:?}: {txn:?}");
            client.history.violation(&what);
        }
    }
}

/// The offset of a group is that of the last transaction of its id that committed one.
async fn offsets(
    client: &Client,
    ledger: &TxnLedger,
    on: &Target,
    id: u32,
    outcomes: &BTreeMap<u32, bool>,
) -> Result<(), Failure> {
    let is_committed = |(number, txn): &(u32, Txn)| {
        let known = txn.wish == Wish::Commit && txn.answered && !txn.refused;
        txn.id == id && txn.offset && (known || outcomes.get(number) == Some(&true))
    };
    let all = (1..).map_while(|number| Some((number, ledger.get(number)?)));
    let least = all
        .filter(is_committed)
        .last()
        .map_or(-1, |(n, _)| i64::from(n));
    for _ in 0..TRIES {
        let connection = client.connect().await;
        if look(client, ledger, &connection, on, id, least).await == Some(true) {
            return Ok(());
        }
        if client.history.failed() {
            return Ok(());
        }
        client.pause(100, 100).await;
    }
    Err(format!("the offsets of {id} are never decided"))
}
