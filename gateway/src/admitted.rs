//! The bytes of a request in the budget for requests in memory.

use std::sync::Arc;

use crate::byte_budget::Permit;

/// What one request holds of the budget. It is counted until the last clone is gone: whatever
/// keeps bytes of the request alive beyond its answer keeps a clone with them.
#[derive(Debug, Clone, Default)]
pub struct Admitted {
    _permit: Option<Arc<Permit>>,
}

impl From<Permit> for Admitted {
    fn from(permit: Permit) -> Self {
        Self {
            _permit: Some(Arc::new(permit)),
        }
    }
}
