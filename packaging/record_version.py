#!/usr/bin/env python3
"""Puts a row into the table of docs/pytorch_versions.md, in place of the one for the same version of PyTorch.

    python3 packaging/record_version.py docs/pytorch_versions.md '| 2.11.0+cu130 | 2026-11-23 | yes | … |'
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

BEGIN, END = "<!-- packaging/try_versions.sh writes from here -->\n", "<!-- to here -->\n"


def main() -> None:
    path, row = Path(sys.argv[1]), sys.argv[2]
    before, rest = path.read_text().split(BEGIN)
    table, after = rest.split(END)
    lines = [line for line in table.splitlines() if line.strip()]
    heading, rows = lines[:2], [line for line in lines[2:] if minor_of(line) != minor_of(row)]
    rows = sorted([*rows, row], key=minor_of)
    path.write_text("\n".join([before + BEGIN, *heading, *rows, "\n" + END]) + after)


def minor_of(row: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", row)[:2]]


if __name__ == "__main__":
    main()
