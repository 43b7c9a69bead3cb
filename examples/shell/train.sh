#!/usr/bin/env bash
# How a script starts a job and uses its exit code: train, and try again when the failure is worth it.
#
# usage: train.sh [options of fashion_mnist]             with TORCHUP=/path/to/torchup PROGRAM=/path/to/program to choose them
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
torchup=${TORCHUP:-$root/build/release/bin/torchup}
program=${PROGRAM:-$root/build/release/bin/fashion_mnist}

status=0
"$torchup" --nproc-per-node="${NPROC:-2}" --max-restarts=1 "$program" "$@" || status=$?
case $status in
  0) echo "trained" ;;
  1) echo "the workers failed twice: see the report above" >&2 ;;
  2) echo "the command line is wrong: nothing was started" >&2 ;;
  66 | 67) echo "the nodes did not find each other: worth another try later" >&2 ;;
  75) echo "preempted with its state saved: submit it again with --resume" >&2 ;;
  130 | 143) echo "interrupted" >&2 ;;
  *) echo "torchup ended with $status" >&2 ;;
esac
exit "$status"
