//! What a seed stands for: topology, rates, and the faults in order.

use gateway::partition::{CompactionRules, RetentionRules};

use super::disk::DiskRates;
use super::net::NetRates;

/// Where records are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The in-memory log store.
    Memory,
    /// The journal on the in-memory volume.
    Journal,
}

/// One act of the director.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// Everything works for a while, ms.
    Work(u64),
    /// Kill at the step of that number, before it or behind it, and start again.
    Kill {
        /// Steps from now.
        steps: u64,
        /// Behind the step.
        behind: bool,
    },
    /// Kill at a step, and cut the power before the next start.
    Cut {
        /// Steps from now.
        steps: u64,
        /// Behind the step.
        behind: bool,
    },
    /// A second instance takes over while the first is paused.
    TakeOver {
        /// Steps until the first is paused.
        steps: u64,
        /// The second begins to come up before the first is paused.
        meanwhile: bool,
        /// How long the first stays paused once the second is up, ms.
        hold_ms: u64,
        /// How long the first lives on, ms.
        linger_ms: u64,
    },
    /// A clean stop, killed at a step of it or not, the power cut behind it or not.
    Stop {
        /// Steps until it is killed; 0: it is not.
        steps: u64,
        /// The power is cut behind it.
        cut: bool,
    },
}

/// One act of the director of two brokers. Brokers are numbered 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PairAct {
    /// Everything works for a while, ms.
    Work(u64),
    /// Some of what clients use goes to the other broker, which knows of it some ms before it
    /// starts anew and takes it over.
    Move {
        /// From the new assignment to the restart, ms.
        after_ms: u64,
        /// The broker that gets something is killed at that step.
        steps: u64,
    },
    /// A broker is killed at a step, and starts again.
    Kill {
        /// Which.
        broker: usize,
        /// Steps from now.
        steps: u64,
        /// Behind the step.
        behind: bool,
        /// Something moves while it is dead.
        moving: bool,
    },
    /// A broker is killed at a step, then the other; the power is cut.
    Cut {
        /// Which.
        broker: usize,
        /// Steps from now.
        steps: u64,
    },
    /// A broker is paused at a step, and everything that it has goes to the other.
    Pause {
        /// Which.
        broker: usize,
        /// Steps until it is paused.
        steps: u64,
        /// How long it stays paused once the other has taken over, ms.
        hold_ms: u64,
        /// How long it lives on, ms.
        linger_ms: u64,
    },
}

/// What a run is made of.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each is drawn by itself")]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    /// `flush.policy=os`.
    pub(crate) os_flush: bool,
    pub(crate) shards: u32,
    /// Bytes of a journal file.
    pub(crate) segment_bytes: u64,
    /// Partitions of each topic that lasts.
    pub(crate) topics: Vec<u32>,
    pub(crate) auto_partitions: u32,
    pub(crate) producers: u32,
    /// Batches of each producer.
    pub(crate) batches: u32,
    /// Longest pause of a producer between two batches, ms.
    pub(crate) think_ms: u64,
    pub(crate) readers: u32,
    /// Topics are created and deleted all the time, by that many clients.
    pub(crate) churn: u32,
    /// Producer ids are asked for all the time, by that many clients.
    pub(crate) ids: u32,
    pub(crate) net: NetRates,
    pub(crate) disk: DiskRates,
    /// Listings and failed look-ups may be out of date.
    pub(crate) stale: bool,
    /// Starts that are killed, in a hundred.
    pub(crate) kill_starts: u64,
    /// The power is cut before the last start.
    pub(crate) last_cut: bool,
    pub(crate) acts: Vec<Act>,
    /// Groups without members whose offsets are committed all the time.
    pub(crate) committers: u32,
    /// Members of one group.
    pub(crate) members: u32,
    /// Transactional ids.
    pub(crate) txn_ids: u32,
    /// Clients of each, at once.
    pub(crate) txn_clients: u32,
    /// Transactions of each client.
    pub(crate) txns: u32,
    /// Partitions of their topic.
    pub(crate) txn_partitions: u32,
    /// `transaction.timeout.ms`.
    pub(crate) txn_timeout_ms: i32,
    /// Transactional ids have a past: their epochs are nearly used up.
    pub(crate) late_epochs: bool,
    /// What topics keep; `None`: everything.
    pub(crate) retention: Option<RetentionRules>,
    /// `log.retention.check.interval.ms`.
    pub(crate) retain_ms: u64,
    /// How topics are compacted, but that of transactions; `None`: they are not.
    pub(crate) compaction: Option<CompactionRules>,
    /// `log.cleaner.backoff.ms`.
    pub(crate) clean_ms: u64,
    /// What happens to two brokers; with one, nothing.
    pub(crate) pair: Vec<PairAct>,
    /// `transaction.poll.interval.ms` of two brokers.
    pub(crate) poll_ms: u64,
}

