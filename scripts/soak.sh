#!/usr/bin/env bash
# Runs the tests whose inputs are random, with another seed each round, for SECONDS (600). What fails
# is repeated with the seed of its round:
# PROPTEST_RNG_SEED=N MUTATIONS_SEED=N cargo test --profile ci -p PACKAGE ...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
end=$((SECONDS + ${1:-600}))
while ((SECONDS < end)); do
    seed=$(od -An -N7 -tu8 /dev/urandom | tr -d ' ')
    printf '\n== PROPTEST_RNG_SEED=%s MUTATIONS_SEED=%s (%ss)\n' "$seed" "$seed" "$SECONDS"
    export PROPTEST_RNG_SEED=$seed MUTATIONS_SEED=$seed
    cargo test --locked --quiet --profile ci --workspace --features store-adapter/conformance \
        --lib --test mutations
done
