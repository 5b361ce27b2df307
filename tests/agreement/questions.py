"""The questions that several commands answer, and where each answer is.

A function yields the answers to some questions about one file. Answers to one question must be equal: that is, numbers and names must
be, and a text must be the number as a report writes it. An answer is left out where the command states that it answers something
else; where it states nothing, it is compared.

    question               answered by (keys of --json, unless it is said otherwise)
    ---------------------  ---------------------------------------------------------------------------------------------------------
    requested_peak         PyTorch's own counter; check peak_bytes, also with --policy; advise, compare, replay peak_requested_bytes;
                           diff parts.a_peak_bytes; html and convert (json, perfetto, rmm, torch, trace), by adding up; and texts
    allocated_peak         PyTorch's own counter; explain peak.allocated_bytes; diff a.allocated_bytes; html; and texts
    peak.KEY               explain peak.KEY and diff a.KEY, for event, requested_bytes and reserved_bytes of that moment; html
    reserved_peak          PyTorch's own counter; explain peak.peak_reserved_bytes; check reserved_bytes; diff --at reserved
                           a.reserved_bytes; advise recorded_reserved_bytes; html and convert, by adding up; and texts
    end.KEY                snapshot KEY; diff --at end a.KEY; html and convert, by adding up; and texts
    live.LIST              explain categories, modules, lines, pools, stages; diff by_LIST; of the end snapshot sites and pools
    events, allocations    explain peak.events; diff a.events; snapshot history_entries; check allocations; html; convert
    trace_events           advise, compare, replay events
    failed, failed_bytes   check ooms; explain verdict.evidence.requested_bytes and peak.kind; diff --at oom; html ooms; convert
    cached                 explain cached.bytes, and the sum of its parts; diff, by subtracting; snapshot free_bytes at the end
    fragmentation          check fragmentation; by dividing the two peaks
    earlier_bytes          check earlier_bytes; convert, by adding up; texts
    devices, settings      what each command lists
    held.POLICY            advise policies.peak_reserved_bytes; check --policy reserved_bytes; compare POLICY.peak_held_bytes; replay
                           peak_reserved_bytes and peak_driver_bytes; explain remedies.reserved_bytes and of_bytes; html
    ooms.POLICY            advise policies.ooms; check --policy ooms; compare POLICY.ooms; replay ooms; explain remedies.serves
    fits.POLICY            of several sizes of the device: the same, and advise gpus; replay min_device_bytes
    advice                 explain remedies; advise recommendation
    cause                  explain verdict.cause without a message, with one that adds nothing, with PyTorch's, and of that alone
    diff_itself            diff of the file with itself: all growths
"""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from commands import Commands, Dict, JsonHistory, Refused, device_texts, format_bytes, line_of, perfetto_counters

Value = int | float | bool | str | tuple[Any, ...] | None
MIB = 1 << 20
EVENTS_OF_PERFETTO = 40_000  # a longer history loses points of its counters, but no peaks


@dataclass(frozen=True)
class Answer:
    question: str
    device: int
    command: str
    value: Value

    def equals(self, other: Answer) -> bool:
        a, b = self.value, other.value
        if isinstance(a, str) and isinstance(b, int) and not isinstance(b, bool):
            return a == format_bytes(b) or a == f"{b:,}"
        if isinstance(b, str) and isinstance(a, int) and not isinstance(a, bool):
            return other.equals(self)
        if isinstance(a, float) and isinstance(b, float):
            return abs(a - b) <= 1e-9
        return a == b


@dataclass
class Subject:
    """A file, and what is known of it beside what the commands say."""

    name: str
    commands: Commands
    is_trace: bool = False  # it has sizes and streams alone
    peaks: dict[int, Dict] = field(default_factory=dict)  # by device: PyTorch's own counters, where the history is whole
    message: str | None = None  # PyTorch's, of the error that ended the program
    settings: str | None = None

    @property
    def file(self) -> pathlib.Path:
        return self.commands.file


