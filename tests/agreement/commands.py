"""Runs the command on one file and reads its answers: JSON, text, the data of HTML reports, and converted files."""

from __future__ import annotations

import base64
import itertools
import json
import pathlib
import re
import subprocess
import zlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any

Dict = dict[str, Any]
SECONDS = 300


class Refused(Exception):
    """The command ended with an error; its text is the message."""


class Commands:
    """The command on one file. Each call is made once; later ones get its answer."""

    def __init__(self, command: pathlib.Path, file: pathlib.Path, folder: pathlib.Path) -> None:
        self.command, self.file, self.folder = command, file, folder
        self.outputs: dict[tuple[str, ...], str | Refused] = {}
        self.numbers = itertools.count()

    def text(self, *words: str | pathlib.Path) -> str:
        """Returns what `cachalot WORDS` prints. Raises Refused after an error."""
        key = tuple(map(str, words))
        if key not in self.outputs:
            done = subprocess.run([self.command, *key], capture_output=True, text=True, timeout=SECONDS, check=False, env={"PATH": "/usr/bin:/bin"})
            if done.returncode not in (0, 1) or done.stderr:
                lines = done.stderr.strip().splitlines()
                self.outputs[key] = Refused(lines[-1] if lines else f"exit code {done.returncode}")
            else:
                self.outputs[key] = done.stdout
        output = self.outputs[key]
        if isinstance(output, Refused):
            raise output
        return output

    def json(self, name: str, *words: str | pathlib.Path) -> list[Dict]:
        """Returns the objects that `cachalot NAME --json WORDS` prints."""
        return [json.loads(line) for line in self.text(name, "--json", *words).splitlines()]

    def devices(self, name: str, *words: str | pathlib.Path) -> dict[int, Dict]:
        """Returns the answers of `cachalot NAME --json WORDS` by the number of the device."""
        found = self.json(name, *words)
        if name in ("compare", "replay"):
            return {device_of_trace(one["trace"], self.sole_device): one for one in found}
        if name == "advise":
            if "error" in found[0]:
                raise Refused(found[0]["error"])
            return {one["device"]: one for one in found}
        key = "device_a" if name == "diff" else "device"
        return {one[key]: one for one in found[0]["devices"]}

    @cached_property
    def sole_device(self) -> int:
        """The number of the file's device, where it has one with a history."""
        explained = self.json("explain", self.file)[0]["devices"]
        return next((one["device"] for one in explained if one["peak"]["events"]), 0)

    def new_file(self, ending: str) -> pathlib.Path:
        return self.folder / f"{next(self.numbers)}{ending}"

    def converted(self, to: str, *words: str) -> pathlib.Path:
        """Returns a file of the file in the format."""
        key = ("convert", to, *words)
        if key not in self.outputs:
            out = self.new_file({"rmm": ".csv", "trace": ".csv", "torch": ".pickle"}.get(to, ".json"))
            try:
                self.text("convert", self.file, "--to", to, *words, "-o", out)
                self.outputs[key] = str(out)
            except Refused as error:
                self.outputs[key] = error
        found = self.outputs[key]
        if isinstance(found, Refused):
            raise found
        return pathlib.Path(found)

    @cached_property
    def html(self) -> HtmlReport:
        out = self.new_file(".html")
        self.text("explain", "--html", out, self.file)
        return HtmlReport(out.read_text())

    def html_of(self, name: str, *words: str | pathlib.Path) -> HtmlReport:
        out = self.new_file(".html")
        self.text(name, "--html", out, *words)
        return HtmlReport(out.read_text())


def device_of_trace(trace: str, sole: int) -> int:
    """Returns the device of an answer of replay or compare, which name it behind the path."""
    found = re.search(r" device (\d+)$", trace)
    return int(found[1]) if found else sole


def format_bytes(bytes_: int) -> str:
    """Returns a size as reports have it (allocator/base/bytes.cpp)."""
    if bytes_ <= 1 << 10:
        return f"{bytes_} bytes"
    for exponent, unit in ((20, "KiB"), (30, "MiB")):
        if bytes_ <= 1 << exponent:
            return f"{bytes_ / (1 << (exponent - 10)):.2f} {unit}"
    return f"{bytes_ / (1 << 30):.2f} GiB"


