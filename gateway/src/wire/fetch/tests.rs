use kafka_protocol::messages as kp;
use kafka_protocol::messages::fetch_response as fr;
use kafka_protocol::protocol::Encodable;
use proptest::prelude::*;
use store_adapter::volume::{PosixVolume, Volume, VolumePath, block_on};

use super::super::samples::Rng;
use super::*;

/// The bytes of all segments, those in files too.
fn concat(segments: &[Segment]) -> Vec<u8> {
    let bytes = segments.iter().map(|segment| match segment {
        Segment::Bytes(bytes) => bytes.clone(),
        Segment::File(range) => range.read().unwrap(),
    });
    bytes.collect::<Vec<_>>().concat()
}

/// The same response as `kafka-protocol` encodes it, with length and header.
fn oracle(reply: &FetchReply, version: i16, correlation_id: i32) -> Vec<u8> {
    let topics = reply.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|p| partition(p, version));
        fr::FetchableTopicResponse::default()
            .with_topic(topic.name.clone().into())
            .with_topic_id(topic.topic_id)
            .with_partitions(partitions.collect())
    });
    let mut response = kp::FetchResponse::default()
        .with_error_code(reply.error_code)
        .with_responses(topics.collect());
    if version >= 7 {
        response.session_id = reply.session_id;
    }
    if version >= 16 {
        let endpoints = reply.node_endpoints.iter().map(|(id, host, port)| {
            fr::NodeEndpoint::default()
                .with_node_id((*id).into())
                .with_host(host.clone())
                .with_port(*port)
        });
        response.node_endpoints = endpoints.collect();
    }
    let mut body = BytesMut::new();
    body.put_i32(correlation_id);
    if version >= 12 {
        body.put_u8(0);
    }
    response.encode(&mut body, version).unwrap();
    let len = u32::try_from(body.len()).unwrap();
    [&len.to_be_bytes()[..], &body].concat()
}

fn partition(p: &FetchPartitionReply, version: i16) -> fr::PartitionData {
    let aborted = p.aborted_transactions.as_ref().map(|aborted| {
        let entry = |(pid, first): &(i64, i64)| {
            fr::AbortedTransaction::default()
                .with_producer_id((*pid).into())
                .with_first_offset(*first)
        };
        aborted.iter().map(entry).collect()
    });
    let mut data = fr::PartitionData::default()
        .with_partition_index(p.partition)
        .with_error_code(p.error_code)
        .with_high_watermark(p.high_watermark)
        .with_last_stable_offset(p.last_stable_offset)
        .with_log_start_offset(p.log_start_offset)
        .with_aborted_transactions(aborted)
        .with_records(Some(concat(&p.records).into()));
    if version >= 12 {
        if let Some((epoch, end_offset)) = p.diverging_epoch {
            data.diverging_epoch = fr::EpochEndOffset::default()
                .with_epoch(epoch)
                .with_end_offset(end_offset);
        }
        if let Some((id, epoch)) = p.current_leader {
            data.current_leader = fr::LeaderIdAndEpoch::default()
                .with_leader_id(id.into())
                .with_leader_epoch(epoch);
        }
    }
    data
}

fn reply(rng: &mut Rng) -> FetchReply {
    FetchReply {
        error_code: rng.i16(),
        session_id: rng.i32(),
        topics: rng.list(4, |rng| FetchTopicReply {
            name: rng.text(),
            topic_id: rng.uuid(),
            partitions: rng.list(4, partition_reply),
        }),
        node_endpoints: if rng.chance() {
            rng.list(4, |rng| (rng.i32(), rng.text(), rng.i32()))
        } else {
            Vec::new()
        },
        room: AnswerRoom::default(),
    }
}

