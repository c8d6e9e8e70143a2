//! What becomes of a queued group.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::StoreError;

/// A queued group's outcome.
#[derive(Debug)]
pub struct Commit {
    outcome: oneshot::Receiver<Result<(), StoreError>>,
}

impl Commit {
    /// A commit and the side by which the store resolves it.
    pub fn pair() -> (oneshot::Sender<Result<(), StoreError>>, Self) {
        let (resolve, outcome) = oneshot::channel();
        (resolve, Self { outcome })
    }

    /// A commit that is already resolved.
    pub fn ready(outcome: Result<(), StoreError>) -> Self {
        let (resolve, commit) = Self::pair();
        // The receiver is in `commit`, so this cannot fail.
        resolve.send(outcome).unwrap_or_default();
        commit
    }
}

impl Future for Commit {
    type Output = Result<(), StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // A store that ends without an answer may have written the group.
        Pin::new(&mut self.outcome)
            .poll(cx)
            .map(|outcome| outcome.unwrap_or(Err(StoreError::Uncertain { fenced: false })))
    }
}