Answers = Iterator[Answer]
QUESTIONS: list[Callable[[Subject], Answers]] = []


def question(function: Callable[[Subject], Answers]) -> Callable[[Subject], Answers]:
    QUESTIONS.append(function)
    return function


def devices(subject: Subject, name: str, *words: str | pathlib.Path) -> dict[int, Dict]:
    """Returns the command's answers by device; none where it refuses the file."""
    with contextlib.suppress(Refused):
        return subject.commands.devices(name, *words, subject.file)
    return {}


def moment(subject: Subject, at: str) -> dict[int, Dict]:
    """Returns the answers of diff of the file with itself."""
    with contextlib.suppress(Refused):
        return subject.commands.devices("diff", "--top", "1000000", "--at", at, subject.file, subject.file)
    return {}


def checked(subject: Subject, *words: str) -> dict[int, Dict]:
    return devices(subject, "check", "--max-peak", "1024TiB", *words)


def texts(subject: Subject, name: str, *words: str) -> dict[int, str]:
    with contextlib.suppress(Refused):
        return device_texts(subject.commands.text(name, *words, subject.file))
    return {}


def first_word(text: str | None, pattern: str = r"[\d.,]+ (?:bytes|KiB|MiB|GiB)") -> str | None:
    found = re.search(pattern, text) if text is not None else None
    return found[0] if found else None


def counters(subject: Subject) -> dict[int, dict[str, list[int]]]:
    """Returns the counters of the file for Perfetto."""
    with contextlib.suppress(Refused):
        return perfetto_counters(subject.commands.converted("perfetto", "--most-events", str(4 * EVENTS_OF_PERFETTO)))
    return {}


def history(subject: Subject) -> JsonHistory | None:
    with contextlib.suppress(Refused):
        return JsonHistory(subject.commands.converted("json"))
    return None


# ---- moments and their bytes


PLAYS_FAILURES = ("advise", "compare", "replay", "check --policy native", "check --policy expandable", "check --policy pages", "convert to trace")


@question
def requested_peaks(subject: Subject) -> Answers:
    failed = {device: one["ooms"] for device, one in checked(subject).items()}

    def of(device: int, command: str, value: Value) -> Answer:
        """Replays play the requests that failed, and state it in failed_requests: their peak is another one."""
        plays_failures = command in PLAYS_FAILURES and failed.get(device)
        return Answer("requested_peak, with failures" if plays_failures else "requested_peak", device, command, value)

    whole = history(subject)
    for device, peaks in subject.peaks.items():
        if whole and (one := whole.devices().get(device)) and not one.waits:
            yield of(device, "PyTorch", peaks["requested_bytes"])
    for device, one in checked(subject).items():
        yield of(device, "check", one["peak_bytes"])
    for name in ("advise", "compare", "replay"):
        for device, one in devices(subject, name, *(["--no-times"] if name == "advise" else [])).items():
            yield of(device, name, one["peak_requested_bytes"])
    for device, one in moment(subject, "peak").items():
        if one["aligned_by"] == "events" and one["a"]["events"]:
            yield of(device, "diff parts", max(part["a_peak_bytes"] for part in one["parts"]))
    for device, run in subject.commands.html.runs().items():
        yield of(device, "html", max(run.requested))
    for device, lines in counters(subject).items():
        yield of(device, "convert to perfetto", max(lines["allocated"]))
    for device, one in whole.devices().items() if whole else ():
        yield of(device, "convert to json", max(one.requested))
    for policy in ("native", "expandable", "pages"):
        for device, one in checked(subject, "--policy", policy).items():
            if one["ooms"] == 0:
                yield of(device, f"check --policy {policy}", one["peak_bytes"])
    yield from peaks_of_converted(subject)


