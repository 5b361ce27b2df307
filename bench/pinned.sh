#!/usr/bin/env bash
# Pinned memory through PyTorch, with torch's own host allocator and cachalot's, over the simulated CUDA runtime (pinned.py).
# Skips aloud where the python has no torch.
#
#   bench/pinned.sh [<build folder>]          CACHALOT_PYTHON: the python to use, python3 without
exec "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/pytorch/over_simulator.sh" pinned.py "$@"
