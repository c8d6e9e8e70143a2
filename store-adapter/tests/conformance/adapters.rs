//! The stores under test, each with the storage below it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use store_adapter::conformance::Harness;
use store_adapter::conformance::gate::GateVolume;
use store_adapter::journal::{FlushPolicy, IndexStore, JournalConfig, JournalStore, MemoryIndex};
use store_adapter::kv::{KvConfig, KvStore};
use store_adapter::memory::MemoryStore;
use store_adapter::runtime::Env;
use store_adapter::store::LogStore;
use store_adapter::strict::{StrictConfig, StrictStore};
use store_adapter::volume::memory::MemoryVolume;
use store_adapter::volume::{PosixVolume, Volume};

use crate::counts;
use crate::stores::Layout;

pub(crate) const MAX_APPEND: usize = 2 << 20;

#[derive(Debug)]
struct Memory(MemoryStore);

impl Memory {
    fn new() -> Self {
        Self(MemoryStore::with_max_append(MAX_APPEND))
    }
}

impl Harness for Memory {
    fn env(&self) -> Env {
        Env::real()
    }
    fn broker(&self) -> Arc<dyn LogStore> {
        Arc::new(self.0.another_handle())
    }
    fn kill(&self, _store: &Arc<dyn LogStore>) -> bool {
        true
    }
    fn power_cut(&self, _seed: u64) -> bool {
        false
    }
    fn syncs(&self) -> Option<u64> {
        // Nothing is to be made durable.
        Some(0)
    }
}

/// Handles on one strict store.
#[derive(Debug)]
struct Strict(Arc<StrictStore>, Mutex<Vec<Arc<StrictStore>>>);

impl Strict {
    fn new() -> Self {
        let store = StrictStore::new(Env::real(), StrictConfig::default());
        Self(Arc::new(store), Mutex::default())
    }
}

impl Harness for Strict {
    fn env(&self) -> Env {
        Env::real()
    }
    fn broker(&self) -> Arc<dyn LogStore> {
        let handle = Arc::new(self.0.another_handle());
        self.1.lock().push(Arc::clone(&handle));
        handle
    }
    fn kill(&self, _store: &Arc<dyn LogStore>) -> bool {
        true
    }
    fn power_cut(&self, _seed: u64) -> bool {
        false
    }
    fn syncs(&self) -> Option<u64> {
        Some(self.1.lock().iter().map(|store| store.commits()).sum())
    }
}

/// Where a journal lies.
#[derive(Debug)]
enum Base {
    Memory(MemoryVolume),
    Posix(
        Arc<PosixVolume>,
        #[allow(dead_code, reason = "removes the directory")] tempfile::TempDir,
    ),
}

#[derive(Debug)]
struct Journal {
    env: Env,
    base: Base,
    config: JournalConfig,
    index: Arc<dyn IndexStore>,
    syncs: Arc<AtomicU64>,
    brokers: Mutex<Vec<(Arc<dyn LogStore>, GateVolume)>>,
}

impl Journal {
    fn new(base: Base) -> Self {
        let config = JournalConfig {
            max_append: MAX_APPEND,
            // Small, so that the suite crosses from file to file.
            segment_bytes: 512 << 10,
            ..JournalConfig::default()
        };
        Self {
            env: Env::real(),
            base,
            config,
            index: Arc::new(MemoryIndex::new()),
            syncs: Arc::default(),
            brokers: Mutex::default(),
        }
    }

    fn memory() -> Self {
        Self::new(Base::Memory(MemoryVolume::new()))
    }

    fn posix() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let volume = Arc::new(PosixVolume::open(dir.path()).unwrap());
        Self::new(Base::Posix(volume, dir))
    }

    fn unsynced() -> Self {
        let mut journal = Self::posix();
        journal.config.flush = FlushPolicy::Os;
        journal
    }
}

