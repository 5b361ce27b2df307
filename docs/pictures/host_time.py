"""Host time of cachalot beside other allocators, from docs/performance.md."""

from __future__ import annotations

import performance_table
from svg import Picture

FIGURES = {
    "hot pair, 4 KiB, ns": ("allocate and free 4 KiB", 250),
    "churn, 4,096 live blocks, ns per pair": ("random sizes, 4,096 live blocks", 700),
    "gpt2_varlen: ns per event": ("GPT-2 training, per call", 280),
    "serve_kv: ns per event": ("LLM serving, per call", 220),
}
COLUMNS = {
    "segments": ("blue", "cachalot, PyTorch's policy"),
    "pages+cache": ("blue", "cachalot, page heap"),
    "torch": ("orange", "PyTorch"),
    "torch_expandable": ("orange", "PyTorch, expandable"),
    "cub": ("grey", "CUB"),
    "rmm_pool": ("grey", "RMM pool"),
    "rmm_arena": ("grey", "RMM arena"),
}
PANEL_WIDTH, PANEL_HEIGHT, LABEL, BAR = 425, 205, 168, 18


def draw() -> str:
    figures = performance_table.read()
    picture = Picture(
        860, 64 + 2 * PANEL_HEIGHT, "Host time of allocators",
        "Nanoseconds of host time for four workloads: cachalot, PyTorch's own allocator, CUB and RMM.")
    picture.text(20, 28, "Host time of one allocation and free (upper row) or of one call (lower row)", size=16, bold=True)
    picture.text(20, 47, "nanoseconds, lower is better; simulated CUDA runtime, where driver calls cost almost nothing", "soft", size=12)
    for i, (figure, (title, most)) in enumerate(FIGURES.items()):
        panel(picture, 20 + i % 2 * PANEL_WIDTH, 84 + i // 2 * PANEL_HEIGHT, title, figures[figure], most)
    return picture.svg()


def panel(picture: Picture, x: float, y: float, title: str, values: dict[str, float], most: float) -> None:
    """Bars up to `most`; a longer one is broken off, and its number tells."""
    room = PANEL_WIDTH - LABEL - 75
    picture.text(x, y, title, bold=True)
    for j, (column, (colour, label)) in enumerate(COLUMNS.items()):
        top = y + 14 + j * (BAR + 5)
        picture.text(x + LABEL - 8, top + 13, label, "soft", size=12, anchor="end")
        value = values[column]
        length = max(room * min(value / most, 1), 1.5)
        picture.rect(x + LABEL, top, length, BAR, colour, radius=2)
        if value > most:
            for gap in (0.86, 0.92):
                cut = x + LABEL + room * gap
                picture.area([(cut, top + BAR), (cut + 5, top), (cut + 9, top), (cut + 4, top + BAR)], "page")
        picture.text(x + LABEL + length + 6, top + 13, f"{value:,.0f}" if value >= 20 else f"{value:.1f}", size=12)
