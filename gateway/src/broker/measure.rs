//! How much there is: of the volume, and of its partitions' records.

use std::sync::Arc;

use store_adapter::store::Size;
use store_adapter::volume::Space;
use tokio::sync::oneshot;

use super::Broker;
use crate::partition::Partition;

impl Broker {
    /// The room of the volume; `None` when it can't be measured.
    pub(crate) async fn space(&self) -> Option<Space> {
        let (answer, measured) = oneshot::channel();
        let volume = Arc::clone(&self.volume);
        let look = Box::pin(async move {
            // The asker may have gone.
            answer.send(volume.space().await.ok()).unwrap_or_default();
        });
        drop(self.env.runtime.spawn_io("measure", look));
        measured.await.ok().flatten()
    }

    /// What is known without I/O of the bytes that a partition takes; `None` when it is not open
    /// here. [`Partition::cut_bytes`] has the rest.
    pub(crate) fn size_of(&self, partition: &Partition) -> Option<Size> {
        self.store.size(partition.id())
    }
}
