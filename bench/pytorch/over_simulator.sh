#!/usr/bin/env bash
# Runs a program of bench/ through PyTorch, over the simulated CUDA runtime; skips aloud where the python has no torch.
#
#   bench/pytorch/over_simulator.sh <program> [<build folder>]     CACHALOT_PYTHON: the python to use, python3 without
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."

readonly program=$1
readonly build_dir=$PWD/${2:-build/release}
readonly python=${CACHALOT_PYTHON:-python3}
readonly simulator=$build_dir/simulator/libcachalot_simulator.so

if [[ ! -e $simulator || ! -e $build_dir/python ]]; then
  echo "$program: skipped: the simulated CUDA runtime or the plug-in is not built"
elif ! "$python" -c 'import torch, sys; sys.exit(torch.version.cuda is None)' 2>/dev/null; then
  echo "$program: skipped: $python has no PyTorch with CUDA (set CACHALOT_PYTHON)"
else
  env PYTHONPATH="$build_dir/python" CACHALOT_CACHE_DIR="$build_dir/python/cache" LD_PRELOAD="$simulator" \
    LD_LIBRARY_PATH="$build_dir/simulator/driver" CACHALOT_SIM=memory:80GiB "$python" "bench/$program"
fi
