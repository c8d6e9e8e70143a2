//! A member, and the members of a group with what is counted over them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::{Join, MemberId, Protocol, Token};

/// A member.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) id: MemberId,
    pub(super) instance_id: Option<Arc<str>>,
    pub(super) client_id: Arc<str>,
    pub(super) client_host: Arc<str>,
    pub(super) session_timeout_ms: u32,
    pub(super) rebalance_timeout_ms: u32,
    /// It was never told its id: it cannot send heartbeats yet.
    pub(super) is_new: bool,
    pub(super) parked_sync: Option<Token>,
    /// A static member that was given another id than it had.
    pub(super) is_renamed: bool,
    assignment: Bytes,
    parked_join: Option<Token>,
    protocols: Vec<Protocol>,
    /// Grows with every member that joins: leaders are chosen by seniority.
    order: u64,
}

impl Member {
    pub(super) fn new(id: MemberId, join: &Join) -> Self {
        Self {
            id,
            instance_id: join.instance_id.clone(),
            client_id: Arc::clone(&join.client_id),
            client_host: Arc::clone(&join.client_host),
            session_timeout_ms: join.session_timeout_ms,
            rebalance_timeout_ms: join.rebalance_timeout_ms,
            assignment: Bytes::new(),
            is_new: true,
            parked_sync: None,
            is_renamed: false,
            parked_join: None,
            protocols: join.protocols.clone(),
            order: 0,
        }
    }

    /// What a member takes in memory by what it says, bytes, about.
    pub(super) fn bytes_of(join: &Join) -> usize {
        let said = Self::said(
            join.instance_id.as_ref(),
            &join.client_id,
            &join.client_host,
        );
        said + bytes_of_protocols(&join.protocols)
    }

    /// The same of the member as it is.
    pub(super) fn joined_bytes(&self) -> usize {
        let instance_id = self.instance_id.as_ref();
        let said = Self::said(instance_id, &self.client_id, &self.client_host);
        said + bytes_of_protocols(&self.protocols)
    }

    fn said(instance_id: Option<&Arc<str>>, client_id: &str, client_host: &str) -> usize {
        let instance = instance_id.map_or(0, |id| id.len());
        // Its id begins with one of the two.
        MEMBER + 2 * (instance + client_id.len()) + client_host.len()
    }

    pub(super) fn assignment(&self) -> &Bytes {
        &self.assignment
    }

    pub(super) fn waits_in_join(&self) -> bool {
        self.parked_join.is_some()
    }

    pub(super) fn matches(&self, protocols: &[Protocol]) -> bool {
        self.protocols == protocols
    }

    /// Its metadata for a protocol; empty where it does not have it.
    pub(super) fn metadata(&self, protocol: Option<&str>) -> Bytes {
        let found = self.protocols.iter().find(|p| Some(&*p.name) == protocol);
        found.map(|p| p.metadata.clone()).unwrap_or_default()
    }

    /// A member that is parked keeps its session without heartbeats, unless it is new: its client
    /// may be gone without a trace.
    pub(super) fn has_satisfied_heartbeat(&self) -> bool {
        !self.is_new && (self.parked_join.is_some() || self.parked_sync.is_some())
    }
}

/// Bytes of a member besides its texts and blobs.
const MEMBER: usize = 1024;
/// Bytes of a protocol besides its name and metadata.
const PROTOCOL: usize = 256;

fn bytes_of_protocols(protocols: &[Protocol]) -> usize {
    let one = |protocol: &Protocol| PROTOCOL + protocol.name.len() + protocol.metadata.len();
    protocols.iter().map(one).sum()
}

/// The members of a group.
#[derive(Debug, Clone, Default)]
pub(super) struct Members {
    by_id: BTreeMap<MemberId, Member>,
    by_instance: BTreeMap<Arc<str>, MemberId>,
    /// How many members support a protocol; never 0.
    supported: BTreeMap<Arc<str>, usize>,
    parked_join: usize,
    next_order: u64,
    /// What they take in memory by what they say.
    joined_bytes: usize,
    /// What their assignments take.
    assigned_bytes: usize,
}

impl Members {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn parked_join(&self) -> usize {
        self.parked_join
    }

    /// What they take in memory, about.
    pub(super) fn bytes(&self) -> usize {
        self.joined_bytes + self.assigned_bytes
    }

    /// What their assignments take of it.
    pub(super) fn assigned_bytes(&self) -> usize {
        self.assigned_bytes
    }

