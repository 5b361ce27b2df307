#!/usr/bin/env python3
"""Compares what `cachalot fit --engine` computes with what servers printed: data/serving/receipts.json.

    bench/accuracy/serving.py COMMAND            prints the table
    bench/accuracy/serving.py COMMAND --check    fails where more rows miss than the document says
    bench/accuracy/serving.py COMMAND --write    writes the table into docs/accuracy.md

The limits: weights within 1 %, tokens within 3 % of those in the cache's memory that the receipt gives, and graphs within 20 % or within
the interval that the command states. Rows on even lines are held back from tuning.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "data" / "serving"
DOCUMENT = ROOT / "docs" / "accuracy.md"
GIB = 1 << 30
BEGIN = "<!-- bench/accuracy/serving.py writes from here -->"
END = "<!-- to here: serving -->"
LIMITS = {"weights": 0.01, "tokens": 0.03, "graphs": 0.2}


def computed(command: str, receipt: dict) -> dict:
    """The command's answer for the server of a receipt."""
    words = [command, "fit", "--engine", receipt["engine"], "--model", str(DATA / "models" / f"{receipt['model']}.json"),
             "--gpu", receipt["gpu"], "--json", "-", "--kv-cache-dtype", receipt.get("kv_dtype", "auto")]
    options = {"max_model_len": "--max-model-len", "max_num_seqs": "--max-num-seqs", "quantization": "--quantization"}
    for key, option in options.items():
        if key in receipt:
            words += [option, str(receipt[key])]
    if "kv_gib" in receipt:
        words += ["--kv-cache-memory", str(round(receipt["kv_gib"] * GIB))]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)["results"][0]


def comparisons(command: str) -> list[tuple[dict, str, float, float, bool]]:
    """(receipt, figure, measured, computed, within the limit), for each figure of each receipt."""
    rows = []
    for place, receipt in enumerate(json.loads((DATA / "receipts.json").read_text()), 1):
        receipt["half"] = "held back" if place % 2 == 0 else "tuning"
        answer = computed(command, receipt)
        tokens = answer["kv_cache"]["tokens_by_blocks" if receipt.get("by_blocks") else "tokens"]
        figures = {"weights": ("weights_gib", answer["weights"]["bytes"] / GIB), "tokens": ("kv_tokens", tokens),
                   "graphs": ("graphs_gib", answer["graphs"]["bytes"] / GIB)}
        for figure, (key, value) in figures.items():
            if key in receipt:
                is_within = abs(value / receipt[key] - 1) <= LIMITS[figure]
                if figure == "graphs":
                    part = answer["graphs"]
                    is_within |= part["least_bytes"] <= receipt[key] * GIB <= part["most_bytes"]
                rows.append((receipt, figure, receipt[key], value, is_within))
    return rows


def table(rows: list) -> str:
    """The summary and the rows, in Markdown."""
    lines = ["| figure | half | within the limit | number | worst |", "|---|---|---:|---:|---:|"]
    for figure in LIMITS:
        for half in ("held back", "tuning"):
            some = [row for row in rows if row[1] == figure and row[0]["half"] == half]
            worst = max((row[3] / row[2] - 1 for row in some), key=abs, default=0)
            lines.append(f"| {figure} | {half} | {sum(row[4] for row in some)} | {len(some)} | {100 * worst:+.1f} % |")
    lines += ["", "| source | model | engine | GPU | figure | measured | computed | error | half |",
              "|---|---|---|---|---|---:|---:|---:|---|"]
    for receipt, figure, measured, value, is_within in rows:
        address = receipt["address"]
        label = re.sub("/blob/[0-9a-f]{40}/", "/", address.replace("https://", "").replace("github.com/", ""))
        source = f"[{label}]({address})" if address.startswith("https") else address
        form = "{:,.0f}" if figure == "tokens" else "{:.2f} GiB"
        error = f"{100 * (value / measured - 1):+.1f} %{'' if is_within else ' (misses)'}"
        lines.append(f"| {source} | {receipt['model']} | {receipt['engine']} | {receipt['gpu']} | {figure} | "
                     f"{form.format(measured)} | {form.format(value)} | {error} | {receipt['half']} |")
    return "\n".join(lines)


def main() -> int:
    """Returns 1 where the document is not what the command computes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    text = table(comparisons(options.command))
    document = DOCUMENT.read_text()
    before, _, rest = document.partition(BEGIN)
    old, _, behind = rest.partition(END)
    if options.write:
        DOCUMENT.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{behind}")
    elif not options.check:
        print(text)
    elif old.strip() != text:
        for line in sorted(set(text.splitlines()) - set(old.splitlines())):
            print(f"computed, and not in docs/accuracy.md: {line}", file=sys.stderr)
        print("bench/accuracy/serving.py COMMAND --write writes the table", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