def peaks_of_converted(subject: Subject) -> Answers:
    for device in devices(subject, "explain"):
        for to in ("trace", "rmm"):
            with contextlib.suppress(Refused):
                path = subject.commands.converted(to, "--device", str(device))
                [one] = subject.commands.devices("check", "--max-peak", "1024TiB", path).values()
                question = "requested_peak, with failures" if to == "trace" and checked(subject)[device]["ooms"] else "requested_peak"
                yield Answer(question, device, f"convert to {to}", one["peak_bytes"])


@question
def recorded_peaks(subject: Subject) -> Answers:
    for device, one in devices(subject, "explain").items():
        if one["peak"]["kind"] == "allocated_peak":
            yield Answer("allocated_peak", device, "explain", one["peak"]["allocated_bytes"])
            yield from moment_answers("peak", device, "explain", one["peak"])
        yield Answer("reserved_peak", device, "explain", one["peak"]["peak_reserved_bytes"])
    for device, one in moment(subject, "peak").items():
        yield Answer("allocated_peak", device, "diff", one["a"]["allocated_bytes"])
        yield from moment_answers("peak", device, "diff", one["a"])
    for device, one in moment(subject, "reserved").items():
        yield Answer("reserved_peak", device, "diff", one["a"]["reserved_bytes"])
    for device, peaks in subject.peaks.items():
        yield Answer("allocated_peak", device, "PyTorch", peaks["allocated_bytes"])
        yield Answer("reserved_peak", device, "PyTorch", peaks["reserved_bytes"])
    for device, one in checked(subject).items():
        yield Answer("reserved_peak", device, "check", one["reserved_bytes"])
    for device, one in devices(subject, "advise", "--no-times").items():
        if one["recorded_reserved_bytes"] is not None:
            yield Answer("reserved_peak", device, "advise", one["recorded_reserved_bytes"])
    yield from added_up_peaks(subject)
    yield from peak_texts(subject)


def moment_answers(name: str, device: int, command: str, of: Dict) -> Answers:
    for key in ("event", "requested_bytes", "reserved_bytes"):
        yield Answer(f"{name}.{key}", device, command, of[key])


def added_up_peaks(subject: Subject) -> Answers:
    is_recorded = not subject.is_trace
    for device, run in subject.commands.html.runs().items():
        if run.description["layouts"][0] == "recorded":
            peak = max(run.allocated)
            yield Answer("allocated_peak", device, "html", peak)
            yield Answer("peak.event", device, "html", run.allocated.index(peak))
            yield Answer("reserved_peak", device, "html", max(run.held("recorded")))
    for device, lines in counters(subject).items():
        if is_recorded:
            yield Answer("reserved_peak", device, "convert to perfetto", max(lines.get("reserved", [0])))
    whole = history(subject)
    for device, one in whole.devices().items() if whole and is_recorded else ():
        yield Answer("reserved_peak", device, "convert to json", max(one.reserved))


def peak_texts(subject: Subject) -> Answers:
    for device, text in texts(subject, "explain").items():
        if peak := line_of(text, "peak"):
            yield Answer("peak.event", device, "explain, text", first_word(peak, r"(?<=event )[\d,]+"))
            yield Answer("allocated_peak", device, "explain, text", line_of(text, "allocated"))
            yield Answer("peak.requested_bytes", device, "explain, text", first_word(line_of(text, "unavoidable")))
        if reserved := line_of(text, "reserved"):
            yield Answer("reserved_peak", device, "explain, text", reserved.split("at the most ")[1])
            if peak:
                yield Answer("peak.reserved_bytes", device, "explain, text", reserved.split(",")[0])


