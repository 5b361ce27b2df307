#!/usr/bin/env python3
"""Measures a page of --html: its size, how fast it is written and opened, and frames per second while a reader uses it.

    bench/html_report.py --command build/release/tools/cachalot [--events 2000000] [--keep FOLDER]

The snapshot is that of tests/html_browser/training.py, with call stacks. The browser is headless Chromium without a GPU, as it
comes, in a window of 1440 x 1000.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "html_browser"))
import browser
import training

SECONDS = 4

# Does something in each frame for a while; returns frames per second and the longest frame in milliseconds.
FRAMES = """new Promise((done) => {
  const shared = window.cachalotReport.shared;
  const begin = performance.now();
  let [frames, before, longest] = [0, begin, 0];
  const step = (now) => {
    if (frames > 0) longest = Math.max(longest, now - before);
    before = now;
    if (now - begin > %d) return done([frames / (now - begin) * 1000, longest]);
    %s;
    ++frames;
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})"""

WHAT_READERS_DO = {
    "pan, a quarter of the run": ("shared.setView(0, shared.run.events / 4)", "shared.pan(frames % 200 < 100 ? 0.03 : -0.03)"),
    "pan, a thousandth of the run": ("shared.setView(shared.run.events / 2, shared.run.events * 0.501)", "shared.pan(frames % 200 < 100 ? 0.03 : -0.03)"),
    "zoom": ("shared.setView(0, shared.run.events)", "shared.zoom(frames % 80 < 40 ? 0.85 : 1 / 0.85)"),
    "move the moment": ("shared.setView(0, shared.run.events)", "shared.setMoment((frames * 0.0037 % 1) * shared.run.events)"),
}


def measure(page: browser.Page) -> None:
    print(f"{'ready, since the navigation':40} {float(page.evaluate('document.documentElement.dataset.ready')) / 1000:8.2f} s")
    for name, (before, each) in WHAT_READERS_DO.items():
        page.evaluate(f"(() => {{ const shared = window.cachalotReport.shared; {before}; }})()")
        page.frames(3)
        rate, longest = page.evaluate(FRAMES % (1000 * SECONDS, each))
        print(f"{name:40} {rate:8.1f} frames/s, the longest {longest:.0f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", required=True)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--snapshot", type=pathlib.Path, help="a file to take instead of the training")
    parser.add_argument("--keep", type=pathlib.Path, help="where the snapshot and the page stay")
    arguments = parser.parse_args()
    chromium = browser.find_chromium()
    if chromium is None:
        print("there is no Chromium on PATH; the Debian package is chromium")
        return 1
    with tempfile.TemporaryDirectory(prefix="cachalot-pages-") as folder:
        place = arguments.keep or pathlib.Path(folder)
        snapshot, html = arguments.snapshot or place / "training.pickle", place / "training.html"
        if not snapshot.exists():
            training.write_snapshot(snapshot, arguments.events)
        begin = time.monotonic()
        subprocess.run([arguments.command, "snapshot", "--html", html, snapshot], check=True, stdout=subprocess.DEVNULL)
        print(f"{'snapshot':40} {snapshot.stat().st_size / (1 << 20):8.2f} MiB")
        print(f"{'written in':40} {time.monotonic() - begin:8.2f} s")
        print(f"{'page':40} {html.stat().st_size / (1 << 20):8.2f} MiB")
        with browser.Browser(chromium) as started:
            page = started.open(html)
            print(f"{'events':40} {page.evaluate('window.cachalotReport.shared.run.events'):8,}")
            measure(page)
            assert page.requests() == [] and page.complaints() == [], (page.requests(), page.complaints())
    return 0


if __name__ == "__main__":
    sys.exit(main())
