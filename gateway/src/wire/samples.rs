//! Random valid requests of every offered key and version, for the tests of this module.

mod admin;
mod groups;
mod offsets;
mod txns;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages as kp;
use kafka_protocol::protocol::{Encodable, StrBytes};
use uuid::Uuid;

use crate::api::api_table;

/// SplitMix64: the samples are a function of the seed.
#[derive(Debug)]
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    pub(super) fn chance(&mut self) -> bool {
        self.below(3) == 0
    }

    #[allow(clippy::cast_possible_truncation)]
    pub(super) fn i8(&mut self) -> i8 {
        self.next() as i8
    }

    #[allow(clippy::cast_possible_truncation)]
    pub(super) fn i16(&mut self) -> i16 {
        self.next() as i16
    }

    #[allow(clippy::cast_possible_truncation)]
    pub(super) fn i32(&mut self) -> i32 {
        self.next() as i32
    }

    #[allow(clippy::cast_possible_wrap)]
    pub(super) fn i64(&mut self) -> i64 {
        self.next() as i64
    }

    pub(super) fn uuid(&mut self) -> Uuid {
        Uuid::from_u64_pair(self.next(), self.next())
    }

    pub(super) fn text(&mut self) -> StrBytes {
        let len = match self.below(8) {
            0 => 0,
            1 => self.below(300),
            _ => self.below(12),
        };
        let text: String = (0..len)
            .map(|_| char::from(b'a' + u8::try_from(self.below(26)).unwrap()))
            .collect();
        StrBytes::from_string(text)
    }

    pub(super) fn maybe_text(&mut self) -> Option<StrBytes> {
        if self.chance() {
            None
        } else {
            Some(self.text())
        }
    }

    pub(super) fn bytes(&mut self, below: usize) -> Bytes {
        let len = self.below(below);
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }

    pub(super) fn list<T>(&mut self, below: usize, mut of: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let len = self.below(below);
        (0..len).map(|_| of(self)).collect()
    }
}

/// Every offered key and version.
pub(super) fn offered() -> Vec<(i16, i16)> {
    api_table()
        .into_iter()
        .flat_map(|row| row.versions.map(move |version| (row.key, version)))
        .collect()
}

fn encode<T: Encodable>(request: &T, version: i16) -> Bytes {
    let mut buffer = BytesMut::new();
    request.encode(&mut buffer, version).unwrap();
    buffer.freeze()
}

/// The body of a random valid request, as `kafka-protocol` encodes it.
pub(super) fn body(key: i16, v: i16, r: &mut Rng) -> Bytes {
    match key {
        0 => encode(&produce(v, r), v),
        1 => encode(&fetch(v, r), v),
        2 => encode(&list_offsets(v, r), v),
        3 => encode(&metadata(v, r), v),
        8 => encode(&offsets::offset_commit(v, r), v),
        9 => encode(&offsets::offset_fetch(v, r), v),
        10 => encode(&find_coordinator(v, r), v),
        11 => encode(&groups::join_group(v, r), v),
        12 => encode(&groups::heartbeat(v, r), v),
        13 => encode(&groups::leave_group(v, r), v),
        14 => encode(&groups::sync_group(v, r), v),
        15 => encode(&groups::describe_groups(v, r), v),
        16 => encode(&groups::list_groups(v, r), v),
        18 => encode(&api_versions(v, r), v),
        19 => encode(&create_topics(r), v),
        20 => encode(&delete_topics(v, r), v),
        42 => encode(&groups::delete_groups(r), v),
        68 => encode(&groups::consumer_group_heartbeat(v, r), v),
        69 => encode(&groups::consumer_group_describe(r), v),
        47 => encode(&offsets::offset_delete(r), v),
        _ => txns::body(key, v, r)
            .or_else(|| admin::body(key, v, r))
            .unwrap_or_else(|| panic!("no sample of key {key}")),
    }
}

fn produce(v: i16, r: &mut Rng) -> kp::ProduceRequest {
    let topics = r.list(4, |r| {
        let partitions = r.list(4, |r| {
            let records = if r.chance() { None } else { Some(r.bytes(200)) };
            let partition = kp::produce_request::PartitionProduceData::default()
                .with_index(r.i32())
                .with_records(records);
            if v >= 9 && r.chance() {
                partition.with_unknown_tagged_field(r.i32() & 0xff, r.bytes(9))
            } else {
                partition
            }
        });
        let topic =
            kp::produce_request::TopicProduceData::default().with_partition_data(partitions);
        if v >= 13 {
            topic.with_topic_id(r.uuid())
        } else {
            topic.with_name(r.text().into())
        }
    });
    kp::ProduceRequest::default()
        .with_transactional_id(r.maybe_text().map(Into::into))
        .with_acks(r.i16())
        .with_timeout_ms(r.i32())
        .with_topic_data(topics)
}

