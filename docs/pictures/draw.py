#!/usr/bin/env python3
"""Draws the pictures of the documentation: docs/pictures/<name>.svg, by the module <name>.py.

    docs/pictures/draw.py            write all of them
    docs/pictures/draw.py --check    write nothing; fail if a picture is not what its module draws
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PICTURES = ("block_states", "grpo", "host_time", "layers", "memory_over_time", "page_remap", "stream_order", "traces")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args()
    sys.path.insert(0, str(FOLDER))
    stale = []
    for name in PICTURES:
        path = FOLDER / f"{name}.svg"
        drawn = importlib.import_module(name).draw()
        if not options.check:
            path.write_text(drawn)
        elif not path.exists() or path.read_text() != drawn:
            stale.append(path.name)
    if stale:
        print(f"{', '.join(stale)}: not what docs/pictures/draw.py draws; run it and commit the result")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
