//! Consumer groups: clients that commit offsets, look at them, and share partitions as members;
//! and the ledger that judges what they are told.
//!
//! Offsets of a key only grow in what is sent, so an answer shows at once whether an acknowledged
//! commit was lost. A commit whose answer never came may take effect at any later time, as a
//! request that hangs in a network does.
//!
//! Who gets a partition in a generation asks where to begin, as consumers do, and never begins
//! below what was accepted of a generation before: also where that is answered later, or is only
//! seen to be committed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{BufMut, Bytes, BytesMut};
use gateway::api::{ApiRequest, ApiResponse};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    DeleteGroupsRequest, GroupId, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse,
    LeaveGroupRequest, OffsetCommitRequest, OffsetFetchRequest, SyncGroupRequest,
};
use kafka_protocol::protocol::StrBytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::clients::{Client, Target};
use super::net::{Connection, Duty};
use crate::raw::ops::topic_name;

/// The group that has members.
pub(crate) const SHARED_GROUP: &str = "shared";
/// Session and rebalance timeout of members, ms.
const SESSION_MS: i32 = 400;
const REBALANCE_MS: i32 = 600;
/// What members share: numbers from 0.
const SHARED: i32 = 6;
/// Codes by which a coordinator says "try again, perhaps elsewhere".
const AGAIN: [i16; 3] = [14, 15, 16];
const REBALANCE_IN_PROGRESS: i16 = 27;
const ILLEGAL_GENERATION: i16 = 22;
const UNKNOWN_MEMBER_ID: i16 = 25;
const GROUP_ID_NOT_FOUND: i16 = 69;
const MEMBER_ID_REQUIRED: i16 = 79;

/// Group, topic, partition.
type Key = (String, String, i32);

/// A generation of the group: the server that it is of, and its number there.
type Generation = (u64, i32);

/// What became of the commits of a key.
#[derive(Debug, Default, Clone)]
struct Fate {
    sent: i64,
    /// The largest that was acknowledged, or seen.
    acked: i64,
    /// Sent and never answered well.
    open: BTreeSet<i64>,
    /// The largest that was sent before the last deletion of the group that was acknowledged.
    gone: i64,
    /// A deletion was sent and not answered well: it may take effect at any later time.
    may_go: bool,
    /// A deletion is under way. Its client may end before it is answered.
    going: bool,
}

#[derive(Debug, Default)]
struct Inner {
    keys: BTreeMap<Key, Fate>,
    /// The newest generation that a server told anybody.
    generations: BTreeMap<(u64, String), i32>,
    /// Who has what in a generation of a server.
    assigned: BTreeMap<(u64, String, i32), BTreeMap<i32, String>>,
    /// The generation in which a commit of a member was sent, by key and offset.
    sent_in: BTreeMap<(Key, i64), Generation>,
    /// The largest offset that was accepted in each generation, as far as anybody knows.
    accepted: BTreeMap<Key, BTreeMap<Generation, i64>>,
    /// The least offset at which each generation began to read.
    begun: BTreeMap<Key, BTreeMap<Generation, i64>>,
    /// Heartbeats that were answered well, by member.
    stable: BTreeMap<u32, u64>,
    begins: u64,
    commits: u64,
    looks: u64,
    deletions: u64,
}

impl Inner {
    /// It shows that a commit was accepted. What is wrong with that.
    fn accept(&mut self, key: &Key, offset: i64) -> Result<(), String> {
        let Some(of) = self.sent_in.get(&(key.clone(), offset)).copied() else {
            return Ok(());
        };
        let largest = self.accepted.entry(key.clone()).or_default();
        let largest = largest.entry(of).or_default();
        *largest = offset.max(*largest);
        let Some(begun) = self.begun.get(key) else {
            return Ok(());
        };
        let mut later = begun.range((Bound::Excluded(of), Bound::Unbounded));
        match later.find(|(_, at)| **at < offset) {
            Some((by, at)) => Err(below(key, (*by, *at), (of, offset))),
            None => Ok(()),
        }
    }

    /// A generation begins to read. What is wrong with that.
    fn begin(&mut self, key: &Key, by: Generation, at: i64) -> Result<(), String> {
        self.begins += 1;
        let least = self.begun.entry(key.clone()).or_default();
        let least = least.entry(by).or_insert(at);
        *least = at.min(*least);
        let Some(accepted) = self.accepted.get(key) else {
            return Ok(());
        };
        match accepted.range(..by).find(|(_, offset)| **offset > at) {
            Some((of, offset)) => Err(below(key, (by, at), (*of, *offset))),
            None => Ok(()),
        }
    }
}