impl Harness for Journal {
    fn env(&self) -> Env {
        self.env.clone()
    }
    fn broker(&self) -> Arc<dyn LogStore> {
        let volume: Arc<dyn Volume> = match &self.base {
            Base::Memory(volume) => Arc::new(volume.clone()),
            Base::Posix(volume, _) => Arc::clone(volume) as Arc<dyn Volume>,
        };
        let gate = GateVolume::new(volume, Arc::clone(&self.syncs));
        let store: Arc<dyn LogStore> = Arc::new(JournalStore::new(
            self.env.clone(),
            Arc::new(gate.clone()),
            Arc::clone(&self.index),
            self.config.clone(),
        ));
        self.brokers.lock().push((Arc::clone(&store), gate));
        store
    }
    fn kill(&self, store: &Arc<dyn LogStore>) -> bool {
        let brokers = self.brokers.lock();
        let broker = brokers.iter().find(|(held, _)| Arc::ptr_eq(held, store));
        broker.unwrap().1.shut();
        counts::STOPS.add(1);
        true
    }
    fn power_cut(&self, seed: u64) -> bool {
        let Base::Memory(volume) = &self.base else {
            return false;
        };
        for (_, gate) in self.brokers.lock().iter() {
            gate.shut();
        }
        volume.power_cut(seed);
        counts::CUTS.add(1);
        true
    }
    fn syncs(&self) -> Option<u64> {
        Some(self.syncs.load(Ordering::SeqCst))
    }
}

/// Databases in a directory. Its brokers cannot be stopped without their process: sled's threads
/// go on.
#[derive(Debug)]
struct Kv {
    env: Env,
    volume: Arc<PosixVolume>,
    dir: tempfile::TempDir,
    syncs: Arc<AtomicU64>,
}

impl Kv {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            env: Env::real(),
            volume: Arc::new(PosixVolume::open(dir.path()).unwrap()),
            dir,
            syncs: Arc::default(),
        }
    }
}

impl Harness for Kv {
    fn env(&self) -> Env {
        self.env.clone()
    }
    fn broker(&self) -> Arc<dyn LogStore> {
        let volume = Arc::clone(&self.volume) as Arc<dyn Volume>;
        let gate = GateVolume::new(volume, Arc::clone(&self.syncs));
        let config = KvConfig {
            max_append: MAX_APPEND,
            ..KvConfig::default()
        };
        let store = KvStore::new(self.env.clone(), Arc::new(gate), self.dir.path(), config);
        Arc::new(store)
    }
    fn kill(&self, _store: &Arc<dyn LogStore>) -> bool {
        false
    }
    fn power_cut(&self, _seed: u64) -> bool {
        false
    }
    fn syncs(&self) -> Option<u64> {
        Some(self.syncs.load(Ordering::SeqCst))
    }
}

/// A store under test.
pub(crate) struct Adapter {
    /// What the table calls it.
    pub(crate) name: &'static str,
    /// A fresh one.
    pub(crate) harness: fn() -> Box<dyn Harness>,
    /// Points that it need not pass, or passes elsewhere.
    pub(crate) left_out: &'static [u8],
    /// Functions that ask for what its harness cannot do.
    pub(crate) cannot: &'static [&'static str],
}

/// The column of a layout.
pub(crate) fn column_of(layout: Layout) -> usize {
    let name = match layout {
        Layout::Journal => "sled:",
        Layout::Kv => "sled:?layout=kv",
    };
    let found = ADAPTERS.iter().position(|adapter| adapter.name == name);
    found.unwrap()
}

/// All of them, in the order of the table's columns.
pub(crate) const ADAPTERS: &[Adapter] = &[
    Adapter {
        name: "memory:",
        harness: || Box::new(Memory::new()),
        left_out: &[12, 13, 14, 15, 16, 17, 19, 25, 26, 27, 28, 32],
        cannot: &[],
    },
    Adapter {
        name: "strict:",
        harness: || Box::new(Strict::new()),
        left_out: &[12, 13, 14, 15, 16, 17, 19, 25, 26, 27, 28, 32],
        cannot: &[],
    },
    Adapter {
        name: "sled: in memory",
        harness: || Box::new(Journal::memory()),
        left_out: &[],
        cannot: &[],
    },
    Adapter {
        name: "sled:",
        harness: || Box::new(Journal::posix()),
        left_out: &[13, 32],
        cannot: &[],
    },
    Adapter {
        name: "sled: unsynced",
        harness: || Box::new(Journal::unsynced()),
        left_out: &[13, 32],
        cannot: &[],
    },
    Adapter {
        name: "sled:?layout=kv",
        harness: || Box::new(Kv::new()),
        left_out: &[13, 32],
        cannot: &["acked_survives_kill", "trim_survives_kill"],
    },
];
