"""The tables of docs/accuracy.md."""

from __future__ import annotations

import math
import statistics

from data import ROOT, Prediction, Row

DOCUMENT = ROOT / "docs/accuracy.md"
MARKERS = {name: (f"<!-- bench/accuracy/run.py writes {name} from here -->", f"<!-- to here: {name} -->")
           for name in ("summary", "sources", "rows")}
HALVES = ("held back", "tuning")
FIGURES = {"device": "figure of the device", "reserved": "reserved by PyTorch", "allocated": "allocated by PyTorch"}


def error(row: Row, prediction: Prediction) -> float:
    """In per cent of the measured figure; more than measured is positive."""
    return 100 * (prediction.of(row.figure) / row.measured_mib - 1)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def summary_line(name: str, half: str, errors: list[float]) -> str:
    sizes = [abs(value) for value in errors]
    return (f"| {name} | {half} | {len(errors)} | {statistics.median(sizes):.1f} % | {percentile(sizes, 0.9):.1f} % | "
            f"{max(errors, key=abs):+.1f} % | {statistics.median(errors):+.1f} % |")


def summary(rows: list[Row], predictions: dict[str, Prediction]) -> list[str]:
    rows = [row for row in rows if row.id in predictions]
    lines = ["| rows | half | number | median | p90 | worst | bias |", "|---|---|---:|---:|---:|---:|---:|"]

    def add(name: str, chosen: list[Row]) -> None:
        for half in HALVES:
            errors = [error(row, predictions[row.id]) for row in chosen if row.half == half]
            if errors:
                lines.append(summary_line(name, half, errors))

    for figure, meaning in FIGURES.items():
        add(f"**{meaning}, all**", [row for row in rows if row.figure == figure])
    device = [row for row in rows if row.figure == "device"]
    convolving = {"generated CNNs", "convolutional networks of timm", "classifiers of torchvision",
                  "milabench, convolutional networks"}
    add("device, without convolutional networks", [row for row in device if row.group not in convolving])
    for group in dict.fromkeys(row.group for row in rows):
        add(group, [row for row in rows if row.group == group])
    return lines


def source_list(rows: list[Row]) -> list[str]:
    lines = []
    for key in dict.fromkeys(row.source_key for row in rows):
        source = next(row.source for row in rows if row.source_key == key)
        number = sum(row.source_key == key for row in rows)
        paper = f" ({source['paper']})" if "paper" in source else ""
        lines.append(f"* **{key}**: [{source['title']}]({source['url']}){paper}: {source['where']}. {number} rows. Memory: "
                     f"{source['how']}. Versions: {source['versions']}; simulated with those of {source['packages']}."
                     + (f" {source['differences']}" if "differences" in source else ""))
    return lines


def row_table(rows: list[Row], predictions: dict[str, Prediction]) -> list[str]:
    lines = ["| row | configuration | source | figure | measured, MiB | predicted, MiB | error | half |",
             "|---|---|---|---|---:|---:|---:|---|"]
    for row in rows:
        prediction = predictions.get(row.id)
        predicted = f"{prediction.of(row.figure):,.0f} | {error(row, prediction):+.1f} %" if prediction else "not simulated |"
        lines.append(f"| {row.id} | `{f'{row.program} {row.arguments}'.strip()}` | {row.source_key} | {row.figure} | "
                     f"{row.measured_mib:,.0f} | {predicted} | {row.half} |")
    return lines


def document_with_tables(text: str, rows: list[Row], predictions: dict[str, Prediction]) -> str:
    """Rows without a prediction are named as such. Raises ValueError if a marker is missing."""
    parts = {"summary": summary(rows, predictions), "sources": source_list(rows), "rows": row_table(rows, predictions)}
    for name, lines in parts.items():
        first, last = MARKERS[name]
        if first not in text or last not in text:
            raise ValueError(f"{DOCUMENT.name} lacks the marker {first} or {last}")
        before, after = text.split(first)[0], text.split(last)[1]
        text = f"{before}{first}\n\n" + "\n".join(lines) + f"\n\n{last}{after}"
    return text
