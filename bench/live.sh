#!/usr/bin/env bash
# Counts the instructions of one allocate + deallocate without and with a publisher of statistics: callgrind's total of 11,000
# pairs less that of 1,000, divided by 10,000. Then prints the times of bench/live.
#
#   bench/live.sh [<build folder>]    fails if publishing adds an instruction to a pair, or a figure is above its target
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

readonly build_dir=${1:-build/release}
readonly program=$build_dir/bench/live

[[ -x $program ]] || { echo "live.sh: $program is not built: ./run build" >&2; exit 2; }
command -v valgrind >/dev/null || { echo "live.sh: please install valgrind" >&2; exit 2; }

# Of the whole program: $1 0 or 1 publishers, $2 pairs.
instructions() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" pairs "$1" "$2" 2>&1 |
    sed -n 's/.*Collected : \([0-9]*\)$/\1/p'
}
pair() { echo $((($(instructions "$1" 11000) - $(instructions "$1" 1000) + 5000) / 10000)); }

status=0
without=$(pair 0)
with=$(pair 1)
verdict=met
[[ $with -le $((without + 1)) ]] || { verdict=MISSED; status=1; }
printf '%-52s %10s %10s  %s\n' "instructions of a pair of 4096 bytes" "<= $((without + 1))" "$with" "$verdict"
"$program" || status=1
exit $status
