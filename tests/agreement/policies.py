"""The questions about policies: how much memory each holds, on which devices the program fits with it, and which one helps."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

from commands import Dict, Refused, format_bytes, line_of
from questions import MIB, Answer, Answers, Subject, checked, devices, first_word, question

DEFAULT_DEVICE = 200_000 * MIB  # of check, compare and replay


@dataclass(frozen=True)
class Policy:
    """A policy, by the name that each command has for it."""

    name: str
    check: str
    compare: str
    advise: str
    replay: str | None = None
    explain: str | None = None  # key of the remedy
    html: str | None = None  # name of the layout


POLICIES = (
    Policy("native", "native", "pytorch", "native", replay="heap:segments"),
    Policy("expandable", "expandable", "pytorch_expandable_segments", "expandable_segments:True", explain="expandable_segments"),
    Policy("pages", "pages", "page_heap", "heap:pages", replay="heap:pages", explain="page_heap", html="page heap"),
)


def advised(subject: Subject, *words: str) -> dict[int, Dict]:
    return devices(subject, "advise", "--no-times", *words)


def policy_of(advice: Dict, name: str) -> Dict:
    return next(one for one in advice["policies"] if one["policy"] == name)


def remedies(explanation: Dict) -> dict[str, Dict]:
    return {one["key"]: one for one in explanation["remedies"]}


@question
def held_on_the_advised_device(subject: Subject) -> Answers:
    """Bytes that each policy holds on the device that advise plays on."""
    for device, advice in advised(subject).items():
        bytes_ = advice["on"]["usable_bytes"]
        for policy in POLICIES:
            one = policy_of(advice, policy.advise)
            yield Answer(f"held.{policy.name}", device, "advise", one["peak_reserved_bytes"])
            yield Answer(f"ooms.{policy.name}", device, "advise", one["ooms"])
            yield from on_device(subject, device, policy, bytes_, "")
        yield from as_explained(subject, device, advice)


def on_device(subject: Subject, device: int, policy: Policy, bytes_: int, ending: str) -> Answers:
    """The answers of check, compare and replay on a device of a size."""
    words = ("--device-memory", str(bytes_))
    if one := checked(subject, "--policy", policy.check, *words).get(device):
        yield Answer(f"held.{policy.name}{ending}", device, "check --policy", one["reserved_bytes"])
        yield Answer(f"ooms.{policy.name}{ending}", device, "check --policy", one["ooms"])
    if compared := devices(subject, "compare", *words).get(device):
        one = compared[policy.compare]
        yield Answer(f"held.{policy.name}{ending}", device, "compare", one["peak_held_bytes"])
        yield Answer(f"ooms.{policy.name}{ending}", device, "compare", one["ooms"])
    if policy.replay and (one := devices(subject, "replay", "--config", policy.replay, *words).get(device)):
        yield Answer(f"held.{policy.name}{ending}", device, "replay", one["peak_reserved_bytes"])
        yield Answer(f"held.{policy.name}{ending}", device, "replay, on the device", one["peak_driver_bytes"])
        yield Answer(f"ooms.{policy.name}{ending}", device, "replay", one["ooms"])


def as_explained(subject: Subject, device: int, advice: Dict) -> Answers:
    """The bytes of explain's remedies: on the memory that the program had, or on the device that advise plays on."""
    explanation = devices(subject, "explain")[device]
    has_failed = explanation["peak"]["kind"] == "out_of_memory"
    if not has_failed:
        explanation = devices(subject, "explain", "--memory", str(advice["on"]["usable_bytes"]))[device]
    found = remedies(explanation)
    for policy in POLICIES:
        remedy = found.get(policy.explain or "")
        if remedy and (remedy["serves"] or not has_failed):
            yield Answer(f"held.{policy.name}", device, "explain", remedy["reserved_bytes"])
        if has_failed and policy.explain:
            serves = bool(remedy and remedy["serves"])
            replayed = policy_of(advice, policy.advise)
            if remedy or not found:
                yield Answer(f"serves.{policy.name}", device, "explain", serves)
                yield Answer(f"serves.{policy.name}", device, "advise", replayed["ooms"] == 0)
    if found and not has_failed:
        now = next(iter(found.values()))["of_bytes"]
        yield Answer("held.now", device, "explain", now)
        yield Answer("held.now", device, "advise", policy_of(advice, advice["policy"])["peak_reserved_bytes"])
        if not subject.settings and advice["policy"] == "native":
            checked_now = checked(subject, "--policy", "native", "--device-memory", str(advice["on"]["usable_bytes"]))
            yield Answer("held.now", device, "check --policy native", checked_now[device]["reserved_bytes"])


