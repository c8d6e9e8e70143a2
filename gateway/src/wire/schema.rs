//! Static schemas of the requests that are offered, for the frame guard.
//!
//! They restate what the decoder of `kafka-protocol` reads, field by field, and add what it does
//! not check: where null is allowed (Kafka's `nullableVersions`). Property tests hold the two
//! together for every key and version.

mod admin;
mod groups;
mod offsets;
mod txns;

/// The wire shape of a field.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// So many bytes.
    Fixed(usize),
    /// `STRING` or `COMPACT_STRING`.
    String,
    /// `BYTES` or `COMPACT_BYTES`; records too.
    Bytes,
    /// `ARRAY` or `COMPACT_ARRAY`.
    Array(&'static Kind),
    /// A struct; in flexible versions its tagged fields follow.
    Struct(&'static Struct),
    /// A byte that tells whether a struct follows: 1, or below 0 for null.
    MaybeStruct(&'static Struct),
}

impl Kind {
    /// Fewest bytes that a value can take: what bounds a claimed count.
    pub(super) fn min_size(self, version: i16, flexible: bool) -> usize {
        match self {
            Self::Fixed(len) => len,
            Self::MaybeStruct(_) => 1,
            Self::String => {
                if flexible {
                    1
                } else {
                    2
                }
            }
            Self::Bytes | Self::Array(_) => {
                if flexible {
                    1
                } else {
                    4
                }
            }
            Self::Struct(of) => {
                let fields = of.fields.iter().filter(|field| field.exists_in(version));
                let sum: usize = fields
                    .map(|field| field.kind.min_size(version, flexible))
                    .sum();
                sum + usize::from(flexible)
            }
        }
    }
}

/// A field and the versions that have it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    pub(super) kind: Kind,
    from: i16,
    to: i16,
    null_from: i16,
}

impl Field {
    /// Whether `version` has the field.
    pub(super) fn exists_in(&self, version: i16) -> bool {
        self.from <= version && version <= self.to
    }

    /// Whether the field may be null in `version`.
    pub(super) fn nullable_in(&self, version: i16) -> bool {
        version >= self.null_from
    }

    const fn nullable_from(mut self, version: i16) -> Self {
        self.null_from = version;
        self
    }
}

const fn always(kind: Kind) -> Field {
    within(0, i16::MAX, kind)
}

const fn since(from: i16, kind: Kind) -> Field {
    within(from, i16::MAX, kind)
}

const fn until(to: i16, kind: Kind) -> Field {
    within(0, to, kind)
}

const fn within(from: i16, to: i16, kind: Kind) -> Field {
    Field {
        kind,
        from,
        to,
        null_from: i16::MAX,
    }
}

/// A struct: fields in wire order, and the tagged fields that are known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Struct {
    pub(super) fields: &'static [Field],
    pub(super) tags: &'static [(u32, Field)],
}

/// A request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message {
    /// First version with compact lengths, tagged fields and request header v2.
    pub(super) flexible_from: i16,
    /// Most array elements in one frame, all arrays together.
    pub(super) element_limit: usize,
    pub(super) body: Struct,
}

/// Elements that a frame may hold.
const ELEMENTS: usize = 65_536;
/// Elements that a Produce or Fetch may hold: one for each partition of a large cluster.
const ELEMENTS_DATA: usize = 262_144;

const BOOLEAN: Kind = Kind::Fixed(1);
const INT8: Kind = Kind::Fixed(1);
const INT16: Kind = Kind::Fixed(2);
const INT32: Kind = Kind::Fixed(4);
const INT64: Kind = Kind::Fixed(8);
const UUID: Kind = Kind::Fixed(16);
const STRING: Kind = Kind::String;
const BYTES: Kind = Kind::Bytes;

/// The schema of api key `key`, if it is offered.
pub(super) fn message(key: i16) -> Option<&'static Message> {
    Some(match key {
        0 => &PRODUCE,
        1 => &FETCH,
        2 => &LIST_OFFSETS,
        3 => &METADATA,
        8 => &offsets::OFFSET_COMMIT,
        9 => &offsets::OFFSET_FETCH,
        10 => &FIND_COORDINATOR,
        11 => &groups::JOIN_GROUP,
        12 => &groups::HEARTBEAT,
        13 => &groups::LEAVE_GROUP,
        14 => &groups::SYNC_GROUP,
        15 => &groups::DESCRIBE_GROUPS,
        16 => &groups::LIST_GROUPS,
        18 => &API_VERSIONS,
        19 => &CREATE_TOPICS,
        20 => &DELETE_TOPICS,
        42 => &groups::DELETE_GROUPS,
        68 => &groups::CONSUMER_GROUP_HEARTBEAT,
        69 => &groups::CONSUMER_GROUP_DESCRIBE,
        47 => &offsets::OFFSET_DELETE,
        _ => return txns::message(key).or_else(|| admin::message(key)),
    })
}

static PRODUCE: Message = Message {
    flexible_from: 9,
    element_limit: ELEMENTS_DATA,
    body: Struct {
        fields: &[
            always(STRING).nullable_from(3), // transactional_id
            always(INT16),                   // acks
            always(INT32),                   // timeout_ms
            always(Kind::Array(&Kind::Struct(&PRODUCE_TOPIC))),
        ],
        tags: &[],
    },
};
const PRODUCE_TOPIC: Struct = Struct {
    fields: &[
        until(12, STRING), // name
        since(13, UUID),   // topic_id
        always(Kind::Array(&Kind::Struct(&PRODUCE_PARTITION))),
    ],
    tags: &[],
};
const PRODUCE_PARTITION: Struct = Struct {
    fields: &[
        always(INT32),                  // index
        always(BYTES).nullable_from(3), // records
    ],
    tags: &[],
};

