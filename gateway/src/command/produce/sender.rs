//! Sends batches until they are acknowledged: of each partition one at a time, with sequence
//! numbers, so that one that is sent again is not written again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{ProduceRequest, TopicName, TransactionalId};
use store_adapter::ids::Sequence;

use super::super::client::{Client, RETRY_PAUSE, passes};
use super::super::output::{Failure, check_said};
use super::super::topics::{Cluster, text};
use super::batch::Pending;
use super::session::Session;

/// Versions by which topics have names, and transactions the partitions that were added to them.
const BY_NAME: i16 = 11;
/// Acknowledged when every replica has it.
const ALL: i16 = -1;
/// MESSAGE_TOO_LARGE.
const TOO_LARGE: i16 = 10;
/// DUPLICATE_SEQUENCE_NUMBER: it was written before, nobody knows where any more.
const DUPLICATE: i16 = 46;
/// The only refusals that say nothing of what was sent before: OUT_OF_ORDER_SEQUENCE_NUMBER,
/// INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, UNKNOWN_PRODUCER_ID, PRODUCER_FENCED.
const UNSURE: [i16; 5] = [45, 47, 49, 59, 90];

/// What was acknowledged of a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Acked {
    pub(super) records: u64,
    pub(super) first_offset: Option<i64>,
    pub(super) last_offset: Option<i64>,
}

/// Why not everything was acknowledged.
#[derive(Debug)]
pub(super) struct Unacked {
    pub(super) why: Failure,
    /// Number of the first record that was not acknowledged.
    pub(super) record: u64,
    /// Whether it is certain that it was not written.
    pub(super) is_certain: bool,
}

/// The way to the partitions of a topic.
#[derive(Debug)]
pub(super) struct Sender {
    topic: String,
    session: Session,
    cluster: Cluster,
    sequences: BTreeMap<i32, Sequence>,
    acked: BTreeMap<i32, Acked>,
    total: u64,
}

/// What became of a batch.
enum Verdict {
    Acked,
    Halved,
    Again(Failure),
}

impl Sender {
    pub(super) fn new(topic: &str, session: Session, cluster: Cluster) -> Self {
        Self {
            topic: topic.to_owned(),
            session,
            cluster,
            sequences: BTreeMap::new(),
            acked: BTreeMap::new(),
            total: 0,
        }
    }

    /// What was acknowledged so far, by partition.
    pub(super) fn acked(&self) -> &BTreeMap<i32, Acked> {
        &self.acked
    }

    /// How many records were acknowledged so far.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Ends the transaction, if there is one.
    pub(super) async fn end(&self, client: &mut Client, commit: bool) -> Result<(), Failure> {
        self.session.end(client, commit).await
    }

    /// Sends batches, by partition, until all are acknowledged.
    pub(super) async fn send(
        &mut self,
        client: &mut Client,
        batches: BTreeMap<i32, Pending>,
    ) -> Result<(), Unacked> {
        let firsts = batches.values().map(|batch| batch.first);
        let first = firsts.min().unwrap_or_default();
        let unsent = |why| Unacked {
            why,
            record: first,
            is_certain: true,
        };
        let partitions = batches.keys().copied();
        self.session.add(client, partitions).await.map_err(unsent)?;
        let batches = batches.into_iter();
        let mut queues: BTreeMap<i32, VecDeque<Pending>> = batches
            .map(|(partition, batch)| (partition, VecDeque::from([batch])))
            .collect();
        let mut good = client.monotonic();
        // Whether something was sent of which nobody said what became of it.
        let mut is_unsure = false;
        while !queues.is_empty() {
            let tried = self.round(client, &mut queues, &mut is_unsure).await;
            let why = match tried {
                Ok(None) => {
                    good = client.monotonic();
                    continue;
                }
                Ok(Some(why)) => why,
                Err(unacked) => return Err(unacked),
            };
            if client.monotonic().saturating_sub(good) >= client.patience() {
                return Err(Unacked {
                    why,
                    record: first_of(&queues),
                    is_certain: !is_unsure,
                });
            }
            self.look_again(client).await;
        }
        Ok(())
    }

    async fn look_again(&mut self, client: &mut Client) {
        client.pause(RETRY_PAUSE).await;
        let topic = [self.topic.clone()];
        // What is wrong with it, the next round says.
        if let Ok(found) = Cluster::look(client, Some(&topic), false).await
            && !found.partitions.is_empty()
        {
            self.cluster = found;
        }
    }

