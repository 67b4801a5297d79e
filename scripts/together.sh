#!/usr/bin/env bash
# Runs two commands at the same time, for virtual machines, which wait much of their time.
#
#   scripts/together.sh COMMAND COMMAND
#
# Each is one argument, for bash. What the second says comes behind what the first says. Succeeds if both do.
set -euo pipefail

[[ $# == 2 ]] || { echo "usage: scripts/together.sh COMMAND COMMAND" >&2; exit 2; }
said=$(mktemp)
second=
trap '[[ -z $second ]] || kill -- "-$second" 2>/dev/null || true; rm -f "$said"' EXIT
# In a process group, to be ended as a whole.
set -m
bash -euc "$2" >"$said" 2>&1 &
second=$!
set +m
failed=0
bash -euc "$1" || failed=1
wait "$second" || failed=1
second=
cat "$said"
exit "$failed"
