#!/usr/bin/env bash
# Runs the vectors of transactions (tests/tests/wire/txn_apis, transactions) at transaction.version 1
# and 2: on Fencepost and on Apache Kafka, or on the one that is named (txn-vectors.sh [fencepost|kafka]).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ $# -gt 0 ]] || set -- fencepost kafka
profile=${FENCEPOST_PROFILE:-ci}
built=$profile
[[ $profile != dev ]] || built=debug
cargo build --locked --profile "$profile" -p gateway
export FENCEPOST_BIN=${FENCEPOST_BIN:-${CARGO_TARGET_DIR:-$PWD/target}/$built/fencepost}
for target in "$@"; do
    for version in 1 2; do
        printf '\n== %s, transaction.version %s\n' "$target" "$version"
        # Kafka's own tools take a JVM each.
        FENCEPOST_WIRE_TARGET=$target FENCEPOST_WIRE_TXN_VERSION=$version \
            cargo test --locked --profile "$profile" -p tests --test wire -- \
            --test-threads 4 txn_apis:: transactions::
    done
done
