//! Schemas of the APIs that describe and change the cluster, its topics and its configs.

use super::{
    BOOLEAN, ELEMENTS, Field, INT8, INT16, INT32, INT64, Kind, Message, STRING, Struct, always,
    since, until,
};

/// The schema of api key `key`, if it is one of these.
pub(super) fn message(key: i16) -> Option<&'static Message> {
    Some(match key {
        21 => &DELETE_RECORDS,
        23 => &OFFSET_FOR_LEADER_EPOCH,
        32 => &DESCRIBE_CONFIGS,
        33 => &ALTER_CONFIGS,
        35 => &DESCRIBE_LOG_DIRS,
        37 => &CREATE_PARTITIONS,
        43 => &ELECT_LEADERS,
        44 => &INCREMENTAL_ALTER_CONFIGS,
        45 => &ALTER_PARTITION_REASSIGNMENTS,
        46 => &LIST_PARTITION_REASSIGNMENTS,
        57 => &UPDATE_FEATURES,
        60 => &DESCRIBE_CLUSTER,
        61 => &DESCRIBE_PRODUCERS,
        74 => &LIST_CONFIG_RESOURCES,
        75 => &DESCRIBE_TOPIC_PARTITIONS,
        _ => return None,
    })
}

const fn request(flexible_from: i16, fields: &'static [Field]) -> Message {
    Message {
        flexible_from,
        element_limit: ELEMENTS,
        body: of(fields),
    }
}

const fn of(fields: &'static [Field]) -> Struct {
    Struct { fields, tags: &[] }
}

static DELETE_RECORDS: Message = request(
    2,
    &[
        always(Kind::Array(&Kind::Struct(&DELETE_RECORDS_TOPIC))),
        always(INT32), // timeout_ms
    ],
);
pub(super) const DELETE_RECORDS_TOPIC: Struct = of(&[
    always(STRING), // name
    always(Kind::Array(&Kind::Struct(&DELETE_RECORDS_PARTITION))),
]);
pub(super) const DELETE_RECORDS_PARTITION: Struct = of(&[
    always(INT32), // partition_index
    always(INT64), // offset
]);

static OFFSET_FOR_LEADER_EPOCH: Message = request(
    4,
    &[
        since(3, INT32), // replica_id
        always(Kind::Array(&Kind::Struct(&EPOCH_TOPIC))),
    ],
);
pub(super) const EPOCH_TOPIC: Struct = of(&[
    always(STRING), // topic
    always(Kind::Array(&Kind::Struct(&EPOCH_PARTITION))),
]);
pub(super) const EPOCH_PARTITION: Struct = of(&[
    always(INT32), // partition
    always(INT32), // current_leader_epoch
    always(INT32), // leader_epoch
]);

static DESCRIBE_CONFIGS: Message = request(
    4,
    &[
        always(Kind::Array(&Kind::Struct(&DESCRIBE_CONFIGS_RESOURCE))),
        always(BOOLEAN),   // include_synonyms
        since(3, BOOLEAN), // include_documentation
    ],
);
pub(super) const DESCRIBE_CONFIGS_RESOURCE: Struct = of(&[
    always(INT8),                                  // resource_type
    always(STRING),                                // resource_name
    always(Kind::Array(&STRING)).nullable_from(0), // configuration_keys
]);

static ALTER_CONFIGS: Message = request(
    2,
    &[
        always(Kind::Array(&Kind::Struct(&ALTER_CONFIGS_RESOURCE))),
        always(BOOLEAN), // validate_only
    ],
);
pub(super) const ALTER_CONFIGS_RESOURCE: Struct = of(&[
    always(INT8),   // resource_type
    always(STRING), // resource_name
    always(Kind::Array(&Kind::Struct(&ALTERABLE_CONFIG))),
]);
pub(super) const ALTERABLE_CONFIG: Struct = of(&[
    always(STRING),                  // name
    always(STRING).nullable_from(0), // value
]);