static FETCH: Message = Message {
    flexible_from: 12,
    element_limit: ELEMENTS_DATA,
    body: Struct {
        fields: &[
            until(14, INT32), // replica_id
            always(INT32),    // max_wait_ms
            always(INT32),    // min_bytes
            always(INT32),    // max_bytes
            always(INT8),     // isolation_level
            since(7, INT32),  // session_id
            since(7, INT32),  // session_epoch
            always(Kind::Array(&Kind::Struct(&FETCH_TOPIC))),
            since(7, Kind::Array(&Kind::Struct(&FORGOTTEN_TOPIC))),
            since(11, STRING), // rack_id
        ],
        tags: &[
            (0, since(12, STRING).nullable_from(12)), // cluster_id
            (1, since(15, Kind::Struct(&REPLICA_STATE))),
        ],
    },
};
const FETCH_TOPIC: Struct = Struct {
    fields: &[
        until(12, STRING), // topic
        since(13, UUID),   // topic_id
        always(Kind::Array(&Kind::Struct(&FETCH_PARTITION))),
    ],
    tags: &[],
};
const FETCH_PARTITION: Struct = Struct {
    fields: &[
        always(INT32),    // partition
        since(9, INT32),  // current_leader_epoch
        always(INT64),    // fetch_offset
        since(12, INT32), // last_fetched_epoch
        since(5, INT64),  // log_start_offset
        always(INT32),    // partition_max_bytes
    ],
    tags: &[
        (0, since(17, UUID)),  // replica_directory_id
        (1, since(18, INT64)), // high_watermark
    ],
};
const FORGOTTEN_TOPIC: Struct = Struct {
    fields: &[
        until(12, STRING), // topic
        since(13, UUID),   // topic_id
        always(Kind::Array(&INT32)),
    ],
    tags: &[],
};
const REPLICA_STATE: Struct = Struct {
    fields: &[
        always(INT32), // replica_id
        always(INT64), // replica_epoch
    ],
    tags: &[],
};

static LIST_OFFSETS: Message = Message {
    flexible_from: 6,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            always(INT32),  // replica_id
            since(2, INT8), // isolation_level
            always(Kind::Array(&Kind::Struct(&LIST_OFFSETS_TOPIC))),
            since(10, INT32), // timeout_ms
        ],
        tags: &[],
    },
};
const LIST_OFFSETS_TOPIC: Struct = Struct {
    fields: &[
        always(STRING), // name
        always(Kind::Array(&Kind::Struct(&LIST_OFFSETS_PARTITION))),
    ],
    tags: &[],
};
const LIST_OFFSETS_PARTITION: Struct = Struct {
    fields: &[
        always(INT32),   // partition_index
        since(4, INT32), // current_leader_epoch
        always(INT64),   // timestamp
    ],
    tags: &[],
};

static METADATA: Message = Message {
    flexible_from: 9,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            always(Kind::Array(&Kind::Struct(&METADATA_TOPIC))).nullable_from(1),
            since(4, BOOLEAN),      // allow_auto_topic_creation
            within(8, 10, BOOLEAN), // include_cluster_authorized_operations
            since(8, BOOLEAN),      // include_topic_authorized_operations
        ],
        tags: &[],
    },
};
const METADATA_TOPIC: Struct = Struct {
    fields: &[
        since(10, UUID),                  // topic_id
        always(STRING).nullable_from(10), // name
    ],
    tags: &[],
};

static FIND_COORDINATOR: Message = Message {
    flexible_from: 3,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            until(3, STRING), // key
            since(1, INT8),   // key_type
            since(4, Kind::Array(&STRING)),
        ],
        tags: &[],
    },
};

static API_VERSIONS: Message = Message {
    flexible_from: 3,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            since(3, STRING), // client_software_name
            since(3, STRING), // client_software_version
        ],
        tags: &[],
    },
};

static CREATE_TOPICS: Message = Message {
    flexible_from: 5,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            always(Kind::Array(&Kind::Struct(&CREATE_TOPIC))),
            always(INT32),   // timeout_ms
            always(BOOLEAN), // validate_only
        ],
        tags: &[],
    },
};
const CREATE_TOPIC: Struct = Struct {
    fields: &[
        always(STRING), // name
        always(INT32),  // num_partitions
        always(INT16),  // replication_factor
        always(Kind::Array(&Kind::Struct(&REPLICA_ASSIGNMENT))),
        always(Kind::Array(&Kind::Struct(&TOPIC_CONFIG))),
    ],
    tags: &[],
};
const REPLICA_ASSIGNMENT: Struct = Struct {
    fields: &[
        always(INT32), // partition_index
        always(Kind::Array(&INT32)),
    ],
    tags: &[],
};
const TOPIC_CONFIG: Struct = Struct {
    fields: &[
        always(STRING),                  // name
        always(STRING).nullable_from(2), // value
    ],
    tags: &[],
};

static DELETE_TOPICS: Message = Message {
    flexible_from: 4,
    element_limit: ELEMENTS,
    body: Struct {
        fields: &[
            since(6, Kind::Array(&Kind::Struct(&DELETE_TOPIC))),
            until(5, Kind::Array(&STRING)), // topic_names
            always(INT32),                  // timeout_ms
        ],
        tags: &[],
    },
};
const DELETE_TOPIC: Struct = Struct {
    fields: &[
        always(STRING).nullable_from(6), // name
        always(UUID),                    // topic_id
    ],
    tags: &[],
};

#[cfg(test)]
mod tests;
