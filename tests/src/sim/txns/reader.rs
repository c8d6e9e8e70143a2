//! A read_committed consumer: drops what the answers list as aborted, as clients do, and looks at
//! the offsets of groups.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gateway::api::{ApiRequest, ApiResponse};
use gateway::wire::fetch::FetchPartitionReply;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::{GroupId, OffsetFetchRequest};
use kafka_protocol::protocol::StrBytes;

use super::super::clients::{Client, ReadBatch, Target, read_batches};
use super::super::history::{Place, RecordId};
use super::super::net::{Connection, Duty};
use super::super::reader::{contiguous, fetch_request};
use super::{TxnLedger, name, shown};
use crate::raw::ops::topic_name;

/// Offsets that are not decided yet.
const UNSTABLE: i16 = 88;

/// What a client keeps of an answer: the records of batches that are not listed as aborted, with
/// their offsets. `aborted`: producer ids with the first offsets of their aborted transactions.
pub(super) fn committed(batches: &[ReadBatch], aborted: &[(i64, i64)]) -> Vec<(i64, RecordId)> {
    let mut waiting: Vec<(i64, i64)> = aborted.iter().map(|(pid, first)| (*first, *pid)).collect();
    waiting.sort_unstable_by_key(|entry| std::cmp::Reverse(*entry));
    let mut dropping = BTreeSet::new();
    let mut kept = Vec::new();
    for batch in batches {
        let header = &batch.header;
        while let Some((_, pid)) = waiting.pop_if(|(first, _)| *first <= header.last_offset()) {
            dropping.insert(pid);
        }
        let pid = header.producer_id.0;
        if header.is_control() {
            if batch.marker.is_some_and(|marker| !marker.commit) {
                dropping.remove(&pid);
            }
        } else if !(header.is_transactional() && dropping.contains(&pid)) {
            kept.extend((header.base_offset..).zip(batch.records.iter().copied()));
        }
    }
    kept
}

/// Reads the topic of transactions with isolation 1, and looks at their groups' offsets.
pub(crate) struct CommittedReader {
    pub(crate) client: Client,
    pub(crate) ledger: Arc<TxnLedger>,
    pub(crate) on: Target,
    /// Transactional ids.
    pub(crate) ids: u32,
}

impl CommittedReader {
    /// Reads for ever.
    pub(crate) async fn run(self) {
        let mut offsets: BTreeMap<Place, i64> = BTreeMap::new();
        for partition in 0..self.on.partitions {
            offsets.insert((self.on.id, partition), 0);
        }
        loop {
            let connection = self.client.connect().await;
            while self.round(&connection, &mut offsets).await.is_some() {
                if self.client.world.chance(8) {
                    for offset in offsets.values_mut() {
                        *offset = 0;
                    }
                }
            }
            self.client.pause(1, 20).await;
        }
    }

    /// One answer; `None` where the connection is left.
    async fn round(
        &self,
        connection: &Connection,
        offsets: &mut BTreeMap<Place, i64>,
    ) -> Option<()> {
        let world = &self.client.world;
        if world.chance(20) {
            let id = u32::try_from(world.index(usize::try_from(self.ids).unwrap_or(1))).ok()?;
            let least = self.ledger.committed_offset(id);
            look(&self.client, &self.ledger, connection, &self.on, id, least).await?;
        }
        if world.chance(20) {
            let id = u32::try_from(world.index(usize::try_from(self.ids).unwrap_or(1))).ok()?;
            shown::compare(&self.client, &self.ledger, connection, id).await;
        }
        let newest = |place: Place| {
            let net = &self.client.net;
            net.answers_for(connection.server, &Duty::Partition(place))
        };
        let trusted: BTreeSet<Place> = offsets.keys().copied().filter(|p| newest(*p)).collect();
        let request = fetch_request(offsets, 0, -1, 1, 200);
        let ApiResponse::Fetch(reply) = self.client.ask(connection, request, 13).await? else {
            self.client.history.violation("another answer to Fetch");
            return None;
        };
        let mut well = true;
        for partition in reply.topics.iter().flat_map(|topic| &topic.partitions) {
            let place = (self.on.id, partition.partition);
            let offset = offsets.get_mut(&place)?;
            match ResponseError::try_from_code(partition.error_code) {
                None => match self.take(place, *offset, partition) {
                    Ok(next) => {
                        *offset = next;
                        if trusted.contains(&place) && newest(place) {
                            let stable = partition.last_stable_offset;
                            self.ledger.stable(&self.client, place, stable);
                        }
                    }
                    Err(why) => self.client.history.violation(&why),
                },
                Some(error) if error.is_retriable() => well = false,
                Some(ResponseError::OffsetOutOfRange) if self.client.history.trims() => {
                    let trusted = trusted.contains(&place);
                    self.catch_up(connection, place, offset, trusted).await?;
                }
                Some(ResponseError::OffsetOutOfRange)
                    if !trusted.contains(&place) || !newest(place) =>
                {
                    well = false;
                }
                Some(error) => {
                    let what = format!("a read of {place:?} from {offset} got {error:?}");
                    self.client.history.violation(&what);
                    return None;
                }
            }
        }
        well.then_some(())
    }

