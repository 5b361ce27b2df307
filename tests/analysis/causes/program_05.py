"""A service shares the GPU with others by agreement."""

import torch
from watched import block, watch


def main():
    torch.cuda.set_per_process_memory_fraction(0.4)
    weights = [block(50) for _ in range(6)]
    answer = block(200)
    del weights, answer


watch(main)
