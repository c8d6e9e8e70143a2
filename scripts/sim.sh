#!/usr/bin/env bash
# Repeats one simulated run with its event log (sim.sh SEED), or tries new seeds for a while
# (sim.sh soak SECONDS).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec cargo run --quiet --profile ci -p tests --features planted-faults --bin sim -- "$@"
