"""The rows of the accuracy table, their sources, and the predictions for them."""

from __future__ import annotations

import csv
import dataclasses
import json
import pathlib
from typing import Any

from halves import halves

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "data/accuracy"
PROGRAMS = ROOT / "bench/accuracy/programs"
MIB = 1 << 20
UNITS = {"MiB": MIB, "GB": 10**9, "GiB": 1 << 30}
FIGURES = ("device", "reserved", "allocated")


@dataclasses.dataclass(frozen=True)
class Row:
    id: str
    group: str
    model: str
    program: str
    arguments: str
    source: dict[str, Any]
    source_key: str
    measured_mib: float
    half: str

    @property
    def figure(self) -> str:
        return self.source["figure"]


@dataclasses.dataclass(frozen=True)
class Prediction:
    """MiB of one row, and of what they are."""

    id: str
    device_mib: float
    reserved_mib: float
    allocated_mib: float
    context_mib: float
    libraries_mib: float
    torch: str
    commit: str

    def of(self, figure: str) -> float:
        return {"device": self.device_mib, "reserved": self.reserved_mib, "allocated": self.allocated_mib}[figure]


def read_rows() -> list[Row]:
    """Raises ValueError for a row whose half is not the drawn one, or whose program or source is missing."""
    sources = json.loads((FOLDER / "sources.json").read_text())
    with (FOLDER / "rows.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    drawn = halves([(line["id"], line["group"]) for line in lines])
    rows = []
    for line in lines:
        if line["half"] != drawn[line["id"]]:
            raise ValueError(f"rows.csv: {line['id']} is called {line['half']}; {drawn[line['id']]} was drawn")
        if not (PROGRAMS / f"{line['program']}.py").is_file() or line["source"] not in sources:
            raise ValueError(f"rows.csv: {line['id']} has no program {line['program']} or no source {line['source']}")
        source = sources[line["source"]]
        if source["figure"] not in FIGURES:
            raise ValueError(f"sources.json: {line['source']} has the figure {source['figure']}: not of {FIGURES}")
        measured = float(line["measured"]) * UNITS[source["unit"]] / MIB
        rows.append(Row(line["id"], line["group"], line["model"], line["program"], line["arguments"], source,
                        line["source"], measured, line["half"]))
    return rows


def read_predictions() -> dict[str, Prediction]:
    path = FOLDER / "predicted.csv"
    if not path.is_file():
        return {}
    with path.open(newline="") as file:
        return {line["id"]: Prediction(line["id"], *(float(line[name]) for name in MEASURES), line["torch"],
                                       line["commit"]) for line in csv.DictReader(file)}


MEASURES = ("device_mib", "reserved_mib", "allocated_mib", "context_mib", "libraries_mib")


def write_predictions(rows: list[Row], predictions: dict[str, Prediction]) -> None:
    path = FOLDER / "predicted.csv"
    with path.with_suffix(".new").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", *MEASURES, "torch", "commit"])
        for row in rows:
            if row.id in predictions:
                found = predictions[row.id]
                writer.writerow([row.id, *(f"{getattr(found, name):.1f}" for name in MEASURES), found.torch, found.commit])
    path.with_suffix(".new").replace(path)
