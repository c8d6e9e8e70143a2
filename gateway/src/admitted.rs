//! The bytes of a request in the budget for requests in memory.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

/// What one request holds of the budget. It is counted until the last clone is gone: whatever
/// keeps bytes of the request alive beyond its answer keeps a clone with them.
#[derive(Debug, Clone, Default)]
pub struct Admitted {
    _permit: Option<Arc<OwnedSemaphorePermit>>,
}

impl From<OwnedSemaphorePermit> for Admitted {
    fn from(permit: OwnedSemaphorePermit) -> Self {
        Self {
            _permit: Some(Arc::new(permit)),
        }
    }
}
