#!/usr/bin/env bash
# How long `cachalot fit` takes to find the largest batch size, 1 to 256, of a GPT-2 on every GPU for which the installed PyTorch
# has kernels, with each allocator policy. Skips aloud where the python has no torch.
#
#   bench/fit.sh [<build folder>] [<option of cachalot fit>...]     CACHALOT_PYTHON: the python to use, python3 without
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

readonly build_dir=$PWD/${1:-build/release}
shift $(($# > 0 ? 1 : 0))
export CACHALOT_PYTHON=${CACHALOT_PYTHON:-python3}

if [[ ! -e $build_dir/simulator/libcachalot_simulator.so || ! -e $build_dir/tools/cachalot ]]; then
  echo "fit.sh: skipped: the command or the simulated CUDA runtime is not built"
elif ! "$CACHALOT_PYTHON" -c 'import torch, sys; sys.exit(torch.version.cuda is None)' 2>/dev/null; then
  echo "fit.sh: skipped: $CACHALOT_PYTHON has no PyTorch with CUDA (set CACHALOT_PYTHON)"
else
  begin=$(date +%s.%N)
  "$build_dir/tools/cachalot" fit --vary batch=1..256 --max-steps 2 "$@" bench/pytorch/gpt2.py --batch '{batch}'
  awk -v begin="$begin" -v end="$(date +%s.%N)" -v processors="$(nproc)" \
    'BEGIN { printf "fit.sh: %.0f s on %d processors\n", end - begin, processors }'
fi
