"""Peak memory of the device over peak requested memory, for each recorded trace: three allocators from docs/performance.md."""

from __future__ import annotations

import performance_table
from svg import Picture

TRACES = {
    "gpt2_varlen": "GPT-2, varied lengths",
    "gpt2_fp32": "GPT-2 medium, fixed length",
    "llama1b_ckpt": "LLaMA-like 1.1B, checkpointing",
    "moe": "mixture of experts",
    "resnet_multires": "ResNet, varied image sizes",
    "serve_kv": "LLM serving, growing KV caches",
    "lsm": "Monte Carlo pricing",
    "frag_toy": "random sizes, 4 B to 50 MB",
    "streams": "four streams, random sizes",
}
COLUMNS = {
    "torch": ("orange", "PyTorch"),
    "torch_expandable": ("grey", "PyTorch, expandable_segments:True"),
    "pages+cache": ("blue", "cachalot, heap:pages"),
}
LEFT, TOP, GROUP, BAR = 300, 92, 50, 13
SCALE = 560  # pixels for 100 % more than requested


def draw() -> str:
    figures = performance_table.read()
    height = TOP + GROUP * len(TRACES) + 8
    picture = Picture(
        860, height, "Peak device memory of recorded programs",
        "Memory beyond what was requested at the peak, in per cent, for PyTorch's allocator, its expandable segments and "
        "cachalot's page heap.")
    picture.text(20, 28, "Memory held beyond the requested peak", size=16, bold=True)
    picture.text(20, 47, "device memory at its peak over live requested memory at its peak; 0 % is perfect", "soft", size=12)
    at = 20.0
    for colour, label in COLUMNS.values():
        picture.rect(at, 62, 12, 12, colour, radius=2)
        picture.text(at + 18, 73, label, "soft", size=12)
        at += 34 + 6.6 * len(label)
    for i, (trace, what) in enumerate(TRACES.items()):
        y = TOP + i * GROUP
        picture.text(20, y + 17, what, size=13)
        picture.text(20, y + 34, trace, "soft", size=12, code=True)
        values = figures[f"{trace}: driver memory / requested, at peak"]
        for j, (column, (colour, _)) in enumerate(COLUMNS.items()):
            share = values[column] - 1
            picture.rect(LEFT, y + j * (BAR + 1), max(SCALE * share, 1.5), BAR, colour, radius=2)
            picture.text(LEFT + max(SCALE * share, 1.5) + 6, y + j * (BAR + 1) + 11, f"{100 * share:.0f} %", "soft", size=11.5)
    return picture.svg()