fn fetch(v: i16, r: &mut Rng) -> kp::FetchRequest {
    let topics = r.list(4, |r| {
        let partitions = r.list(4, |r| fetch_partition(v, r));
        let topic = kp::fetch_request::FetchTopic::default().with_partitions(partitions);
        if v >= 13 {
            topic.with_topic_id(r.uuid())
        } else {
            topic.with_topic(r.text().into())
        }
    });
    let mut request = kp::FetchRequest::default()
        .with_max_wait_ms(r.i32())
        .with_min_bytes(r.i32())
        .with_max_bytes(r.i32())
        .with_isolation_level(r.i8())
        .with_topics(topics);
    if v <= 14 {
        request.replica_id = r.i32().into();
    } else if r.chance() {
        request.replica_state = kp::fetch_request::ReplicaState::default()
            .with_replica_id(r.i32().into())
            .with_replica_epoch(r.i64());
    }
    if v >= 7 {
        request.session_id = r.i32();
        request.session_epoch = r.i32();
        request.forgotten_topics_data = r.list(4, |r| {
            let topic =
                kp::fetch_request::ForgottenTopic::default().with_partitions(r.list(5, Rng::i32));
            if v >= 13 {
                topic.with_topic_id(r.uuid())
            } else {
                topic.with_topic(r.text().into())
            }
        });
    }
    if v >= 11 {
        request.rack_id = r.text();
    }
    if v >= 12 {
        request.cluster_id = r.maybe_text();
    }
    request
}

fn fetch_partition(v: i16, r: &mut Rng) -> kp::fetch_request::FetchPartition {
    let mut partition = kp::fetch_request::FetchPartition::default()
        .with_partition(r.i32())
        .with_fetch_offset(r.i64())
        .with_partition_max_bytes(r.i32());
    if v >= 5 {
        partition.log_start_offset = r.i64();
    }
    if v >= 9 {
        partition.current_leader_epoch = r.i32();
    }
    if v >= 12 {
        partition.last_fetched_epoch = r.i32();
    }
    if v >= 17 && r.chance() {
        partition.replica_directory_id = r.uuid();
    }
    if v >= 18 && r.chance() {
        partition.high_watermark = r.i64();
    }
    partition
}

fn list_offsets(v: i16, r: &mut Rng) -> kp::ListOffsetsRequest {
    let topics = r.list(4, |r| {
        let partitions = r.list(5, |r| {
            let partition = kp::list_offsets_request::ListOffsetsPartition::default()
                .with_partition_index(r.i32())
                .with_timestamp(r.i64());
            if v >= 4 {
                partition.with_current_leader_epoch(r.i32())
            } else {
                partition
            }
        });
        kp::list_offsets_request::ListOffsetsTopic::default()
            .with_name(r.text().into())
            .with_partitions(partitions)
    });
    let mut request = kp::ListOffsetsRequest::default()
        .with_replica_id(r.i32().into())
        .with_topics(topics);
    if v >= 2 {
        request.isolation_level = r.i8();
    }
    if v >= 10 {
        request.timeout_ms = r.i32();
    }
    request
}

fn metadata(v: i16, r: &mut Rng) -> kp::MetadataRequest {
    let topics = r.list(5, |r| {
        let topic = kp::metadata_request::MetadataRequestTopic::default();
        if v >= 10 {
            let name = r.maybe_text().map(Into::into);
            topic.with_name(name).with_topic_id(r.uuid())
        } else {
            topic.with_name(Some(r.text().into()))
        }
    });
    let all = v >= 1 && r.chance();
    let mut request = kp::MetadataRequest::default().with_topics((!all).then_some(topics));
    if v >= 4 {
        request.allow_auto_topic_creation = r.chance();
    }
    if (8..=10).contains(&v) {
        request.include_cluster_authorized_operations = r.chance();
    }
    if v >= 8 {
        request.include_topic_authorized_operations = r.chance();
    }
    request
}

fn find_coordinator(v: i16, r: &mut Rng) -> kp::FindCoordinatorRequest {
    let mut request = kp::FindCoordinatorRequest::default();
    if v >= 4 {
        request.coordinator_keys = r.list(5, Rng::text);
    } else {
        request.key = r.text();
    }
    if v >= 1 {
        request.key_type = r.i8();
    }
    request
}

fn api_versions(v: i16, r: &mut Rng) -> kp::ApiVersionsRequest {
    let request = kp::ApiVersionsRequest::default();
    if v >= 3 {
        request
            .with_client_software_name(r.text())
            .with_client_software_version(r.text())
    } else {
        request
    }
}

fn create_topics(r: &mut Rng) -> kp::CreateTopicsRequest {
    use kp::create_topics_request as ct;
    let topics = r.list(4, |r| {
        let assignments = r.list(4, |r| {
            ct::CreatableReplicaAssignment::default()
                .with_partition_index(r.i32())
                .with_broker_ids(r.list(4, |r| r.i32().into()))
        });
        let configs = r.list(4, |r| {
            ct::CreatableTopicConfig::default()
                .with_name(r.text())
                .with_value(r.maybe_text())
        });
        ct::CreatableTopic::default()
            .with_name(r.text().into())
            .with_num_partitions(r.i32())
            .with_replication_factor(r.i16())
            .with_assignments(assignments)
            .with_configs(configs)
    });
    kp::CreateTopicsRequest::default()
        .with_topics(topics)
        .with_timeout_ms(r.i32())
        .with_validate_only(r.chance())
}

fn delete_topics(v: i16, r: &mut Rng) -> kp::DeleteTopicsRequest {
    let request = kp::DeleteTopicsRequest::default().with_timeout_ms(r.i32());
    if v >= 6 {
        request.with_topics(r.list(5, |r| {
            kp::delete_topics_request::DeleteTopicState::default()
                .with_name(r.maybe_text().map(Into::into))
                .with_topic_id(r.uuid())
        }))
    } else {
        request.with_topic_names(r.list(5, |r| r.text().into()))
    }
}