@question
def held_without_options(subject: Subject) -> Answers:
    """Bytes that each policy holds with no option about the device: none of these commands says which one it plays on."""
    runs = subject.commands.html.runs()
    for device, explanation in devices(subject, "explain").items():
        found = remedies(explanation)
        for policy in POLICIES:
            name = f"held.{policy.name} by default"
            yield from on_default(subject, device, policy, name)
            if policy.explain in found and explanation["peak"]["kind"] != "out_of_memory":
                yield Answer(name, device, "explain", found[policy.explain]["reserved_bytes"])
            if policy.html and device in runs and policy.html in runs[device].description["layouts"]:
                yield Answer(name, device, "html", max(runs[device].held(policy.html)))


def on_default(subject: Subject, device: int, policy: Policy, name: str) -> Answers:
    if one := checked(subject, "--policy", policy.check).get(device):
        yield Answer(name, device, "check --policy", one["reserved_bytes"])
    if compared := devices(subject, "compare").get(device):
        yield Answer(name, device, "compare", compared[policy.compare]["peak_held_bytes"])
    if policy.replay and (one := devices(subject, "replay", "--config", policy.replay).get(device)):
        yield Answer(name, device, "replay", one["peak_reserved_bytes"])


@question
def fits(subject: Subject) -> Answers:
    """The program fits, or does not, into some sizes of a device."""
    for device, one in devices(subject, "replay", "--min-device", "--config", "heap:pages").items():
        live, least = one["peak_requested_bytes"], one["min_device_bytes"]
        native = devices(subject, "replay", "--min-device", "--config", "heap:segments")[device]["min_device_bytes"]
        sizes = {"the pages' least": least, "PyTorch's least": native, "too little": live - 2 * MIB, "between": (least + native) // 2}
        for label, bytes_ in sizes.items():
            if bytes_ >= 4 * MIB:
                yield from fits_into(subject, device, label, bytes_)
        yield Answer("fits.pages, the pages' least", device, "replay --min-device", True)
        yield Answer("fits.native, PyTorch's least", device, "replay --min-device", True)


def fits_into(subject: Subject, device: int, label: str, bytes_: int) -> Answers:
    advice = advised(subject, "--context", "none", "--memory", str(bytes_)).get(device)
    for policy in POLICIES:
        name = f"fits.{policy.name}, {label}"
        for one in on_device(subject, device, policy, bytes_, ""):
            if one.question.startswith("ooms."):
                yield Answer(name, device, one.command, one.value == 0)
        if advice:
            found = policy_of(advice, policy.advise)
            yield Answer(name, device, "advise, fails", found["ooms"] == 0)
            if not advice.get("ends_with_failure"):
                yield Answer(name, device, "advise, gpus", bool(found["gpus"]))


FAMILIES = {"native": "keep", "expandable_segments": "expandable", "page_heap": "pages"}


def family_of(policy: str, now: str) -> str:
    if policy == now:
        return "keep"
    if policy.startswith("heap:pages"):
        return "pages"
    return "expandable" if policy == "expandable_segments:True" else policy


@question
def advice(subject: Subject) -> Answers:
    """The settings that are recommended: explain's best remedy that is a setting, and advise's recommendation."""
    explained = devices(subject, "explain")
    for device, found in advised(subject).items():
        settings = [one["key"] for one in explained[device]["remedies"] if one["key"] in FAMILIES]
        recommended = found["recommendation"]
        has_none = recommended["sentence"].startswith("No advice")
        yield Answer("advice", device, "explain", (FAMILIES[settings[0]] if settings else "keep",))
        yield Answer("advice", device, "advise", ("no advice" if has_none else family_of(recommended["policy"], found["policy"]),))


@question
def advice_in_html(subject: Subject) -> Answers:
    """Reports have the settings and sentences of the text."""
    report = subject.commands.html.description["verdict"]
    for device, one in devices(subject, "explain").items():
        wanted = tuple(remedy["setting"] for remedy in one["remedies"])
        if len(devices(subject, "explain")) == 1:
            yield Answer("remedies", device, "explain", wanted)
            yield Answer("remedies", device, "html", tuple(remedy["setting"] for remedy in report["remedies"]))
            yield Answer("sentence", device, "explain", (one["verdict"]["text"],))
            yield Answer("sentence", device, "html", (report["headline"],))


MESSAGE_WITHOUT_FIGURES = "torch.OutOfMemoryError: CUDA out of memory.\n"


def cause_with(subject: Subject, message: str, *file: str) -> dict[int, str]:
    path = subject.commands.new_file(".log")
    path.write_text(message)
    with contextlib.suppress(Refused):
        return {device: one["verdict"]["cause"] for device, one in subject.commands.devices("explain", "--message", path, *file).items()}
    return {}


@question
def causes(subject: Subject) -> Answers:
    """The cause, with and without PyTorch's message."""
    for device, one in devices(subject, "explain").items():
        if one["peak"]["kind"] != "out_of_memory":
            continue
        yield Answer("cause", device, "explain FILE", (one["verdict"]["cause"],))
        file = str(subject.file)
        if len(devices(subject, "explain")) == 1:
            yield Answer("cause", device, "explain FILE --message without figures", (cause_with(subject, MESSAGE_WITHOUT_FIGURES, file)[device],))
        if subject.message is None:
            continue
        with_message = cause_with(subject, subject.message, file)
        if device in with_message:
            yield Answer("cause", device, "explain FILE --message", (with_message[device],))
        alone = cause_with(subject, subject.message).get(device, "unknown")
        if alone != "unknown":
            yield Answer("cause", device, "explain --message", (alone,))


# ---- texts of the commands that replay


@question
def texts_of_replays(subject: Subject) -> Answers:
    """The texts of advise, compare and replay have the figures of their JSON."""
    for name in ("advise", "compare", "replay"):
        words = ["--no-times"] if name == "advise" else []
        found = devices(subject, name, *words)
        if len(found) != 1:
            continue
        [(device, one)] = found.items()
        text = subject.commands.text(name, *words, subject.file)
        yield from {"advise": advise_text, "compare": compare_text, "replay": replay_text}[name](device, one, text)


def advise_text(device: int, one: Dict, text: str) -> Answers:
    for policy in one["policies"]:
        name = f"text of advise, {policy['policy']}"
        yield Answer(name, device, "advise", (format_bytes(policy["peak_reserved_bytes"]), str(policy["ooms"])))
        line = policy["line"] or "(PyTorch's default)"
        [row] = [row for row in text.splitlines() if row.endswith(f"  {line}")]
        found = re.match(r" *([\d.,]+ \w+) +\S+(?: %)? +(\d+)  ", row)
        yield Answer(name, device, "advise, text", found and (found[1], found[2]))
    joined = " ".join(text.split())
    yield Answer("text of advise, the sentence", device, "advise, text", one["recommendation"]["sentence"] in joined)
    yield Answer("text of advise, the sentence", device, "advise", True)


def compare_text(device: int, one: Dict, text: str) -> Answers:
    row = text.splitlines()[2].split()
    held = [one[policy.compare]["peak_held_bytes"] for policy in POLICIES]
    mib = [f"{bytes_ / MIB:.0f}" for bytes_ in (one["peak_requested_bytes"], *held)]
    yield Answer("text of compare", device, "compare", (f"{one['events']:,}", *mib))
    yield Answer("text of compare", device, "compare, text", tuple(row[i] for i in (1, 2, 3, 5, 7)))


def replay_text(device: int, one: Dict, text: str) -> Answers:
    for key in ("requested", "allocated", "reserved"):
        yield Answer(f"text of replay, {key}", device, "replay", one[f"peak_{key}_bytes"])
        yield Answer(f"text of replay, {key}", device, "replay, text", first_word(line_of(text, f"peak {key}")))
    yield Answer("text of replay, failures", device, "replay", (str(one["ooms"]) if one["ooms"] else "none",))
    yield Answer("text of replay, failures", device, "replay, text", ((line_of(text, "failed allocations") or "").split(";")[0].replace(",", ""),))


@question
def texts_of_checks(subject: Subject) -> Answers:
    """The text of check has the figures of its JSON."""
    with contextlib.suppress(Refused):
        text = subject.commands.text("check", "--max-peak", "1024TiB", "--no-oom", subject.file)
        rows = [row.rsplit(": ", 1)[1] for row in text.splitlines() if not row.startswith("note")]
        found = subject.commands.devices("check", "--max-peak", "1024TiB", "--no-oom", subject.file)
        yield Answer("text of check", 0, "check, text", tuple(rows))
        figures = [(format_bytes(one["peak_bytes"]), f"{one['ooms']:,}") for one in found.values()]
        yield Answer("text of check", 0, "check", tuple(word for pair in figures for word in pair))


@question
def reports_of_advise(subject: Subject) -> Answers:
    """The report of advise has the rows of its JSON, and its sentence."""
    found = advised(subject)
    if len(found) != 1:
        return
    [(device, one)] = found.items()
    report = subject.commands.html_of("advise", "--no-times", subject.file).description
    [table] = [table for table in report["tables"] if table["title"].startswith("Policies for")]
    at = [[title for title, _ in table["columns"]].index(name) for name in ("policy", "reserved", "fails")]
    rows = tuple(tuple(row[i] for i in at) for row in table["rows"])
    yield Answer("report of advise", device, "html", rows)
    yield Answer("report of advise", device, "advise", tuple((row["policy"], row["peak_reserved_bytes"], row["ooms"]) for row in one["policies"]))
    yield Answer("report of advise, the sentence", device, "html", (report["verdict"]["headline"],))
    yield Answer("report of advise, the sentence", device, "advise", (one["recommendation"]["sentence"],))
