//! Random requests, crashes between what is written and what follows it, lost answers, and a naive
//! model: what clients were told, and what reached the partitions.
//!
//! A seed that fails is printed; `TXN_SEED=<seed>` repeats it.

use std::collections::{BTreeMap, BTreeSet};

use store_adapter::ids::BrokerId;

use super::scene::{local, named};
use super::*;
use crate::volume::format::{Extra, TxnEntryFile};

/// SplitMix64.
struct Seeded(u64);

impl Seeded {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = self.0;
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next(n) == 0
    }
}

/// A client: what it believes, and what it asked without hearing an answer.
#[derive(Debug, Clone, Copy)]
struct Believer {
    session: Session,
    open: bool,
}

/// The coordinator of one id with everything around it.
struct Run {
    random: Seeded,
    /// What is in the file.
    file: Option<TxnEntry>,
    /// What is in memory: ahead of the file only by Complete*.
    memory: Option<TxnEntry>,
    now_ms: i64,
    next_pid: i64,
    version: i8,
    believers: Vec<Believer>,
    /// Every session that a new InitProducerId got: never twice.
    handed: BTreeSet<Session>,
    highest: BTreeMap<ProducerId, ProducerEpoch>,
    /// Directions of markers by producer and number.
    markers: BTreeMap<(ProducerId, u64), BTreeSet<bool>>,
    /// What clients were told of an end, by producer and number.
    told: BTreeMap<(ProducerId, u64), bool>,
    last_seq: BTreeMap<ProducerId, u64>,
    finished: u32,
    crashes: u32,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Seeded(seed);
        let version = i8::try_from(random.next(3)).unwrap();
        Self {
            random,
            file: None,
            memory: None,
            now_ms: 0,
            next_pid: 1,
            version,
            believers: Vec::new(),
            handed: BTreeSet::new(),
            highest: BTreeMap::new(),
            markers: BTreeMap::new(),
            told: BTreeMap::new(),
            last_seq: BTreeMap::new(),
            finished: 0,
            crashes: 0,
        }
    }

    fn ctx(&mut self, spare: bool) -> Ctx {
        let spare = spare.then(|| {
            self.next_pid += 1;
            ProducerId(self.next_pid)
        });
        Ctx {
            now_ms: self.now_ms,
            slot_epoch: 1,
            version: self.version,
            max_timeout_ms: 900_000,
            spare,
        }
    }

    /// Writes a change. `false`: a crash came before, or behind it, and nobody is told.
    fn write(&mut self, change: &Change) -> bool {
        if self.random.one_in(12) {
            self.crash();
            return false;
        }
        if let Some(next) = &change.next {
            self.check(next);
        }
        self.check_end(change);
        // Through the file, as a reader finds it.
        self.file = change.next.as_ref().map(|next| {
            let file = TxnEntryFile::of(next, &Extra::new());
            file.field("x").unwrap();
            file.into_entry(0).0
        });
        self.memory.clone_from(&self.file);
        assert_eq!(self.memory, change.next);
        if self.random.one_in(12) {
            self.crash();
            return false;
        }
        true
    }

    /// What is open ends by a decision only, and nobody but its client ends it at its own epoch.
    fn check_end(&self, change: &Change) {
        let open = self
            .memory
            .as_ref()
            .filter(|entry| entry.state == TxnState::Ongoing);
        let Some(open) = open else { return };
        let next = change
            .next
            .as_ref()
            .expect("an open transaction is forgotten");
        let decided = next.state.prepared().is_some();
        assert!(
            decided || next.state == TxnState::Ongoing,
            "never decided: {open:?} {next:?}"
        );
        let cause = change.transition.as_ref().map(|at| at.cause);
        let by_client = cause == Some(Cause::Client);
        assert!(
            !decided || by_client || next.epoch > open.epoch,
            "{open:?} {next:?}"
        );
    }

    fn crash(&mut self) {
        self.crashes += 1;
        self.memory.clone_from(&self.file);
    }

    /// What holds of every state that is written.
    fn check(&mut self, next: &TxnEntry) {
        let highest = self.highest.entry(next.pid).or_insert(next.epoch);
        assert!(next.epoch >= *highest, "the epoch goes back: {next:?}");
        *highest = next.epoch;
        let seq = self.last_seq.entry(next.pid).or_default();
        assert!(next.txn_seq >= *seq, "the number goes back: {next:?}");
        *seq = next.txn_seq;
        if let Some(owed) = owed_by(next) {
            let before = self.memory.as_ref().unwrap();
            let same = owed_by(before).is_none_or(|before| before == owed);
            assert!(same, "decided twice: {before:?} {next:?}");
            if before.state == TxnState::Ongoing {
                assert_eq!(before.partitions, owed.partitions, "what is owed was lost");
                assert_eq!(before.groups, owed.groups, "what is owed was lost");
            }
        }
    }

    /// Carries out what is decided; a crash may come anywhere.
    fn finish(&mut self) {
        let Some(entry) = self.memory.clone() else {
            return;
        };
        let Some(owed) = owed_by(&entry) else { return };
        for _ in 0..=owed.partitions.len() {
            if self.random.one_in(10) {
                self.crash();
                return;
            }
            let written = self.markers.entry((owed.pid, owed.txn_seq)).or_default();
            written.insert(owed.commit);
            assert_eq!(written.len(), 1, "two decisions: {entry:?}");
        }
        let plan = if self.random.one_in(3) && !owed.partitions.is_empty() {
            let there = |_: &str, _: Option<Uuid>, _: i32| Home::Broker(BrokerId(1));
            plan(&owed, there, |_| Home::Here)
        } else {
            local(&entry)
        };
        let ctx = self.ctx(false);
        let change = complete(&entry, &plan, &ctx).unwrap();
        let next = change.next.unwrap();
        self.check(&next);
        // Derivable: in force at once, written with the next change.
        self.memory = Some(next);
        self.finished += 1;
    }

    fn confirm(&mut self) {
        let Some(entry) = self.memory.clone() else {
            return;
        };
        let Some(owed) = entry.owed.first() else {
            return;
        };
        let done = EntryName {
            broker: BrokerId(1),
            pid: owed.producer_id,
            record_epoch: owed.record_epoch,
        };
        let all = &owed.entries[&BrokerId(1)];
        let wrong = confirm(&entry, &done, owed.txn_seq + 1, all);
        assert_eq!(wrong, None);
        let change = confirm(&entry, &done, owed.txn_seq, all).unwrap();
        self.write(&change);
    }

    /// Asks until there is an answer, as a request that waits does. `None`: no answer.
    fn ask<R: Clone>(
        &mut self,
        decide: impl Fn(Option<&TxnEntry>, &Ctx) -> Decision<R>,
    ) -> Option<Result<R, TxnError>> {
        let mut spare = false;
        for _ in 0..4 {
            let ctx = self.ctx(spare);
            match decide(self.memory.as_ref(), &ctx) {
                Decision::Answer(reply) => return Some(Ok(reply)),
                Decision::Refuse(error) => return Some(Err(error)),
                Decision::NeedsId => spare = true,
                Decision::Wait(_, late) => {
                    if self.random.one_in(2) {
                        return Some(Err(late));
                    }
                    self.finish();
                    self.confirm();
                }
                Decision::Persist(change, then) => {
                    if !self.write(&change) {
                        return None;
                    }
                    match then {
                        Then::Answer(reply) => return Some(Ok(reply)),
                        Then::Finish(reply, late) => {
                            self.finish();
                            let prepared = self.memory.as_ref().and_then(owed_by).is_some();
                            return Some(if prepared { Err(late) } else { Ok(reply) });
                        }
                        Then::AskAgain(_) => self.finish(),
                    }
                }
            }
        }
        Some(Err(TxnError::ConcurrentTransactions))
    }

    fn new_session(&mut self, claimed: Session) -> Option<Session> {
        let request = InitProducerId {
            version: 5,
            id_is_empty: false,
            timeout_ms: 1_000,
            claimed,
            client: None,
        };
        let reply = self.ask(|entry, ctx| init_producer_id(entry, &request, ctx));
        reply?.ok()
    }

    fn init(&mut self, claimed: Session) {
        let Some(session) = self.new_session(claimed) else {
            return;
        };
        assert!(
            session.epoch.0 <= EPOCH_LAST,
            "{session:?} is that of a fence"
        );
        if claimed.pid.0 < 0 {
            assert!(
                self.handed.insert(session),
                "{session:?} was given to another session"
            );
        } else {
            self.handed.insert(session);
        }
        self.believers.push(Believer {
            session,
            open: false,
        });
        if self.believers.len() > 4 {
            self.believers.remove(0);
        }
    }

    fn add(&mut self, who: usize) {
        let believer = self.believers[who];
        let partition = i32::try_from(self.random.next(3)).unwrap();
        let class = match self.version {
            2 => AddClass::Implicit,
            _ => AddClass::Client(3),
        };
        let asked = [named("A", partition)];
        let at = believer.session;
        let reply = if self.random.one_in(3) {
            let group: Arc<str> = "g".into();
            self.ask(|entry, ctx| add_groups(entry, at, &group, class, None, ctx))
        } else {
            self.ask(|entry, ctx| add_partitions(entry, at, &asked, class, None, ctx))
        };
        // While it waited, what was prepared may have been finished.
        let current = self.is_current(at);
        match reply {
            Some(Ok(added)) => {
                assert!(current, "{at:?} is not the current session");
                let entry = self.memory.as_ref().unwrap();
                assert_eq!(
                    (entry.state, added),
                    (TxnState::Ongoing, Added::InTxn(entry.txn_seq))
                );
                self.believers[who].open = true;
                let seen = verify_partitions(Some(entry), at, &[named("A", 9)]);
                assert!(matches!(seen, Decision::Answer(seen) if seen.missing.len() == 1));
            }
            Some(Err(error)) => {
                let retriable = error == TxnError::ConcurrentTransactions;
                assert!(
                    retriable || !current,
                    "{error} for the current session {at:?}"
                );
            }
            None => {}
        }
    }

    fn is_current(&self, session: Session) -> bool {
        let entry = self.memory.as_ref();
        entry.is_some_and(|entry| (entry.pid, entry.epoch) == (session.pid, session.epoch))
    }

    fn end(&mut self, who: usize) {
        let believer = self.believers[who];
        let request = EndTxn {
            version: if self.version == 2 { 5 } else { 3 },
            session: believer.session,
            commit: self.random.one_in(2),
            client: None,
        };
        let before = self.memory.as_ref().map(|entry| (entry.pid, entry.txn_seq));
        let begun = self
            .memory
            .as_ref()
            .is_some_and(|entry| entry.state == TxnState::Ongoing);
        let reply = self.ask(|entry, ctx| end_txn(entry, &request, ctx));
        let Some(Ok(reply)) = reply else { return };
        if let Some(key) = before.filter(|_| begun) {
            let told = *self.told.entry(key).or_insert(request.commit);
            assert_eq!(told, request.commit, "told both: {key:?}");
            let written = &self.markers[&key];
            assert_eq!(*written, BTreeSet::from([told]), "told before it was so");
        }
        if let Some(next) = reply {
            assert!(next.epoch.0 <= EPOCH_LAST, "{next:?} is that of a fence");
            self.handed.insert(next);
            self.believers[who].session = next;
        }
        self.believers[who].open = false;
    }

    fn step(&mut self) {
        self.now_ms += 1;
        let who = usize::try_from(self.random.next(4)).unwrap();
        let who = who.min(self.believers.len().saturating_sub(1));
        let none = Session {
            pid: ProducerId(-1),
            epoch: ProducerEpoch(-1),
        };
        match self.random.next(20) {
            0 => self.init(none),
            1 if !self.believers.is_empty() => self.init(self.believers[who].session),
            2..=8 if !self.believers.is_empty() => self.add(who),
            9..=14 if !self.believers.is_empty() => self.end(who),
            15 => self.finish(),
            16 => self.confirm(),
            17 => {
                self.now_ms += i64::try_from(self.random.next(800)).unwrap();
                self.reap();
            }
            // An administrator's, which nobody uses.
            18 if self.random.one_in(8) => {
                self.new_session(none);
            }
            19 => self.crash(),
            _ => {}
        }
        // Near the end of the epochs, now and then.
        if self.random.one_in(40)
            && let Some(entry) = &mut self.memory
            && entry.state == TxnState::Empty
            && entry.epoch.0 < 32_000
        {
            entry.epoch = ProducerEpoch(32_764);
            entry.last_epoch = None;
            self.file.clone_from(&self.memory);
        }
    }

    fn reap(&mut self) {
        self.ask(|entry, ctx| match entry {
            Some(entry) => time_out(entry, ctx),
            None => Decision::Answer(false),
        });
    }

    /// Nothing new comes: everything that is decided is carried out.
    fn settle(&mut self) {
        for _ in 0..200 {
            self.finish();
            self.confirm();
            self.now_ms += 2_000;
            self.reap();
        }
        let Some(entry) = &self.memory else { return };
        assert!(!entry.is_gated() && owed_by(entry).is_none(), "{entry:?}");
        assert_ne!(entry.state, TxnState::Ongoing);
    }
}

#[test]
fn random_lives_keep_every_promise() {
    let one = std::env::var("TXN_SEED")
        .ok()
        .map(|seed| seed.parse().unwrap());
    let seeds = one.map_or(0..1_500, |seed: u64| seed..seed + 1);
    let (mut finished, mut crashes, mut told) = (0, 0, 0);
    for seed in seeds {
        let run = std::panic::catch_unwind(|| {
            let mut run = Run::new(seed);
            for _ in 0..250 {
                run.step();
            }
            run.settle();
            (run.finished, run.crashes, run.told.len())
        });
        let Ok(counts) = run else {
            panic!("seed {seed} breaks a promise: TXN_SEED={seed} repeats it");
        };
        finished += counts.0;
        crashes += counts.1;
        told += counts.2;
    }
    let many = finished > 5_000 && crashes > 5_000 && told > 2_000;
    assert!(one.is_some() || many, "only {finished}, {crashes}, {told}");
}
