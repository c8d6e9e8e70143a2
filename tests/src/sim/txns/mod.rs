//! Transactions: clients of both dialects that commit, abort, walk away and fence one another;
//! readers that see only what is committed; and the ledger that judges both.
//!
//! A transaction has a number in the run. Its records carry it in place of a session, and the
//! offset that it commits for its group is that number: what is seen says which transaction it
//! came from.

mod check;
mod inspect;
mod past;
mod reader;
mod shown;
mod transactor;

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;

pub(crate) use self::check::check;
pub(crate) use self::past::leave_ids;
pub(crate) use self::reader::CommittedReader;
use self::shown::Reached;
pub(crate) use self::transactor::Transactor;
use super::clients::Client;
use super::history::{Place, RecordId};
use super::plan::Plan;

/// Set in the session of every record of a transaction.
const MARK: u32 = 1 << 31;
/// Codes by which a coordinator says "try again, perhaps elsewhere".
const AGAIN: [i16; 4] = [14, 15, 16, 51];

/// What its client asked to become of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Nothing: it works on it, or walked away.
    Nothing,
    Commit,
    Abort,
}

#[derive(Debug, Clone)]
struct Txn {
    /// Number of its transactional id.
    id: u32,
    wish: Wish,
    /// The end was answered with success.
    answered: bool,
    /// The end was answered with 48: it was ended the other way.
    refused: bool,
    acked: BTreeSet<RecordId>,
    /// Whether the offset of its group was answered with success.
    offset: bool,
}

#[derive(Debug, Default)]
struct Inner {
    txns: Vec<Txn>,
    /// The transactional id that has a producer id.
    producers: BTreeMap<i64, u32>,
    /// Producer ids and epochs that began a session.
    sessions: BTreeSet<(i64, i16)>,
    /// The highest committed offset that was seen, by id.
    offsets: BTreeMap<u32, i64>,
    /// The highest last stable offset that anybody was told.
    stable: BTreeMap<Place, i64>,
    /// How far each id was seen over HTTP, and its decision.
    reached: BTreeMap<u32, (Reached, Option<Wish>)>,
    read: u64,
    looks: u64,
}

/// What became of transactions, as far as clients were told.
#[derive(Debug)]
pub(crate) struct TxnLedger {
    inner: Mutex<Inner>,
    /// The end of a transaction may be answered before another broker has carried it out.
    queues: bool,
}

