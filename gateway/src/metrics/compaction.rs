//! What compaction did.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::{Registry, Unit};

use crate::partition::Compacted;

/// Passes over partitions, and what they made of them.
#[derive(Debug, Default)]
pub struct Compactions {
    passes: Counter,
    before: Counter,
    after: Counter,
}

impl Compactions {
    /// Counts a pass.
    pub fn count(&self, done: &Compacted) {
        self.passes.inc();
        self.before.inc_by(done.rewritten.bytes_before);
        self.after.inc_by(done.rewritten.bytes_after);
    }

    pub(super) fn register(&self, r: &mut Registry) {
        let help = "Partitions that compaction went through";
        r.register("compactions", help, self.passes.clone());
        let rows = [
            (
                "compaction_looked_at",
                "Bytes of batches that compaction judged",
                &self.before,
            ),
            (
                "compaction_kept",
                "Bytes of what it left of them",
                &self.after,
            ),
        ];
        for (name, help, counter) in rows {
            r.register_with_unit(name, help, Unit::Bytes, counter.clone());
        }
    }
}
