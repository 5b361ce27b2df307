"""Feature maps of images, somewhat smaller from image to image."""

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:32"

from watched import block, watch  # noqa: E402


def main():
    maps = [block(58) for _ in range(15)]
    while maps:
        maps.pop()
    maps = [block(39) for _ in range(24)]
    del maps


watch(main)
