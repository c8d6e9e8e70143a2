//! Idempotent produce, by the vectors I01 to I41.

use anyhow::{Context as _, Result};
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    DescribeProducersRequest, DescribeProducersResponse, FetchRequest, ProduceRequest,
};
use uuid::Uuid;

use super::super::play::{P, Play, now_ms, only, plain, stamp};
use super::reading::fetch;
use crate::raw::batch::{Record, put_varint, seal};
use crate::raw::{ops, txn};

/// Longer than `producer.id.expiration.ms`, by whatever clock that is counted.
const A_DAY: i64 = 25 * 3_600_000;

/// Batches for an empty partition, with code and base offset of each.
async fn window(play: &mut Play, steps: &[(P, i16, i64)], end: i64) -> Result<()> {
    play.create(1, &[]).await?;
    for (batch, code, base) in steps {
        play.produce(batch.batch(), *code, *base).await?;
    }
    play.end(end).await
}

pub(super) async fn i01(play: &mut Play) -> Result<()> {
    window(play, &[(P(7, 0, 0, 3), 0, 0)], 3).await
}

pub(super) async fn i02(play: &mut Play) -> Result<()> {
    let steps = [(P(-1, -1, -1, 10), 0, 0), (P(7, 0, 5, 1), 0, 10)];
    window(play, &steps, 11).await
}

pub(super) async fn i04(play: &mut Play) -> Result<()> {
    let steps = [(P(7, 0, 0, 3), 0, 0), (P(7, 0, 0, 3), 0, 0)];
    window(play, &steps, 3).await
}

pub(super) async fn i05(play: &mut Play) -> Result<()> {
    let sent = |sequence: i32| (P(7, 0, sequence, 1), 0, i64::from(sequence));
    let steps = [
        sent(0),
        sent(1),
        sent(2),
        sent(3),
        sent(4),
        sent(0),
        sent(3),
    ];
    window(play, &steps, 5).await?;
    // Six ago: no longer known, and never 46.
    play.produce(P(7, 0, 5, 1).batch(), 0, 5).await?;
    play.produce(P(7, 0, 0, 1).batch(), 45, -1).await
}

pub(super) async fn i07(play: &mut Play) -> Result<()> {
    let steps = [(P(7, 0, 0, 3), 0, 0), (P(7, 0, 0, 2), 45, -1)];
    window(play, &steps, 3).await
}

pub(super) async fn i08(play: &mut Play) -> Result<()> {
    let steps = [
        (P(7, 0, 0, 3), 0, 0),
        (P(7, 0, 3, 3), 0, 3),
        (P(7, 0, 0, 6), 45, -1),
    ];
    window(play, &steps, 6).await
}

pub(super) async fn i10(play: &mut Play) -> Result<()> {
    let steps = [
        (P(7, 0, 0, 3), 0, 0),
        (P(7, 1, 0, 1), 0, 3),
        (P(7, 0, 3, 1), 47, -1),
    ];
    window(play, &steps, 4).await
}

pub(super) async fn i11(play: &mut Play) -> Result<()> {
    let steps = [
        (P(7, 0, 0, 3), 0, 0),
        (P(7, 1, 3, 1), 45, -1),
        (P(7, 0, 3, 1), 0, 3),
    ];
    window(play, &steps, 4).await
}

pub(super) async fn i13(play: &mut Play) -> Result<()> {
    let steps = [(P(7, 0, i32::MAX, 1), 0, 0), (P(7, 0, 0, 1), 0, 1)];
    window(play, &steps, 2).await
}

pub(super) async fn i14(play: &mut Play) -> Result<()> {
    let steps = [
        (P(7, 0, 2_147_483_645, 1), 0, 0),
        (P(7, 0, 2_147_483_646, 4), 0, 1),
        (P(7, 0, 2, 1), 0, 5),
    ];
    window(play, &steps, 6).await
}

pub(super) async fn i16(play: &mut Play) -> Result<()> {
    let straddles = P(7, 0, 2_147_483_646, 4);
    window(play, &[(straddles, 0, 0), (straddles, 0, 0)], 4).await
}

pub(super) async fn i17(play: &mut Play) -> Result<()> {
    window(play, &[(P(7, 0, -1, 1), 87, -1)], 0).await
}

/// Replaces bytes and makes length and CRC true again.
fn patched(batch: &Bytes, at: usize, with: &[u8]) -> Result<Bytes> {
    let mut bytes = BytesMut::from(&batch[..]);
    let place = bytes.get_mut(at..at + with.len()).context("too short")?;
    place.copy_from_slice(with);
    seal(&mut bytes);
    Ok(bytes.freeze())
}

