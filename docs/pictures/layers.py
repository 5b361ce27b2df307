"""The layers of the source tree: the rank of each folder is read from tests/layers/ranks.cmake."""

from __future__ import annotations

import re
from pathlib import Path

from svg import Picture

RANKS = Path(__file__).resolve().parents[2] / "tests/layers/ranks.cmake"

# path in ranks.cmake: (name, what it contains, colour)
PARTS = {
    "tools/": ("tools", "the cachalot command", "tint-grey"),
    "pytorch/adapter/": ("pytorch/adapter", "one file per PyTorch version", "tint-orange"),
    "c_api/": ("c_api", "libcachalot.so", "tint-orange"),
    "pytorch/": ("pytorch", "plug-in", "tint-orange"),
    "pool/": ("pool", "tensor pools", "tint-green"),
    "kernels/": ("kernels", "GPU kernels", "tint-green"),
    "adapters/": ("adapters", "cuda::mr, RMM, CUB, …", "tint-green"),
    "diagnostics/": ("diagnostics", "guard, leaks, published statistics", "tint-green"),
    "allocator/include/cachalot/caching_allocator.h": ("CachingAllocator", "all devices; the C++ API", "tint-blue"),
    "allocator/api/": ("api", "its functions by topic, the front, inspection", "tint-blue"),
    "allocator/api/device_allocator.h": ("DeviceAllocator", "one device: the parts and their wiring", "tint-blue"),
    "allocator/api/fast_path.h": ("FastPath", "malloc and free from free blocks", "tint-blue"),
    "allocator/growth/": ("growth", "segments, pages, recovery, sleep, sharing", "tint-blue"),
    "allocator/heap/": ("heap", "state, ledger, private pools, pending frees, streams", "tint-blue"),
    "allocator/caches/": ("caches", "thread caches", "tint-blue"),
    "allocator/pages/": ("pages", "page heap, placement", "tint-blue"),
    "allocator/blocks/": ("blocks", "blocks, bins, split and merge, page map, counters", "tint-blue"),
    "allocator/policy/": ("policy", "PyTorch's rules, options", "tint-blue"),
    "simulator/device/": ("simulator/device", "simulated device, hazards", "tint-grey"),
    "simulator/": ("simulator", "simulated CUDA runtime", "tint-grey"),
    "allocator/device/": ("device", "Device: CUDA, or another", "tint-grey"),
    "allocator/base/": ("base", "bytes, locks, checks, call stacks", "tint-grey"),
}
LEFT, WIDTH, TOP, ROW, GAP = 20, 820, 70, 56, 10


def ranks() -> dict[str, float]:
    """The rank of each path that the table names."""
    found = {}
    for rank, paths in re.findall(r'^\s+"([\d.]+)\s+([^"]*)"', RANKS.read_text(), re.MULTILINE):
        found |= {path: float(rank) for path in paths.split()}
    return found


def draw() -> str:
    known = ranks()
    rows: dict[float, list[str]] = {}
    for path in PARTS:  # a wing is as high as the highest of its folders
        rank = max(rank for ranked, rank in known.items() if ranked == path or (ranked.startswith(path) and path not in known))
        rows.setdefault(rank, []).append(path)
    picture = Picture(
        WIDTH + 40, TOP + len(rows) * (ROW + GAP) + 8, "The layers of cachalot",
        "From base and device at the bottom to tools at the top; a file includes only from its own layer and from lower ones.")
    picture.text(20, 28, "Layers", size=16, bold=True)
    picture.text(20, 47, "A file includes only from its own row and from rows below it.", "soft", size=12)
    for i, rank in enumerate(sorted(rows, reverse=True)):
        y = TOP + i * (ROW + GAP)
        paths = rows[rank]
        width = (WIDTH - GAP * (len(paths) - 1)) / len(paths)
        for j, path in enumerate(paths):
            box(picture, LEFT + j * (width + GAP), y, width, *PARTS[path])
    return picture.svg()


def box(picture: Picture, x: float, y: float, width: float, name: str, contents: str, colour: str) -> None:
    picture.rect(x, y, width, ROW, colour, radius=6)
    picture.text(x + width / 2, y + 24, name, anchor="middle", bold=True, code=True)
    picture.text(x + width / 2, y + 43, contents, "soft", size=12, anchor="middle")
