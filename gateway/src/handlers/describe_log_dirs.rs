//! DescribeLogDirs (key 35), versions 1 to 4. v3 an error for the whole, v4 the file system's size.
//!
//! There is one directory. A partition's size is what its batches take in the store; of a stretch
//! that the log's start cuts all counts, as of a segment in Kafka. No replica is behind, or on its
//! way elsewhere. Partitions that are not served here, and names that are none, are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;
use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use kafka_protocol::messages::{DescribeLogDirsRequest, DescribeLogDirsResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use store_adapter::ids::LogId;
use store_adapter::volume::Space;

use super::{in_turn, text};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::{Broker, HostedTopic};
use crate::partition::Partition;

/// What is asked about, each once; `None` for everything.
type Wanted = Option<BTreeMap<StrBytes, BTreeSet<i32>>>;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: DescribeLogDirsRequest,
) -> Staged<ApiResponse> {
    let (broker, version) = (Arc::clone(broker), context.version);
    let wanted = request.topics.map(each_once);
    Staged::Later(Box::pin(async move {
        let space = broker.space().await;
        let cut = cut(&broker, &wanted).await;
        in_turn(&broker, version, |broker| {
            let mut response = DescribeLogDirsResponse::default();
            response.results = vec![directory(broker, &wanted, &cut, space)];
            ApiResponse::DescribeLogDirs(Box::new(response.into()))
        })
        .await
    }))
}

fn each_once(topics: Vec<DescribableLogDirTopic>) -> BTreeMap<StrBytes, BTreeSet<i32>> {
    let mut wanted: BTreeMap<StrBytes, BTreeSet<i32>> = BTreeMap::new();
    for topic in topics {
        let partitions = wanted.entry(topic.topic.0).or_default();
        partitions.extend(topic.partitions);
    }
    wanted
}

/// The topics that are asked about and there.
fn topics(broker: &Broker, wanted: &Wanted) -> Vec<Arc<HostedTopic>> {
    match wanted {
        None => broker.topics(),
        Some(wanted) => {
            let named = wanted.keys();
            named
                .filter_map(|name| broker.topic_by_name(name))
                .collect()
        }
    }
}

/// The partitions of a topic that are asked about, by number.
fn partitions<'a>(
    topic: &'a HostedTopic,
    wanted: &Wanted,
) -> impl Iterator<Item = (i32, &'a Arc<Partition>)> {
    let wanted = wanted.as_ref().map(|wanted| wanted.get(&topic.name));
    let is_wanted = move |index: &i32| match wanted {
        None => true,
        Some(of_topic) => of_topic.is_some_and(|indices| indices.contains(index)),
    };
    let all = (0_i32..).zip(&topic.partitions);
    all.filter(move |(index, _)| is_wanted(index))
}

/// The bytes of partitions that are not known without I/O.
async fn cut(broker: &Broker, wanted: &Wanted) -> BTreeMap<LogId, u64> {
    let mut cut = BTreeMap::new();
    for topic in topics(broker, wanted) {
        for (_, partition) in partitions(&topic, wanted) {
            // What can't be read now counts when it can.
            let bytes = partition.cut_bytes().await.unwrap_or(0);
            if bytes > 0 {
                cut.insert(partition.id(), bytes);
            }
        }
    }
    cut
}

fn directory(
    broker: &Broker,
    wanted: &Wanted,
    cut: &BTreeMap<LogId, u64>,
    space: Option<Space>,
) -> DescribeLogDirsResult {
    let mut directory = DescribeLogDirsResult::default();
    directory.log_dir = text(&broker.config().log_dir);
    let Some(Space { free, total }) = space else {
        directory.error_code = ResponseError::KafkaStorageError.code();
        return directory;
    };
    directory.total_bytes = number(total);
    directory.usable_bytes = number(free);
    for topic in topics(broker, wanted) {
        let mut described = DescribeLogDirsTopic::default();
        described.name = TopicName(topic.name.clone());
        for (index, partition) in partitions(&topic, wanted) {
            let Some(size) = broker.size_of(partition) else {
                continue;
            };
            let cut = cut.get(&partition.id()).copied().unwrap_or(0);
            let mut one = DescribeLogDirsPartition::default();
            one.partition_index = index;
            one.partition_size = number(size.bytes.saturating_add(cut));
            described.partitions.push(one);
        }
        if !described.partitions.is_empty() {
            directory.topics.push(described);
        }
    }
    directory
}

fn number(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
