#!/usr/bin/env python3
"""Draws docs/pictures/simulate_report.png: the report of `cachalot simulate --html` for examples/quickstart/train.py, in headless Chromium.

    docs/pictures/simulate_report.py --command build/release/tools/cachalot

The python3 on PATH needs PyTorch with CUDA. Draw it anew when the look of reports changes, or what the example prints.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "html_browser"))
import browser

WIDTH = 1000
MOST_BYTES = 120 * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", required=True, type=Path)
    command = parser.parse_args().command.resolve()
    chromium = browser.find_chromium()
    if chromium is None:
        sys.exit("simulate_report.py: there is no Chromium on PATH; the Debian package is chromium")
    with tempfile.TemporaryDirectory() as folder, browser.Browser(chromium) as started:
        html = Path(folder) / "report.html"
        subprocess.run([command, "simulate", "--gpu", "t4", "--html", html, "examples/quickstart/train.py"], cwd=ROOT, check=True)
        page = started.open(html, width=WIDTH)
        page.frames(4)
        # The picture ends below the memory over time.
        height = page.evaluate("document.querySelector('section:has(#timeline)').getBoundingClientRect().bottom") + 14
        page.resize(WIDTH, round(height))
        page.frames(4)
        picture = FOLDER / "simulate_report.png"
        page.screenshot(picture, clip={"x": 0, "y": 0, "width": WIDTH, "height": round(height)})
    size = picture.stat().st_size
    if size > MOST_BYTES:
        sys.exit(f"simulate_report.py: the picture has {size:,} bytes, more than {MOST_BYTES:,}")
    print(f"{picture.relative_to(ROOT)}: {size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
