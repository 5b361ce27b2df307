"""Feature maps of images, somewhat smaller from image to image."""

import torch
from watched import block, watch


def main():
    torch._C._accelerator_setAllocatorSettings("max_split_size_mb:32")
    maps = [block(58) for _ in range(15)]
    while maps:
        maps.pop()
    maps = [block(39) for _ in range(24)]
    del maps


watch(main)
