#!/usr/bin/env python3
"""Predicted against measured memory: simulates the rows of data/accuracy and writes the tables of docs/accuracy.md.

    bench/accuracy/run.py [--command COMMAND] [--jobs 2] [--only TEXT] [--again] [--update-docs]
    bench/accuracy/run.py --check

Simulates each row that data/accuracy/predicted.csv lacks (with --again: each) and adds it there, so that a run that was
stopped goes on. Each source has the packages of its time (environments.py installs them). --check simulates nothing: it fails
if a row's half is not the drawn one, or if the document's tables are not those of the data.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

from data import MIB, PROGRAMS, ROOT, Prediction, Row, read_predictions, read_rows, write_predictions
from environments import python_of
from table import DOCUMENT, document_with_tables


def commit_of_checkout() -> str:
    commit = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10"], capture_output=True, text=True,
                            check=True)
    return commit.stdout.strip()


def reason(output: str) -> str:
    """The line that names the error."""
    lines = output.strip().splitlines() or ["no output"]
    return next((line for line in reversed(lines) if "Error: " in line), lines[-1])


def simulate(row: Row, options: argparse.Namespace, commit: str) -> Prediction | str:
    """The figures of the row, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        command = [options.command, "simulate", "--gpu", row.source["gpu"], "--json", str(report), "--",
                   python_of(row.source["packages"]), str(PROGRAMS / f"{row.program}.py"), *shlex.split(row.arguments)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout,
                                  env={**os.environ, "HF_HUB_OFFLINE": "1", **row.source.get("environment", {})})
        except subprocess.TimeoutExpired:
            return f"did not end in {options.timeout} s"
        if done.returncode != 0:
            return f"exit code {done.returncode}: " + reason(done.stderr)
        processes = json.loads(report.read_text())["processes"]
    [process] = [found for found in processes if "torch" in found and found["torch"].get("devices")]
    driver, torch = process["driver"]["devices"][0], process["torch"]["devices"][0]
    if torch["ooms"] > 0:
        return "ran out of memory"
    context, libraries = driver["context_bytes"] / MIB, sum(driver["library_bytes"].values()) / MIB
    reserved = torch["peak_reserved_bytes"] / MIB  # since the program reset the peak, if it did
    return Prediction(row.id, context + libraries + reserved, reserved, torch["peak_allocated_bytes"] / MIB, context,
                      libraries, process["torch"]["torch"], commit)


def simulate_all(rows: list[Row], options: argparse.Namespace) -> int:
    """Returns how many had no result."""
    predictions = read_predictions()
    wanted = [row for row in rows if fnmatch.fnmatch(row.id, options.only) and
              (options.again or row.id not in predictions)]
    failed, commit = 0, commit_of_checkout()
    for packages in {row.source["packages"] for row in wanted}:
        python_of(packages)  # before threads want it
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        futures = {pool.submit(simulate, row, options, commit): row for row in wanted}
        for future in concurrent.futures.as_completed(futures):
            row, result = futures[future], future.result()
            if isinstance(result, str):
                failed += 1
                print(f"{row.id}: {result}", file=sys.stderr, flush=True)
                continue
            predictions[row.id] = result
            write_predictions(rows, predictions)
            predicted = result.of(row.figure)
            print(f"{row.id}: {predicted:,.0f} MiB for {row.measured_mib:,.0f} "
                  f"({100 * (predicted / row.measured_mib - 1):+.1f} %)" if row.half == "tuning" or options.reveal else
                  f"{row.id}: done, held back", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default=str(ROOT / "build/release/tools/cachalot"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=1800, help="seconds for each row")
    parser.add_argument("--only", default="*", help="rows to simulate, such as 'mlp-*'")
    parser.add_argument("--again", action="store_true", help="also rows that have a prediction")
    parser.add_argument("--reveal", action="store_true", help="print errors of held-back rows too")
    parser.add_argument("--update-docs", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: at least 1 is needed")
    rows = read_rows()
    failed = 0 if options.check else simulate_all(rows, options)
    if options.check or options.update_docs:
        document = DOCUMENT.read_text()
        written = document_with_tables(document, rows, read_predictions())
        if options.check and written != document:
            print(f"{DOCUMENT.relative_to(ROOT)} is not of these data: run bench/accuracy/run.py --update-docs",
                  file=sys.stderr)
            return 1
        if options.update_docs:
            DOCUMENT.write_text(written)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
