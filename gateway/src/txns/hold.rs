//! The fault that holds markers: Prepare* stays until it is released, so that it can be watched.
//!
//! A decorator of the ports. What is held is asked for again by whoever carries decisions out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use coordinator::machine::group::offsets::TxnEnd;
use coordinator::machine::txn::{Dispatch, Groups, Transition};
use coordinator::service::txns::{
    Done, GroupDecisions, HistorySink, MarkerQueue, MarkerSink, PortError, TxnPorts,
};
use coordinator::volume::format::MarkerQueueFile;
use parking_lot::Mutex;
use store_adapter::ids::{BrokerId, ProducerEpoch, ProducerId};
use store_adapter::runtime::Env;
use tokio::sync::watch;

/// Faults at one time.
const HOLDS_MAX: usize = 1000;
/// How long one order waits to be released before it is refused: the pass that carries decisions
/// out has others to look after.
const WAIT: Duration = Duration::from_secs(1);

/// What is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Its number.
    pub number: u64,
    /// The transactional id whose markers are held; `None` for all.
    pub transactional_id: Option<Arc<str>>,
    /// Since when, ms since the Unix epoch.
    pub since_ms: i64,
    /// Orders that were held.
    pub orders: u64,
}

#[derive(Debug)]
struct Rule {
    hold: Hold,
    /// The producers that the id is known to have had.
    pids: BTreeSet<ProducerId>,
}

impl Rule {
    fn holds(&self, pid: ProducerId) -> bool {
        self.hold.transactional_id.is_none() || self.pids.contains(&pid)
    }
}

#[derive(Debug, Default)]
struct Rules {
    by_number: BTreeMap<u64, Rule>,
    last: u64,
}

/// The holds of a broker.
#[derive(Debug)]
pub struct Holds {
    env: Env,
    rules: Mutex<Rules>,
    released: watch::Sender<u64>,
}

impl Holds {
    /// None yet.
    pub fn new(env: &Env) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            rules: Mutex::default(),
            released: watch::channel(0).0,
        })
    }

    /// Holds the markers and group decisions of all, or of one id, of which `pid` is the present
    /// producer if it has one. `None` if there are too many holds.
    pub fn add(&self, transactional_id: Option<&str>, pid: Option<ProducerId>) -> Option<Hold> {
        let mut rules = self.rules.lock();
        if rules.by_number.len() >= HOLDS_MAX {
            return None;
        }
        rules.last += 1;
        let hold = Hold {
            number: rules.last,
            transactional_id: transactional_id.map(Into::into),
            since_ms: self.env.clock.wall_ms(),
            orders: 0,
        };
        let rule = Rule {
            hold: hold.clone(),
            pids: pid.into_iter().collect(),
        };
        rules.by_number.insert(hold.number, rule);
        Some(hold)
    }

    /// Releases what one hold held; whether there was one of that number.
    pub fn release(&self, number: u64) -> bool {
        let found = self.rules.lock().by_number.remove(&number).is_some();
        self.released.send_modify(|count| *count += 1);
        found
    }

    /// Every hold, in order of numbers.
    pub fn list(&self) -> Vec<Hold> {
        let rules = self.rules.lock();
        let rules = rules.by_number.values();
        rules.map(|rule| rule.hold.clone()).collect()
    }

    /// The ports with what can be held.
    pub fn around(self: &Arc<Self>, ports: TxnPorts) -> TxnPorts {
        TxnPorts {
            markers: Arc::new(Held(Arc::clone(self), ports.markers)),
            groups: Arc::new(Held(Arc::clone(self), ports.groups)),
            queue: Arc::new(Held(Arc::clone(self), ports.queue)),
            history: Arc::new(Held(Arc::clone(self), ports.history)),
            ..ports
        }
    }

    /// An id has that producer now: what is held of the id is held of the producer.
    fn learn(&self, transactional_id: &str, pid: ProducerId) {
        let mut rules = self.rules.lock();
        for rule in rules.by_number.values_mut() {
            if rule.hold.transactional_id.as_deref() == Some(transactional_id) {
                rule.pids.insert(pid);
            }
        }
    }

    /// The hold that an order of a producer meets; it is counted if `count`.
    fn meets(&self, pid: ProducerId, count: bool) -> Option<u64> {
        let mut rules = self.rules.lock();
        let rule = rules.by_number.values_mut().find(|rule| rule.holds(pid))?;
        rule.hold.orders += u64::from(count);
        Some(rule.hold.number)
    }

    /// Waits until nothing holds the orders of a producer.
    async fn pass(&self, pid: ProducerId) -> Result<(), PortError> {
        if self.meets(pid, true).is_none() {
            return Ok(());
        }
        let mut released = self.released.subscribe();
        let late = self.env.clock.sleep(WAIT);
        let free = async {
            while self.meets(pid, false).is_some() {
                // The sender is in `self`.
                released.changed().await.unwrap_or_default();
            }
        };
        tokio::select! {
            biased;
            () = free => Ok(()),
            () = late => Err(PortError("its markers are held by a fault".to_owned())),
        }
    }
}

/// A port, behind the holds.
#[derive(Debug)]
struct Held<P: ?Sized>(Arc<Holds>, Arc<P>);

impl MarkerSink for Held<dyn MarkerSink> {
    fn write(&self, order: Dispatch, coordinator_epoch: i32) -> Done<'_> {
        Box::pin(async move {
            self.0.pass(order.pid).await?;
            self.1.write(order, coordinator_epoch).await
        })
    }
}

impl GroupDecisions for Held<dyn GroupDecisions> {
    fn decide(&self, groups: Groups, end: TxnEnd) -> Done<'_> {
        Box::pin(async move {
            self.0.pass(end.producer_id).await?;
            self.1.decide(groups, end).await
        })
    }
}

impl MarkerQueue for Held<dyn MarkerQueue> {
    fn enqueue(
        &self,
        to: BrokerId,
        record_epoch: ProducerEpoch,
        entry: MarkerQueueFile,
    ) -> Done<'_> {
        Box::pin(async move {
            self.0.pass(ProducerId(entry.producer_id)).await?;
            self.1.enqueue(to, record_epoch, entry).await
        })
    }
}

impl HistorySink for Held<dyn HistorySink> {
    fn record(&self, slot: u32, transactional_id: &str, transition: &Transition) {
        // Before the transition is carried out.
        self.0.learn(transactional_id, transition.pid);
        self.1.record(slot, transactional_id, transition);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn held_orders_wait_for_their_release_and_others_pass() {
        let holds = Holds::new(&Env::real());
        let (mine, other) = (ProducerId(1), ProducerId(2));
        let hold = holds.add(Some("tx"), None).unwrap();
        assert_eq!(holds.pass(mine).await, Ok(()));
        holds.learn("tx", mine);
        holds.learn("ty", other);
        assert_eq!(holds.pass(other).await, Ok(()));
        assert!(holds.pass(mine).await.is_err());
        let (waited, found) = tokio::join!(holds.pass(mine), async {
            tokio::task::yield_now().await;
            holds.release(hold.number)
        });
        assert_eq!((waited, found), (Ok(()), true));
        assert!(!holds.release(hold.number));
        let all = holds.add(None, None).unwrap();
        assert!(holds.pass(other).await.is_err());
        let listed = holds.list();
        assert_eq!((listed.len(), listed[0].orders), (1, 1));
        assert!(holds.release(all.number) && holds.list().is_empty());
    }
}