fn below(key: &Key, (by, at): (Generation, i64), (of, offset): (Generation, i64)) -> String {
    format!("{key:?}: {by:?} began at {at}, though {of:?} had {offset} accepted")
}

/// What groups were told.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Inner>);

impl Ledger {
    /// Heartbeats that were answered well, by member.
    pub(crate) fn stable(&self) -> BTreeMap<u32, u64> {
        self.0.lock().stable.clone()
    }

    /// What was done, in numbers.
    pub(crate) fn summary(&self) -> String {
        let inner = self.0.lock();
        let generations = inner.assigned.len();
        let (commits, looks, deletions) = (inner.commits, inner.looks, inner.deletions);
        let begins = inner.begins;
        format!(
            "{commits} offsets committed, {looks} looked at, {generations} generations, {begins} \
             partitions begun, {deletions} groups deleted"
        )
    }

    /// The next offset of a key; `of` the generation that it is committed in, if it is in any.
    fn next(&self, key: &Key, of: Generation) -> i64 {
        let mut inner = self.0.lock();
        let fate = inner.keys.entry(key.clone()).or_default();
        fate.sent += 1;
        let offset = fate.sent;
        fate.open.insert(offset);
        if of.1 >= 0 {
            inner.sent_in.insert((key.clone(), offset), of);
        }
        offset
    }

    fn acked(&self, client: &Client, key: &Key, offset: i64) {
        let mut inner = self.0.lock();
        inner.commits += 1;
        let fate = inner.keys.entry(key.clone()).or_default();
        fate.open.remove(&offset);
        fate.acked = fate.acked.max(offset);
        let accepted = inner.accept(key, offset);
        drop(inner);
        judge(client, accepted);
    }

    /// A member begins to read a partition; `looked` is from before it asked where.
    fn begins(&self, client: &Client, key: &Key, by: Generation, looked: &(Fate, i64)) {
        let (before, at) = (&looked.0, looked.1.max(0));
        let mut inner = self.0.lock();
        let now = inner.keys.entry(key.clone()).or_default();
        if before.open.contains(&at) || now.open.contains(&at) {
            // One that was never answered may have passed those that were sent behind it.
            return;
        }
        let begun = inner.begin(key, by, at);
        drop(inner);
        judge(client, begun);
    }

    /// What is known of a key before it is looked at.
    fn before(&self, key: &Key) -> Fate {
        self.0.lock().keys.get(key).cloned().unwrap_or_default()
    }

    /// Judges an offset that was seen; `before` is from before it was asked for.
    fn seen(&self, client: &Client, key: &Key, before: &Fate, offset: i64) {
        let mut inner = self.0.lock();
        inner.looks += 1;
        let fate = inner.keys.entry(key.clone()).or_default();
        // None is -1, and before the first commit.
        let offset = offset.max(0);
        let late = before.open.contains(&offset) || fate.open.contains(&offset);
        let lost = offset < before.acked && !before.may_go && !before.going;
        let back = (1..=before.gone).contains(&offset);
        if offset > fate.sent || ((lost || back) && !late) {
            let what = format!("{key:?}: {offset} is committed, of {before:?}");
            drop(inner);
            client.history.violation(&what);
            return;
        }
        if !late {
            fate.acked = fate.acked.max(offset);
        }
        let accepted = inner.accept(key, offset);
        drop(inner);
        judge(client, accepted);
    }

    /// Whether the only client that commits for a group is deleting it.
    fn deleting(&self, group: &str, going: bool) {
        let mut inner = self.0.lock();
        for (_, fate) in inner.keys.iter_mut().filter(|(key, _)| key.0 == group) {
            fate.going = going;
        }
    }

    /// A group was deleted by the only client that commits for it, or may have been.
    fn deleted(&self, group: &str, certainly: bool) {
        let mut inner = self.0.lock();
        inner.deletions += u64::from(certainly);
        for (_, fate) in inner.keys.iter_mut().filter(|(key, _)| key.0 == group) {
            if certainly {
                fate.acked = 0;
                fate.gone = fate.sent;
            } else {
                fate.may_go = true;
            }
        }
    }