@question
def failures(subject: Subject) -> Answers:
    """The moment of the last failure, and how many there were."""
    for device, one in devices(subject, "explain").items():
        has_failed = one["peak"]["kind"] == "out_of_memory"
        yield Answer("has_failed", device, "explain", has_failed)
        yield Answer("has_failed", device, "explain's cause", one["verdict"]["cause"] != "none")
        if has_failed:
            yield Answer("failed_bytes", device, "explain", one["verdict"]["evidence"]["requested_bytes"])
            yield from moment_answers("oom", device, "explain", one["peak"])
    for device in moment(subject, "peak"):
        at_failure = moment(subject, "oom").get(device)
        if at_failure and checked(subject)[device]["ooms"] == 0:
            continue  # another device ran out: this one's end
        yield Answer("has_failed", device, "diff --at oom", at_failure is not None)
        if at_failure:
            yield from moment_answers("oom", device, "diff", at_failure["a"])
    for device, one in checked(subject).items():
        yield Answer("failed", device, "check", one["ooms"])
        yield Answer("has_failed", device, "check", one["ooms"] > 0)
    for device, run in subject.commands.html.runs().items():
        ooms = run.description["ooms"]
        yield Answer("failed", device, "html", len(ooms))
        if ooms:
            yield Answer("failed_bytes", device, "html", ooms[-1][1])
            yield Answer("oom.event", device, "html", ooms[-1][0])
    if whole := history(subject):
        for device, one in whole.devices().items():
            yield Answer("failed", device, "convert to json", one.count("oom"))
    for device, text in texts(subject, "explain").items():
        if place := line_of(text, "ran out of memory"):
            yield Answer("oom.event", device, "explain, text", first_word(place, r"(?<=event )[\d,]+"))
            yield Answer("failed_bytes", device, "explain, text", first_word(line_of(text, "cause")))


@question
def ends(subject: Subject) -> Answers:
    """The memory at the end."""
    keys = ("requested_bytes", "allocated_bytes", "reserved_bytes")
    for device, one in moment(subject, "end").items():
        for key in keys[: 2 if subject.is_trace else 3]:
            yield Answer(f"end.{key}", device, "diff", one["a"][key])
    for device, run in subject.commands.html.runs().items():
        yield Answer("end.requested_bytes", device, "html", run.requested[-1])
        if run.description["layouts"][0] == "recorded":
            yield Answer("end.allocated_bytes", device, "html", run.allocated[-1])
            yield Answer("end.reserved_bytes", device, "html", run.held("recorded")[-1])
    if whole := history(subject):
        for device, one in whole.devices().items():
            yield Answer("end.requested_bytes", device, "convert to json", one.requested[-1])
    if subject.is_trace:
        return
    for device, one in devices(subject, "snapshot").items():
        for key in keys:
            yield Answer(f"end.{key}", device, "snapshot", one[key])
        for pool in one["pools"]:
            yield Answer(f"end.pool {pool['pool_id']} {pool['kind']} {pool['stream']}", device, "snapshot, the difference", pool["reserved_bytes"])
            parts = pool["allocated_bytes"] + pool["pending_free_bytes"] + pool["free_bytes"]
            yield Answer(f"end.pool {pool['pool_id']} {pool['kind']} {pool['stream']}", device, "snapshot, the parts", parts)
    for device, text in texts(subject, "snapshot").items():
        for label in ("reserved", "allocated", "requested"):
            yield Answer(f"end.{label}_bytes", device, "snapshot, text", first_word(line_of(text, label)))


LISTS = {"categories": "by_category", "modules": "by_module", "lines": "by_line", "pools": "by_pool", "stages": "by_stage"}


def sizes(rows: list[Dict], bytes_: str, count: str) -> tuple[tuple[int, int], ...]:
    """Returns bytes and allocations of each row, the largest first: names are written for the place where they stand."""
    return tuple(sorted(((row[bytes_], row[count]) for row in rows if row[count]), reverse=True))


def with_stages_as_diff(stages: list[Dict]) -> list[Dict]:
    """Returns the stages with a * for numbers, as diff has them."""
    found: dict[str, Dict] = {}
    for stage in stages:
        row = found.setdefault(re.sub(r"\d+", "*", stage["name"]), {"bytes": 0, "allocations": 0})
        row["bytes"] += stage["bytes"]
        row["allocations"] += stage["allocations"]
    return list(found.values())


