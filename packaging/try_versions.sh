#!/usr/bin/env bash
# Runs a wheel with each version of PyTorch in an environment of its own, on the simulated GPU that the wheel brings, and writes
# what came of it into the table of docs/pytorch_versions.md.
#
#   packaging/try_versions.sh [WHEEL | BUILD [VERSION…]]
#
# A build's folder (build/release) in place of a wheel: its package and its simulator, and adapters made by the system's compiler.
# An environment takes up to 8 GB of disk and is removed before the next one is made. $CACHALOT_TRY_FOLDER: where (default /tmp).
# $CACHALOT_TRY_ENVIRONMENTS: what environments that are there already are called up to their version; they are used and stay
# (with /tmp/torch-, /tmp/torch-2.15 for 2.15.0).
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

wheels=(dist/*_"$(uname -m)".whl)
wheel=$(readlink -f "${1:-${wheels[0]}}")
shift || true
versions=("$@")
[[ ${#versions[@]} -gt 0 ]] || versions=(2.10.0 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0)
root=$PWD
folder=$(mktemp -d "${CACHALOT_TRY_FOLDER:-/tmp}/cachalot-try-XXXXXX")
trap 'rm -rf "$folder"' EXIT

# Says "yes", or what the last line of the output is.
outcome() {
  if "$@" >"$folder/out" 2>&1; then echo yes; else tail -1 "$folder/out" | cut -c1-120 | tr '|' '/'; fi
}

# of_tests MODE FILE…: of pytest's line at its end: "39 passed" or "34 passed, 5 failed". Libraries may print more after it.
of_tests() {
  local mode=$1 result
  shift
  env CACHALOT_TEST_MODE="$mode" "${simulated[@]}" "$python" -m pytest -q -p no:cacheprovider \
    "${@/#/$root/tests/pytorch/}" >"$folder/out" 2>&1 || true
  result=$(grep -E '[0-9]+ (passed|failed|error).* in [0-9.]+s' "$folder/out" | tail -1 |
    grep -oE '[0-9]+ (passed|failed|error)' | sort -k2r | paste -sd, | sed 's/,/, /') || true
  echo "${result:-did not run}"
}

# Sets `python`, an environment's with this version of PyTorch, and `simulated`, the variables under which a program runs.
set_up() {
  local environment=${CACHALOT_TRY_ENVIRONMENTS:-}${1%.*}
  if [[ -z ${CACHALOT_TRY_ENVIRONMENTS:-} || ! -x $environment/bin/python ]]; then
    environment=$folder/venv
    python3 -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet --no-cache-dir "torch==$1" numpy pytest
  fi
  python=$environment/bin/python
  simulated=(env CACHALOT_CACHE_DIR="$folder/cache" CACHALOT_SIM=devices:2,memory:8GiB)
  if [[ -d $wheel ]]; then
    simulated+=(PYTHONPATH="$wheel/python" LD_LIBRARY_PATH="$wheel/simulator/driver"
      LD_PRELOAD="$wheel/simulator/libcachalot_simulator.so")
  else
    "$python" -m pip install --quiet --no-index --force-reinstall "$wheel"
    simulated+=(CXX=no-compiler LD_PRELOAD="$environment/lib/cachalot/simulator/libcachalot_simulator.so")
  fi
}

for version in "${versions[@]}"; do
  set_up "$version"
  torch=$("$python" -c 'import torch; print(torch.__version__)')
  smoke=$(outcome "${simulated[@]}" "$python" -m cachalot run packaging/smoke.py)
  pages=$(outcome "${simulated[@]}" "$python" -m cachalot run --config heap:pages packaging/smoke.py)
  row="| $torch | $(date -u +%F) | $smoke | $pages"
  for files in "test_functions.py test_newer_functions.py" test_conformance.py; do
    # shellcheck disable=SC2086  # a list of files
    for mode in full native; do row+=" | $(of_tests "$mode" $files)"; done
  done
  row+=" |"
  echo "$row"
  python3 packaging/record_version.py docs/pytorch_versions.md "$row"
  rm -rf "$folder/venv"
done
