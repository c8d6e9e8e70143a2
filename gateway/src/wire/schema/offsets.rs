//! Requests about the offsets of groups.

use super::{
    BOOLEAN, ELEMENTS_DATA, INT32, INT64, Kind, Message, STRING, Struct, always, since, until,
    within,
};

pub(super) static OFFSET_COMMIT: Message = Message {
    flexible_from: 8,
    element_limit: ELEMENTS_DATA,
    body: Struct {
        fields: &[
            always(STRING),                    // group_id
            always(INT32),                     // generation_id_or_member_epoch
            always(STRING),                    // member_id
            since(7, STRING).nullable_from(7), // group_instance_id
            within(2, 4, INT64),               // retention_time_ms
            always(Kind::Array(&Kind::Struct(&OFFSET_COMMIT_TOPIC))),
        ],
        tags: &[],
    },
};
pub(super) const OFFSET_COMMIT_TOPIC: Struct = Struct {
    fields: &[
        always(STRING), // name
        always(Kind::Array(&Kind::Struct(&OFFSET_COMMIT_PARTITION))),
    ],
    tags: &[],
};
pub(super) const OFFSET_COMMIT_PARTITION: Struct = Struct {
    fields: &[
        always(INT32),                   // partition_index
        always(INT64),                   // committed_offset
        since(6, INT32),                 // committed_leader_epoch
        always(STRING).nullable_from(0), // committed_metadata
    ],
    tags: &[],
};

pub(super) static OFFSET_FETCH: Message = Message {
    flexible_from: 6,
    element_limit: ELEMENTS_DATA,
    body: Struct {
        fields: &[
            until(7, STRING), // group_id
            until(7, Kind::Array(&Kind::Struct(&OFFSET_FETCH_TOPIC))).nullable_from(2),
            since(8, Kind::Array(&Kind::Struct(&OFFSET_FETCH_GROUP))),
            since(7, BOOLEAN), // require_stable
        ],
        tags: &[],
    },
};
/// Of a request up to v7, and of a group from v8 on.
pub(super) const OFFSET_FETCH_TOPIC: Struct = Struct {
    fields: &[
        always(STRING), // name
        always(Kind::Array(&INT32)),
    ],
    tags: &[],
};
pub(super) const OFFSET_FETCH_GROUP: Struct = Struct {
    fields: &[
        always(STRING),                    // group_id
        since(9, STRING).nullable_from(9), // member_id
        since(9, INT32),                   // member_epoch
        always(Kind::Array(&Kind::Struct(&OFFSET_FETCH_TOPIC))).nullable_from(8),
    ],
    tags: &[],
};

pub(super) static OFFSET_DELETE: Message = Message {
    flexible_from: i16::MAX,
    element_limit: ELEMENTS_DATA,
    body: Struct {
        fields: &[
            always(STRING), // group_id
            always(Kind::Array(&Kind::Struct(&OFFSET_DELETE_TOPIC))),
        ],
        tags: &[],
    },
};
pub(super) const OFFSET_DELETE_TOPIC: Struct = Struct {
    fields: &[
        always(STRING), // name
        always(Kind::Array(&Kind::Struct(&OFFSET_DELETE_PARTITION))),
    ],
    tags: &[],
};
pub(super) const OFFSET_DELETE_PARTITION: Struct = Struct {
    fields: &[
        always(INT32), // partition_index
    ],
    tags: &[],
};