    fn generation(&self, server: u64, group: &str) -> i32 {
        let generations = &self.0.lock().generations;
        let known = generations.get(&(server, group.to_owned()));
        known.copied().unwrap_or(-1)
    }

    fn joined(&self, client: &Client, server: u64, group: &str, joined: &JoinGroupResponse) {
        let mut inner = self.0.lock();
        let newest = inner.generations.entry((server, group.to_owned()));
        let newest = newest.or_insert(-1);
        *newest = (*newest).max(joined.generation_id);
        drop(inner);
        let ids: BTreeSet<_> = joined.members.iter().map(|m| &m.member_id).collect();
        if ids.len() < joined.members.len() {
            client.history.violation("two members have one id");
        }
    }

    fn assigned(&self, client: &Client, server: u64, group: &str, member: &Membership, to: &[i32]) {
        let place = (server, group.to_owned(), member.generation);
        let mut inner = self.0.lock();
        let owners = inner.assigned.entry(place.clone()).or_default();
        for partition in to {
            let owner = owners
                .entry(*partition)
                .or_insert_with(|| member.id.to_string());
            if *owner != member.id.as_str() {
                let what = format!(
                    "{place:?}: {partition} belongs to {owner} and {}",
                    member.id
                );
                drop(inner);
                client.history.violation(&what);
                return;
            }
        }
    }

    fn heartbeat(&self, number: u32) {
        *self.0.lock().stable.entry(number).or_default() += 1;
    }
}

fn judge(client: &Client, outcome: Result<(), String>) {
    if let Err(what) = outcome {
        client.history.violation(&what);
    }
}

fn text(value: &str) -> StrBytes {
    StrBytes::from_string(value.to_owned())
}

fn group_id(group: &str) -> GroupId {
    GroupId(text(group))
}

/// Who a member is to its coordinator.
#[derive(Debug, Clone, Default)]
struct Membership {
    id: StrBytes,
    generation: i32,
    /// The generation of the last commit that it did not wait for, and who waits.
    behind: Option<(Generation, Arc<AtomicBool>)>,
}

impl Membership {
    /// The coordinator does not know it any more.
    fn forget(&mut self) {
        self.id = StrBytes::default();
        self.generation = 0;
    }

    /// Whether a commit that was sent in this generation may still be on its way: the next one
    /// could pass it on another connection.
    fn is_behind(&self, of: Generation) -> bool {
        let behind = self.behind.as_ref();
        behind.is_some_and(|(sent, heard)| *sent == of && !heard.load(Ordering::Relaxed))
    }
}

/// A commit on its way.
struct Sent {
    key: Key,
    offset: i64,
    of: Generation,
    /// There was a newer generation already.
    stale: bool,
    answer: oneshot::Receiver<ApiResponse>,
}

/// Commits one offset and takes note of the answer; `None` when the connection broke.
async fn commit(
    client: &Client,
    ledger: &Ledger,
    connection: &Connection,
    key: &Key,
    member: &Membership,
) -> Option<i16> {
    let sent = send_commit(ledger, connection, key, member).await?;
    heard_commit(client, ledger, sent).await
}

async fn send_commit(
    ledger: &Ledger,
    connection: &Connection,
    key: &Key,
    member: &Membership,
) -> Option<Sent> {
    let (group, topic, partition) = key;
    let of = (connection.server, member.generation);
    let stale = of.1 >= 0 && of.1 < ledger.generation(of.0, group);
    let offset = ledger.next(key, of);
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(*partition)
        .with_committed_offset(offset)
        .with_committed_leader_epoch(-1)
        .with_committed_metadata(Some(text("")));
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(group_id(group))
        .with_member_id(member.id.clone())
        .with_generation_id_or_member_epoch(member.generation)
        .with_retention_time_ms(-1)
        .with_topics(vec![topic]);
    let request = ApiRequest::OffsetCommit(Box::new(request));
    let answer = connection.send(request, 8, Vec::new()).await.ok()?;
    Some(Sent {
        key: key.clone(),
        offset,
        of,
        stale,
        answer,
    })
}

