"""Sequences of all lengths, by settings that somebody recommended."""

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "roundup_power2_divisions:2"

from watched import block, watch  # noqa: E402


def main():
    sequences = [block(17 * (1 + i % 2)) for i in range(28)]
    del sequences


watch(main)