/// One request that must be refused, and leaves nothing.
async fn refused(play: &mut Play, records: Bytes, version: i16, code: i16) -> Result<()> {
    let request = ops::produce_request(&play.topic(), 0, records);
    let response = play.call(&request, version).await?;
    let answer = only(&only(&response.responses)?.partition_responses)?;
    play.expect("Produce", answer.error_code, code);
    play.end(0).await
}

pub(super) async fn i19(play: &mut Play) -> Result<()> {
    play.create(1, &[]).await?;
    let good = P(7, 0, 0, 2).batch();
    let two = Bytes::from([&good[..], &good[..]].concat());
    refused(play, two, 9, 87).await
}

pub(super) async fn i20(play: &mut Play) -> Result<()> {
    play.create(1, &[]).await?;
    let good = P(7, 0, 0, 2).batch();
    let mut old = BytesMut::from(&good[..]);
    old[16] = 1;
    refused(play, old.freeze(), 9, 87).await?;
    refused(play, Bytes::new(), 9, 87).await?;
    refused(play, patched(&good, 21, &[0, 4])?, 6, 76).await
}

pub(super) async fn i22(play: &mut Play) -> Result<()> {
    play.create(1, &[]).await?;
    let batch = patched(&P(7, 0, 0, 2).batch(), 0, &1_i64.to_be_bytes())?;
    refused(play, batch, 9, 87).await
}

pub(super) async fn i23(play: &mut Play) -> Result<()> {
    play.create(1, &[]).await?;
    let batch = patched(&P(7, 0, 0, 2).batch(), 23, &2_i32.to_be_bytes())?;
    refused(play, batch, 9, 87).await
}

/// A batch whose records have timestamps of their own, as deltas to the base.
fn with_timestamps(base: i64, deltas: &[i64]) -> Result<Bytes> {
    let mut spec = P(-1, -1, -1, 0).spec();
    spec.timestamp_ms = base;
    let mut batch = BytesMut::from(&spec.build()[..]);
    for (offset_delta, delta) in (0..).zip(deltas) {
        let mut body = BytesMut::from(&[0_u8][..]);
        put_varint(&mut body, *delta);
        put_varint(&mut body, offset_delta);
        put_varint(&mut body, -1);
        put_varint(&mut body, 1);
        body.extend_from_slice(b"v");
        put_varint(&mut body, 0);
        put_varint(&mut batch, i64::try_from(body.len())?);
        batch.extend_from_slice(&body);
    }
    let count = i32::try_from(deltas.len())?;
    let largest = base + deltas.iter().max().context("no records")?;
    batch[23..27].copy_from_slice(&(count - 1).to_be_bytes());
    batch[35..43].copy_from_slice(&largest.to_be_bytes());
    batch[57..61].copy_from_slice(&count.to_be_bytes());
    seal(&mut batch);
    Ok(batch.freeze())
}

pub(super) async fn i25(play: &mut Play) -> Result<()> {
    play.create(1, &[]).await?;
    let batch = with_timestamps(now_ms(), &[0, 2 * 3_600_000, 0])?;
    let request = ops::produce_request(&play.topic(), 0, batch);
    let response = play.call(&request, 9).await?;
    let answer = only(&only(&response.responses)?.partition_responses)?;
    let named: Vec<i32> = answer.record_errors.iter().map(|e| e.batch_index).collect();
    play.expect("Produce", (answer.error_code, named), (32, vec![1]));
    play.end(0).await
}

pub(super) async fn i26(play: &mut Play) -> Result<()> {
    let configs = [("message.timestamp.type", "LogAppendTime")];
    play.create(1, &configs).await?;
    let request = ops::produce_request(&play.topic(), 0, P(7, 0, 0, 1).batch());
    let response = play.call(&request, 9).await?;
    let answer = only(&only(&response.responses)?.partition_responses)?;
    let stored = stored(play).await?;
    let bits = stored.get(22).context("no batch")? & 0x08;
    let stamped = stored[35..43] == answer.log_append_time_ms.to_be_bytes();
    let valid = stored[17..21] == crc32c::crc32c(&stored[21..]).to_be_bytes();
    play.record("stored", &(bits, stamped, valid));
    play.expect("bit 3, time, CRC", (bits, stamped, valid), (8, true, true));
    Ok(())
}

/// The bytes of the first batch.
async fn stored(play: &mut Play) -> Result<Bytes> {
    let request: FetchRequest = fetch(&play.topic(), &[(0, 0)]);
    let response = play.ask(&request, 12).await?;
    let partition = only(&only(&response.responses)?.partitions)?;
    partition.records.clone().context("no records")
}

