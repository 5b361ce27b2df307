"""The questions about running programs: simulate, fit and advise run them, and the other commands read what the runs have written.

    question           answered by
    -----------------  -------------------------------------------------------------------------------------------------------------
    KEY_peak           simulate torch.devices.peak_KEY_bytes, of a run with a history and of one without; of the snapshot that the
                       program writes check and diff; of simulate's trace replay
    failed             simulate torch.devices.ooms; check ooms
    policy             simulate torch.allocator; advise policy, of the snapshot and of the program
    held.POLICY        simulate cards.held_bytes; of simulate's trace check, compare and replay on 1 TiB; advise, of the program and of
                       the trace
    fits.POLICY, SIZE  a run by simulate on this memory, and its table; fit; advise gpus, check --policy, compare and replay of the
                       trace. An answer that says that it is not exact is left out
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from commands import Commands, Dict, Refused
from policies import POLICIES, Policy, on_device, policy_of
from questions import MIB, Answer, Answers, Subject, Value

FOLDER = pathlib.Path(__file__).resolve().parent / "programs"
PROGRAMS = tuple(sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "recording"))
MUCH = 1 << 40  # the device of simulate's table
GPU = "h100"  # as which `--memory` has
TABLE = {"native": "pytorch", "expandable": "expandable_segments", "pages": "page_heap"}  # names of simulate and fit
SECONDS = 300


@dataclass
class Run:
    """A run by simulate: its report, and whether the program succeeded."""

    report: Dict
    succeeded: bool

    def device(self) -> Dict:
        found: Dict = self.report["processes"][0]["torch"]["devices"][0]
        return found

    def table(self) -> Dict | None:
        cards = self.report["processes"][0]["cards"] if self.report["processes"] else []
        return cards[0] if cards else None


class Program:
    """A program of the folder, and its runs."""

    def __init__(self, name: str, command: pathlib.Path, folder: pathlib.Path) -> None:
        self.path, self.command, self.folder = FOLDER / f"{name}.py", command, folder
        self.snapshot, self.trace = folder / "snapshot.pickle", folder / "trace.csv.gz"

    def call(self, *words: str | pathlib.Path) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "CACHALOT_SIM", "PYTORCH_"))}
        environment["CACHALOT_PYTHON"] = sys.executable
        return subprocess.run([self.command, *map(str, words)], capture_output=True, text=True, timeout=SECONDS, check=False, env=environment)

    def simulate(self, *words: str | pathlib.Path, snapshot: str | pathlib.Path = "-") -> Run:
        out = self.folder / "run.json"
        done = self.call("simulate", *words, "--json", out, self.path, snapshot)
        return Run(json.loads(out.read_text()), done.returncode == 0)

    def lines(self, *words: str | pathlib.Path) -> list[Dict]:
        done = self.call(*words)
        if done.returncode != 0:
            raise Refused(done.stderr.strip())
        return [json.loads(line) for line in done.stdout.splitlines()]


def answers_of_program(name: str, command: pathlib.Path, folder: pathlib.Path) -> Answers:
    program = Program(name, command, folder)
    with_history = program.simulate("--gpu", GPU, snapshot=program.snapshot)
    run = program.simulate("--gpu", GPU, "--trace", program.trace)
    of_snapshot = Subject(name, Commands(command, program.snapshot, folder))
    of_trace = Subject(name, Commands(command, program.trace, folder), is_trace=True)
    yield from peaks(run, with_history, of_snapshot, of_trace, is_whole=name != "late_history")
    [advice] = program.lines("advise", "--json", "--no-times", "--gpu", GPU, "--", program.path, "-")
    yield from held(run, advice, of_trace)
    now = run.report["processes"][0]["torch"]["allocator"]
    now = "expandable_segments:True" if now == "expandable_segments" else now
    yield Answer("policy", 0, "simulate", (now,))
    yield Answer("policy", 0, "advise PROGRAM", (advice["policy"],))
    yield Answer("policy", 0, "advise SNAPSHOT", (of_snapshot.commands.devices("advise", "--no-times", program.snapshot)[0]["policy"],))
    yield from fits(program, run, of_trace)


def peaks(run: Run, with_history: Run, of_snapshot: Subject, of_trace: Subject, is_whole: bool) -> Answers:
    for label, one in (("simulate", run), ("simulate, with a history", with_history)):
        for key in ("requested", "allocated", "reserved"):
            yield Answer(f"{key}_peak", 0, label, one.device()[f"peak_{key}_bytes"])
        yield Answer("failed", 0, label, one.device()["ooms"])
    replayed = of_trace.commands.devices("replay", of_trace.file)[0]
    yield Answer("requested_peak", 0, "replay TRACE", replayed["peak_requested_bytes"])
    if is_whole:
        checked = of_snapshot.commands.devices("check", "--no-oom", of_snapshot.file)[0]
        yield Answer("requested_peak", 0, "check SNAPSHOT", checked["peak_bytes"])
        yield Answer("reserved_peak", 0, "check SNAPSHOT", checked["reserved_bytes"])
        yield Answer("failed", 0, "check SNAPSHOT", checked["ooms"])
        moment = of_snapshot.commands.devices("diff", of_snapshot.file, of_snapshot.file)[0]["a"]
        yield Answer("allocated_peak", 0, "diff SNAPSHOT", moment["allocated_bytes"])


def held(run: Run, advice: Dict, of_trace: Subject) -> Answers:
    table = run.table()
    assert table, "the program did not end well"
    yield Answer("live", 0, "simulate's table", table["live_bytes"])
    yield Answer("live", 0, "advise PROGRAM", advice["peak_requested_bytes"])
    usable = advice["on"]["usable_bytes"]
    [of_file] = of_trace.commands.json("advise", "--no-times", "--memory", str(usable), "--context", "none", of_trace.file)
    for policy in POLICIES:
        name = f"held.{policy.name} on 1 TiB"
        yield Answer(name, 0, "simulate's table", table["held_bytes"][TABLE[policy.name]])
        for device, command, value in of_commands(of_trace, policy, MUCH, "held"):
            yield Answer(name, device, command, value)
        name = f"held.{policy.name} on {GPU}"
        for who, one in (("advise PROGRAM", advice), ("advise TRACE", of_file)):
            yield Answer(name, 0, who, policy_of(one, policy.advise)["peak_reserved_bytes"])
        for device, command, value in of_commands(of_trace, policy, usable, "held"):
            yield Answer(name, device, command, value)


def of_commands(of_trace: Subject, policy: Policy, bytes_: int, kind: str) -> Iterator[tuple[int, str, Value]]:
    """Yields device, command and figure of check, compare and replay of the trace on a device of a size."""
    for one in on_device(of_trace, 0, policy, bytes_, ""):
        if one.question == f"{kind}.{policy.name}":
            yield one.device, f"{one.command} TRACE", one.value


def fits(program: Program, run: Run, of_trace: Subject) -> Answers:
    """The program on devices that are just large enough for PyTorch's policy and for the page heap, and on one that is too small."""
    table = run.table()
    assert table
    native, pages = (table["held_bytes"][TABLE[name]] for name in ("native", "pages"))
    sizes = {"what PyTorch's policy holds": native, "2 MiB less": native - 2 * MIB, "what the pages hold": pages}
    fitted = fitted_by_memory(program, sorted(set(sizes.values())))
    for label, bytes_ in sizes.items():
        on_memory = ("--memory", str(bytes_), "--context", "none")
        [advice] = of_trace.commands.json("advise", "--no-times", *on_memory, of_trace.file)
        itself = program.simulate(*on_memory)
        for policy in POLICIES:
            name = f"fits.{policy.name}, {label}"
            if fitted:
                yield Answer(name, 0, "fit", fitted[bytes_][TABLE[policy.name]] is not None)
            found = policy_of(advice, policy.advise)
            yield Answer(name, 0, "advise TRACE, gpus", bool(found["gpus"]))
            yield Answer(name, 0, "advise TRACE, fails", found["ooms"] == 0)
            for _, command, value in of_commands(of_trace, policy, bytes_, "ooms"):
                yield Answer(name, 0, command, value == 0)
            for row in (itself.table() or {"cards": []})["cards"]:
                is_whole = itself.succeeded or not row[TABLE[policy.name]]  # after a failure, a yes is up to the request that failed
                if row["memory_bytes"] == bytes_ and (itself.table() or {})["exact"] and is_whole:
                    yield Answer(name, 0, "simulate's table", row[TABLE[policy.name]])
        yield Answer(f"fits.{policy_of_run(run)}, {label}", 0, "simulate", itself.succeeded and itself.device()["ooms"] == 0)


def fitted_by_memory(program: Program, sizes: list[int]) -> dict[int, Dict]:
    """Returns the results of fit by the memory; none where they are not exact."""
    words = [word for bytes_ in sizes for word in ("--memory", str(bytes_))]
    out = program.folder / "fit.json"
    done = program.call("fit", *words, "--context", "none", "--vary", "size=8", "--json", out, program.path, "-", "{size}")
    if done.returncode != 0:
        raise Refused(done.stderr.strip())
    found = json.loads(out.read_text())
    return {one["memory_bytes"]: one for one in found["results"]} if found["exact"] else {}


def policy_of_run(run: Run) -> str:
    return {"native": "native", "expandable_segments": "expandable"}[run.report["processes"][0]["torch"]["allocator"]]
