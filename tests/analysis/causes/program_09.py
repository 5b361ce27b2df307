"""Sequences of all lengths, by recommended settings."""

import torch
from watched import block, watch


def main():
    torch._C._accelerator_setAllocatorSettings("roundup_power2_divisions:2")
    sequences = [block(17 * (1 + i % 2)) for i in range(28)]
    del sequences


watch(main)