/// What a seed is mostly about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Theme {
    Kills,
    PowerCuts,
    Twins,
    Disk,
    OsFlush,
    Topics,
    Mixed,
    Pair,
}

const THEMES: [(Theme, Mode); 12] = [
    (Theme::Kills, Mode::Memory),
    (Theme::Kills, Mode::Journal),
    (Theme::PowerCuts, Mode::Journal),
    (Theme::Twins, Mode::Journal),
    (Theme::Disk, Mode::Journal),
    (Theme::Topics, Mode::Memory),
    (Theme::OsFlush, Mode::Journal),
    (Theme::Mixed, Mode::Journal),
    (Theme::Topics, Mode::Journal),
    (Theme::Mixed, Mode::Memory),
    (Theme::Pair, Mode::Memory),
    (Theme::Pair, Mode::Journal),
];

impl Plan {
    /// The plan of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed_0fa9_1a40);
        let index = usize::try_from(seed % THEMES.len() as u64).unwrap_or(0);
        let (theme, mode) = THEMES[index];
        let is = |one: Theme| theme == one;
        let at_times = is(Theme::Mixed) || is(Theme::Pair);
        let troubled = is(Theme::Disk) || (at_times && rng.bool());
        let acts = acts(theme, &mut rng);
        let plan = Self {
            mode,
            os_flush: is(Theme::OsFlush),
            shards: rng.u32(1..=2),
            segment_bytes: if is(Theme::OsFlush) {
                1 << 24
            } else {
                [2_048, 8_192, 65_536, 1 << 20][rng.usize(0..4)]
            },
            topics: (0..rng.usize(1..=2)).map(|_| rng.u32(1..=3)).collect(),
            auto_partitions: rng.u32(1..=3),
            producers: rng.u32(1..=4),
            batches: rng.u32(20..=80),
            think_ms: [0, 2, 10, 40][rng.usize(0..4)],
            readers: rng.u32(1..=3),
            churn: match theme {
                Theme::Topics => rng.u32(1..=3),
                Theme::Mixed | Theme::Twins => rng.u32(0..=1),
                _ => 0,
            },
            ids: match theme {
                Theme::Topics => rng.u32(1..=3),
                Theme::Mixed => rng.u32(0..=1),
                _ => 0,
            },
            net: NetRates {
                lose_request: [0, 5, 20][rng.usize(0..3)],
                lose_answer: [0, 10, 40][rng.usize(0..3)],
                delay_us: [200, 2_000, 10_000][rng.usize(0..3)],
            },
            disk: DiskRates {
                slow_sync: [0, 2, 10][rng.usize(0..3)],
                fail_sync: if troubled { rng.u64(5..=60) } else { 0 },
                fail_write: if troubled { rng.u64(0..=30) } else { 0 },
                fail_other: if troubled { rng.u64(0..=20) } else { 0 },
                late: if troubled { rng.u64(0..=30) } else { 0 },
                latency_us: [20, 200, 1_000][rng.usize(0..3)],
            },
            stale: rng.u8(0..3) == 0,
            kill_starts: [0, 20, 50][rng.usize(0..3)],
            last_cut: !is(Theme::OsFlush) && rng.u8(0..4) > 0,
            acts,
            committers: rng.u32(0..=2),
            members: [0, 0, 2, 3, 5][rng.usize(0..5)],
            // A power cut without syncs may take one half of a transaction and leave the other.
            txn_ids: match theme {
                Theme::OsFlush => 0,
                Theme::Twins => 3,
                _ => rng.u32(0..=3),
            },
            txn_clients: rng.u32(1..=2),
            txns: rng.u32(3..=20) * if is(Theme::Twins) { 3 } else { 1 },
            txn_partitions: rng.u32(1..=3),
            txn_timeout_ms: [200, 1_000, 5_000][rng.usize(0..3)],
            // Every kind of plan, one in four.
            late_epochs: (seed / THEMES.len() as u64) % 4 == 1 && !is(Theme::OsFlush),
            retention: (!is(Theme::OsFlush) && rng.u8(0..3) == 0).then(|| retention(&mut rng)),
            retain_ms: [20, 100, 500][rng.usize(0..3)],
            compaction: None,
            clean_ms: 0,
            pair: Vec::new(),
            poll_ms: 0,
        };
        if is(Theme::Pair) {
            return plan.of_pair(&mut rng);
        }
        // Drawn apart, so that all else of a seed is what it is without.
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x0c1e_a2ed);
        let compacted = !is(Theme::OsFlush) && rng.bool();
        Self {
            compaction: compacted.then(|| compaction(&mut rng)),
            clean_ms: [20, 100, 500][rng.usize(0..3)],
            ..plan
        }
    }

    /// The same with two brokers, transactions and groups. Every partition has a shard of its own,
    /// so that each can move alone.
    fn of_pair(self, rng: &mut fastrand::Rng) -> Self {
        let partitions = rng.u32(2..=3);
        Self {
            shards: partitions,
            topics: Vec::new(),
            producers: 0,
            readers: 0,
            churn: 0,
            ids: 0,
            retention: None,
            txn_ids: rng.u32(2..=3),
            txns: rng.u32(8..=20),
            txn_partitions: partitions,
            pair: (0..rng.usize(4..=8)).map(|_| pair_act(rng)).collect(),
            poll_ms: [100, 500, 2_000][rng.usize(0..3)],
            ..self
        }
    }
}

