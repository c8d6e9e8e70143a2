//! The layers of the request stack, one per file; their order and its reasons are in
//! [`crate::stack`].
//!
//! Their futures are named and `Unpin`, because the innermost one is boxed: no layer allocates.

pub mod admit;
pub mod dispatch;
pub mod guard_decode;
pub mod observe;
pub mod rescue;
pub mod version_gate;

#[cfg(test)]
pub(crate) mod testing {
    //! What the tests of the layers share.

    use std::sync::{Arc, OnceLock};
    use std::time::Duration;

    use bytes::Bytes;

    use crate::api::{ConnectionContext, Staged};
    use crate::stack::{Ordered, RawRequest};
    use crate::turns::Turns;

    /// A request with correlation id 7 and no body.
    pub(crate) fn raw(key: i16, version: i16) -> RawRequest {
        RawRequest {
            connection: Arc::new(ConnectionContext {
                id: 1,
                peer: None,
                local: None,
                listener: 0,
                software: OnceLock::new(),
                turns: Turns::default(),
            }),
            key,
            version,
            correlation_id: 7,
            frame: Bytes::new(),
            received: Duration::ZERO,
            admitted: crate::admitted::Admitted::default(),
        }
    }

    /// An outcome without an answer.
    pub(crate) fn silent() -> Ordered {
        Ordered::new(Staged::Silent, 0, 7)
    }
}