pub(super) async fn i28(play: &mut Play) -> Result<()> {
    let topic = super::admin::creatable(&play.topic(), 1, &[("cleanup.policy", "compact")]);
    let request = super::admin::create_request(vec![topic]);
    let created = play.ask(&request, 5).await?;
    let code = only(&created.topics)?.error_code;
    play.record("CreateTopics", &code);
    play.expect("CreateTopics", code, 0);
    if code != 0 {
        return Ok(());
    }
    let topic = play.topic();
    ops::await_topic(play.client(), &topic, 1).await?;
    let mut spec = P(7, 0, 0, 0).spec();
    let keyed = Record {
        key: Some(Bytes::from_static(b"k")),
        ..Record::value("v")
    };
    spec.records = vec![Record::value("v"), keyed];
    let request = ops::produce_request(&topic, 0, spec.build());
    let response = play.call(&request, 9).await?;
    let answer = only(&only(&response.responses)?.partition_responses)?;
    let named: Vec<i32> = answer.record_errors.iter().map(|e| e.batch_index).collect();
    play.expect("Produce", (answer.error_code, named), (87, vec![0]));
    Ok(())
}

pub(super) async fn i29(play: &mut Play) -> Result<()> {
    play.create(1, &[]).await?;
    for (acks, code) in [(2, 21), (-2, 21), (1, 0), (-1, 0)] {
        let request = ops::produce_request(&play.topic(), 0, plain(1)).with_acks(acks);
        let response = play.call(&request, 9).await?;
        let answer = only(&only(&response.responses)?.partition_responses)?;
        play.expect("Produce", answer.error_code, code);
    }
    play.end(2).await
}

/// A batch that was made a day ago.
fn old(producer: P) -> crate::raw::batch::BatchSpec {
    let mut spec = producer.spec();
    spec.timestamp_ms = stamp() - A_DAY;
    spec
}

fn producers_request(topic: &str) -> DescribeProducersRequest {
    let topic = TopicRequest::default()
        .with_name(ops::topic_name(topic))
        .with_partition_indexes(vec![0]);
    DescribeProducersRequest::default().with_topics(vec![topic])
}

fn knows(response: &DescribeProducersResponse, id: i64) -> bool {
    let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
    let mut producers = partitions.flat_map(|partition| &partition.active_producers);
    producers.any(|producer| producer.producer_id.0 == id)
}

pub(super) async fn i31(play: &mut Play) -> Result<()> {
    play.create(1, &[]).await?;
    let spec = old(P(7, 0, 0, 1));
    play.produce(spec.build(), 0, 0).await?;
    let request = producers_request(&play.topic());
    let swept = |answer: &DescribeProducersResponse| !knows(answer, spec.producer_id);
    play.until(&request, 0, swept).await?;
    play.produce(P(7, 0, 9, 1).batch(), 0, 1).await
}

pub(super) async fn i32(play: &mut Play) -> Result<()> {
    play.create(1, &[]).await?;
    let (id, topic) = ("of-I32", play.topic());
    txn::await_coordinator(play.client(), id).await?;
    let init = txn::init_request(id, 600_000);
    let session = play
        .until(&init, txn::INIT_VERSION, |answer| answer.error_code == 0)
        .await?;
    let session = (session.producer_id.0, session.producer_epoch);
    let add = txn::add_request(id, session, &topic, 0);
    play.until(&add, txn::ADD_VERSION, |answer| {
        let topics = answer.results_by_topic_v3_and_below.iter();
        let mut results = topics.flat_map(|topic| &topic.results_by_partition);
        results.all(|result| result.partition_error_code == 0)
    })
    .await?;
    let mut spec = old(P(-1, -1, 0, 1));
    (spec.producer_id, spec.producer_epoch) = session;
    spec.attributes = txn::TRANSACTIONAL;
    let request = txn::produce_request(id, &topic, 0, spec.build());
    let response = play.call(&request, 9).await?;
    let answer = only(&only(&response.responses)?.partition_responses)?;
    play.expect("Produce", answer.error_code, 0);
    // What is as old and has no transaction goes; then the sweep has passed here too.
    let other = old(P(8, 0, 0, 1));
    play.produce(other.build(), 0, 1).await?;
    let request = producers_request(&topic);
    let swept = |answer: &DescribeProducersResponse| !knows(answer, other.producer_id);
    let left = play.until(&request, 0, swept).await?;
    let kept = knows(&left, session.0);
    play.record("kept", &kept);
    play.expect("the entry is kept", kept, true);
    let end = txn::end_request(id, session, false);
    play.until(&end, 3, |answer| answer.error_code == 0).await?;
    Ok(())
}

