#!/usr/bin/env bash
# Every target of time, memory and instructions: target, measured, met or missed. Fails if one is missed.
#
#   bench/targets.sh [<build folder>]
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

readonly build_dir=${1:-build/release}
if [[ ! -x $build_dir/bench/targets ]]; then
  echo "targets.sh: $build_dir/bench/targets is not built: ./run build" >&2
  exit 2
fi

status=0
"$build_dir"/bench/targets --check || status=1
echo
bench/instructions.sh "$build_dir" || status=1
exit $status