def line_of(text: str, label: str) -> str | None:
    """Returns the text behind a label at the begin of a line of a report."""
    found = re.search(rf"^ *{re.escape(label)} {{2,}}(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else None


def device_texts(text: str) -> dict[int, str]:
    """Returns the parts of a report by device."""
    parts = re.split(r"^(device \d+|pinned host memory)$", text, flags=re.MULTILINE)
    found = {0: parts[0]} if len(parts) == 1 or parts[0].count("\n") > 1 else {}
    for name, part in zip(parts[1::2], parts[2::2], strict=True):
        if name.startswith("device"):
            found[int(name.split()[1])] = part
    return found


# ---- reports


class HtmlReport:
    """The data of a report (tools/output/html_report.h)."""

    def __init__(self, html: str) -> None:
        data = re.search(r'<script id="data"[^>]*>([^<]*)</script>', html)
        assert data
        whole = zlib.decompress(base64.b64decode(data[1]))
        size = int(whole[:8], 16)
        self.description: Dict = json.loads(whole[8 : 8 + size])
        self.columns = whole[8 + size :]

    def runs(self) -> dict[int, HtmlRun]:
        """Returns the runs of devices; pinned host memory is left out."""
        found = [one for one in self.description["runs"] if "pinned host memory" not in one["name"]]
        return {one["device"]: HtmlRun(self, one) for one in found}

    def column(self, name: str) -> list[int]:
        encoding, rows, at = self.description["columns"][name]
        values, data = [], self.columns
        for _ in range(rows):
            number, shift = 0, 0
            while data[at] >= 128:
                number |= (data[at] & 127) << shift
                shift += 7
                at += 1
            values.append(number | data[at] << shift)
            at += 1
        if encoding == "deltas":
            return list(itertools.accumulate((code >> 1) ^ -(code & 1) for code in values))
        if encoding == "ranked":
            by_rank = self.column(f"{name}.values")
            return [by_rank[rank] for rank in values]
        return values


class HtmlRun:
    """One device in a report: figures that a browser computes of its data."""

    def __init__(self, report: HtmlReport, description: Dict) -> None:
        self.report, self.description = report, description
        self.events: int = description["events"]
        self.begins = self.column("begin")
        self.ends = [begin + length if length else None for begin, length in zip(self.begins, self.column("length"), strict=True)]

    def column(self, name: str) -> list[int]:
        return self.report.column(self.description["prefix"] + name)

    def live(self, bytes_: list[int]) -> list[int]:
        """Returns the bytes that live at each moment."""
        changes = [0] * (self.events + 2)
        for begin, end, size in zip(self.begins, self.ends, bytes_, strict=True):
            changes[begin] += size
            if end is not None:
                changes[end] -= size
        return list(itertools.accumulate(changes[:-1]))

    @cached_property
    def requested(self) -> list[int]:
        return self.live(self.column("bytes"))

    @cached_property
    def allocated(self) -> list[int]:
        """Bytes of blocks, of the first layout."""
        return self.live(self.column("0.block"))

    def held(self, layout: str) -> list[int]:
        """Returns the bytes that a layout holds after each event."""
        number = self.description["layouts"].index(layout)
        events, bytes_ = self.column(f"{number}.held_event"), self.column(f"{number}.held_bytes")
        if not events:
            return self.mapped(number)
        held, now, at = [], 0, 0
        for moment in range(self.events + 1):
            while at < len(events) and events[at] <= moment:
                now = bytes_[at]
                at += 1
            held.append(now)
        return held

    def mapped(self, number: int) -> list[int]:
        changes = [0] * (self.events + 2)
        names = ("begin", "end", "bytes")
        for begin, end, bytes_ in zip(*(self.column(f"{number}.range_{name}") for name in names), strict=True):
            changes[begin] += bytes_
            if end:
                changes[end] -= bytes_
        return list(itertools.accumulate(changes[:-1]))


# ---- converted files


class JsonHistory:
    """A file of `cachalot convert --to json`, and what plain Python counts in it."""

    def __init__(self, path: pathlib.Path) -> None:
        self.document: Dict = json.loads(path.read_text())

    def devices(self) -> dict[int, JsonDevice]:
        return {one["device"]: JsonDevice(one) for one in self.document["devices"]}


class JsonDevice:
    """One device of a history: requested and reserved bytes after each event."""

    CHANGES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}

    def __init__(self, document: Dict) -> None:
        self.document = document
        self.events: list[Dict] = document["events"]
        self.live: dict[int, int] = dict(self.earlier())

    def earlier(self) -> Iterator[tuple[int, int]]:
        """Yields address and bytes of what lived before the first event."""
        seen = set()
        for event in self.events:
            if event["action"] in ("alloc", "free_requested", "free_completed", "annotate") and event["address"] not in seen:
                seen.add(event["address"])
                if event["action"] in ("free_requested", "annotate"):
                    yield event["address"], event["bytes"]
        for segment in self.document["segments"]:
            for block in segment["blocks"]:
                if block["state"] == "allocated" and block["address"] not in seen:
                    yield block["address"], block["requested_bytes"]

    @cached_property
    def requested(self) -> list[int]:
        live = dict(self.live)
        found = [sum(live.values())]
        for event in self.events:
            now = found[-1]
            if event["action"] in ("free_requested", "free_completed"):
                now -= live.pop(event["address"], 0)
            if event["action"] == "alloc":
                now += event["bytes"] - live.pop(event["address"], 0)
                live[event["address"]] = event["bytes"]
            found.append(now)
        return found

    @cached_property
    def reserved(self) -> list[int]:
        changes = [self.CHANGES.get(event["action"], 0) * event["bytes"] for event in self.events]
        at_end = sum(segment["bytes"] for segment in self.document["segments"])
        return list(itertools.accumulate(changes, initial=at_end - sum(changes)))

    @property
    def waits(self) -> bool:
        """Returns whether memory was freed before other streams were done with it: PyTorch counts it as requested until then."""
        freed = [event for event in self.events if event["action"].startswith("free_")]
        pairs = zip(freed[::2], freed[1::2], strict=False)
        return len(freed) % 2 == 1 or any(one["address"] != other["address"] or one["action"] == other["action"] for one, other in pairs)

    def count(self, action: str) -> int:
        return sum(event["action"] == action for event in self.events)


def perfetto_counters(path: pathlib.Path) -> dict[int, dict[str, list[int]]]:
    """Returns the counters of each device in a file for Perfetto."""
    found: dict[int, dict[str, list[int]]] = {}
    names: dict[int, int] = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["ph"] == "M" and event["name"] == "process_name" and event["args"]["name"].startswith("GPU "):
            names[event["pid"]] = int(event["args"]["name"].split()[1])
        if event["ph"] == "C" and event["pid"] in names:
            found.setdefault(names[event["pid"]], {}).setdefault(event["name"], []).append(event["args"]["bytes"])
    return found
