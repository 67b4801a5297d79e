#!/usr/bin/env bash
# Runs all tests, in two halves at the same time, because each waits for others much of its time: for disks,
# timers, and single threads. What the second half says comes behind the first.
#
#   scripts/tests.sh
set -euo pipefail
cd "$(dirname "$0")/.."

# By the names of the programs; those that build the integrations are in one half. Both take about as long.
readonly SECOND='[fprw]*'

cargo test --workspace --locked --no-run
said=$(mktemp)
second=
trap '[[ -z $second ]] || kill -- "-$second" 2>/dev/null || true; rm -f "$said"' EXIT
# In a process group, to be ended as a whole.
set -m
cargo test --workspace --locked --test "$SECOND" >"$said" 2>&1 &
second=$!
set +m
failed=0
cargo test --workspace --locked --lib --bins --test "[!${SECOND:1}" || failed=1
cargo test --workspace --locked --doc || failed=1
wait "$second" || failed=1
second=
cat "$said"
exit "$failed"