fn partition_reply(rng: &mut Rng) -> FetchPartitionReply {
    let small_number = |rng: &mut Rng| i32::try_from(rng.below(3)).unwrap() - 1;
    FetchPartitionReply {
        partition: rng.i32(),
        error_code: rng.i16(),
        high_watermark: rng.i64(),
        last_stable_offset: rng.i64(),
        log_start_offset: rng.i64(),
        diverging_epoch: rng
            .chance()
            .then(|| (small_number(rng), i64::from(small_number(rng)))),
        current_leader: rng.chance().then(|| (small_number(rng), small_number(rng))),
        aborted_transactions: match rng.below(3) {
            0 => None,
            1 => Some(Vec::new()),
            _ => Some(rng.list(200, |rng| (rng.i64(), rng.i64()))),
        },
        records: rng.list(6, |rng| {
            let len = [0, 60, 4095, 4096, 4097, 20_000][rng.below(6)];
            Bytes::from(vec![rng.next().to_le_bytes()[0]; len]).into()
        }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn encodes_what_kafka_protocol_encodes(seed: u64, correlation_id: i32) {
        let reply = reply(&mut Rng(seed));
        for version in 4..=18 {
            let segments = encode(&reply, version, correlation_id).unwrap();
            prop_assert!(
                concat(&segments) == oracle(&reply, version, correlation_id),
                "v{}: {:?}", version, reply
            );
            prop_assert!(segments.iter().all(|segment| !segment.is_empty()));
        }
    }

    #[test]
    fn the_buffer_is_large_enough_from_the_start(seed: u64) {
        let reply = reply(&mut Rng(seed));
        for version in 4..=18 {
            let segments = encode(&reply, version, 1).unwrap();
            let large = reply.topics.iter().flat_map(|t| &t.partitions).flat_map(|p| &p.records);
            let referenced: usize =
                large.map(Segment::len).filter(|len| *len >= REFERENCE_MIN).sum();
            let copied = concat(&segments).len() - referenced;
            prop_assert!(copied <= copied_len_max(&reply), "v{}", version);
        }
    }
}

fn one_partition(records: Vec<Bytes>) -> FetchReply {
    let mut partition = partition_reply(&mut Rng(1));
    partition.records = records.into_iter().map(Segment::from).collect();
    FetchReply {
        topics: vec![FetchTopicReply {
            name: StrBytes::from_static_str("t"),
            topic_id: Uuid::nil(),
            partitions: vec![partition],
        }],
        ..FetchReply::default()
    }
}

#[test]
fn large_batches_are_sent_by_reference() {
    let batch = Bytes::from(vec![1; 16_384]);
    let reply = one_partition(vec![batch.clone(), batch.clone()]);
    let segments = encode(&reply, 12, 1).unwrap();
    let by_reference = segments.iter().filter_map(Segment::bytes);
    let by_reference = by_reference.filter(|s| s.as_ptr() == batch.as_ptr());
    assert_eq!(by_reference.count(), 2);
    assert_eq!(segments.len(), 4);
}

#[test]
#[cfg(target_os = "linux")]
fn what_is_in_a_file_is_sent_from_there() {
    let dir = tempfile::tempdir().unwrap();
    let volume = PosixVolume::open(dir.path()).unwrap();
    let path = VolumePath::root().join("a");
    let file = block_on(volume.create_new(&path)).unwrap();
    let content: Vec<u8> = (0..200).collect();
    block_on(file.write_at(0, &[Bytes::from(content)])).unwrap();
    let mut reply = one_partition(vec![Bytes::from_static(b"small")]);
    let range = |offset, len| Segment::File(file.range(offset, len).unwrap());
    let records = &mut reply.topics[0].partitions[0].records;
    records.extend([range(3, 20), range(100, 7)]);
    records.push(Bytes::from(vec![1; 16_384]).into());
    for version in 4..=18 {
        let segments = encode(&reply, version, 1).unwrap();
        assert_eq!(concat(&segments), oracle(&reply, version, 1));
        let in_files = segments.iter().filter(|s| s.bytes().is_none());
        let in_files: Vec<_> = in_files.cloned().collect();
        assert_eq!(in_files, [range(3, 20), range(100, 7)]);
    }
}

#[test]
fn small_batches_share_one_segment() {
    let batch = Bytes::from(vec![1; 100]);
    let reply = one_partition(vec![batch; 1000]);
    assert_eq!(encode(&reply, 12, 1).unwrap().len(), 1);
}

#[test]
fn a_name_that_no_version_can_carry_is_an_error() {
    let mut reply = one_partition(Vec::new());
    reply.topics[0].name = StrBytes::from_string("a".repeat(32_768));
    assert!(encode(&reply, 4, 1).is_err());
    assert!(encode(&reply, 12, 1).is_err());
    assert!(encode(&reply, 13, 1).is_ok());
}

#[test]
fn null_and_empty_lists_of_aborted_transactions_differ() {
    let mut reply = one_partition(Vec::new());
    reply.topics[0].partitions[0].aborted_transactions = None;
    let null = concat(&encode(&reply, 4, 1).unwrap());
    reply.topics[0].partitions[0].aborted_transactions = Some(Vec::new());
    let empty = concat(&encode(&reply, 4, 1).unwrap());
    assert_eq!(null.len(), empty.len());
    // The last eight bytes: aborted transactions, then records of length 0.
    assert!(null.ends_with(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]));
    assert!(empty.ends_with(&[0, 0, 0, 0, 0, 0, 0, 0]));
}
