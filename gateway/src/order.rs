//! The order in which requests of a connection take effect: that in which they were sent.
//!
//! Apache Kafka reads the next request of a connection when the one before it is answered. Here
//! some kinds *overlap*: what they do has its place in the first stage, so that others of these
//! kinds need not wait until it is durable, and share syncs with it. Every other kind stands
//! *alone*: it begins when everything before it is settled, and nothing behind it is read until it
//! is settled itself. Among those that overlap, what concerns the same keeps its order by
//! [`crate::turns`].

use kafka_protocol::messages::ApiKey;
use tokio::sync::watch;

/// First version of AddPartitionsToTxn that is of brokers, for several transactions.
pub(crate) const ADD_OF_BROKERS_FROM: i16 = 4;

/// Whether requests of this kind overlap.
pub fn overlaps(key: i16, version: i16) -> bool {
    match ApiKey::try_from(key) {
        Ok(
            ApiKey::Produce
            | ApiKey::OffsetCommit
            | ApiKey::Heartbeat
            | ApiKey::InitProducerId
            | ApiKey::AddOffsetsToTxn
            | ApiKey::EndTxn
            | ApiKey::TxnOffsetCommit,
        ) => true,
        Ok(ApiKey::AddPartitionsToTxn) => version < ADD_OF_BROKERS_FROM,
        _ => false,
    }
}

/// Where requests of a connection stand, as who orders them knows it.
#[derive(Debug)]
pub struct Line {
    /// Requests that are ordered and have an answer.
    ordered: u64,
    /// So many have to be settled before one that stands alone begins.
    before_alone: u64,
    /// So many before any begins.
    before_any: u64,
    settled: watch::Receiver<u64>,
}

/// The same, as who answers them knows it.
#[derive(Debug)]
pub struct Settled(watch::Sender<u64>);

impl Line {
    /// Of a new connection.
    pub fn new() -> (Self, Settled) {
        let (sender, settled) = watch::channel(0);
        let line = Self {
            ordered: 0,
            before_alone: 0,
            before_any: 0,
            settled,
        };
        (line, Settled(sender))
    }

    /// Whether the next request may begin, if it overlaps.
    pub fn is_free(&self) -> bool {
        *self.settled.borrow() >= self.before_any
    }

    /// Waits for that; false if nobody answers any more. May be dropped.
    pub async fn free(&mut self) -> bool {
        self.reach(self.before_any).await
    }

    /// Whether the next request may begin, if it stands alone.
    pub fn is_settled(&self) -> bool {
        *self.settled.borrow() >= self.before_alone
    }

    /// Waits for that; false if nobody answers any more. May be dropped.
    pub async fn settled(&mut self) -> bool {
        self.reach(self.before_alone).await
    }

    async fn reach(&mut self, count: u64) -> bool {
        self.settled
            .wait_for(|settled| *settled >= count)
            .await
            .is_ok()
    }

    /// A request is ordered that has an answer; `later`: it is not there yet.
    pub fn add(&mut self, overlaps: bool, later: bool) {
        self.ordered += 1;
        if later {
            self.before_alone = self.ordered;
            if !overlaps {
                self.before_any = self.ordered;
            }
        }
    }
}

impl Settled {
    /// The next answer is there.
    pub fn add(&self) {
        self.0.send_modify(|settled| *settled += 1);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn what_stands_alone_waits_and_is_waited_for() {
        let (mut line, settled) = Line::new();
        line.add(true, true);
        line.add(true, true);
        assert!(line.is_free(), "they overlap");
        assert!(!line.is_settled());
        settled.add();
        assert!(line.settled().now_or_never().is_none());
        settled.add();
        assert_eq!(line.settled().now_or_never(), Some(true));
        line.add(false, true);
        assert!(line.free().now_or_never().is_none());
        settled.add();
        assert_eq!(line.free().now_or_never(), Some(true));
        // An answer that is there is waited for by nobody.
        line.add(false, false);
        assert!(line.is_free() && line.is_settled());
        line.add(true, true);
        drop(settled);
        assert_eq!(line.settled().now_or_never(), Some(false));
    }

    #[test]
    fn kinds_overlap_whose_effects_have_their_place_at_once() {
        let all = crate::api::api_table();
        let some = all.iter().filter(|api| overlaps(api.key, 0));
        let names: Vec<_> = some.map(|api| api.name).collect();
        assert_eq!(
            names,
            [
                "Produce",
                "OffsetCommit",
                "Heartbeat",
                "InitProducerId",
                "AddPartitionsToTxn",
                "AddOffsetsToTxn",
                "EndTxn",
                "TxnOffsetCommit"
            ]
        );
        assert!(overlaps(24, 3) && !overlaps(24, 4) && !overlaps(-1, 0));
    }
}