pub(super) async fn i34(play: &mut Play) -> Result<()> {
    play.create(1, &[]).await?;
    for sequence in 0..6 {
        let batch = P(7, 0, sequence, 1).batch();
        play.produce(batch, 0, sequence.into()).await?;
    }
    Ok(())
}

pub(super) async fn i34_after(play: &mut Play) -> Result<()> {
    let batch = |sequence| P(7, 0, sequence, 1).batch();
    play.produce(batch(5), 0, 5).await?;
    // Kafka knows only the newest of the five.
    for sequence in [4, 3, 2, 1] {
        play.produce(batch(sequence), 45, -1).await?;
    }
    play.produce(batch(6), 0, 6).await?;
    play.end(7).await
}

pub(super) async fn i35(play: &mut Play) -> Result<()> {
    play.create(1, &[]).await?;
    let first = P(7, 0, 0, 3).batch();
    play.produce(first.clone(), 0, 0).await?;
    let request = super::admin::delete_records(&play.topic(), -1);
    let response = play.call(&request, 2).await?;
    let deleted = only(&only(&response.topics)?.partitions)?;
    play.expect(
        "DeleteRecords",
        (deleted.error_code, deleted.low_watermark),
        (0, 3),
    );
    play.produce(P(7, 0, 3, 1).batch(), 0, 3).await?;
    play.produce(first, 0, 0).await?;
    play.end(4).await
}

pub(super) async fn i37(play: &mut Play) -> Result<()> {
    let steps = [(P(7, 0, 9, 1), 0, 0), (P(7, 1, 0, 1), 0, 1)];
    window(play, &steps, 2).await
}

/// Both in flight at once: what is not durable yet is not acknowledged to anybody.
pub(super) async fn i38(play: &mut Play) -> Result<()> {
    play.create(1, &[]).await?;
    let mut other = play.connect().await?;
    for sequence in 0..10 {
        let request = ops::produce_request(&play.topic(), 0, P(7, 0, sequence, 1).batch());
        play.client().send(&request, 9).await?;
        other.send(&request, 9).await?;
        let (_, one) = play.client().receive::<ProduceRequest>(9).await?;
        let (_, two) = other.receive::<ProduceRequest>(9).await?;
        for response in [one, two] {
            let answer = only(&only(&response.responses)?.partition_responses)?;
            let got = (answer.error_code, answer.base_offset);
            play.record("Produce", &got);
            play.expect("Produce", got, (0, sequence.into()));
        }
    }
    play.end(10).await
}

pub(super) async fn i40(play: &mut Play) -> Result<()> {
    play.create(1, &[]).await?;
    let topic = play.topic();
    let metadata = ops::metadata(play.client(), &topic).await?;
    let known = only(&metadata.topics)?.topic_id;
    for (id, code) in [(Uuid::from_u128(0x1234), 100), (known, 0)] {
        let data = PartitionProduceData::default()
            .with_index(0)
            .with_records(Some(plain(1)));
        let topic = TopicProduceData::default()
            .with_topic_id(id)
            .with_partition_data(vec![data]);
        let request = ops::produce_request("", 0, plain(1)).with_topic_data(vec![topic]);
        let response = play.call(&request, 13).await?;
        let answer = only(&only(&response.responses)?.partition_responses)?;
        play.expect("Produce", answer.error_code, code);
    }
    play.end(1).await
}

pub(super) async fn i41(play: &mut Play) -> Result<()> {
    play.create(2, &[]).await?;
    let mut corrupt = BytesMut::from(&plain(1)[..]);
    corrupt[66] ^= 0xff;
    let data = [(0, corrupt.freeze()), (1, plain(2))];
    let data = data.map(|(index, records)| {
        PartitionProduceData::default()
            .with_index(index)
            .with_records(Some(records))
    });
    let topic = TopicProduceData::default()
        .with_name(ops::topic_name(&play.topic()))
        .with_partition_data(data.to_vec());
    let request = ops::produce_request("", 0, plain(1)).with_topic_data(vec![topic]);
    let mut response = play.ask(&request, 9).await?;
    // Kafka's order is that of a hash map.
    let mut answers = response.responses.remove(0).partition_responses;
    answers.sort_by_key(|answer| answer.index);
    play.record("Produce", &answers);
    let codes: Vec<i16> = answers.iter().map(|answer| answer.error_code).collect();
    play.expect("Produce", codes, vec![2, 0]);
    let topic = play.topic();
    let ends = ops::list_offsets(play.client(), &topic, 2, ops::LATEST).await?;
    play.expect("the ends", ends, vec![0, 2]);
    Ok(())
}