@question
def live_lists(subject: Subject) -> Answers:
    """Lists of live memory at the moment of explain's report, and at the end."""
    for device, one in devices(subject, "explain", "--top", "1000000").items():
        at = {"allocated_peak": "peak", "out_of_memory": "oom", "end": "end"}[one["peak"]["kind"]]
        other = moment(subject, at).get(device)
        for name, by in LISTS.items():
            rows = with_stages_as_diff(one[name]) if name == "stages" else one[name]
            yield Answer(f"live.{name}", device, "explain", sizes(rows, "bytes", "allocations"))
            if other:
                yield Answer(f"live.{name}", device, "diff", sizes(other[by]["rows"], "a_bytes", "a_allocations"))
            whole = sum(share["bytes"] for share in one[name])
            yield Answer("live.sum", device, f"explain's {name}", whole)
        yield Answer("live.sum", device, "explain", one["unavoidable_bytes"])
    if subject.is_trace:
        return
    of_snapshot = devices(subject, "snapshot", "--top", "1000000")
    for device, one in moment(subject, "end").items():
        yield Answer("end.lines", device, "diff", sizes(one["by_line"]["rows"], "a_bytes", "a_allocations"))
        yield Answer("end.lines", device, "snapshot", sizes(of_snapshot[device]["sites"], "bytes", "blocks"))


@question
def counts(subject: Subject) -> Answers:
    """Events and allocations."""
    for device, one in devices(subject, "explain").items():
        yield Answer("events", device, "explain", one["peak"]["events"])
    for device, one in moment(subject, "peak").items():
        yield Answer("events", device, "diff", one["a"]["events"])
    for device, one in () if subject.is_trace else devices(subject, "snapshot").items():
        yield Answer("events", device, "snapshot", one["history_entries"])
    for device, one in checked(subject).items():
        yield Answer("allocations", device, "check", one["allocations"])
    for policy in ("native", "expandable", "pages"):
        for device, one in checked(subject, "--policy", policy).items():
            yield Answer("allocations", device, f"check --policy {policy}", one["allocations"])
    for device, run in subject.commands.html.runs().items():
        yield Answer("events", device, "html", run.events)
        if run.description["left_out"] == 0:
            yield Answer("allocations", device, "html", sum(begin > 0 for begin in run.begins))
    if whole := history(subject):
        for device, one in whole.devices().items():
            yield Answer("events", device, "convert to json", len(one.events))
            yield Answer("allocations", device, "convert to json", one.count("alloc"))
    for name in ("advise", "compare", "replay"):
        for device, one in devices(subject, name, *(["--no-times"] if name == "advise" else [])).items():
            yield Answer("trace_events", device, name, one["events"])


@question
def cached(subject: Subject) -> Answers:
    """Memory that is reserved and not allocated."""
    for device, one in devices(subject, "explain").items():
        peak, parts = one["peak"], one["cached"]
        if peak["reserved_bytes"] == 0:
            continue
        yield Answer("cached", device, "explain", parts["bytes"])
        names = ("fragmentation", "other_stream", "private_pool", "graph_pools")
        yield Answer("cached", device, "explain's parts", sum(parts[name]["bytes"] for name in names))
        if at := moment(subject, str(peak["event"])).get(device):
            yield Answer("cached", device, "diff", at["a"]["reserved_bytes"] - at["a"]["allocated_bytes"])
        if peak["event"] == peak["events"]:
            yield Answer("cached", device, "snapshot", devices(subject, "snapshot")[device]["free_bytes"])
    for device, text in texts(subject, "explain").items():
        if found := line_of(text, "cached"):
            yield Answer("cached", device, "explain, text", first_word(found))
    for device, one in checked(subject).items():
        if one["reserved_bytes"]:
            reserved = devices(subject, "explain")[device]["peak"]["peak_reserved_bytes"]
            yield Answer("fragmentation", device, "check", float(one["fragmentation"]))
            yield Answer("fragmentation", device, "check and explain", max(0.0, 1 - one["peak_bytes"] / reserved))


