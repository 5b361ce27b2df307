#!/usr/bin/env bash
# Runs a wheel with each version of PyTorch in an environment of its own, on the simulated GPU that the wheel brings, and writes
# what came of it into the table of docs/pytorch_versions.md.
#
#   packaging/try_versions.sh [WHEEL [VERSION…]]
#
# An environment takes up to 8 GB of disk and is removed before the next one is made. $CACHALOT_TRY_FOLDER: where (default /tmp).
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

wheels=(dist/*.whl)
wheel=$(readlink -f "${1:-${wheels[0]}}")
shift || true
versions=("$@")
[[ ${#versions[@]} -gt 0 ]] || versions=(2.9.1 2.10.0 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0)
root=$PWD
folder=$(mktemp -d "${CACHALOT_TRY_FOLDER:-/tmp}/cachalot-try-XXXXXX")
trap 'rm -rf "$folder"' EXIT

# Says "yes", or what the last line of the output is.
outcome() {
  if "$@" >"$folder/out" 2>&1; then echo yes; else tail -1 "$folder/out" | cut -c1-120 | tr '|' '/'; fi
}

# Of pytest's line at its end: "39 passed" or "34 passed, 5 failed". Libraries may print more after it.
of_calls() {
  local result
  env CACHALOT_TEST_MODE="$1" "${simulated[@]}" "$python" -m pytest -q -p no:cacheprovider \
    "$root/tests/pytorch/test_functions.py" >"$folder/out" 2>&1 || true
  result=$(grep -E '[0-9]+ (passed|failed|error).* in [0-9.]+s' "$folder/out" | tail -1 |
    grep -oE '[0-9]+ (passed|failed|error)' | sort -k2r | paste -sd, | sed 's/,/, /') || true
  echo "${result:-did not run}"
}

for version in "${versions[@]}"; do
  python3 -m venv "$folder/venv"
  python=$folder/venv/bin/python
  "$python" -m pip install --quiet --no-cache-dir "torch==$version" numpy pytest
  "$python" -m pip install --quiet --no-index "$wheel"
  simulated=(env CACHALOT_CACHE_DIR="$folder/cache" CXX=no-compiler LD_PRELOAD="$folder/venv/lib/cachalot/simulator/libcachalot_simulator.so"
    CACHALOT_SIM_DEVICES=2 CACHALOT_SIM_MEMORY=8GiB)
  torch=$("$python" -c 'import torch; print(torch.__version__)')
  smoke=$(outcome "${simulated[@]}" "$python" -m cachalot run packaging/smoke.py)
  pages=$(outcome "${simulated[@]}" "$python" -m cachalot run --config heap:pages packaging/smoke.py)
  row="| $torch | $(date -u +%F) | $smoke | $pages | $(of_calls full) | $(of_calls native) |"
  echo "$row"
  python3 packaging/record_version.py docs/pytorch_versions.md "$row"
  rm -rf "$folder/venv"
done