async fn heard_commit(client: &Client, ledger: &Ledger, sent: Sent) -> Option<i16> {
    let Sent {
        key, offset, of, ..
    } = sent;
    let ApiResponse::OffsetCommit(answer) = client.answer(sent.answer).await? else {
        client.history.violation("another answer to OffsetCommit");
        return None;
    };
    let code = answer.topics.first()?.partitions.first()?.error_code;
    client
        .world
        .note(&format!("commit {key:?} {offset}: {code} of {of:?}"));
    match code {
        0 if sent.stale => {
            let what = format!("{key:?}: a commit of an old generation was taken");
            client.history.violation(&what);
        }
        0 => ledger.acked(client, &key, offset),
        UNKNOWN_MEMBER_ID | ILLEGAL_GENERATION | REBALANCE_IN_PROGRESS if of.1 >= 0 => {}
        code if AGAIN.contains(&code) => {}
        code => {
            let what = format!("OffsetCommit {key:?} was answered with {code}");
            client.history.violation(&what);
        }
    }
    Some(code)
}

/// Looks at a committed offset, and what was known of the key before; `None` when the connection
/// broke, or nothing can be said now.
async fn look(
    client: &Client,
    ledger: &Ledger,
    connection: &Connection,
    key: &Key,
) -> Option<(Fate, i64)> {
    let (group, topic, partition) = key;
    let before = ledger.before(key);
    let asked = OffsetFetchRequestTopic::default()
        .with_name(topic_name(topic))
        .with_partition_indexes(vec![*partition]);
    let request = OffsetFetchRequest::default()
        .with_group_id(group_id(group))
        .with_topics(Some(vec![asked]))
        .with_require_stable(client.world.chance(50));
    let request = ApiRequest::OffsetFetch(Box::new(request));
    // An instance that was taken over may answer from what it remembers, as Kafka's does.
    let duty = Duty::Group(group.clone());
    let newest = || client.net.answers_for(connection.server, &duty);
    let trusted = newest();
    let ApiResponse::OffsetFetch(answer) = client.ask(connection, request, 7).await? else {
        client.history.violation("another answer to OffsetFetch");
        return None;
    };
    let found = answer.topics.first().and_then(|t| t.partitions.first());
    let code = match found {
        Some(found) if answer.error_code == 0 => found.error_code,
        _ => answer.error_code,
    };
    match (code, found) {
        (0, Some(found)) => {
            if trusted && newest() {
                ledger.seen(client, key, &before, found.committed_offset);
            }
            Some((before, found.committed_offset))
        }
        (code, _) if AGAIN.contains(&code) => None,
        (code, _) => {
            let what = format!("OffsetFetch {key:?} was answered with {code}");
            client.history.violation(&what);
            None
        }
    }
}

/// Deletes a group, if it is there; false when the connection is of no more use.
async fn delete(client: &Client, ledger: &Ledger, connection: &Connection, group: &str) -> bool {
    let request = DeleteGroupsRequest::default().with_groups_names(vec![group_id(group)]);
    let request = ApiRequest::DeleteGroups(Box::new(request));
    ledger.deleting(group, true);
    let answer = client.ask(connection, request, 2).await;
    ledger.deleting(group, false);
    let Some(ApiResponse::DeleteGroups(answer)) = answer else {
        ledger.deleted(group, false);
        return false;
    };
    let code = answer
        .results
        .first()
        .map_or(-1, |result| result.error_code);
    client.world.note(&format!("delete {group}: {code}"));
    match code {
        0 => ledger.deleted(group, true),
        GROUP_ID_NOT_FOUND => {}
        code if AGAIN.contains(&code) => ledger.deleted(group, false),
        code => {
            let what = format!("DeleteGroups {group} was answered with {code}");
            client.history.violation(&what);
        }
    }
    code != 16
}

/// The name of a group without members.
pub(crate) fn simple(number: u32) -> String {
    format!("simple-{number}")
}

/// Commits, looks and sometimes deletes, for a group without members, for ever. Nobody else commits
/// for it.
pub(crate) async fn committer(client: Client, ledger: Arc<Ledger>, group: String, on: Target) {
    let simple = Membership {
        generation: -1,
        ..Membership::default()
    };
    loop {
        let connection = client.connect().await;
        loop {
            let partition = client
                .world
                .index(usize::try_from(on.partitions).unwrap_or(1));
            let partition = i32::try_from(partition).unwrap_or(0);
            let key = (group.clone(), on.name.clone(), partition);
            let well = if client.world.chance(2) {
                delete(&client, &ledger, &connection, &group).await
            } else if client.world.chance(70) {
                let done = commit(&client, &ledger, &connection, &key, &simple).await;
                done.is_some_and(|code| code != 16)
            } else {
                look(&client, &ledger, &connection, &key).await.is_some()
            };
            if !well {
                break;
            }
            client.pause(0, 10).await;
        }
        client.pause(1, 20).await;
    }
}

