#!/usr/bin/env bash
# What torch's users pay for an allocation: PyTorch's own allocator and cachalot, over the simulated CUDA runtime.
# Skips aloud where the python has no torch.
#
#   bench/pytorch.sh [<build folder>]          CACHALOT_PYTHON: the python to use, python3 without
exec "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/pytorch/over_simulator.sh" pytorch/torch_pairs.py "$@"
