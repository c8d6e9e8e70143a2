//! Requests of groups.

use super::{
    BOOLEAN, BYTES, ELEMENTS, INT32, Kind, Message, STRING, Struct, UUID, always, since, until,
};

pub(super) static JOIN_GROUP: Message = Message {
    flexible_from: 6,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            always(STRING),                    // group_id
            always(INT32),                     // session_timeout_ms
            since(1, INT32),                   // rebalance_timeout_ms
            always(STRING),                    // member_id
            since(5, STRING).nullable_from(5), // group_instance_id
            always(STRING),                    // protocol_type
            always(Kind::Array(&Kind::Struct(&JOIN_GROUP_PROTOCOL))),
            since(8, STRING).nullable_from(8), // reason
        ],
        tags: &[],
    },
};
pub(super) const JOIN_GROUP_PROTOCOL: Struct = Struct {
    fields: &[
        always(STRING), // name
        always(BYTES),  // metadata
    ],
    tags: &[],
};

pub(super) static HEARTBEAT: Message = Message {
    flexible_from: 4,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            always(STRING),                    // group_id
            always(INT32),                     // generation_id
            always(STRING),                    // member_id
            since(3, STRING).nullable_from(3), // group_instance_id
        ],
        tags: &[],
    },
};

pub(super) static LEAVE_GROUP: Message = Message {
    flexible_from: 4,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            always(STRING),   // group_id
            until(2, STRING), // member_id
            since(3, Kind::Array(&Kind::Struct(&MEMBER_IDENTITY))),
        ],
        tags: &[],
    },
};
pub(super) const MEMBER_IDENTITY: Struct = Struct {
    fields: &[
        always(STRING),                    // member_id
        always(STRING).nullable_from(3),   // group_instance_id
        since(5, STRING).nullable_from(5), // reason
    ],
    tags: &[],
};

pub(super) static SYNC_GROUP: Message = Message {
    flexible_from: 4,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            always(STRING),                    // group_id
            always(INT32),                     // generation_id
            always(STRING),                    // member_id
            since(3, STRING).nullable_from(3), // group_instance_id
            since(5, STRING).nullable_from(5), // protocol_type
            since(5, STRING).nullable_from(5), // protocol_name
            always(Kind::Array(&Kind::Struct(&ASSIGNMENT))),
        ],
        tags: &[],
    },
};
pub(super) const ASSIGNMENT: Struct = Struct {
    fields: &[
        always(STRING), // member_id
        always(BYTES),  // assignment
    ],
    tags: &[],
};

pub(super) static DESCRIBE_GROUPS: Message = Message {
    flexible_from: 5,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            always(Kind::Array(&STRING)), // groups
            since(3, BOOLEAN),            // include_authorized_operations
        ],
        tags: &[],
    },
};

pub(super) static LIST_GROUPS: Message = Message {
    flexible_from: 3,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            since(4, Kind::Array(&STRING)), // states_filter
            since(5, Kind::Array(&STRING)), // types_filter
        ],
        tags: &[],
    },
};

pub(super) static DELETE_GROUPS: Message = Message {
    flexible_from: 2,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            always(Kind::Array(&STRING)), // groups_names
        ],
        tags: &[],
    },
};

pub(super) static CONSUMER_GROUP_HEARTBEAT: Message = Message {
    flexible_from: 0,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            always(STRING),                                // group_id
            always(STRING),                                // member_id
            always(INT32),                                 // member_epoch
            always(STRING).nullable_from(0),               // instance_id
            always(STRING).nullable_from(0),               // rack_id
            always(INT32),                                 // rebalance_timeout_ms
            always(Kind::Array(&STRING)).nullable_from(0), // subscribed_topic_names
            since(1, STRING).nullable_from(1),             // subscribed_topic_regex
            always(STRING).nullable_from(0),               // server_assignor
            always(Kind::Array(&Kind::Struct(&OWNED_PARTITIONS))).nullable_from(0),
        ],
        tags: &[],
    },
};
pub(super) const OWNED_PARTITIONS: Struct = Struct {
    fields: &[
        always(UUID),                // topic_id
        always(Kind::Array(&INT32)), // partitions
    ],
    tags: &[],
};

pub(super) static CONSUMER_GROUP_DESCRIBE: Message = Message {
    flexible_from: 0,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            always(Kind::Array(&STRING)), // group_ids
            always(BOOLEAN),              // include_authorized_operations
        ],
        tags: &[],
    },
};