static INCREMENTAL_ALTER_CONFIGS: Message = request(
    1,
    &[
        always(Kind::Array(&Kind::Struct(&INCREMENTAL_RESOURCE))),
        always(BOOLEAN), // validate_only
    ],
);
pub(super) const INCREMENTAL_RESOURCE: Struct = of(&[
    always(INT8),   // resource_type
    always(STRING), // resource_name
    always(Kind::Array(&Kind::Struct(&INCREMENTAL_CONFIG))),
]);
pub(super) const INCREMENTAL_CONFIG: Struct = of(&[
    always(STRING),                  // name
    always(INT8),                    // config_operation
    always(STRING).nullable_from(0), // value
]);

/// A topic with partition numbers: DescribeLogDirs, ElectLeaders, ListPartitionReassignments and
/// DescribeProducers have it alike.
pub(super) const INT32_TOPIC: Struct = of(&[
    always(STRING), // name
    always(Kind::Array(&INT32)),
]);

static DESCRIBE_LOG_DIRS: Message = request(
    2,
    &[always(Kind::Array(&Kind::Struct(&INT32_TOPIC))).nullable_from(0)],
);

static CREATE_PARTITIONS: Message = request(
    2,
    &[
        always(Kind::Array(&Kind::Struct(&CREATE_PARTITIONS_TOPIC))),
        always(INT32),   // timeout_ms
        always(BOOLEAN), // validate_only
    ],
);
pub(super) const CREATE_PARTITIONS_TOPIC: Struct = of(&[
    always(STRING), // name
    always(INT32),  // count
    always(Kind::Array(&Kind::Struct(&CREATE_PARTITIONS_ASSIGNMENT))).nullable_from(0),
]);
pub(super) const CREATE_PARTITIONS_ASSIGNMENT: Struct = of(&[
    always(Kind::Array(&INT32)), // broker_ids
]);

static ELECT_LEADERS: Message = request(
    2,
    &[
        since(1, INT8), // election_type
        always(Kind::Array(&Kind::Struct(&INT32_TOPIC))).nullable_from(0),
        always(INT32), // timeout_ms
    ],
);

static ALTER_PARTITION_REASSIGNMENTS: Message = request(
    0,
    &[
        always(INT32),     // timeout_ms
        since(1, BOOLEAN), // allow_replication_factor_change
        always(Kind::Array(&Kind::Struct(&REASSIGNABLE_TOPIC))),
    ],
);
pub(super) const REASSIGNABLE_TOPIC: Struct = of(&[
    always(STRING), // name
    always(Kind::Array(&Kind::Struct(&REASSIGNABLE_PARTITION))),
]);
pub(super) const REASSIGNABLE_PARTITION: Struct = of(&[
    always(INT32),                                // partition_index
    always(Kind::Array(&INT32)).nullable_from(0), // replicas
]);

static LIST_PARTITION_REASSIGNMENTS: Message = request(
    0,
    &[
        always(INT32), // timeout_ms
        always(Kind::Array(&Kind::Struct(&INT32_TOPIC))).nullable_from(0),
    ],
);

static UPDATE_FEATURES: Message = request(
    0,
    &[
        always(INT32), // timeout_ms
        always(Kind::Array(&Kind::Struct(&FEATURE_UPDATE))),
        since(1, BOOLEAN), // validate_only
    ],
);
pub(super) const FEATURE_UPDATE: Struct = of(&[
    always(STRING),    // feature
    always(INT16),     // max_version_level
    until(0, BOOLEAN), // allow_downgrade
    since(1, INT8),    // upgrade_type
]);

static DESCRIBE_CLUSTER: Message = request(
    0,
    &[
        always(BOOLEAN),   // include_cluster_authorized_operations
        since(1, INT8),    // endpoint_type
        since(2, BOOLEAN), // include_fenced_brokers
    ],
);

static DESCRIBE_PRODUCERS: Message =
    request(0, &[always(Kind::Array(&Kind::Struct(&INT32_TOPIC)))]);

