//! Fetch, ListOffsets and OffsetForLeaderEpoch, by the vectors of R01 to R22 that need no
//! transactions.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{
    BrokerId, FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest,
};

use super::super::play::{P, Play, only, plain, stamp};
use super::admin;
use crate::raw::batch::Record;
use crate::raw::ops;

const VERSION: i16 = 12;

/// A full Fetch without session that does not wait: partitions with their offsets.
pub(super) fn fetch(topic: &str, partitions: &[(i32, i64)]) -> FetchRequest {
    let wanted = partitions.iter().map(|(partition, offset)| {
        FetchPartition::default()
            .with_partition(*partition)
            .with_current_leader_epoch(-1)
            .with_fetch_offset(*offset)
            .with_last_fetched_epoch(-1)
            .with_log_start_offset(-1)
            .with_partition_max_bytes(1 << 20)
    });
    let topic = FetchTopic::default()
        .with_topic(ops::topic_name(topic))
        .with_partitions(wanted.collect());
    FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_wait_ms(0)
        .with_min_bytes(1)
        .with_max_bytes(50 << 20)
        .with_session_id(0)
        .with_session_epoch(-1)
        .with_topics(vec![topic])
}

fn list(topic: &str, partitions: &[(i32, i64)], epoch: i32) -> ListOffsetsRequest {
    let wanted = partitions.iter().map(|(partition, timestamp)| {
        ListOffsetsPartition::default()
            .with_partition_index(*partition)
            .with_current_leader_epoch(epoch)
            .with_timestamp(*timestamp)
    });
    let topic = ListOffsetsTopic::default()
        .with_name(ops::topic_name(topic))
        .with_partitions(wanted.collect());
    ListOffsetsRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_topics(vec![topic])
}

/// A topic with records 0 to 9 in partition 0.
async fn ten(play: &mut Play) -> Result<()> {
    play.create(2, &[]).await?;
    for (sequence, count) in [(0, 3), (3, 3), (6, 4)] {
        let batch = P(7, 0, sequence, count).batch();
        play.produce(batch, 0, sequence.into()).await?;
    }
    Ok(())
}

pub(super) async fn r07(play: &mut Play) -> Result<()> {
    ten(play).await?;
    let request = admin::delete_records(&play.topic(), 3);
    play.call(&request, 2).await?;
    for (version, asked, code, offset) in [
        (1, -2, 0, 3),
        (10, -2, 0, 3),
        (8, -4, 0, 3),
        (9, -5, 0, -1),
        (10, -1, 0, 10),
    ] {
        let request = list(&play.topic(), &[(0, asked)], -1);
        let response = play.call(&request, version).await?;
        let found = only(&only(&response.topics)?.partitions)?;
        let got = (found.error_code, found.offset);
        play.expect(&format!("v{version} {asked}"), got, (code, offset));
    }
    Ok(())
}

pub(super) async fn r09(play: &mut Play) -> Result<()> {
    play.create(2, &[]).await?;
    for (sequence, late) in [(0, 0), (1, 1000), (2, 500)] {
        let mut spec = P(7, 0, sequence, 1).spec();
        spec.timestamp_ms += late;
        play.produce(spec.build(), 0, sequence.into()).await?;
    }
    for (version, asked, code, offset) in [
        (6, -3, 35, -1),
        (10, -9, 35, -1),
        (7, -3, 0, 1),
        (7, stamp() + 1, 0, 1),
        (7, stamp() + 1001, 0, -1),
    ] {
        let request = list(&play.topic(), &[(0, asked)], -1);
        let response = play.call(&request, version).await?;
        let found = only(&only(&response.topics)?.partitions)?;
        let got = (found.error_code, found.offset);
        play.expect(&format!("v{version} {asked}"), got, (code, offset));
    }
    let request = list(&play.topic(), &[(0, -1), (1, -1), (0, -2)], -1);
    let response = play.ask(&request, 7).await?;
    let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
    let mut codes: Vec<(i32, i16)> = partitions
        .map(|one| (one.partition_index, one.error_code))
        .collect();
    // How often a partition that is there twice is answered is nobody's business.
    codes.sort_unstable();
    codes.dedup();
    play.record("ListOffsets", &codes);
    play.expect("twice", codes, vec![(0, 42), (1, 0)]);
    Ok(())
}

