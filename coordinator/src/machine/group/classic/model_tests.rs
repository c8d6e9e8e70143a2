//! Random members, random times: whatever they do, the group keeps what it promises.
//!
//! A seed is printed when its run fails; `GROUP_SEED=n` repeats it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::scene::{Scene, caller, fixed, leaving, member, protocols};
use super::*;

const CLIENTS: usize = 6;
const PARTITIONS: u8 = 8;
const STEPS: usize = 400;
const RUNS: u64 = 150;
/// The longest that a request can wait: a join phase is bounded by the largest rebalance timeout,
/// the first one by a delay more, and an assignment by the rebalance timeout.
const WAIT_MAX_MS: u64 = 70_000;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }
}

/// A process that consumes; it knows what it was told.
#[derive(Debug, Clone, Default)]
struct Client {
    instance: Option<String>,
    member_id: String,
    generation: i32,
    /// The members to assign to, while it leads and has not assigned.
    to_assign: Option<Vec<String>>,
}

/// Who waits, and since when.
#[derive(Debug, Clone, Copy)]
struct Parked {
    client: usize,
    /// Rises when the client starts anew: an answer to its former life is not heard.
    life: u64,
    since_ms: u64,
    join: bool,
}

struct World {
    seed: u64,
    rng: Rng,
    scene: Scene,
    clients: Vec<Client>,
    lives: Vec<u64>,
    parked: BTreeMap<Token, Parked>,
    /// The seat that has a partition in a generation: a static member's seat is its instance.
    owners: BTreeMap<(i32, u8), String>,
    /// Every member id that was given out, to which life of which client.
    ids: BTreeMap<String, (usize, u64)>,
    generation: i32,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("GROUP_SEED={} repeats this run", self.seed);
        }
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let mut scene = Scene::new();
        scene.config.initial_rebalance_delay_ms = [0, 1, 3_000][rng.below(3)];
        scene.config.max_size = [2, 4, 100][rng.below(3)];
        let clients = (0..CLIENTS).map(|n| Client {
            // Two processes may claim one instance id.
            instance: (n < 3).then(|| format!("i{}", n / 2)),
            ..Client::default()
        });
        Self {
            seed,
            rng,
            scene,
            clients: clients.collect(),
            lives: vec![0; CLIENTS],
            parked: BTreeMap::new(),
            owners: BTreeMap::new(),
            ids: BTreeMap::new(),
            generation: 0,
        }
    }

    fn step(&mut self) {
        let n = self.rng.below(CLIENTS);
        match self.rng.below(12) {
            0..=2 => self.join(n),
            3..=5 => self.sync(n),
            6 | 7 => self.heartbeat(n),
            8 => self.leave(n),
            9 => {
                // The process dies: nobody hears what it waits for.
                self.lives[n] += 1;
                let instance = self.clients[n].instance.clone();
                self.clients[n] = Client {
                    instance,
                    ..Client::default()
                };
            }
            _ => {
                let longest = [10, 500, 4_000, 30_000][self.rng.below(4)];
                let ms = u64::try_from(self.rng.below(longest)).unwrap();
                self.pass(ms);
            }
        }
        self.check();
    }

    fn pass(&mut self, ms: u64) {
        let end = self.scene.now.mono_ms + ms;
        // One deadline at a time, so that the age of what waits is looked at in between.
        while let Some(at) = self.scene.group.next_deadline().filter(|at| *at <= end) {
            let wait = at.saturating_sub(self.scene.now.mono_ms);
            self.scene.wait(wait);
            let effects = self
                .scene
                .group
                .on_deadline(&self.scene.config, self.scene.now);
            self.run(effects);
            self.check();
        }
        self.scene.wait(end - self.scene.now.mono_ms);
        self.check();
    }

    fn join(&mut self, n: usize) {
        let client = self.clients[n].clone();
        let names: &[&str] = [
            &["range", "sticky"][..],
            &["sticky", "range"][..],
            &["range"][..],
        ][self.rng.below(3)];
        let shape = match &client.instance {
            Some(instance) => fixed(&client.member_id, instance),
            None => member(&client.member_id),
        };
        let join = Join {
            protocols: protocols(names),
            session_timeout_ms: [6_000, 10_000, 30_000][self.rng.below(3)],
            rebalance_timeout_ms: [0, 5_000, 60_000][self.rng.below(3)],
            requires_member_id: self.rng.below(2) == 0,
            supports_skip_assignment: self.rng.below(2) == 0,
            ..shape
        };
        match self.scene.join(join) {
            (Staged::Now(reply), effects) => {
                self.run(effects);
                self.joined(n, reply);
            }
            (Staged::Parked(token), effects) => {
                self.park(token, n, true);
                self.run(effects);
            }
        }
    }

    fn sync(&mut self, n: usize) {
        let client = self.clients[n].clone();
        let mut assignments = Vec::new();
        if let Some(members) = self.clients[n].to_assign.take() {
            let shares = u8::try_from(members.len()).unwrap().max(1);
            let mut shared: Vec<Vec<u8>> = vec![Vec::new(); members.len()];
            for partition in 0..PARTITIONS {
                shared[usize::from(partition % shares)].push(partition);
            }
            for (member, partitions) in members.iter().zip(shared) {
                assignments.push((member.as_str().into(), Bytes::from(partitions)));
            }
        }
        let sync = Sync {
            caller: caller(&client.member_id, client.instance.as_deref()),
            generation: client.generation,
            protocol_type: Some("consumer"),
            protocol_name: None,
            assignments,
        };
        let scene = &mut self.scene;
        match scene.group.sync(&scene.config, sync, scene.now) {
            (Staged::Now(reply), effects) => {
                self.run(effects);
                self.synced(n, reply);
            }
            (Staged::Parked(token), effects) => {
                self.park(token, n, false);
                self.run(effects);
            }
        }
    }

    fn heartbeat(&mut self, n: usize) {
        let client = &self.clients[n];
        let caller = caller(&client.member_id, client.instance.as_deref());
        let scene = &mut self.scene;
        let beat = scene.group.heartbeat(caller, client.generation, scene.now);
        if beat == Err(GroupError::UnknownMemberId) || beat == Err(GroupError::FencedInstanceId) {
            self.clients[n].member_id.clear();
        }
    }

    fn leave(&mut self, n: usize) {
        let client = &self.clients[n];
        let leaving = match &client.instance {
            // An operator.
            Some(instance) if self.rng.below(2) == 0 => leaving("", Some(instance)),
            instance => leaving(&client.member_id, instance.as_deref()),
        };
        let (_, effects) = self.scene.leave(&[leaving]);
        self.run(effects);
        self.clients[n].member_id.clear();
    }

    fn park(&mut self, token: Token, client: usize, join: bool) {
        let parked = Parked {
            client,
            life: self.lives[client],
            since_ms: self.scene.now.mono_ms,
            join,
        };
        let before = self.parked.insert(token, parked);
        assert!(before.is_none(), "{token:?} twice");
    }

    fn run(&mut self, effects: Effects) {
        for answer in effects.answers {
            let (token, join) = match &answer {
                Answer::Join(token, _) => (*token, true),
                Answer::Sync(token, _) => (*token, false),
            };
            let parked = self.parked.remove(&token);
            let parked = parked.unwrap_or_else(|| panic!("{token:?} does not wait"));
            assert_eq!(parked.join, join, "an answer of the other kind");
            if parked.life != self.lives[parked.client] {
                continue;
            }
            match answer {
                Answer::Join(_, reply) => self.joined(parked.client, reply),
                Answer::Sync(_, reply) => self.synced(parked.client, reply),
            }
        }
    }

    fn joined(&mut self, n: usize, reply: JoinReply) {
        let who = (n, self.lives[n]);
        let client = &mut self.clients[n];
        match reply {
            Ok(joined) => {
                assert_eq!(joined.generation, self.scene.group.generation());
                let id = joined.member_id.to_string();
                let given = *self.ids.entry(id).or_insert(who);
                assert_eq!(given, who, "an id was given twice");
                client.member_id = joined.member_id.to_string();
                client.generation = joined.generation;
                let leads = joined.leader == joined.member_id && !joined.skip_assignment;
                let members = joined.members.iter().map(|m| m.member_id.to_string());
                client.to_assign = leads.then(|| members.collect());
            }
            Err(refused) if refused.error == GroupError::MemberIdRequired => {
                let id = refused.member_id.to_string();
                let before = self.ids.insert(id.clone(), who);
                assert_eq!(before, None, "an id was given twice");
                client.member_id = id;
            }
            Err(refused) => match refused.error {
                GroupError::UnknownMemberId
                | GroupError::FencedInstanceId
                | GroupError::GroupMaxSizeReached => client.member_id.clear(),
                _ => {}
            },
        }
    }

    fn synced(&mut self, n: usize, reply: SyncReply) {
        let client = &self.clients[n];
        let Ok(synced) = reply else {
            return;
        };
        let seat = client.instance.clone();
        let seat = seat.unwrap_or_else(|| client.member_id.clone());
        for partition in synced.assignment {
            let key = (client.generation, partition);
            let owner = self.owners.entry(key).or_insert_with(|| seat.clone());
            assert_eq!(*owner, seat, "{key:?} belongs to two members");
        }
    }

    fn check(&mut self) {
        let group = &self.scene.group;
        assert!(
            group.generation() >= self.generation,
            "a generation went back"
        );
        self.generation = group.generation();
        let described = group.describe();
        let instances: Vec<_> = described
            .members
            .iter()
            .filter_map(|m| m.instance_id.as_ref())
            .collect();
        let distinct: BTreeSet<_> = instances.iter().collect();
        assert_eq!(distinct.len(), instances.len(), "an instance id twice");
        let ids: BTreeSet<_> = described.members.iter().map(|m| &m.member_id).collect();
        assert_eq!(ids.len(), described.members.len(), "a member id twice");
        // Those of a first join phase may be gone before it ends.
        let may_be_empty = matches!(
            group.state(),
            ClassicState::Empty | ClassicState::PreparingRebalance
        );
        assert!(may_be_empty || !described.members.is_empty());
        let empty = group.state() == ClassicState::Empty;
        assert!(!empty || described.members.is_empty());
        if let Some(leader) = &group.leader {
            assert!(ids.contains(leader), "a leader that is no member");
        }
        let now = self.scene.now.mono_ms;
        for (token, parked) in &self.parked {
            let age = now - parked.since_ms;
            assert!(age <= WAIT_MAX_MS, "{token:?} has waited {age} ms");
        }
        let idle = empty && group.pending.is_empty();
        assert_eq!(group.next_deadline().is_none(), idle, "{:?}", group.state());
    }

    /// Everyone is silent: whatever waits is answered, and the group becomes empty by itself.
    fn fall_silent(&mut self) {
        self.pass(600_000);
        assert_eq!(self.scene.group.state(), ClassicState::Empty);
        assert!(self.parked.is_empty(), "{:?}", self.parked);
    }
}

#[test]
fn whatever_members_do_the_group_keeps_its_promises() {
    let seed = std::env::var("GROUP_SEED").ok();
    let seeds = match seed.map(|seed| seed.parse::<u64>().unwrap()) {
        Some(seed) => seed..seed + 1,
        None => 0..RUNS,
    };
    let (mut generations, mut shared) = (0, 0);
    for seed in seeds {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        world.fall_silent();
        generations += i64::from(world.generation);
        shared += world.owners.len();
    }
    // The sequences reach what they are to reach.
    assert!(generations > 0 && shared > 0, "{generations} {shared}");
}
