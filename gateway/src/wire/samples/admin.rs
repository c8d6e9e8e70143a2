//! Random valid requests of the APIs that describe and change the cluster.

use bytes::Bytes;
use kafka_protocol::messages as kp;

use super::{Rng, encode};

/// The body of a random valid request; `None` for keys of the other list.
pub(super) fn body(key: i16, v: i16, r: &mut Rng) -> Option<Bytes> {
    Some(match key {
        21 => encode(&delete_records(r), v),
        23 => encode(&offset_for_leader_epoch(v, r), v),
        32 => encode(&describe_configs(v, r), v),
        33 => encode(&alter_configs(r), v),
        35 => encode(&describe_log_dirs(r), v),
        37 => encode(&create_partitions(r), v),
        43 => encode(&elect_leaders(v, r), v),
        44 => encode(&incremental_alter_configs(r), v),
        45 => encode(&alter_reassignments(v, r), v),
        46 => encode(&list_reassignments(r), v),
        57 => encode(&update_features(v, r), v),
        60 => encode(&describe_cluster(v, r), v),
        61 => encode(&describe_producers(r), v),
        74 => encode(&list_config_resources(v, r), v),
        75 => encode(&describe_topic_partitions(r), v),
        _ => return None,
    })
}

fn maybe<T>(r: &mut Rng, of: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    if r.chance() { None } else { Some(of(r)) }
}

fn delete_records(r: &mut Rng) -> kp::DeleteRecordsRequest {
    use kp::delete_records_request as dr;
    let topics = r.list(4, |r| {
        let partitions = r.list(4, |r| {
            dr::DeleteRecordsPartition::default()
                .with_partition_index(r.i32())
                .with_offset(r.i64())
        });
        dr::DeleteRecordsTopic::default()
            .with_name(r.text().into())
            .with_partitions(partitions)
    });
    kp::DeleteRecordsRequest::default()
        .with_topics(topics)
        .with_timeout_ms(r.i32())
}

fn offset_for_leader_epoch(v: i16, r: &mut Rng) -> kp::OffsetForLeaderEpochRequest {
    use kp::offset_for_leader_epoch_request as oe;
    let topics = r.list(4, |r| {
        let partitions = r.list(4, |r| {
            oe::OffsetForLeaderPartition::default()
                .with_partition(r.i32())
                .with_current_leader_epoch(r.i32())
                .with_leader_epoch(r.i32())
        });
        oe::OffsetForLeaderTopic::default()
            .with_topic(r.text().into())
            .with_partitions(partitions)
    });
    let mut request = kp::OffsetForLeaderEpochRequest::default().with_topics(topics);
    if v >= 3 {
        request.replica_id = r.i32().into();
    }
    request
}

fn describe_configs(v: i16, r: &mut Rng) -> kp::DescribeConfigsRequest {
    let resources = r.list(4, |r| {
        let keys = maybe(r, |r| r.list(4, Rng::text));
        kp::describe_configs_request::DescribeConfigsResource::default()
            .with_resource_type(r.i8())
            .with_resource_name(r.text())
            .with_configuration_keys(keys)
    });
    let mut request = kp::DescribeConfigsRequest::default()
        .with_resources(resources)
        .with_include_synonyms(r.chance());
    if v >= 3 {
        request.include_documentation = r.chance();
    }
    request
}

fn alter_configs(r: &mut Rng) -> kp::AlterConfigsRequest {
    use kp::alter_configs_request as ac;
    let resources = r.list(4, |r| {
        let configs = r.list(4, |r| {
            ac::AlterableConfig::default()
                .with_name(r.text())
                .with_value(r.maybe_text())
        });
        ac::AlterConfigsResource::default()
            .with_resource_type(r.i8())
            .with_resource_name(r.text())
            .with_configs(configs)
    });
    kp::AlterConfigsRequest::default()
        .with_resources(resources)
        .with_validate_only(r.chance())
}

fn incremental_alter_configs(r: &mut Rng) -> kp::IncrementalAlterConfigsRequest {
    use kp::incremental_alter_configs_request as ia;
    let resources = r.list(4, |r| {
        let configs = r.list(4, |r| {
            ia::AlterableConfig::default()
                .with_name(r.text())
                .with_config_operation(r.i8())
                .with_value(r.maybe_text())
        });
        ia::AlterConfigsResource::default()
            .with_resource_type(r.i8())
            .with_resource_name(r.text())
            .with_configs(configs)
    });
    kp::IncrementalAlterConfigsRequest::default()
        .with_resources(resources)
        .with_validate_only(r.chance())
}

