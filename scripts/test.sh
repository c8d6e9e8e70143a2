#!/usr/bin/env bash
# Installs what the suites need and runs every test. `quick` leaves out the real clients.
#
# One optimised profile (`ci`) builds both the gateway that is tested and the tests themselves, so
# dependencies compile once. Everything installed by hand lands below .cache/ ($FENCEPOST_CACHE).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=${1:-all}
# What every black-box suite runs: built by the first test command below.
export FENCEPOST_BIN=${FENCEPOST_BIN:-${CARGO_TARGET_DIR:-$PWD/target}/ci/fencepost}
# Go and Node, where the machine's own were missing or too old.
export PATH=${FENCEPOST_CACHE:-$PWD/.cache}/clients/tools/bin:$PATH
# Random inputs are the same in every run: what fails is the fault of a change, not of chance.
# scripts/soak.sh looks further.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-1} MUTATIONS_SEED=${MUTATIONS_SEED:-1}
say() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

# Runs `cargo test` with the arguments before `--`, and gives the test programs those behind it. What
# fails is asked once more, alone, if it is no more than $most tests: clients have races of their
# own (kafka-python: what it has subscribed to against its first metadata), and a disk that stalls
# for seconds can fail a test that is right. What does not come again is told at the end, and is a
# fault to look for all the same.
again=()
run() {
    local log names arguments=() ended told failed passed
    log=$(mktemp)
    while [[ $1 != -- ]]; do arguments+=("$1"); shift; done
    shift
    if cargo test --locked --profile ci --color never --no-fail-fast "${arguments[@]}" \
        -- "$@" 2>&1 | tee "$log"; then
        rm "$log"
        return
    fi
    # Of each program that failed, the last list of names before its result.
    mapfile -t names < <(awk '/^failures:$/ { split("", list); count = 0; inside = 1; next }
        /^test result: FAILED/ { for (n = 1; n <= count; n++) print list[n] }
        /^test result:/ { count = 0; inside = 0 }
        inside && NF == 1 && /^    [a-z0-9_:]+$/ { list[++count] = $1 }' "$log" | sort -u)
    # A program that ended without its result, or a failure without a name, can't be asked again.
    ended=$(grep -c 'error: test failed, to rerun' "$log" || true)
    told=$(grep -c '^test result: FAILED' "$log" || true)
    failed=$(awk '/^test result: FAILED/ { failed += $6 } END { print failed + 0 }' "$log")
    (( ended > 0 && ended <= told && failed > 0 )) || return 1
    (( failed <= ${#names[@]} && ${#names[@]} <= most )) || return 1
    say "once more: ${names[*]}"
    cargo test --locked --profile ci --color never "${arguments[@]}" \
        -- --nocapture --test-threads 1 --exact "${names[@]}" 2>&1 | tee "$log" || return 1
    passed=$(awk '/^test result: ok/ { passed += $4 } END { print passed + 0 }' "$log")
    rm "$log"
    (( passed >= ${#names[@]} )) || return 1
    again+=("${names[@]}")
}
# Some tests of the wire once more, in another setting.
wire() {
    most=2 run --workspace --features store-adapter/conformance --test wire -- "$@"
}
# Tests with real clients. With the features of the stage before, which has built all but the tests.
clients() {
    most=8 run --workspace --features store-adapter/conformance,tests/clients-c "$@"
}

command -v cargo >/dev/null || { echo "no cargo here: install Rust 1.95 (rustup)" >&2; exit 1; }
if [[ $mode == all ]]; then
    say "runtimes of the real clients"
    scripts/setup-clients.sh
fi

say "format"
cargo fmt --all --check

say "lints"
cargo clippy --locked --profile ci --workspace --all-targets \
    --features tests/planted-faults,tests/clients-c,store-adapter/conformance -- -D warnings

say "units, formats, machines, conformance, wire; builds the gateway under test"
echo "PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED MUTATIONS_SEED=$MUTATIONS_SEED"
most=2 run --workspace --features store-adapter/conformance --

say "the vectors of transactions where the first protocol is finalized"
FENCEPOST_WIRE_TXN_VERSION=1 wire txn_apis:: transactions::

say "what depends on the store, with layout=kv"
FENCEPOST_WIRE_STORE='sled:?layout=kv' wire compaction:: retention:: trimming:: idempotence:: kill::

say "what depends on the store, by the rules of the worst one; what outlives the process left out"
# The list of aborts is of what a read shows, and those of strict: lag.
FENCEPOST_WIRE_STORE=strict: wire compaction:: retention:: trimming:: idempotence:: order:: \
    records:: pipeline:: transactions:: --skip kill --skip restart --skip transactions::crashes \
    --skip the_newest_record_of_every_key --skip r03_r04

if [[ $mode == all ]]; then
    say "the tables of malformed input, configs of brokers, the vectors of groups, on Apache Kafka"
    FENCEPOST_WIRE_TARGET=kafka wire --test-threads 4 \
        frames:: bodies:: records:: errors:: groups:: offsets:: broker_configs::
    for version in 1 2; do
        say "the vectors of transactions on Apache Kafka, transaction.version $version"
        FENCEPOST_WIRE_TARGET=kafka FENCEPOST_WIRE_TXN_VERSION=$version wire --test-threads 4 \
            txn_apis:: transactions::
    done
fi

say "the simulation and its planted faults"
cargo test --locked --profile ci -p tests --features planted-faults --test simulation

if [[ $mode == all ]]; then
    say "real clients under kill -9"
    clients --test flights -- --nocapture

    say "groups and transactions of real clients, and the commands that manage them"
    # Most of their time is waiting for sessions, JVMs and restarts.
    clients --test group_clients --test txn_clients --test groups --test quickstart --test pipes \
        --test frameworks --test command_clients -- --nocapture --test-threads 4

    say "the test suites of the clients' makers"
    clients --test suites -- --nocapture --test-threads 5
fi
(( ${#again[@]} == 0 )) || say "FAILED ONCE, passed when asked again: ${again[*]}"
say "all passed"