@question
def what_is_listed(subject: Subject) -> Answers:
    """Devices with a history, settings, and the memory from before the history."""
    with_history = {"explain": {d for d, one in devices(subject, "explain").items() if one["peak"]["events"]}}
    with_history |= {"diff": {d for d, one in moment(subject, "peak").items() if one["a"]["events"]}}
    with_history |= {name: set(devices(subject, name, *(["--no-times"] if name == "advise" else []))) for name in ("advise", "compare", "replay")}
    with_history |= {"check": set(checked(subject)), "html": {d for d, run in subject.commands.html.runs().items() if run.events}}
    for name, listed in with_history.items():
        yield Answer("devices", 0, name, tuple(sorted(listed)))
    for name, key in (("explain", "settings"), ("snapshot", "settings")):
        if not subject.is_trace or name == "explain":
            yield Answer("settings", 0, name, subject.commands.json(name, subject.file)[0][key])
    if subject.settings is not None:
        yield Answer("settings", 0, "PyTorch", subject.settings)
    whole = history(subject)
    for device, one in whole.devices().items() if whole else ():
        yield Answer("earlier_bytes", device, "convert to json", sum(one.live.values()))
    for device, one in checked(subject).items():
        yield Answer("earlier_bytes", device, "check", one["earlier_bytes"])
    for device, text in texts(subject, "explain").items():
        if found := line_of(text, "history begins"):
            yield Answer("earlier_bytes", device, "explain, text", first_word(found))
    for device, text in diff_texts(subject).items():
        yield from text


def diff_texts(subject: Subject) -> dict[int, list[Answer]]:
    """Returns the answers in the first lines of diff's text."""
    with contextlib.suppress(Refused):
        text = subject.commands.text("diff", subject.file, subject.file)
        pattern = r"^A  .*: device (\d+), after event ([\d,]+) of ([\d,]+)\n   requested ([^,]+), allocated ([^,\n]+)"
        rows = {int(found[1]): found for found in re.finditer(pattern, text, re.MULTILINE)}
        keys = ("peak.event", "events", "peak.requested_bytes", "allocated_peak")
        return {device: [Answer(key, device, "diff, text", found[2 + i]) for i, key in enumerate(keys)] for device, found in rows.items()}
    return {}


@question
def difference_with_itself(subject: Subject) -> Answers:
    """Growths of the file against itself."""
    for at in ("peak", "reserved", "oom", "end"):
        for device, one in moment(subject, at).items():
            growths = [one["growth_bytes"], *(part["growth_bytes"] for part in one["parts"])]
            growths += [row["growth_bytes"] for by in LISTS.values() for row in one[by]["rows"]]
            yield Answer(f"diff_itself.{at}", device, "diff", max(map(abs, growths)))
            yield Answer(f"diff_itself.{at}", device, "a file and itself", 0)


@question
def converted_files(subject: Subject) -> Answers:
    """The memory and the cause are the same in a file that convert has made of the file."""
    for to in ("torch", "json"):
        with contextlib.suppress(Refused):
            again = subject.commands.devices("explain", subject.commands.converted(to))
            for device, one in devices(subject, "explain").items():
                for command, of in (("explain", one), (f"explain of convert to {to}", again[device])):
                    yield Answer(f"converted.{to}", device, command, told_of(of, is_trace=subject.is_trace))


def told_of(explanation: Dict, is_trace: bool) -> tuple[Value, ...]:
    """Returns what explain says of memory; of a trace, the addresses of which are made, without the remedies."""
    peak, verdict = explanation["peak"], explanation["verdict"]
    remedies = () if is_trace else tuple((one["key"], one["reserved_bytes"], one["of_bytes"], one["serves"]) for one in explanation["remedies"])
    figures = tuple(peak[key] for key in ("kind", "event", "events", "requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes"))
    return (*figures, verdict["cause"], explanation["cached"]["bytes"], remedies)
