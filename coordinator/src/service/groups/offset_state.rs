//! The offsets of a group in its cell, and who waits for them to become durable.

use std::collections::VecDeque;
use std::time::Duration;

use store_adapter::fault::{Fault, planted};
use tokio::sync::oneshot;

use super::loader::AGAIN;
use crate::machine::group::GroupError;
use crate::machine::group::classic::{SyncReply, Synced};
use crate::machine::group::offsets::{Change, Image, OffsetBook, PrepareError};
use crate::volume::format::{GroupOffsetsFile, Kept};

/// How long to wait at most before a file is tried again that can't be read or written.
const AGAIN_MAX: Duration = Duration::from_secs(8);

/// A change that was prepared: ordered, and durable later.
#[derive(Debug)]
pub struct Pending(oneshot::Receiver<Result<(), GroupError>>);

impl Pending {
    /// One that is concluded already.
    pub(super) fn concluded() -> Self {
        let (done, wait) = oneshot::channel();
        // The receiver is right here.
        done.send(Ok(())).unwrap_or_default();
        Self(wait)
    }

    /// Waits until the change is durable.
    ///
    /// # Errors
    /// [`GroupError::CoordinatorNotAvailable`] when it is not, or may not be;
    /// [`GroupError::NotCoordinator`] when another process has the group.
    pub async fn durable(self) -> Result<(), GroupError> {
        self.0.await.unwrap_or(Err(GroupError::NotCoordinator))
    }
}

/// Who hears that a change is durable, or that it is not.
#[derive(Debug)]
enum Waiting {
    /// Who prepared it.
    Change(oneshot::Sender<Result<(), GroupError>>),
    /// A SyncGroup that was decided behind it.
    Sync(oneshot::Sender<SyncReply>, Synced),
}

impl Waiting {
    fn tell(self, outcome: Result<(), GroupError>) -> bool {
        match self {
            Self::Change(waits) => waits.send(outcome).is_ok(),
            Self::Sync(waits, synced) => waits.send(outcome.map(|()| synced)).is_ok(),
        }
    }
}

/// The offsets of a group. What waits is bounded by the requests that were admitted.
#[derive(Debug, Default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is true or not whatever the others are"
)]
pub struct OffsetState {
    /// The offsets.
    pub book: OffsetBook,
    /// What the file has besides.
    kept: Kept,
    waiting: VecDeque<(Change, Waiting)>,
    /// The last try to read the file failed.
    unreadable: bool,
    /// How often in a row its file could not be read or written.
    failures: u32,
    /// There is a file, as far as is known.
    filed: bool,
    /// The file is to be removed, or is being: the cell must stay as long.
    pub(super) removing: bool,
    /// The group is in the queue of the writers, with one of them, or waits to be tried again.
    queued: bool,
}

/// What a writer does next.
#[derive(Debug)]
pub(super) enum Work {
    /// Read the file.
    Read,
    /// Write the image.
    Write(Image, Kept),
    /// Remove the file: nothing is left of the group.
    Remove,
}

impl OffsetState {
    /// Of a group whose file is still to be read.
    pub(super) fn unread() -> Self {
        if planted(Fault::OffsetsNotRead) {
            return Self::default();
        }
        Self {
            book: OffsetBook::unread(),
            ..Self::default()
        }
    }

    /// Whether nothing shows that there is a group, and nothing is under way. A writer that has
    /// just written its deletion may still hold it: it has nothing more to do with it.
    pub fn is_blank(&self) -> bool {
        self.book.is_blank() && self.waiting.is_empty()
    }

    /// Why nothing can be read or decided now.
    pub(super) fn check(&self) -> Result<(), GroupError> {
        if self.book.is_settled() {
            Ok(())
        } else {
            Err(GroupError::CoordinatorLoading)
        }
    }

    /// Whether it is known that there is a group. One whose file can't be read counts as if there
    /// were none.
    ///
    /// # Errors
    /// [`GroupError::CoordinatorLoading`] until the file was looked at.
    pub(super) fn check_seen(&self) -> Result<bool, GroupError> {
        match self.book.is_unread() {
            true if !self.unreadable => Err(GroupError::CoordinatorLoading),
            unread => Ok(!unread),
        }
    }

    /// The file could not be read.
    pub(super) fn not_read(&mut self) {
        self.unreadable = true;
    }