/// What a member knows of its group.
#[derive(Clone)]
pub(crate) struct Share {
    pub(crate) client: Client,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) group: String,
    /// The topic on which it commits.
    pub(crate) on: Target,
    /// Its number in the run.
    pub(crate) number: u32,
}

/// A member of a group, for ever: joins, works, pauses for too long, leaves, comes back.
pub(crate) async fn member(share: Share) {
    let mut member = Membership::default();
    loop {
        let connection = share.client.connect().await;
        while round(&share, &connection, &mut member).await.is_some() {
            share.client.pause(0, 20).await;
        }
        share.client.pause(1, 20).await;
    }
}

/// One membership from its join to its end; `None` when the connection is of no more use.
async fn round(share: &Share, connection: &Connection, member: &mut Membership) -> Option<()> {
    let Share {
        client,
        ledger,
        group,
        ..
    } = share;
    let joined = join(client, connection, group, member).await?;
    let Some(joined) = joined else {
        return Some(());
    };
    let server = connection.server;
    ledger.joined(client, server, group, &joined);
    let partitions = sync(client, connection, group, member, &joined).await?;
    let Some(partitions) = partitions else {
        return Some(());
    };
    ledger.assigned(client, server, group, member, &partitions);
    let of = (server, member.generation);
    for partition in partitions.iter().filter(|n| **n < share.on.partitions) {
        let key = (group.to_owned(), share.on.name.clone(), *partition);
        let looked = look(client, ledger, connection, &key).await?;
        ledger.begins(client, &key, of, &looked);
    }
    for _ in 0..=client.world.below(20) {
        client.pause(5, 60).await;
        let of_topic = partitions.iter().find(|n| **n < share.on.partitions);
        if let Some(partition) = of_topic
            && client.world.chance(50)
            && !member.is_behind(of)
        {
            let key = (group.to_owned(), share.on.name.clone(), *partition);
            if client.world.chance(50) {
                commit(client, ledger, connection, &key, member).await?;
            } else {
                commit_behind(share, connection, &key, member).await?;
                if !client.net.is_calm() && client.world.chance(30) {
                    // It comes back on another connection.
                    return None;
                }
            }
        }
        if !client.net.is_calm() && client.world.chance(3) {
            // Longer than its session.
            client.pause(300, 900).await;
        }
        let request = HeartbeatRequest::default()
            .with_group_id(group_id(group))
            .with_generation_id(member.generation)
            .with_member_id(member.id.clone());
        let request = ApiRequest::Heartbeat(Box::new(request));
        let ApiResponse::Heartbeat(answer) = client.ask(connection, request, 4).await? else {
            client.history.violation("another answer to Heartbeat");
            return None;
        };
        match answer.error_code {
            0 => ledger.heartbeat(share.number),
            REBALANCE_IN_PROGRESS | ILLEGAL_GENERATION => return Some(()),
            UNKNOWN_MEMBER_ID => {
                member.forget();
                return Some(());
            }
            code if AGAIN.contains(&code) => return None,
            code => {
                let what = format!("Heartbeat was answered with {code}");
                client.history.violation(&what);
                return None;
            }
        }
    }
    if !client.net.is_calm() && client.world.chance(30) {
        leave(client, connection, group, member).await?;
    }
    Some(())
}

/// Commits as consumers do that go on: somebody else hears the answer.
async fn commit_behind(
    share: &Share,
    connection: &Connection,
    key: &Key,
    member: &mut Membership,
) -> Option<()> {
    let (client, ledger) = (share.client.clone(), share.ledger.clone());
    let sent = send_commit(&ledger, connection, key, member).await?;
    let heard = Arc::<AtomicBool>::default();
    member.behind = Some((sent.of, heard.clone()));
    let runtime = client.env.runtime.clone();
    let task = async move {
        heard_commit(&client, &ledger, sent).await;
        heard.store(true, Ordering::Relaxed);
    };
    drop(runtime.spawn("commit", Box::pin(task)));
    Some(())
}

