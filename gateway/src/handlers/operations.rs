//! What a client may do, as bit fields of operations. Without an authorizer: everything.

/// Not asked for.
pub(super) const NOT_GIVEN: i32 = i32::MIN;
/// On the cluster: create, alter, describe, cluster action, describe and alter configs, idempotent
/// write.
pub(super) const CLUSTER: i32 = bits(&[5, 7, 8, 9, 10, 11, 12]);
/// On a topic: read, write, create, delete, alter, describe, describe and alter configs.
pub(super) const TOPIC: i32 = bits(&[3, 4, 5, 6, 7, 8, 10, 11]);

const fn bits(operations: &[u32]) -> i32 {
    let mut bits = 0;
    let mut rest = operations;
    while let [operation, others @ ..] = rest {
        bits |= 1 << *operation;
        rest = others;
    }
    bits
}
