//! A group on a stage: what tests do with it, and the time.

use bytes::Bytes;

use super::*;

/// A group with its clock and everything that it answered.
#[derive(Debug, Clone)]
pub(super) struct Scene {
    pub(super) group: ClassicGroup,
    pub(super) config: ClassicConfig,
    pub(super) now: Now,
    ids: u64,
}

impl Scene {
    pub(super) fn new() -> Self {
        let now = Now {
            mono_ms: 1_000,
            wall_ms: 1_790_000_000_000,
        };
        Self {
            group: ClassicGroup::new(now),
            config: ClassicConfig::default(),
            now,
            ids: 0,
        }
    }

    /// Lets time pass without anyone being called.
    pub(super) fn wait(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        self.now.wall_ms += i64::try_from(ms).unwrap();
    }

    /// Lets time pass, and calls the group at each of its deadlines.
    pub(super) fn pass(&mut self, ms: u64) -> Effects {
        let end = self.now.mono_ms + ms;
        let mut all = Effects::default();
        while let Some(at) = self.group.next_deadline().filter(|at| *at <= end) {
            self.wait(at.saturating_sub(self.now.mono_ms));
            let effects = self.group.on_deadline(&self.config, self.now);
            all.answers.extend(effects.answers);
            all.facts.extend(effects.facts);
        }
        self.wait(end - self.now.mono_ms);
        all
    }

    pub(super) fn join(&mut self, join: Join) -> (Staged<JoinReply>, Effects) {
        let ids = &mut self.ids;
        let mut unique = || {
            *ids += 1;
            ids.to_string()
        };
        self.group.join(&self.config, join, &mut unique, self.now)
    }

    /// The member id of a join that is refused with one, or that waits as the newest member.
    pub(super) fn join_v2(&mut self, join: Join) -> (Token, Effects) {
        let join = Join {
            requires_member_id: false,
            ..join
        };
        match self.join(join) {
            (Staged::Parked(token), effects) => (token, effects),
            (Staged::Now(reply), _) => panic!("{reply:?}"),
        }
    }

    pub(super) fn sync(
        &mut self,
        member: &str,
        generation: i32,
        assignments: &[(&str, &'static str)],
    ) -> (Staged<SyncReply>, Effects) {
        let assignments = assignments
            .iter()
            .map(|(member, bytes)| ((*member).into(), Bytes::from_static(bytes.as_bytes())));
        let sync = Sync {
            caller: caller(member, None),
            generation,
            protocol_type: None,
            protocol_name: None,
            assignments: assignments.collect(),
        };
        self.group.sync(&self.config, sync, self.now)
    }

    pub(super) fn heartbeat(&mut self, member: &str, generation: i32) -> Result<(), GroupError> {
        self.group
            .heartbeat(caller(member, None), generation, self.now)
    }

    pub(super) fn leave(&mut self, leaving: &[Leaving]) -> (Vec<Result<(), GroupError>>, Effects) {
        let (outcomes, effects) = self.group.leave(&self.config, leaving, self.now);
        (outcomes.unwrap(), effects)
    }
}

pub(super) fn caller<'a>(member_id: &'a str, instance_id: Option<&'a str>) -> Caller<'a> {
    Caller {
        member_id,
        instance_id,
    }
}

/// A JoinGroup v9 of a consumer of topic `t`, range before roundrobin.
pub(super) fn member(member_id: &str) -> Join {
    Join {
        member_id: member_id.into(),
        instance_id: None,
        client_id: "c".into(),
        client_host: "/127.0.0.1".into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: "consumer".into(),
        protocols: protocols(&["range", "roundrobin"]),
        requires_member_id: true,
        supports_skip_assignment: true,
        reason: None,
    }
}

/// The same of a static member.
pub(super) fn fixed(member_id: &str, instance_id: &str) -> Join {
    Join {
        instance_id: Some(instance_id.into()),
        ..member(member_id)
    }
}

pub(super) fn protocols(names: &[&str]) -> Vec<Protocol> {
    let metadata = Bytes::from_static(b"\0\0\0\0\0\x01\0\x01t\0\0\0\0");
    let protocols = names.iter().map(|name| Protocol {
        name: (*name).into(),
        metadata: metadata.clone(),
    });
    protocols.collect()
}

pub(super) fn leaving(member_id: &str, instance_id: Option<&str>) -> Leaving {
    Leaving {
        member_id: member_id.into(),
        instance_id: instance_id.map(Into::into),
        reason: None,
    }
}