fn retention(rng: &mut fastrand::Rng) -> RetentionRules {
    RetentionRules {
        retention_ms: [-1, 100, 1_000][rng.usize(0..3)],
        retention_bytes: [500, 2_000, 8_000][rng.usize(0..3)],
        // The largest batch fits.
        segment_bytes: [1_500, 3_000][rng.usize(0..2)],
        segment_ms: 1_000_000,
    }
}

fn compaction(rng: &mut fastrand::Rng) -> CompactionRules {
    CompactionRules {
        min_dirty_ratio: [0, 300_000][rng.usize(0..2)],
        min_lag_ms: [0, 0, 50][rng.usize(0..3)],
        // What is written is closed for it.
        max_lag_ms: [50, 300][rng.usize(0..2)],
        delete_retention_ms: 0,
    }
}

fn pair_act(rng: &mut fastrand::Rng) -> PairAct {
    let within = [8, 60, 300][rng.usize(0..3)];
    let (broker, steps) = (rng.usize(0..2), rng.u64(1..=within));
    match rng.u8(0..10) {
        0 | 1 => PairAct::Work(rng.u64(0..=2_000)),
        2..=4 => PairAct::Move {
            after_ms: rng.u64(0..=1_500),
            steps,
        },
        5 | 6 => PairAct::Kill {
            broker,
            steps,
            behind: rng.bool(),
            moving: rng.bool(),
        },
        7 => PairAct::Cut { broker, steps },
        _ => PairAct::Pause {
            broker,
            steps,
            hold_ms: rng.u64(0..=1_000),
            linger_ms: rng.u64(50..=2_000),
        },
    }
}

fn acts(theme: Theme, rng: &mut fastrand::Rng) -> Vec<Act> {
    let mut acts = Vec::new();
    for _ in 0..rng.usize(2..=5) {
        acts.push(Act::Work(rng.u64(0..=400)));
        let kind = match theme {
            Theme::Kills => 0,
            Theme::PowerCuts => [0, 1, 1][rng.usize(0..3)],
            Theme::Twins => 2,
            Theme::Disk => [0, 1, 4][rng.usize(0..3)],
            Theme::OsFlush => [0, 5, 5][rng.usize(0..3)],
            Theme::Topics => [0, 1, 2, 2, 2][rng.usize(0..5)],
            Theme::Mixed => rng.u8(0..4),
            Theme::Pair => 4,
        };
        acts.push(act(kind, rng));
    }
    acts
}

fn act(kind: u8, rng: &mut fastrand::Rng) -> Act {
    let within = [8, 60, 300][rng.usize(0..3)];
    let steps = rng.u64(1..=within);
    let behind = rng.bool();
    match kind {
        0 => Act::Kill { steps, behind },
        1 => Act::Cut { steps, behind },
        2 => Act::TakeOver {
            steps: rng.u64(1..=150),
            meanwhile: rng.bool(),
            hold_ms: rng.u64(0..=400),
            linger_ms: rng.u64(50..=1_500),
        },
        3 => Act::Stop {
            steps: [0, steps][rng.usize(0..2)],
            cut: rng.bool(),
        },
        5 => Act::Stop {
            // Within the snapshots that a clean stop writes.
            steps: rng.u64(20..=120),
            cut: true,
        },
        _ => Act::Work(rng.u64(200..=1_000)),
    }
}