    /// Gives a member its assignment.
    pub(super) fn assign(&mut self, id: &str, assignment: Bytes) {
        if let Some(member) = self.by_id.get_mut(id) {
            self.assigned_bytes += assignment.len();
            self.assigned_bytes -= member.assignment.len();
            member.assignment = assignment;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Member> {
        self.by_id.values()
    }

    pub(super) fn ids(&self) -> Vec<MemberId> {
        self.by_id.keys().cloned().collect()
    }

    pub(super) fn get(&self, id: &str) -> Option<&Member> {
        self.by_id.get(id)
    }

    /// For everything but what is counted.
    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut Member> {
        self.by_id.get_mut(id)
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.by_id.contains_key(id)
    }

    /// The member that has a group instance id.
    pub(super) fn by_instance(&self, instance_id: &str) -> Option<&MemberId> {
        self.by_instance.get(instance_id)
    }

    /// The member that joined first, among those that `wanted` accepts.
    pub(super) fn senior(&self, wanted: impl Fn(&Member) -> bool) -> Option<&MemberId> {
        let members = self.by_id.values().filter(|member| wanted(member));
        members.min_by_key(|member| member.order).map(|m| &m.id)
    }

    pub(super) fn insert(&mut self, mut member: Member) {
        if let Some(instance) = &member.instance_id {
            self.by_instance
                .insert(Arc::clone(instance), member.id.clone());
        }
        member.order = self.next_order;
        self.next_order += 1;
        self.count(&member.protocols, true);
        self.joined_bytes += member.joined_bytes();
        self.assigned_bytes += member.assignment.len();
        self.parked_join += usize::from(member.waits_in_join());
        self.by_id.insert(member.id.clone(), member);
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<Member> {
        let member = self.by_id.remove(id)?;
        self.count(&member.protocols, false);
        self.joined_bytes -= member.joined_bytes();
        self.assigned_bytes -= member.assignment.len();
        self.parked_join -= usize::from(member.waits_in_join());
        if let Some(instance) = &member.instance_id {
            self.by_instance.remove(instance);
        }
        Some(member)
    }

    /// Puts `new` in the place of a static member, with its seniority.
    pub(super) fn rename(&mut self, old: &str, new: &MemberId) {
        if let Some(mut member) = self.by_id.remove(old) {
            member.id = new.clone();
            member.is_renamed = true;
            if let Some(instance) = &member.instance_id {
                self.by_instance.insert(Arc::clone(instance), new.clone());
            }
            self.by_id.insert(new.clone(), member);
        }
    }

    /// Takes over what a JoinGroup says.
    pub(super) fn update(&mut self, id: &str, join: &Join) {
        let Some(member) = self.by_id.get_mut(id) else {
            return;
        };
        member.session_timeout_ms = join.session_timeout_ms;
        member.rebalance_timeout_ms = join.rebalance_timeout_ms;
        let old = std::mem::replace(&mut member.protocols, join.protocols.clone());
        self.joined_bytes += bytes_of_protocols(&join.protocols);
        self.joined_bytes -= bytes_of_protocols(&old);
        self.count(&old, false);
        self.count(&join.protocols, true);
    }

    /// Sets or takes the JoinGroup that a member waits in; the one it waited in before.
    pub(super) fn set_parked_join(&mut self, id: &str, token: Option<Token>) -> Option<Token> {
        let member = self.by_id.get_mut(id)?;
        self.parked_join -= usize::from(member.waits_in_join());
        let old = std::mem::replace(&mut member.parked_join, token);
        self.parked_join += usize::from(member.waits_in_join());
        old
    }

    fn count(&mut self, protocols: &[Protocol], more: bool) {
        for protocol in protocols {
            let count = self.supported.entry(Arc::clone(&protocol.name));
            let count = count.or_default();
            if more {
                *count += 1;
            } else {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.supported.remove(&protocol.name);
                }
            }
        }
    }

    /// Whether every member supports one of `protocols`.
    pub(super) fn support_any(&self, protocols: &[Protocol]) -> bool {
        protocols.iter().any(|p| self.support(&p.name))
    }

    fn support(&self, protocol: &str) -> bool {
        self.supported.get(protocol).copied().unwrap_or(0) == self.len()
    }

    /// The protocol that most members prefer among those that all support; where the votes are
    /// even, the one that `leader` prefers.
    pub(super) fn elect_protocol(&self, leader: Option<&MemberId>) -> Option<Arc<str>> {
        let mut votes: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
        for member in self.by_id.values() {
            let vote = member.protocols.iter().find(|p| self.support(&p.name))?;
            *votes.entry(&vote.name).or_default() += 1;
        }
        let most = votes.values().copied().max()?;
        let winners: BTreeSet<&Arc<str>> = votes
            .iter()
            .filter(|(_, votes)| **votes == most)
            .map(|(name, _)| *name)
            .collect();
        let leader = leader.and_then(|id| self.by_id.get(id));
        let preferred = leader.and_then(|leader| {
            let mut names = leader.protocols.iter().map(|p| &p.name);
            names.find(|name| winners.contains(name))
        });
        preferred.or(winners.first().copied()).cloned()
    }

    /// How long a rebalance waits: as long as the most patient member.
    pub(super) fn rebalance_timeout_ms(&self) -> u32 {
        let timeouts = self
            .by_id
            .values()
            .map(|member| member.rebalance_timeout_ms);
        timeouts.max().unwrap_or(0)
    }
}
