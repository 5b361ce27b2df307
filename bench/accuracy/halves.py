"""Draws the rows of the accuracy table that are held back from tuning: half of each group, drawn by a seed.

Rows of SEEN were drawn as well. They count as tuning since their program was changed when the errors of all of them were known.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Iterable

SEED = "cachalot 2026-11-25"
SEEN = {f"language-{model}" for model in ("bert-base-32", "bert-large-8", "xlnet-base-8", "xlnet-large-4", "gpt2-xl-2")}


def halves(rows: Iterable[tuple[str, str]]) -> dict[str, str]:
    """"tuning" or "held back" for each id, of pairs of id and group. The order of the rows does not matter."""
    groups: dict[str, list[str]] = collections.defaultdict(list)
    for row, group in rows:
        groups[group].append(row)
    drawn = {}
    for ids in groups.values():
        ids.sort(key=lambda row: hashlib.sha256(f"{SEED} {row}".encode()).digest())
        for place, row in enumerate(ids):
            drawn[row] = "held back" if 2 * place < len(ids) and row not in SEEN else "tuning"
    return drawn
