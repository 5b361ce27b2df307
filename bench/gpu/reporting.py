"""Writes the measurements: docs/measurements/<gpu>-<date>.md, and the same as JSON beside it."""

from __future__ import annotations

import json
import re

MODEL_PREFIX = "latency/"


def slug(text):
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def profile_name(gpu):
    """NVIDIA H200 -> h200, NVIDIA H100 80GB HBM3 -> h100"""
    words = [word for word in slug(gpu).split("-") if word not in ("nvidia", "tesla", "geforce")]
    return words[0] if words else "gpu"


def latency_model(gpu, facts):
    """The measured calls as a LatencyModel has them; None without any."""
    calls = {}
    for fact in facts:
        if fact["fact"].startswith(MODEL_PREFIX):
            call, figure = fact["fact"].removeprefix(MODEL_PREFIX).split("/")
            calls.setdefault(call, {})[figure] = round(fact["value"], 4)
    return {"profile": profile_name(gpu), "calls": calls} if calls else None


def model_lines(model):
    """Lines for simulator/device/device_timing.cpp."""
    lines = []
    for call, figures in model["calls"].items():
        slope = f", {figures['us_per_mib']:g}" if figures.get("us_per_mib") else ""
        lines.append(f"set(DeviceCall::{call}, {figures['us']:g}{slope});")
    return lines


class Report:
    def __init__(self, folder, about, order):
        self.folder, self.about, self.order = folder, about, order
        self.stages = {}
        self._read_earlier()

    def path(self, ending):
        return self.folder / f"{slug(self.about['gpu'])}-{self.about['date']}.{ending}"

    def _read_earlier(self):
        """Stages of earlier calls on this day: several calls cover all."""
        if self.path("json").exists():
            earlier = json.loads(self.path("json").read_text())
            if earlier["about"].get("commit") == self.about["commit"]:
                self.stages = {stage["name"]: stage for stage in earlier["stages"]}

    def add(self, name, title, outcome, seconds):
        verdict, why = outcome.verdict()
        self.stages[name] = {"name": name, "title": title, "verdict": verdict, "why": why, "seconds": round(seconds, 1),
                             "checks": outcome.checks, "facts": outcome.facts, "tables": outcome.tables,
                             "tails": outcome.tails if verdict == "failed" else []}
        self.write()
        return verdict, why

    def add_not_run(self, name, title, why):
        if name not in self.stages:
            self.stages[name] = {"name": name, "title": title, "verdict": "not run", "why": why, "seconds": 0, "checks": [],
                                 "facts": [], "tables": [], "tails": []}
            self.write()

    def has(self, name):
        """Returns whether the stage has a verdict."""
        return name in self.stages and self.stages[name]["verdict"] != "not run"

    def in_order(self):
        return [self.stages[name] for name in self.order if name in self.stages]

    def model(self):
        return latency_model(self.about["gpu"], self.stages.get("costs", {"facts": []})["facts"])

    def write(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        whole = {"about": self.about, "stages": self.in_order(), "latency_model": self.model()}
        self.path("json").write_text(json.dumps(whole, indent=1) + "\n")
        self.path("md").write_text(self.markdown())

    def markdown(self):
        about = self.about
        lines = [f"# Measurements on {about['gpu']}, {about['date']}", "",
                 f"Written by `bench/gpu/run` ([description](../gpu.md)) at commit `{about['commit']}`: driver for CUDA "
                 f"{about['driver']}, {about['cores']} cores.", ""]
        if about["is_simulated"]:
            lines += ["**The device is simulated: nothing here is about a GPU.**", ""]
        lines += ["| stage | verdict | why | seconds |", "|---|---|---|---|"]
        for stage in self.in_order():
            lines.append(f"| {stage['title']} | {stage['verdict']} | {code(stage['why'])} | {stage['seconds']:.0f} |")
        for stage in self.in_order():
            lines += self.section(stage)
        if self.model():
            lines += ["", f"## Latency model `{self.model()['profile']}`", "", "```cpp", *model_lines(self.model()), "```"]
        return "\n".join(lines) + "\n"

    @staticmethod
    def section(stage):
        lines = ["", f"## {stage['title']}", ""]
        if stage["checks"]:
            lines += ["| check | verdict | why |", "|---|---|---|"]
            lines += [f"| {code(check['check'])} | {check['verdict']} | {code(check['why'])} |" for check in stage["checks"]]
        if stage["facts"]:
            lines += ["", "| fact | value | unit |", "|---|---|---|"]
            for fact in stage["facts"]:
                lines.append(f"| {code(fact['fact'])} | {code(number(fact['value']))} | {code(fact['unit'])} |")
        for text in stage["tables"] + stage["tails"]:
            lines += ["", "```text", text.strip().replace("```", "'''"), "```"]
        return lines


def number(value):
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 10_000 else str(value)


def code(text):
    """Text of a program, as it stands: no markup of a table's cell."""
    text = " ".join(str(text).replace("|", "/").replace("`", "'").split())
    return f"`{text}`" if text else ""
