//! Requests of transactional ids.

use super::{
    BOOLEAN, ELEMENTS, ELEMENTS_DATA, INT16, INT32, INT64, Kind, Message, STRING, Struct, always,
    since, until,
};

/// The schema of api key `key`, if it is one of these.
pub(super) fn message(key: i16) -> Option<&'static Message> {
    Some(match key {
        22 => &INIT_PRODUCER_ID,
        24 => &ADD_PARTITIONS_TO_TXN,
        25 => &ADD_OFFSETS_TO_TXN,
        26 => &END_TXN,
        27 => &WRITE_TXN_MARKERS,
        28 => &TXN_OFFSET_COMMIT,
        65 => &DESCRIBE_TRANSACTIONS,
        66 => &LIST_TRANSACTIONS,
        _ => return None,
    })
}

static INIT_PRODUCER_ID: Message = Message {
    flexible_from: 2,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            always(STRING).nullable_from(0), // transactional_id
            always(INT32),                   // transaction_timeout_ms
            since(3, INT64),                 // producer_id
            since(3, INT16),                 // producer_epoch
        ],
        tags: &[],
    },
};

static ADD_PARTITIONS_TO_TXN: Message = Message {
    flexible_from: 3,
    element_limit: ELEMENTS_DATA,
    body: Struct {
        fields: &[
            since(4, Kind::Array(&Kind::Struct(&ADD_PARTITIONS_TRANSACTION))),
            until(3, STRING), // transactional_id
            until(3, INT64),  // producer_id
            until(3, INT16),  // producer_epoch
            until(3, Kind::Array(&Kind::Struct(&ADD_PARTITIONS_TOPIC))),
        ],
        tags: &[],
    },
};
pub(super) const ADD_PARTITIONS_TRANSACTION: Struct = Struct {
    fields: &[
        always(STRING),  // transactional_id
        always(INT64),   // producer_id
        always(INT16),   // producer_epoch
        always(BOOLEAN), // verify_only
        always(Kind::Array(&Kind::Struct(&ADD_PARTITIONS_TOPIC))),
    ],
    tags: &[],
};
/// Of a request up to v3, and of a transaction from v4 on.
pub(super) const ADD_PARTITIONS_TOPIC: Struct = Struct {
    fields: &[
        always(STRING), // name
        always(Kind::Array(&INT32)),
    ],
    tags: &[],
};

static ADD_OFFSETS_TO_TXN: Message = Message {
    flexible_from: 3,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            always(STRING), // transactional_id
            always(INT64),  // producer_id
            always(INT16),  // producer_epoch
            always(STRING), // group_id
        ],
        tags: &[],
    },
};

static END_TXN: Message = Message {
    flexible_from: 3,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            always(STRING),  // transactional_id
            always(INT64),   // producer_id
            always(INT16),   // producer_epoch
            always(BOOLEAN), // committed
        ],
        tags: &[],
    },
};

static WRITE_TXN_MARKERS: Message = Message {
    flexible_from: 1,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[always(Kind::Array(&Kind::Struct(&MARKER)))],
        tags: &[],
    },
};
pub(super) const MARKER: Struct = Struct {
    fields: &[
        always(INT64),   // producer_id
        always(INT16),   // producer_epoch
        always(BOOLEAN), // transaction_result
        always(Kind::Array(&Kind::Struct(&MARKER_TOPIC))),
        always(INT32), // coordinator_epoch
    ],
    tags: &[],
};
pub(super) const MARKER_TOPIC: Struct = Struct {
    fields: &[
        always(STRING), // name
        always(Kind::Array(&INT32)),
    ],
    tags: &[],
};

static TXN_OFFSET_COMMIT: Message = Message {
    flexible_from: 3,
    element_limit: ELEMENTS_DATA,
    body: Struct {
        fields: &[
            always(STRING),                    // transactional_id
            always(STRING),                    // group_id
            always(INT64),                     // producer_id
            always(INT16),                     // producer_epoch
            since(3, INT32),                   // generation_id
            since(3, STRING),                  // member_id
            since(3, STRING).nullable_from(3), // group_instance_id
            always(Kind::Array(&Kind::Struct(&TXN_OFFSET_TOPIC))),
        ],
        tags: &[],
    },
};
pub(super) const TXN_OFFSET_TOPIC: Struct = Struct {
    fields: &[
        always(STRING), // name
        always(Kind::Array(&Kind::Struct(&TXN_OFFSET_PARTITION))),
    ],
    tags: &[],
};
pub(super) const TXN_OFFSET_PARTITION: Struct = Struct {
    fields: &[
        always(INT32),                   // partition_index
        always(INT64),                   // committed_offset
        since(2, INT32),                 // committed_leader_epoch
        always(STRING).nullable_from(0), // committed_metadata
    ],
    tags: &[],
};

static DESCRIBE_TRANSACTIONS: Message = Message {
    flexible_from: 0,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[always(Kind::Array(&STRING))], // transactional_ids
        tags: &[],
    },
};

static LIST_TRANSACTIONS: Message = Message {
    flexible_from: 0,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            always(Kind::Array(&STRING)),      // state_filters
            always(Kind::Array(&INT64)),       // producer_id_filters
            since(1, INT64),                   // duration_filter
            since(2, STRING).nullable_from(2), // transactional_id_pattern
        ],
        tags: &[],
    },
};