pub(super) async fn r10(play: &mut Play) -> Result<()> {
    ten(play).await?;
    let request = admin::delete_records(&play.topic(), 3);
    play.ask(&request, 2).await?;
    for (offset, code) in [(11, 1), (2, 1), (-1, 1), (10, 0), (3, 0)] {
        let request = fetch(&play.topic(), &[(0, offset)]).with_max_wait_ms(50);
        let response = play.call(&request, VERSION).await?;
        let answer = only(&only(&response.responses)?.partitions)?;
        play.expect(&format!("from {offset}"), answer.error_code, code);
    }
    Ok(())
}

pub(super) async fn r13(play: &mut Play) -> Result<()> {
    play.create(2, &[]).await?;
    let mut spec = P(-1, -1, -1, 0).spec();
    spec.records = vec![Record::value(vec![b'x'; 1_000_000])];
    let batch = spec.build();
    let topic = play.topic();
    for partition in [0, 1] {
        let request = ops::produce_request(&topic, partition, batch.clone());
        play.call(&request, 9).await?;
    }
    let mut request = fetch(&topic, &[(0, 0), (1, 0)]);
    for partition in &mut request.topics[0].partitions {
        partition.partition_max_bytes = 1024;
    }
    let response = play.call(&request, VERSION).await?;
    let partitions = response
        .responses
        .iter()
        .flat_map(|topic| &topic.partitions);
    let lengths: Vec<usize> = partitions
        .map(|one| one.records.as_ref().map_or(0, Bytes::len))
        .collect();
    play.expect("bytes", lengths, vec![batch.len(), 0]);
    Ok(())
}

/// A code and leader epoch of two requests that claim to know `epoch`.
async fn claimed(play: &mut Play, epoch: i32, code: i16) -> Result<()> {
    let topic = play.topic();
    let mut request = fetch(&topic, &[(0, 0)]);
    request.topics[0].partitions[0].current_leader_epoch = epoch;
    let fetched = play.ask(&request, VERSION).await?;
    let fetched = only(&only(&fetched.responses)?.partitions)?.error_code;
    let listed = play.ask(&list(&topic, &[(0, -1)], epoch), 7).await?;
    let listed = only(&only(&listed.topics)?.partitions)?.error_code;
    play.record("codes", &(fetched, listed));
    play.expect("codes", (fetched, listed), (code, code));
    Ok(())
}

async fn epoch(play: &mut Play) -> Result<i32> {
    let topic = play.topic();
    let metadata = ops::metadata(play.client(), &topic).await?;
    Ok(only(&only(&metadata.topics)?.partitions)?.leader_epoch)
}

/// Remembers the epoch under which the first three records are.
async fn three(play: &mut Play) -> Result<()> {
    play.create(1, &[]).await?;
    play.produce(plain(3), 0, 0).await?;
    let before = epoch(play).await?;
    play.facts.push(before.into());
    Ok(())
}

/// The epochs before and after the kill, with two more records under the latter.
async fn two_more(play: &mut Play) -> Result<(i32, i32)> {
    let before = i32::try_from(*play.facts.first().context("no epoch")?)?;
    let after = epoch(play).await?;
    play.record("the epoch has grown", &(after > before));
    play.produce(plain(2), 0, 3).await?;
    Ok((before, after))
}

pub(super) async fn r15(play: &mut Play) -> Result<()> {
    three(play).await
}

pub(super) async fn r15_after(play: &mut Play) -> Result<()> {
    let (before, after) = two_more(play).await?;
    claimed(play, before, 74).await?;
    claimed(play, after, 0).await?;
    claimed(play, after + 1, 75).await?;
    claimed(play, -1, 0).await
}