    /// Waits for a prepared change.
    pub(super) fn pending(
        &mut self,
        prepared: Result<Change, PrepareError>,
    ) -> Result<Pending, GroupError> {
        let change = prepared.map_err(|error| match error {
            PrepareError::Unsettled => GroupError::CoordinatorLoading,
            PrepareError::TooLarge => GroupError::OffsetsTooLarge,
        })?;
        if self.book.is_concluded(change) || planted(Fault::OffsetBeforeDurable) {
            return Ok(Pending::concluded());
        }
        let (done, wait) = oneshot::channel();
        self.waiting.push_back((change, Waiting::Change(done)));
        Ok(Pending(wait))
    }

    /// Answers a SyncGroup when everything is durable that was prepared before it: what was
    /// accepted of the generations before, which its member may read next, and that there is a
    /// group.
    pub(super) fn answer_sync(&mut self, waits: oneshot::Sender<SyncReply>, synced: Synced) {
        let waiting = Waiting::Sync(waits, synced);
        let now = |change| self.book.is_concluded(change) || planted(Fault::SyncBeforeDurable);
        let heard = match self.book.unchanged() {
            Ok(change) if now(change) => waiting.tell(Ok(())),
            Ok(change) => {
                self.waiting.push_back((change, waiting));
                return;
            }
            Err(_) => waiting.tell(Err(GroupError::CoordinatorNotAvailable)),
        };
        if !heard {
            tracing::trace!("nobody waits for this assignment any more");
        }
    }

    /// Whether the group is to be put into the queue now: there is work, and it is not in it.
    pub(super) fn wants_queue(&mut self) -> bool {
        let work = self.book.must_read() || self.book.must_write() || self.removing;
        let wants = work && !self.queued;
        self.queued |= wants;
        wants
    }

    /// What there is to do. Without anything the group leaves the queue.
    pub(super) fn work(&mut self) -> Option<Work> {
        let work = if self.book.must_read() {
            Some(Work::Read)
        } else {
            let image = self.book.image();
            match image {
                Some(image) => {
                    self.removing = false;
                    Some(Work::Write(image, self.kept.clone()))
                }
                None => self.removing.then_some(Work::Remove),
            }
        };
        self.queued = work.is_some();
        work
    }

    pub(super) fn read(&mut self, file: Option<GroupOffsetsFile>, now_ms: i64) {
        self.unreadable = false;
        self.failures = 0;
        self.filed = file.is_some();
        let (table, kept) = file.unwrap_or_default().into_table(now_ms);
        self.kept = kept;
        self.book.reloaded(table);
    }

    /// Its file could not be read or written; how long to wait before it is tried again.
    pub(super) fn failed(&mut self) -> Duration {
        let wait = AGAIN.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        wait.min(AGAIN_MAX)
    }

    pub(super) fn written(&mut self, image: &Image) {
        self.failures = 0;
        self.filed = true;
        self.book.written(image);
        self.conclude(image.change, Ok(()));
    }

    /// Plans that the file goes, if there is one that says that the group is deleted, and nothing
    /// that other writers have to say.
    pub(super) fn plan_removal(&mut self) {
        let over = self.is_blank() && self.book.durable().is_deleted();
        self.removing = over && self.filed && self.kept.extra.is_empty();
    }

    /// The file is gone, or stays until the slot is taken over again.
    pub(super) fn removed(&mut self) {
        self.removing = false;
        self.filed = false;
        self.kept = Kept::default();
    }

    pub(super) fn not_written(&mut self) {
        let change = self.book.not_written();
        self.conclude(change, Err(GroupError::CoordinatorNotAvailable));
    }

    pub(super) fn maybe_written(&mut self) {
        let change = self.book.maybe_written();
        self.conclude(change, Err(GroupError::CoordinatorNotAvailable));
    }

    /// Another process has the group: nothing is known of it any more.
    pub(super) fn lost(&mut self) {
        let change = self.book.maybe_written();
        self.conclude(change, Err(GroupError::NotCoordinator));
        self.queued = false;
        self.removing = false;
    }

    fn conclude(&mut self, up_to: Change, outcome: Result<(), GroupError>) {
        while let Some((change, _)) = self.waiting.front() {
            if *change > up_to {
                return;
            }
            if let Some((_, waiting)) = self.waiting.pop_front()
                && !waiting.tell(outcome)
            {
                tracing::trace!("nobody waits for this change any more");
            }
        }
    }
}
