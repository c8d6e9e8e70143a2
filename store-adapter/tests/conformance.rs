//! The store suite over every adapter of this crate.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::case_sensitive_file_extension_comparisons,
    clippy::disallowed_methods,
    reason = "tests fail by panicking"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use store_adapter::conformance::Harness;
use store_adapter::conformance::gate::GateVolume;
use store_adapter::journal::{FlushPolicy, IndexStore, JournalConfig, JournalStore, MemoryIndex};
use store_adapter::memory::MemoryStore;
use store_adapter::runtime::Env;
use store_adapter::store::LogStore;
use store_adapter::store_conformance;
use store_adapter::volume::memory::MemoryVolume;
use store_adapter::volume::{PosixVolume, Volume};

const MAX_APPEND: usize = 2 << 20;

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
        None
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
        true
    }
    fn syncs(&self) -> Option<u64> {
        Some(self.syncs.load(Ordering::SeqCst))
    }
}

store_conformance!(memory, Memory::new());
store_conformance!(journal_on_memory, Journal::memory());
store_conformance!(journal_on_posix, Journal::posix());
store_conformance!(journal_unsynced, Journal::unsynced());