pub(super) async fn r16(play: &mut Play) -> Result<()> {
    three(play).await
}

pub(super) async fn r16_after(play: &mut Play) -> Result<()> {
    let (before, _) = two_more(play).await?;
    let mut request = fetch(&play.topic(), &[(0, 5)]);
    request.topics[0].partitions[0].last_fetched_epoch = before;
    let response = play.ask(&request, VERSION).await?;
    let answer = only(&only(&response.responses)?.partitions)?;
    let diverging = &answer.diverging_epoch;
    let records = answer.records.as_ref().map_or(0, Bytes::len);
    let got = (
        answer.error_code,
        diverging.epoch == before,
        diverging.end_offset,
        records,
    );
    play.record("Fetch", &got);
    play.expect("diverging", got, (0, true, 3, 0));
    Ok(())
}

pub(super) async fn r21(play: &mut Play) -> Result<()> {
    three(play).await
}

pub(super) async fn r21_after(play: &mut Play) -> Result<()> {
    let (before, after) = two_more(play).await?;
    for (what, asked, expected) in [
        ("the new epoch", after, (after, 5)),
        ("the old epoch", before, (before, 3)),
        ("a later epoch", after + 5, (-1, -1)),
    ] {
        let partition = OffsetForLeaderPartition::default()
            .with_partition(0)
            .with_current_leader_epoch(-1)
            .with_leader_epoch(asked);
        let topic = OffsetForLeaderTopic::default()
            .with_topic(ops::topic_name(&play.topic()))
            .with_partitions(vec![partition]);
        let request = OffsetForLeaderEpochRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_topics(vec![topic]);
        let response = play.ask(&request, 4).await?;
        let found = only(&only(&response.topics)?.partitions)?;
        let got = (found.leader_epoch, found.end_offset);
        play.record(what, &(found.error_code, got == expected, got.1));
        play.expect(what, (found.error_code, got), (0, expected));
    }
    Ok(())
}

pub(super) async fn r18(play: &mut Play) -> Result<()> {
    play.create(2, &[]).await?;
    let topic = play.topic();
    let opened = fetch(&topic, &[(0, 0), (1, 0)]).with_session_epoch(0);
    let opened = play.call(&opened, VERSION).await?;
    let next = |epoch: i32, wanted: &[(i32, i64)]| {
        let mut request = fetch(&topic, wanted);
        if wanted.is_empty() {
            request.topics.clear();
        }
        request
            .with_session_id(opened.session_id)
            .with_session_epoch(epoch)
    };
    let count = |response: &kafka_protocol::messages::FetchResponse| {
        let topics = response.responses.iter();
        topics.map(|topic| topic.partitions.len()).sum::<usize>()
    };
    let quiet = play.call(&next(1, &[]), VERSION).await?;
    play.expect("nothing new", (quiet.error_code, count(&quiet)), (0, 0));
    play.produce(plain(1), 0, 0).await?;
    // Read to the new end before the session asks: only the high watermark is news.
    let moved = play.call(&next(2, &[(0, 1)]), VERSION).await?;
    play.expect("a watermark", (moved.error_code, count(&moved)), (0, 1));
    let wrong = play.call(&next(9, &[]), VERSION).await?;
    play.expect("a wrong epoch", wrong.error_code, 71);
    let closed = play.call(&next(-1, &[(0, 1)]), VERSION).await?;
    play.expect("closed", (closed.error_code, closed.session_id), (0, 0));
    let gone = play.call(&next(3, &[]), VERSION).await?;
    play.expect("gone", gone.error_code, 70);
    Ok(())
}

pub(super) async fn r19(play: &mut Play) -> Result<()> {
    play.create(1, &[]).await?;
    let request = fetch(&play.topic(), &[(0, 0)]).with_session_epoch(0);
    let response = play.call(&request, VERSION).await?;
    play.expect(
        "no session",
        (response.error_code, response.session_id),
        (0, 0),
    );
    Ok(())
}