static LIST_CONFIG_RESOURCES: Message = request(
    0,
    &[since(1, Kind::Array(&INT8))], // resource_types
);

static DESCRIBE_TOPIC_PARTITIONS: Message = request(
    0,
    &[
        always(Kind::Array(&Kind::Struct(&TOPIC_REQUEST))),
        always(INT32), // response_partition_limit
        always(Kind::MaybeStruct(&CURSOR)),
    ],
);
pub(super) const TOPIC_REQUEST: Struct = of(&[always(STRING)]);
const CURSOR: Struct = of(&[
    always(STRING), // topic_name
    always(INT32),  // partition_index
]);

/// Every array with the api key, the schema of its element, and what an element takes in memory.
#[cfg(test)]
#[allow(clippy::too_many_lines, reason = "a table")]
pub(super) fn elements() -> Vec<(i16, Kind, usize)> {
    use kafka_protocol::messages as kp;
    use kp::{
        alter_configs_request as ac, alter_partition_reassignments_request as ar,
        create_partitions_request as cp, delete_records_request as dr,
        describe_configs_request as dc, describe_topic_partitions_request as dt,
        incremental_alter_configs_request as ia,
    };
    let topic = Kind::Struct(&INT32_TOPIC);
    let of = Kind::Struct;
    vec![
        (
            23,
            of(&EPOCH_TOPIC),
            size_of::<kp::offset_for_leader_epoch_request::OffsetForLeaderTopic>(),
        ),
        (
            23,
            of(&EPOCH_PARTITION),
            size_of::<kp::offset_for_leader_epoch_request::OffsetForLeaderPartition>(),
        ),
        (
            21,
            of(&DELETE_RECORDS_TOPIC),
            size_of::<dr::DeleteRecordsTopic>(),
        ),
        (
            21,
            of(&DELETE_RECORDS_PARTITION),
            size_of::<dr::DeleteRecordsPartition>(),
        ),
        (
            32,
            of(&DESCRIBE_CONFIGS_RESOURCE),
            size_of::<dc::DescribeConfigsResource>(),
        ),
        (
            33,
            of(&ALTER_CONFIGS_RESOURCE),
            size_of::<ac::AlterConfigsResource>(),
        ),
        (33, of(&ALTERABLE_CONFIG), size_of::<ac::AlterableConfig>()),
        (
            35,
            topic,
            size_of::<kp::describe_log_dirs_request::DescribableLogDirTopic>(),
        ),
        (
            37,
            of(&CREATE_PARTITIONS_TOPIC),
            size_of::<cp::CreatePartitionsTopic>(),
        ),
        (
            37,
            of(&CREATE_PARTITIONS_ASSIGNMENT),
            size_of::<cp::CreatePartitionsAssignment>(),
        ),
        (
            43,
            topic,
            size_of::<kp::elect_leaders_request::TopicPartitions>(),
        ),
        (
            44,
            of(&INCREMENTAL_RESOURCE),
            size_of::<ia::AlterConfigsResource>(),
        ),
        (
            44,
            of(&INCREMENTAL_CONFIG),
            size_of::<ia::AlterableConfig>(),
        ),
        (
            45,
            of(&REASSIGNABLE_TOPIC),
            size_of::<ar::ReassignableTopic>(),
        ),
        (
            45,
            of(&REASSIGNABLE_PARTITION),
            size_of::<ar::ReassignablePartition>(),
        ),
        (
            46,
            topic,
            size_of::<kp::list_partition_reassignments_request::ListPartitionReassignmentsTopics>(),
        ),
        (
            57,
            of(&FEATURE_UPDATE),
            size_of::<kp::update_features_request::FeatureUpdateKey>(),
        ),
        (
            61,
            topic,
            size_of::<kp::describe_producers_request::TopicRequest>(),
        ),
        (75, of(&TOPIC_REQUEST), size_of::<dt::TopicRequest>()),
    ]
}