    /// What came next is gone: goes on where the log begins, which is behind it. `None` where the
    /// connection is left. `trusted`: it was asked of the newest leader.
    async fn catch_up(
        &self,
        connection: &Connection,
        place: Place,
        offset: &mut i64,
        trusted: bool,
    ) -> Option<()> {
        let start = self.client.earliest(connection, place).await?;
        let duty = Duty::Partition(place);
        let trusted = trusted && self.client.net.answers_for(connection.server, &duty);
        if trusted && start <= *offset {
            let what =
                format!("{place:?}: {offset} is out of range, and the log begins at {start}");
            self.client.history.violation(&what);
        }
        *offset = start;
        Some(())
    }

    fn take(&self, place: Place, offset: i64, reply: &FetchPartitionReply) -> Result<i64, String> {
        let batches = read_batches(&reply.records)?;
        let next =
            contiguous(offset, &batches, false).map_err(|why| format!("{place:?}: {why}"))?;
        if !batches.is_empty() && next > reply.last_stable_offset {
            return Err(format!("{place:?}: read beyond the last stable offset"));
        }
        let aborted = reply.aborted_transactions.clone().unwrap_or_default();
        for (offset, record) in committed(&batches, &aborted) {
            self.client.history.seen(place, offset, record);
            self.ledger.shown(&self.client, offset, record);
        }
        Ok(next)
    }
}

/// Looks at the offset of an id's group, which is `least` or more. Whether there was one to judge;
/// `None` where the connection is left.
pub(super) async fn look(
    client: &Client,
    ledger: &TxnLedger,
    connection: &Connection,
    on: &Target,
    id: u32,
    least: i64,
) -> Option<bool> {
    let topic = OffsetFetchRequestTopic::default()
        .with_name(topic_name(&on.name))
        .with_partition_indexes(vec![0]);
    let stable = client.world.chance(50);
    let request = OffsetFetchRequest::default()
        .with_group_id(GroupId(StrBytes::from_string(name(id))))
        .with_topics(Some(vec![topic]))
        .with_require_stable(stable);
    let duty = Duty::Group(name(id));
    let newest = || client.net.answers_for(connection.server, &duty);
    let trusted = newest();
    let request = ApiRequest::OffsetFetch(Box::new(request));
    let ApiResponse::OffsetFetch(answer) = client.ask(connection, request, 7).await? else {
        client.history.violation("another answer to OffsetFetch");
        return None;
    };
    let found = answer.topics.first().and_then(|t| t.partitions.first());
    let found = found.filter(|_| answer.error_code == 0);
    match found.map(|found| (found.error_code, found.committed_offset)) {
        Some((0, offset)) => {
            let judged = trusted && newest();
            if judged {
                ledger.offset_seen(client, id, least, offset);
            }
            Some(judged)
        }
        Some((UNSTABLE, _)) if stable => Some(false),
        _ if super::AGAIN.contains(&answer.error_code) => None,
        _ => {
            let what = format!("OffsetFetch of {id} was answered with {answer:?}");
            client.history.violation(&what);
            None
        }
    }
}
