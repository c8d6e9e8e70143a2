//! Deliberate faults for the simulation to find. Without the cargo feature `planted-faults`
//! every question is answered by a constant `false` and the code behind it is not compiled in.

/// One deliberate fault. Each names the rule that it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The dedupe window takes a batch when it is queued, not when it is durable.
    WindowBeforeCommit,
    /// A duplicate of a queued batch is answered before that batch is durable.
    DuplicateEarly,
    /// The shard's claim is not read after the fdatasync.
    NoClaimCheck,
    /// A take-over sweeps lower tickets only once.
    NoSecondSweep,
    /// A producer snapshot is used without finding its last batch in the log.
    SnapshotUnchecked,
    /// A directory is not fsynced after a file appeared in it.
    DirectoryNotSynced,
    /// Who shares a directory's sync does not wait for it. Found by the tests of owned files.
    SyncNotAwaited,
    /// A file whose name may be used again is unlinked without an intent. Found by the tests of
    /// owned files.
    RemovalNotAnnounced,
    /// Recovery publishes a tail that it read but did not fdatasync.
    TailNotSynced,
    /// Producer ids of a block are handed out before the block's end is durable.
    BlockBeforeDurable,
    /// A committed offset is answered before the group's file is replaced.
    OffsetBeforeDurable,
    /// The file of a group is not read when its slot is taken over.
    OffsetsNotRead,
    /// A partition that is opened does not replay its log.
    WindowNotReplayed,
    /// A new session raises the epoch and does not abort what is open.
    RejoinWithoutAbort,
    /// The first batch of a transaction on a partition is not verified.
    NotVerified,
    /// A transaction's state is answered before the slot is replaced.
    PrepareBeforeDurable,
    /// A marker is appended whatever the number of the transaction.
    MarkerRepeated,
    /// A journal file that was written anew takes the old one's place before it is durable.
    DraftNotSynced,
    /// A file that takes the place of several leaves out what they have.
    JoinedNotWhole,
    /// Staged offsets are not in the file of their group.
    StagedInMemory,
    /// A fence refuses the marker that ends what the fenced session left open.
    FenceJudgesMarkers,
    /// What is owed by a broker that has no queue entry for it counts as confirmed.
    OwedDropped,
    /// The next transaction of an id begins before other brokers have ended the last one.
    GateLeftOut,
    /// Inspection shows a slot that is not read yet as if it were empty.
    UnreadShown,
    /// Inspection shows a transaction as ended that other brokers have not ended yet.
    OwedNotShown,
    /// Compaction keeps what it should leave out, and leaves out the newest record of a key.
    NewestNotKept,
    /// An administrator's marker is taken without asking the coordinators at other brokers.
    OthersNotAsked,
    /// A member hears its assignment before what was accepted of the generation before is durable.
    SyncBeforeDurable,
}

impl Fault {
    /// Every fault, in the order of the list above.
    pub const ALL: [Fault; 28] = [
        Fault::WindowBeforeCommit,
        Fault::DuplicateEarly,
        Fault::NoClaimCheck,
        Fault::NoSecondSweep,
        Fault::SnapshotUnchecked,
        Fault::DirectoryNotSynced,
        Fault::SyncNotAwaited,
        Fault::RemovalNotAnnounced,
        Fault::TailNotSynced,
        Fault::BlockBeforeDurable,
        Fault::OffsetBeforeDurable,
        Fault::OffsetsNotRead,
        Fault::WindowNotReplayed,
        Fault::RejoinWithoutAbort,
        Fault::NotVerified,
        Fault::PrepareBeforeDurable,
        Fault::MarkerRepeated,
        Fault::DraftNotSynced,
        Fault::JoinedNotWhole,
        Fault::StagedInMemory,
        Fault::FenceJudgesMarkers,
        Fault::OwedDropped,
        Fault::GateLeftOut,
        Fault::UnreadShown,
        Fault::OwedNotShown,
        Fault::NewestNotKept,
        Fault::OthersNotAsked,
        Fault::SyncBeforeDurable,
    ];
}

#[cfg(any(test, feature = "planted-faults"))]
mod active {
    use std::cell::Cell;

    use super::Fault;

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Plants `fault` (or none) for everything that runs on this thread. The simulation is
    /// single-threaded, so one thread is one world.
    pub fn plant(fault: Option<Fault>) {
        PLANTED.with(|planted| planted.set(fault));
    }

    /// Whether `fault` is planted on this thread.
    pub fn planted(fault: Fault) -> bool {
        PLANTED.with(|planted| planted.get() == Some(fault))
    }
}

#[cfg(any(test, feature = "planted-faults"))]
pub use active::{plant, planted};

/// Whether `fault` is planted: never, without the feature.
#[cfg(not(any(test, feature = "planted-faults")))]
#[inline]
pub const fn planted(_fault: Fault) -> bool {
    false
}