fn create_partitions(r: &mut Rng) -> kp::CreatePartitionsRequest {
    use kp::create_partitions_request as cp;
    let topics = r.list(4, |r| {
        let assignments = maybe(r, |r| {
            r.list(4, |r| {
                cp::CreatePartitionsAssignment::default()
                    .with_broker_ids(r.list(4, |r| r.i32().into()))
            })
        });
        cp::CreatePartitionsTopic::default()
            .with_name(r.text().into())
            .with_count(r.i32())
            .with_assignments(assignments)
    });
    kp::CreatePartitionsRequest::default()
        .with_topics(topics)
        .with_timeout_ms(r.i32())
        .with_validate_only(r.chance())
}

fn elect_leaders(v: i16, r: &mut Rng) -> kp::ElectLeadersRequest {
    let topics = maybe(r, |r| {
        r.list(4, |r| {
            kp::elect_leaders_request::TopicPartitions::default()
                .with_topic(r.text().into())
                .with_partitions(r.list(4, Rng::i32))
        })
    });
    let mut request = kp::ElectLeadersRequest::default()
        .with_topic_partitions(topics)
        .with_timeout_ms(r.i32());
    if v >= 1 {
        request.election_type = r.i8();
    }
    request
}

fn alter_reassignments(v: i16, r: &mut Rng) -> kp::AlterPartitionReassignmentsRequest {
    use kp::alter_partition_reassignments_request as ar;
    let topics = r.list(4, |r| {
        let partitions = r.list(4, |r| {
            let replicas = maybe(r, |r| r.list(4, |r| r.i32().into()));
            ar::ReassignablePartition::default()
                .with_partition_index(r.i32())
                .with_replicas(replicas)
        });
        ar::ReassignableTopic::default()
            .with_name(r.text().into())
            .with_partitions(partitions)
    });
    let mut request = kp::AlterPartitionReassignmentsRequest::default()
        .with_timeout_ms(r.i32())
        .with_topics(topics);
    if v >= 1 {
        request.allow_replication_factor_change = r.chance();
    }
    request
}

fn list_reassignments(r: &mut Rng) -> kp::ListPartitionReassignmentsRequest {
    use kp::list_partition_reassignments_request as lr;
    let topics = maybe(r, |r| {
        r.list(4, |r| {
            lr::ListPartitionReassignmentsTopics::default()
                .with_name(r.text().into())
                .with_partition_indexes(r.list(4, Rng::i32))
        })
    });
    kp::ListPartitionReassignmentsRequest::default()
        .with_timeout_ms(r.i32())
        .with_topics(topics)
}

fn update_features(v: i16, r: &mut Rng) -> kp::UpdateFeaturesRequest {
    let updates = r.list(4, |r| {
        let update = kp::update_features_request::FeatureUpdateKey::default()
            .with_feature(r.text())
            .with_max_version_level(r.i16());
        if v >= 1 {
            update.with_upgrade_type(r.i8())
        } else {
            update.with_allow_downgrade(r.chance())
        }
    });
    let mut request = kp::UpdateFeaturesRequest::default()
        .with_timeout_ms(r.i32())
        .with_feature_updates(updates);
    if v >= 1 {
        request.validate_only = r.chance();
    }
    request
}

fn describe_cluster(v: i16, r: &mut Rng) -> kp::DescribeClusterRequest {
    let mut request = kp::DescribeClusterRequest::default()
        .with_include_cluster_authorized_operations(r.chance());
    if v >= 1 {
        request.endpoint_type = r.i8();
    }
    if v >= 2 {
        request.include_fenced_brokers = r.chance();
    }
    request
}

fn describe_producers(r: &mut Rng) -> kp::DescribeProducersRequest {
    let topics = r.list(4, |r| {
        kp::describe_producers_request::TopicRequest::default()
            .with_name(r.text().into())
            .with_partition_indexes(r.list(4, Rng::i32))
    });
    kp::DescribeProducersRequest::default().with_topics(topics)
}

fn describe_log_dirs(r: &mut Rng) -> kp::DescribeLogDirsRequest {
    let topics = maybe(r, |r| {
        r.list(4, |r| {
            kp::describe_log_dirs_request::DescribableLogDirTopic::default()
                .with_topic(r.text().into())
                .with_partitions(r.list(4, Rng::i32))
        })
    });
    kp::DescribeLogDirsRequest::default().with_topics(topics)
}

fn list_config_resources(v: i16, r: &mut Rng) -> kp::ListConfigResourcesRequest {
    let mut request = kp::ListConfigResourcesRequest::default();
    if v >= 1 {
        request.resource_types = r.list(4, Rng::i8);
    }
    request
}

fn describe_topic_partitions(r: &mut Rng) -> kp::DescribeTopicPartitionsRequest {
    use kp::describe_topic_partitions_request as dt;
    let topics = r.list(4, |r| {
        dt::TopicRequest::default().with_name(r.text().into())
    });
    let cursor = maybe(r, |r| {
        dt::Cursor::default()
            .with_topic_name(r.text().into())
            .with_partition_index(r.i32())
    });
    kp::DescribeTopicPartitionsRequest::default()
        .with_topics(topics)
        .with_response_partition_limit(r.i32())
        .with_cursor(cursor)
}
