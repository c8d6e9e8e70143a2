//! The end of marker queues that puts entries: what other brokers have confirmed, what is missing,
//! what nobody is owed any more.

use store_adapter::fault::{Fault, planted};
use store_adapter::ids::{BrokerId, ProducerId};
use uuid::Uuid;

use super::{MarkerQueues, QueueFileError, QueueName, Standing};
use crate::machine::txn::{EntryName, TxnError};
use crate::service::txns::{OwedFile, Txns};

/// Why what is owed of an id is not settled; it is tried again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettleError {
    /// The slot can't be answered for or written.
    #[error(transparent)]
    Txn(#[from] TxnError),
    /// A file could not be read, written or removed.
    #[error(transparent)]
    File(#[from] QueueFileError),
}

impl MarkerQueues {
    /// Of an id that is owed something: drops what tombstones prove to be void, gives what has
    /// moved to those who lead it now, takes what others have confirmed, and puts again what is
    /// missing. `own` is this broker.
    pub async fn settle(
        &self,
        txns: &Txns,
        id: &str,
        own: BrokerId,
        is_deleted: impl Fn(Uuid) -> bool,
    ) {
        if let Err(error) = self.try_settle(txns, id, own, is_deleted).await {
            tracing::warn!(%id, %error, "what other brokers owe of it is not settled");
        }
    }

    async fn try_settle(
        &self,
        txns: &Txns,
        id: &str,
        own: BrokerId,
        is_deleted: impl Fn(Uuid) -> bool,
    ) -> Result<(), SettleError> {
        txns.forget_deleted(id, is_deleted).await?;
        txns.reroute(id, own).await?;
        // One queue that can't be read or written holds nobody else up.
        let mut outcome = Ok(());
        for owed in txns.owed_entries(id)? {
            let settled = self.settle_entry(txns, id, owed).await;
            outcome = outcome.and(settled);
        }
        outcome
    }

    async fn settle_entry(
        &self,
        txns: &Txns,
        id: &str,
        mut owed: OwedFile,
    ) -> Result<(), SettleError> {
        let name = QueueName {
            to: owed.broker,
            pid: ProducerId(owed.file.producer_id),
            record_epoch: owed.record_epoch,
        };
        let txn_seq = owed.txn_seq;
        loop {
            let done = match self.look(name, txn_seq, owed.file.clone()).await? {
                Standing::Queued => return Ok(()),
                Standing::Missing if planted(Fault::OwedDropped) => Box::new(owed.file.clone()),
                Standing::Missing => return Ok(self.put_again(id, name, owed).await?),
                Standing::Done(done) => done,
            };
            let of = EntryName {
                broker: name.to,
                pid: name.pid,
                record_epoch: name.record_epoch,
            };
            // Durable before the file goes: who finds neither would put the entry again.
            txns.confirm(id, &of, txn_seq, &done.asked()).await?;
            self.remove_done(name, txn_seq).await?;
            // What the broker was given since is still owed.
            let mut left = txns.owed_entries(id)?.into_iter();
            let same = |left: &OwedFile| {
                left.txn_seq == txn_seq
                    && left.broker == name.to
                    && left.file.producer_id == name.pid.0
            };
            match left.rfind(same) {
                Some(left) => owed = left,
                None => return Ok(()),
            }
        }
    }

    async fn put_again(
        &self,
        id: &str,
        name: QueueName,
        owed: OwedFile,
    ) -> Result<(), QueueFileError> {
        match self.put(name, owed.file).await {
            Ok(()) => tracing::info!(%id, to = name.to.0, "a queue entry is put again"),
            Err(QueueFileError::Waits) => {
                tracing::debug!(%id, to = name.to.0, "a queue entry waits for the one before");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Removes what nobody is owed any more: what a crash left between two steps.
    ///
    /// # Errors
    /// If a queue can't be read, or a file not removed.
    pub async fn sweep(&self, txns: &Txns) -> Result<(), QueueFileError> {
        for stray in self.all().await? {
            let to = stray.name.to;
            let Some(file) = &stray.file else { continue };
            if txns.is_void(stray.name, file).await {
                let (id, txn_seq) = (&file.transactional_id, file.txn_seq);
                tracing::warn!(%id, txn_seq, to = to.0, "a queue file that nobody is owed");
                self.remove(stray).await?;
            }
        }
        Ok(())
    }
}