impl TxnLedger {
    /// An empty one.
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            inner: Mutex::default(),
            queues: !plan.pair.is_empty(),
        }
    }

    /// What was done, in numbers.
    pub(crate) fn summary(&self) -> String {
        let inner = self.inner.lock();
        let of = |wish: Wish| inner.txns.iter().filter(move |txn| txn.wish == wish);
        format!(
            "{} transactions ({} committed, {} aborted, {} sessions), {} records read committed, \
             {} staged offsets looked at",
            inner.txns.len(),
            of(Wish::Commit).filter(|txn| txn.answered).count(),
            of(Wish::Abort).filter(|txn| txn.answered).count(),
            inner.sessions.len(),
            inner.read,
            inner.looks,
        )
    }

    /// A session of a transactional id began.
    fn session(&self, client: &Client, id: u32, producer: (i64, i16)) {
        let mut inner = self.inner.lock();
        let fresh = !inner.producers.contains_key(&producer.0);
        let of = *inner.producers.entry(producer.0).or_insert(id);
        let twice = !inner.sessions.insert(producer);
        drop(inner);
        if fresh {
            client.history.session(producer.0);
        }
        if of != id || twice {
            let what = format!("{producer:?} was given to {id}; before, to {of}");
            client.history.violation(&what);
        }
    }

    /// A producer id that an answer to EndTxn brought.
    fn rotated(&self, client: &Client, id: u32, producer: i64) {
        let before = self.inner.lock().producers.insert(producer, id);
        match before {
            None => drop(client.history.session(producer)),
            Some(of) if of != id => {
                let what = format!("producer id {producer} of {of} was given to {id}");
                client.history.violation(&what);
            }
            Some(_) => {}
        }
    }

    /// Transactional ids that have begun a session.
    fn began(&self) -> BTreeSet<String> {
        self.inner
            .lock()
            .producers
            .values()
            .map(|id| name(*id))
            .collect()
    }

    /// Whether a session of an id has begun.
    fn has_begun(&self, id: u32) -> bool {
        self.inner.lock().producers.values().any(|of| *of == id)
    }

    /// How far an id was seen over HTTP, and its decision.
    fn reached(&self, id: u32) -> (Reached, Option<Wish>) {
        let inner = self.inner.lock();
        inner.reached.get(&id).copied().unwrap_or_default()
    }

    /// An id was seen over HTTP.
    fn reach(&self, id: u32, reached: (Reached, Option<Wish>)) {
        let mut inner = self.inner.lock();
        inner.looks += 1;
        let known = inner.reached.entry(id).or_default();
        if reached.0 >= known.0 {
            *known = reached;
        }
    }

    /// Whether a client has asked for a commit of the id.
    fn may_commit(&self, id: u32) -> bool {
        let inner = self.inner.lock();
        let mut txns = inner.txns.iter();
        txns.any(|txn| txn.id == id && txn.wish == Wish::Commit)
    }

    fn begin(&self, id: u32) -> u32 {
        let mut inner = self.inner.lock();
        inner.txns.push(Txn {
            id,
            wish: Wish::Nothing,
            answered: false,
            refused: false,
            acked: BTreeSet::new(),
            offset: false,
        });
        u32::try_from(inner.txns.len()).unwrap_or(0)
    }

    fn change(&self, number: u32, change: impl FnOnce(&mut Txn)) {
        let index = usize::try_from(number).unwrap_or(0).saturating_sub(1);
        if let Some(txn) = self.inner.lock().txns.get_mut(index) {
            change(txn);
        }
    }

    fn get(&self, number: u32) -> Option<Txn> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        self.inner.lock().txns.get(index).cloned()
    }

    /// The last transaction of an id whose offset is surely committed.
    fn committed_offset(&self, id: u32) -> i64 {
        let inner = self.inner.lock();
        if self.queues {
            return inner.offsets.get(&id).copied().unwrap_or(-1);
        }
        let committed = (1_i64..).zip(&inner.txns).filter(|(_, txn)| {
            txn.id == id && txn.wish == Wish::Commit && txn.answered && txn.offset
        });
        committed.map(|(number, _)| number).last().unwrap_or(-1)
    }

    /// A record was shown as committed.
    fn shown(&self, client: &Client, offset: i64, record: RecordId) {
        let txn = self.get(record.session & !MARK);
        self.inner.lock().read += 1;
        if record.session & MARK == 0 || txn.as_ref().is_none_or(|txn| txn.wish != Wish::Commit) {
            let what = format!("{record:?} at {offset} was shown as committed, of {txn:?}");
            client.history.violation(&what);
        }
    }

    /// A last stable offset was told by the newest instance.
    fn stable(&self, client: &Client, place: Place, offset: i64) {
        let mut inner = self.inner.lock();
        let known = inner.stable.entry(place).or_insert(0);
        let before = *known;
        *known = before.max(offset);
        drop(inner);
        if offset < before {
            let what = format!("the last stable offset of {place:?} was {before} and is {offset}");
            client.history.violation(&what);
        }
    }

    /// Judges a committed offset of the group of `id`; `least` is from before it was asked for.
    fn offset_seen(&self, client: &Client, id: u32, least: i64, offset: i64) {
        {
            let mut inner = self.inner.lock();
            inner.looks += 1;
            let highest = inner.offsets.entry(id).or_insert(-1);
            *highest = offset.max(*highest);
        }
        let number = u32::try_from(offset).unwrap_or(0);
        let right = match self.get(number) {
            None => offset == -1,
            Some(txn) => txn.id == id && txn.wish == Wish::Commit && !txn.refused,
        };
        if !right || offset < least {
            let what = format!("id {id}: offset {offset} is committed, at least {least} was");
            client.history.violation(&what);
        }
    }
}

/// The name of the topic of transactions.
pub(crate) fn topic(partitions: u32) -> String {
    format!("main-txns-{partitions}")
}

/// Whether a topic is that of transactions.
pub(crate) fn is_topic(name: &str) -> bool {
    name.starts_with("main-txns-")
}

/// The name of a transactional id, and of its group.
pub(crate) fn name(id: u32) -> String {
    format!("txn-{id}")
}
