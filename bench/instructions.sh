#!/usr/bin/env bash
# Counts the instructions of one allocate + deallocate of a cached size, all statistics on, in a process that has
# started a thread: callgrind's total of 11,000 pairs less that of 1,000, divided by 10,000.
#
#   bench/instructions.sh [<build folder>]    prints a table; fails if a count is above the target
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

readonly build_dir=${1:-build/release}
readonly program=$build_dir/bench/targets
readonly target=530  # instructions per pair; PyTorch 2.11 takes 3370

[[ -x $program ]] || { echo "instructions.sh: $program is not built: ./run build" >&2; exit 2; }
command -v valgrind >/dev/null || { echo "instructions.sh: please install valgrind" >&2; exit 2; }

# Of the whole program: $1 bytes, $2 pairs.
instructions() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" pairs "$1" "$2" 2>&1 |
    sed -n 's/.*Collected : \([0-9]*\)$/\1/p'
}

status=0
printf '%-44s %14s %14s  %-7s %12s\n' '' target measured '' 'PyTorch 2.11'
for bytes in 512 4096 1048576 8388608; do
  few=$(instructions $bytes 1000)
  many=$(instructions $bytes 11000)
  pair=$(((many - few) / 10000))
  verdict=met
  [[ $pair -le $target ]] || { verdict=MISSED; status=1; }
  printf '%-44s %14s %14s  %-7s %12s\n' "instructions/$bytes" "<= $target" $pair $verdict 3370
done
exit $status
