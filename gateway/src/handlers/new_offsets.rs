//! Offsets that OffsetCommit and TxnOffsetCommit bring: what can be said of each without its group.

use std::sync::Arc;

use coordinator::machine::group::offsets::NewOffset;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::TopicName;
use kafka_protocol::protocol::StrBytes;

use super::shared_text;
use crate::broker::{Broker, HostedTopic};

/// One offset as a client sends it.
pub(super) struct Asked<'a> {
    pub(super) partition: i32,
    pub(super) offset: i64,
    pub(super) leader_epoch: i32,
    pub(super) metadata: Option<&'a StrBytes>,
}

/// A partition, with its code if it fails on its own.
type Judged = (i32, Option<ResponseError>);

/// Partitions by topic, in the order of the request.
pub(super) struct Outcomes(Vec<(TopicName, Vec<Judged>)>);

/// Judges every offset; those that are good go to `offsets`.
pub(super) fn judge<'a, P: Iterator<Item = Asked<'a>>>(
    broker: &Broker,
    topics: impl Iterator<Item = (&'a TopicName, P)>,
    offsets: &mut Vec<NewOffset>,
) -> Outcomes {
    let metadata_max = broker.config().groups.offsets.metadata_max_bytes;
    let mut outcomes = Vec::new();
    for (topic, asked) in topics {
        let hosted = broker.topic_by_name(topic);
        let name: Arc<str> = shared_text(topic);
        let mut partitions = Vec::new();
        for asked in asked {
            let exists = |hosted: &&Arc<HostedTopic>| hosted.partition(asked.partition).is_some();
            let code = match hosted.as_ref().filter(exists) {
                None => Some(ResponseError::UnknownTopicOrPartition),
                Some(_)
                    if asked
                        .metadata
                        .is_some_and(|text| is_longer(text, metadata_max)) =>
                {
                    Some(ResponseError::OffsetMetadataTooLarge)
                }
                Some(hosted) => {
                    offsets.push(NewOffset {
                        topic: Arc::clone(&name),
                        topic_id: hosted.id,
                        partition: asked.partition,
                        offset: asked.offset,
                        leader_epoch: Some(asked.leader_epoch).filter(|epoch| *epoch >= 0),
                        metadata: asked.metadata.map_or_else(|| "".into(), shared_text),
                    });
                    None
                }
            };
            partitions.push((asked.partition, code));
        }
        // A copy, so that it does not hold the frame.
        outcomes.push((TopicName(super::text(topic)), partitions));
    }
    Outcomes(outcomes)
}

/// Whether a text is longer than `max`, in UTF-16 code units: the key is named after bytes, and
/// Kafka compares this length.
fn is_longer(text: &str, max: usize) -> bool {
    // It has no more of them than bytes.
    text.len() > max && text.encode_utf16().count() > max
}

impl Outcomes {
    /// Whether a partition exists: without one the group is not asked.
    pub(super) fn any_exists(&self) -> bool {
        let mut partitions = self.0.iter().flat_map(|(_, partitions)| partitions);
        partitions.any(|(_, code)| *code != Some(ResponseError::UnknownTopicOrPartition))
    }

    /// Codes by topic and partition; `failed` is that of every partition that exists.
    pub(super) fn codes(
        self,
        failed: Option<ResponseError>,
    ) -> impl Iterator<Item = (TopicName, impl Iterator<Item = (i32, i16)>)> {
        self.0.into_iter().map(move |(name, partitions)| {
            let codes = partitions.into_iter().map(move |(index, own)| {
                let code = match own {
                    Some(ResponseError::UnknownTopicOrPartition) => own,
                    own => failed.or(own),
                };
                (index, code.map_or(0, |code| code.code()))
            });
            (name, codes)
        })
    }
}
