//! What a request holds of the budget for requests in memory.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use crate::request_budget::{self, Admission, Parts, Share, Shares};

/// What the buffer of one request holds of the budget. It is counted until the last clone is gone:
/// whatever keeps bytes of the request alive beyond its answer keeps a clone with them.
#[derive(Debug, Clone, Default)]
pub struct Admitted(Option<Arc<Held>>);

#[derive(Debug)]
struct Held {
    shares: Shares,
    /// Whether that is the place of its connection, beside the budget.
    is_place: bool,
    /// `None` in tests of what lies behind the reader.
    admission: Option<Arc<Admission>>,
}

impl Admitted {
    pub(crate) fn new(shares: Shares, is_place: bool, admission: Arc<Admission>) -> Self {
        Self(Some(Arc::new(Held {
            shares,
            is_place,
            admission: Some(admission),
        })))
    }

    /// Whether it holds something.
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// The parts of the budget that it holds something of.
    pub(crate) fn parts(&self) -> Parts {
        let held = self.0.as_ref();
        held.map_or(Parts::default(), |held| request_budget::parts(&held.shares))
    }

    /// What a request holds instead that waits long and keeps little: the place of its connection,
    /// if that is free.
    pub(crate) fn parked(&self) -> Option<Self> {
        let held = self.0.as_ref()?;
        if held.is_place {
            return Some(self.clone());
        }
        let place = &held.admission.as_ref()?.place;
        let permit = Arc::clone(place).try_acquire_owned();
        permit.ok().map(Self::from)
    }

    /// Completes when somebody waits for room of which this holds some.
    pub(crate) async fn wanted(&self) {
        let admission = self.0.as_ref().and_then(|held| held.admission.as_ref());
        match admission {
            Some(admission) => admission.budget.wanted(self.parts()).await,
            None => std::future::pending().await,
        }
    }
}

impl From<OwnedSemaphorePermit> for Admitted {
    fn from(permit: OwnedSemaphorePermit) -> Self {
        let mut shares = Shares::new();
        shares.push(Share::place(permit));
        Self(Some(Arc::new(Held {
            shares,
            is_place: false,
            admission: None,
        })))
    }
}