    /// The first batch of every partition, once. The reason, if one is to be sent again.
    async fn round(
        &mut self,
        client: &mut Client,
        queues: &mut BTreeMap<i32, VecDeque<Pending>>,
        is_unsure: &mut bool,
    ) -> Result<Option<Failure>, Unacked> {
        let mut by_leader: BTreeMap<String, Vec<i32>> = BTreeMap::new();
        let mut again = None;
        for partition in queues.keys() {
            match self.cluster.leader(&(self.topic.clone(), *partition)) {
                Ok(leader) => by_leader
                    .entry(leader.to_owned())
                    .or_default()
                    .push(*partition),
                Err(failure) => again = Some(failure),
            }
        }
        for (leader, partitions) in by_leader {
            let request = self.request(&partitions, queues, client.patience());
            let answer = client.call_upto(Some(&leader), BY_NAME, |_| request).await;
            let answer = match answer {
                Ok(answer) => answer,
                Err(failure @ (Failure::Unreachable(_) | Failure::TimedOut(_))) => {
                    *is_unsure = true;
                    again = Some(failure);
                    continue;
                }
                Err(why) => {
                    let record = first_of(queues);
                    let is_certain = !*is_unsure;
                    return Err(Unacked {
                        why,
                        record,
                        is_certain,
                    });
                }
            };
            let topics = answer.responses.iter();
            let said: Vec<_> = topics
                .flat_map(|topic| &topic.partition_responses)
                .collect();
            // All of the answer counts, also what stands behind a refusal.
            let mut refused: Option<Unacked> = None;
            for said in &said {
                match self.judge(said, queues, is_unsure) {
                    Ok(Verdict::Acked | Verdict::Halved) => {}
                    Ok(Verdict::Again(failure)) => again = Some(failure),
                    Err(unacked) => refused = Some(refused.unwrap_or(unacked)),
                }
            }
            for index in partitions {
                if !said.iter().any(|said| said.index == index) {
                    let (topic, why) = (&self.topic, "is not answered for");
                    *is_unsure = true;
                    again = Some(Failure::Unreachable(format!("{topic}-{index} {why}")));
                }
            }
            queues.retain(|_, queue| !queue.is_empty());
            if let Some(refused) = refused {
                let others = queues.values().flatten().map(|batch| batch.first);
                let record = others.min().unwrap_or(u64::MAX).min(refused.record);
                return Err(Unacked {
                    record,
                    is_certain: refused.is_certain && !*is_unsure,
                    ..refused
                });
            }
        }
        Ok(again)
    }

    fn sequence(&self, partition: i32) -> Sequence {
        let next = self.sequences.get(&partition).copied();
        next.unwrap_or(Sequence(0))
    }

    fn request(
        &self,
        partitions: &[i32],
        queues: &BTreeMap<i32, VecDeque<Pending>>,
        patience: Duration,
    ) -> ProduceRequest {
        let partitions = partitions.iter().filter_map(|index| {
            let batch = queues.get(index)?.front()?;
            let batch = batch.batch(self.session.producer, self.sequence(*index));
            let data = PartitionProduceData::default()
                .with_index(*index)
                .with_records(Some(batch.bytes().clone()));
            Some(data)
        });
        let topic = TopicProduceData::default()
            .with_name(TopicName(text(&self.topic)))
            .with_partition_data(partitions.collect());
        let id = self.session.transactional_id.as_ref();
        ProduceRequest::default()
            .with_transactional_id(id.map(|id| TransactionalId(text(id))))
            .with_acks(ALL)
            .with_timeout_ms(i32::try_from(patience.as_millis()).unwrap_or(i32::MAX))
            .with_topic_data(vec![topic])
    }

    fn judge(
        &mut self,
        said: &PartitionProduceResponse,
        queues: &mut BTreeMap<i32, VecDeque<Pending>>,
        is_unsure: &mut bool,
    ) -> Result<Verdict, Unacked> {
        let index = said.index;
        let Some(queue) = queues.get_mut(&index) else {
            return Ok(Verdict::Acked);
        };
        let Some(batch) = queue.front() else {
            return Ok(Verdict::Acked);
        };
        let code = said.error_code;
        if code == 0 || code == DUPLICATE {
            self.acknowledge(index, batch.count, (code == 0).then_some(said.base_offset));
            queue.pop_front();
            return Ok(Verdict::Acked);
        }
        if code == TOO_LARGE
            && let Some((one, two)) = batch.halves(self.session.producer)
        {
            queue.pop_front();
            queue.push_front(two);
            queue.push_front(one);
            return Ok(Verdict::Halved);
        }
        let topic = &self.topic;
        let message = said.error_message.as_ref();
        let checked = check_said(code, message, || match refused(said) {
            Some(at) => format!("{topic}-{index}, record {}", batch.first + at),
            None => format!("{topic}-{index}"),
        });
        let Err(failure) = checked else {
            return Ok(Verdict::Acked);
        };
        if passes(code) {
            // Kafka may have written it and say so only when it is asked again.
            *is_unsure = true;
            return Ok(Verdict::Again(failure));
        }
        Err(Unacked {
            record: batch.first,
            why: failure,
            is_certain: !*is_unsure && !UNSURE.contains(&code),
        })
    }

    fn acknowledge(&mut self, partition: i32, count: i32, base: Option<i64>) {
        let sequence = self.sequence(partition).plus(count);
        self.sequences.insert(partition, sequence);
        let records = u64::try_from(count).unwrap_or(0);
        self.total += records;
        let acked = self.acked.entry(partition).or_default();
        acked.records += records;
        if let Some(base) = base.filter(|base| *base >= 0) {
            acked.first_offset.get_or_insert(base);
            acked.last_offset = Some(base + i64::from(count) - 1);
        }
    }
}

/// Index of the record that a batch was refused for, if it is named.
fn refused(said: &PartitionProduceResponse) -> Option<u64> {
    let first = said.record_errors.first()?;
    u64::try_from(first.batch_index).ok()
}

fn first_of(queues: &BTreeMap<i32, VecDeque<Pending>>) -> u64 {
    let batches = queues.values().flatten();
    batches.map(|batch| batch.first).min().unwrap_or_default()
}
