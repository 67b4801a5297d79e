#!/usr/bin/env bash
# The quick part of interop, with programs that are built already: `make interop-fast`.
#
#   interop/fast.sh DIRECTORY
#
# DIRECTORY has bpfof, bpfof-query and examples/tour. The guest that runs chains in its kernel runs beside the one that
# uses the target: each mostly emulates a machine on one processor. The output of the first is printed last.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$1
log=.interop/passthrough.log

interop/tshark.py --tour "$programs/examples/tour"
echo "interop/passthrough.py --module --chains 100 runs beside this, and writes to $log"
interop/passthrough.py --module --chains 100 >"$log" 2>&1 &
other=$!
end() {
	kill "$other" 2>/dev/null || true
	wait "$other" || true
}
trap end EXIT
status=0
interop/run.py --fast --target "$programs/bpfof" --query "$programs/bpfof-query" || status=$?
wait "$other" || status=$?
echo "interop/passthrough.py --module --chains 100"
cat "$log"
exit "$status"