/// Joins; the outer `None`: the connection broke; the inner: try again.
async fn join(
    client: &Client,
    connection: &Connection,
    group: &str,
    member: &mut Membership,
) -> Option<Option<JoinGroupResponse>> {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text("shares"))
        .with_metadata(Bytes::from_static(b"\0\0\0\0\0\0\xff\xff\xff\xff"));
    let request = JoinGroupRequest::default()
        .with_group_id(group_id(group))
        .with_session_timeout_ms(SESSION_MS)
        .with_rebalance_timeout_ms(REBALANCE_MS)
        .with_member_id(member.id.clone())
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol]);
    let request = ApiRequest::JoinGroup(Box::new(request));
    let ApiResponse::JoinGroup(answer) = client.ask(connection, request, 9).await? else {
        client.history.violation("another answer to JoinGroup");
        return None;
    };
    match answer.error_code {
        0 => {
            member.id = answer.member_id.clone();
            member.generation = answer.generation_id;
            Some(Some(*answer))
        }
        MEMBER_ID_REQUIRED => {
            member.id = answer.member_id.clone();
            Some(None)
        }
        UNKNOWN_MEMBER_ID => {
            member.forget();
            Some(None)
        }
        REBALANCE_IN_PROGRESS => Some(None),
        code if AGAIN.contains(&code) => None,
        code => {
            let what = format!("JoinGroup was answered with {code}");
            client.history.violation(&what);
            None
        }
    }
}

/// The leader shares out; everybody hears what is theirs. The inner `None`: join again.
async fn sync(
    client: &Client,
    connection: &Connection,
    group: &str,
    member: &mut Membership,
    joined: &JoinGroupResponse,
) -> Option<Option<Vec<i32>>> {
    let members = &joined.members;
    let assignments = members.iter().enumerate().map(|(index, to)| {
        let mut theirs = BytesMut::new();
        let numbers =
            (0..SHARED).filter(|n| usize::try_from(*n).unwrap_or(0) % members.len() == index);
        numbers.for_each(|n| theirs.put_i32(n));
        SyncGroupRequestAssignment::default()
            .with_member_id(to.member_id.clone())
            .with_assignment(theirs.freeze())
    });
    let request = SyncGroupRequest::default()
        .with_group_id(group_id(group))
        .with_generation_id(member.generation)
        .with_member_id(member.id.clone())
        .with_protocol_type(Some(text("consumer")))
        .with_protocol_name(Some(text("shares")))
        .with_assignments(assignments.collect());
    let request = ApiRequest::SyncGroup(Box::new(request));
    let ApiResponse::SyncGroup(answer) = client.ask(connection, request, 5).await? else {
        client.history.violation("another answer to SyncGroup");
        return None;
    };
    match answer.error_code {
        0 => {
            let numbers = answer.assignment.chunks_exact(4);
            let numbers = numbers.filter_map(|n| Some(i32::from_be_bytes(*n.first_chunk()?)));
            Some(Some(numbers.collect()))
        }
        REBALANCE_IN_PROGRESS | ILLEGAL_GENERATION => Some(None),
        UNKNOWN_MEMBER_ID => {
            member.forget();
            Some(None)
        }
        code if AGAIN.contains(&code) => None,
        code => {
            let what = format!("SyncGroup was answered with {code}");
            client.history.violation(&what);
            None
        }
    }
}

async fn leave(
    client: &Client,
    connection: &Connection,
    group: &str,
    member: &mut Membership,
) -> Option<()> {
    let gone = MemberIdentity::default().with_member_id(member.id.clone());
    let request = LeaveGroupRequest::default()
        .with_group_id(group_id(group))
        .with_members(vec![gone]);
    let request = ApiRequest::LeaveGroup(Box::new(request));
    client.ask(connection, request, 5).await?;
    member.forget();
    client.pause(0, 200).await;
    Some(())
}

/// Looks at every key in the end, with no fault left.
pub(crate) async fn check(client: &Client, ledger: &Ledger) -> Result<(), String> {
    let keys: Vec<Key> = ledger.0.lock().keys.keys().cloned().collect();
    let connection = client.connect().await;
    for key in keys {
        let mut tries = 0;
        while look(client, ledger, &connection, &key).await.is_none() {
            if client.history.failed() {
                return Ok(());
            }
            tries += 1;
            if tries > 200 {
                return Err(format!("no answer to OffsetFetch for {key:?}"));
            }
            client.pause(5, 50).await;
        }
    }
    Ok(())
}
